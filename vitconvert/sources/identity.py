"""How vitconvert presents itself to servers."""

from importlib.metadata import PackageNotFoundError, version

LIBRARY = "vitconvert"


def library_version() -> str:
    """The installed version; 0 in a checkout that is not installed."""
    try:
        return version(LIBRARY)
    except PackageNotFoundError:
        return "0"
