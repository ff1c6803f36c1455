"""Parses the value of a field of ViTConfig, as a user or a config file writes it."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from vitconvert.config import Kind, ViTConfig
from vitconvert.config.contradictions import LARGEST, MOST_BLOCKS
from vitconvert.errors import UsageError, nearest


def parse_field(name: str, value: object, of: Kind = ViTConfig) -> Any:
    """Convert a value from a user or a config file to the type of a field of `of`.

    Sizes may be one number, `HEIGHTxWIDTH`, a pair, or channels, height and width.

    Raises:
        UsageError: The field does not exist, or the value has the wrong type.
    """
    kinds = _kinds(of)
    if name not in kinds:
        near = nearest(name, kinds, 3)
        raise UsageError(
            f"{name!r} is not a field of {of.__name__}.",
            evidence={} if near else {"fields": ", ".join(kinds)},
            hint=f"did you mean {' or '.join(map(repr, near))}?" if near else None,
        )
    try:
        return _PARSERS[kinds[name]](value)
    except (ValueError, TypeError, OverflowError):
        wanted = _WANTED[kinds[name]]
        raise UsageError(f"{name} must be {wanted}, not {_short(value)}.") from None


@functools.cache
def _kinds(of: Kind) -> Mapping[str, Any]:
    return {f.name: f.type for f in dataclasses.fields(of) if f.name != "origins"}


def _parse_bool(value: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if not isinstance(value, str | bool | int) or str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


def _parse_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise ValueError(value)
    if isinstance(value, Real) and not float(value).is_integer():
        raise ValueError(value)
    if abs(number := int(value if isinstance(value, str) else float(value))) > LARGEST:
        raise ValueError(value)
    return number


def _parse_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise ValueError(value)
    return float(value)


def _parse_ints(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        value = [part for part in value.replace("x", ",").split(",") if part]
    if isinstance(value, bytes):
        raise ValueError(value)
    numbers = list(value) if isinstance(value, Iterable) else [value]
    if len(numbers) > MOST_BLOCKS:
        raise ValueError(value)
    return tuple(map(_parse_int, numbers))


def parse_size(value: object) -> tuple[int, int]:
    """Height and width; of channels, height and width, the last two.

    Raises:
        ValueError, TypeError: It is not a size.
    """
    numbers = _parse_ints(value)
    if len(numbers) not in (1, 2, 3) or min(numbers) < 1:
        raise ValueError(value)
    return (numbers[0], numbers[0]) if len(numbers) == 1 else (numbers[-2], numbers[-1])


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_PARSERS: Mapping[Any, Callable[[object], Any]] = {
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    str: _parse_text,
    float | None: _parse_float,
    tuple[int, int]: parse_size,
    tuple[int, ...]: _parse_ints,
}
_WANTED: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    float | None: "a number",
    tuple[int, int]: "a size such as 224 or 224x320 (height x width)",
    tuple[int, ...]: "whole numbers such as 3,4,9",
}
