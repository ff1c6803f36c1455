"""Headers that others wrote: read within bounds, and never believed before they are checked."""

import json
from collections.abc import Collection
from math import prod
from pathlib import Path

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import TensorInfo

AGAIN = "download it again."
"""The hint for a file that lacks bytes, or has others than those that were written."""

# No weight comes near either limit; beyond them torch and numpy fail with their own messages.
_MOST_AXES = 32
_MOST_ELEMENTS = 2**63 - 1


def corrupt(
    path: Path, fact: str, *, meaning: str | None = None, hint: str | None = None, **more: object
) -> CorruptFile:
    """The error for a file that contradicts itself, with further evidence."""
    return CorruptFile(fact, evidence={"file": path, **more}, meaning=meaning, hint=hint)


def checked_shape(path: Path, name: str, shape: object) -> tuple[int, ...]:
    """The shape that a header declares, if memory could hold one like it.

    Raises:
        CorruptFile: It is not a list of axis lengths, or absurdly large.
    """
    if not isinstance(shape, list | tuple) or not all(type(axis) is int for axis in shape):
        fact = f"{name!r} has a shape that is not a list of whole numbers."
    elif any(axis < 0 for axis in shape):
        fact = f"{name!r} has an axis of negative length."
    elif len(shape) > _MOST_AXES or prod(max(axis, 1) for axis in shape) > _MOST_ELEMENTS:
        fact = f"{name!r} has a shape that no memory can hold."
    else:
        return tuple(shape)
    raise corrupt(path, fact, shape=shown(shape))


def checked_dtype(path: Path, name: str, dtype: object, known: Collection[str]) -> str:
    """The dtype that a header declares, if it is one of those that are read.

    Raises:
        CorruptFile: It is another.
    """
    if isinstance(dtype, str) and dtype in known:
        return dtype
    fact = f"{name[:80]!r} has a dtype that is not read here."
    raise corrupt(path, fact, dtype=shown(dtype), known=" ".join(known))


def check_size(path: Path, name: str, info: TensorInfo, found: int) -> None:
    """Refuse a tensor that has other than the bytes that its header declares.

    Raises:
        CorruptFile: It has.
    """
    if found != info.nbytes:
        raise corrupt(
            path,
            f"{name[:80]!r} does not have the size that its header declares.",
            shape=list(info.shape),
            declared=f"{info.nbytes:,} bytes",
            found=f"{found:,} bytes",
        )


def shown(value: object) -> str:
    """A value of a hostile header, short. What nests, or has a million digits, is named only."""
    several = isinstance(value, list | tuple)
    parts = list(value[:_MOST_AXES]) if isinstance(value, list | tuple) else [value]
    for part in parts:
        plain = part is None or isinstance(part, str | float | int)
        if not plain or (isinstance(part, int) and abs(part) >= 2**64):
            return f"a {type(part).__name__}"
    return str(parts if several else value)[:80]


def truncated(path: Path, expected: int, found: int, least: str = "") -> CorruptFile:
    """The error for a file that has fewer bytes than its header states."""
    bounds = {"expected": f"{least}{expected:,} bytes", "found": f"{found:,} bytes"}
    return corrupt(path, "The file is truncated.", hint=AGAIN, **bounds)


def parse_strict_object(path: Path, data: bytes, *, what: str) -> dict[str, object]:
    """Parse a JSON object in which no key repeats and all text is Unicode.

    Args:
        path, what: The file, and what of it this is, for messages.
        data: The JSON.

    Raises:
        CorruptFile: It is something else.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise corrupt(path, f"{what} is not valid JSON.", reason=reason[:160]) from error
    if not isinstance(value, dict):
        raise corrupt(path, f"{what} is not a JSON object.")
    return value


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # json keeps the last of two equal keys in silence, so one of two tensors would vanish.
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key[:80]!r} appears twice")
        for text in (key, value):
            if isinstance(text, str):
                text.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
        found[key] = value
    return found
