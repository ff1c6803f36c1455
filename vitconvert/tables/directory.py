"""Where the mapping tables lie."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def tables_dir() -> Traversable:
    """The mapping tables: inside the package once installed, beside it in a checkout."""
    package = files("vitconvert")
    installed = package / "weights_map"
    return installed if installed.is_dir() else Path(str(package)).parent / "weights_map"
