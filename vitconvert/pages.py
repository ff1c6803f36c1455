"""HTML pages that need no other file, and how a later run knows what vitconvert wrote."""

import html
from pathlib import Path

from vitconvert.atomic_write import require_place, require_replaceable
from vitconvert.errors import printable

GENERATOR = '<meta name="generator" content="vitconvert">'
# What pages and PNG files say near their beginning; only such files are replaced.
_MARKS = (GENERATOR.encode(), b"Software\0vitconvert")


def shown(text: str) -> str:
    """Text that a page shows as it is, whatever characters it holds."""
    return html.escape(printable(text))


def framed(page: str, *, height: str, scripts: bool = False) -> str:
    """A page inside a notebook's cell, which nothing in it can leave."""
    sandbox = 'sandbox="allow-scripts"' if scripts else "sandbox"
    return (
        f'<iframe {sandbox} srcdoc="{html.escape(page)}" '
        f'style="width: 100%; height: {height}; border: 0"></iframe>'
    )


def check_file(path: Path, *, overwrite: bool) -> None:
    """Check, before any work is done, that a page or a PNG file may be written.

    Raises:
        UsageError: Nothing can be here, or its directory does not exist.
        OutputExists: Something is here, and `overwrite` is false or vitconvert did not write it.
    """
    require_place(path)
    require_replaceable(path, _is_ours, overwrite=overwrite)


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            beginning = file.read(1024)
    except OSError:
        return False
    return any(mark in beginning for mark in _MARKS)
