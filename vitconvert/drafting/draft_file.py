"""Where a draft is written: nothing but an earlier draft is replaced."""

from functools import partial
from pathlib import Path

from vitconvert.drafting.draft_text import MARK
from vitconvert.errors import OutputExists, UsageError
from vitconvert.whole import require_place, whole_file

_SUFFIX = ".toml"


def check_draft_output(path: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that a draft may be written.

    Raises:
        UsageError: The name is no table's, or no file can be there.
        OutputExists: The file exists, and `overwrite` is false or it is no draft.
    """
    if path.suffix != _SUFFIX:
        raise UsageError(f"The name of a table ends with {_SUFFIX}.", evidence={"output": path})
    require_place(path)
    if not path.exists():
        return
    if not overwrite:
        hint = "--force (in Python, overwrite=True) replaces an earlier draft."
        raise OutputExists("The table already exists.", evidence={"output": path}, hint=hint)
    if not _is_draft(path):
        raise OutputExists(
            "What lies there is no draft of a table, and is not replaced.",
            evidence={"output": path},
        )


def _is_draft(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def write_draft(text: str, path: Path, *, overwrite: bool = False) -> None:
    """Write a draft, which appears whole or not at all.

    Raises:
        UsageError: There is no place for the file.
        OutputExists: As for `check_draft_output`, of what appeared meanwhile.
    """
    with whole_file(path, check=partial(check_draft_output, overwrite=overwrite)) as file:
        file.write(text.encode())
