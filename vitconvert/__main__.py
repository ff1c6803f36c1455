"""`vitconvert`, and `python -m vitconvert`."""

import sys


def main() -> None:
    """Run the command line; an interrupt while it is imported ends as a later one does."""
    try:
        from vitconvert.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
