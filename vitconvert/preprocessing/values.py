"""Numbers and sizes as files state them, checked."""

import sys
from collections.abc import Iterable

from vitconvert.errors import ConflictingFact

Size = tuple[int, int]  # height, width
LONGEST_SIDE = 2**16  # of an image that a model reads, or that is cropped to it: pixels


_LONGEST_TEXT = 200


def numbers(values: object, name: str, count: int, *, repeat: bool = True) -> tuple[float, ...]:
    """`count` finite numbers; with `repeat`, one number, or several equal ones, may stand for them.

    Raises:
        ConflictingFact: The value is something else.
    """
    found = tuple(values) if isinstance(values, Iterable) else (values,)
    if repeat and found and all(v == found[0] for v in found):
        found = found[:1] * count
    if len(found) != count or not all(map(_is_finite, found)):
        wanted = "a number" if count == 1 else f"{count} numbers"
        raise ConflictingFact(f"{name} = {short(values)} should be {wanted}.")
    return tuple(map(float, found))


def positive(value: object, name: str) -> float:
    """One number above zero.

    Raises:
        ConflictingFact: The value is something else.
    """
    (number,) = numbers(value, name, 1)
    if number <= 0:
        raise ConflictingFact(f"{name} = {value} must be positive.")
    return number


def whole_numbers(values: object, name: str, count: int, *, repeat: bool = True) -> tuple[int, ...]:
    """`count` numbers of pixels, as `numbers` reads them.

    Raises:
        ConflictingFact: The value is something else.
    """
    found = numbers(values, name, count, repeat=repeat)
    if not all(v.is_integer() and 1 <= v <= LONGEST_SIDE for v in found):
        raise ConflictingFact(f"{name} = {short(values)} should be whole numbers of pixels.")
    return tuple(map(int, found))


def height_width(values: object, name: str) -> Size:
    """A (height, width) in pixels; a single number means both.

    Raises:
        ConflictingFact: The value is something else.
    """
    height, width = whole_numbers(values, name, 2)
    return height, width


def short(value: object) -> str:
    """A value of somebody's, for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # JSON's whole numbers may be larger
