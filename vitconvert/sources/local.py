"""Paths."""

from pathlib import Path

from vitconvert.sources.located import Located, beside


def locate_path(reference: str, path: Path) -> Located:
    """What lies at a path: a directory as it is, a file with what is beside it."""
    return Located(
        reference=reference,
        weights=path,
        **beside(path if path.is_dir() else path.parent),
        random=False,
        name=None,
        repo=None,
        revision=None,
        url=None,
        sha256={},
        verified=(),
    )
