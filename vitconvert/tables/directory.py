"""Where the mapping tables lie."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def tables_dir() -> Path:
    """The mapping tables: inside the package once installed, beside it in a checkout."""
    installed = _PACKAGE / "weights_map"
    return installed if installed.is_dir() else _PACKAGE.parent / "weights_map"
