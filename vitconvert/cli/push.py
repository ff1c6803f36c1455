"""`vitconvert push DIR REPO`."""

from pathlib import Path
from typing import Any

import click

from vitconvert.cli.options import reporting_options
from vitconvert.cli.report import print_json, push_report, tell


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("directory", type=click.Path(path_type=Path))
    @click.argument("repo")
    @click.option("--private", is_flag=True, help="If the repository is created, make it private.")
    @click.option("--create-pr", is_flag=True, help="Open a pull request instead of committing.")
    @click.option("--revision", help="Branch to commit to; created if it does not exist.")
    @click.option("-m", "--message", help="The commit message.")
    @click.option("--token", help="A token that may write; default: `hf auth login`.")
    @click.option("--dry-run", is_flag=True, help="Check and list the files, and send nothing.")
    @click.option("--force", is_flag=True, help="Publish random weights too.")
    @reporting_options
    def push(**options: Any) -> int:
        return _push(**options)

    return push


def _push(
    directory: Path,
    repo: str,
    *,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    force: bool,
    **options: Any,
) -> int:
    from vitconvert.conversion.push import files_to_push, push, sizes

    if dry_run:
        files = sizes(files_to_push(directory, force=force))
        if as_json:
            print_json({"ok": True, "repo": repo, "dry_run": True, "files": files})
        else:
            tell(push_report(files, quiet=quiet))
        return 0
    pushed = push(directory, repo, quiet=quiet or as_json, force=force, **options)
    if as_json:
        print_json({"ok": True, **pushed.to_dict()})
    elif quiet:
        tell(pushed.url)
    else:
        tell(push_report(pushed.files, pushed))
    return 0
