"""A fact of a model's function: its value, and where it comes from.

An origin is a text that records and messages repeat: "tensors", "user", "config.json", a table, an
architecture that is named, or an assumption.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitconvert.config import field_names

TENSORS = "tensors"
USER = "user"
CONFIG = "config.json"
ASKED = "vitconvert, as it was asked to"
"""The origin of what a conversion changed on the way."""
OF_ARCHITECTURE = "architecture "  # and its name
ASSUMED = "assumed"
_BY_RECORD = "vitconvert.json"
_REPEATED = f", recorded in {_BY_RECORD}"


class Fact(NamedTuple):
    """What a field is, and who says so."""

    value: Any
    origin: str


Facts = dict[str, Fact]
"""The facts by their fields."""
UNKNOWN = Fact(None, "")


def state(values: Mapping[str, object], origin: str) -> Facts:
    """Values that all come from one place."""
    return {field: Fact(value, origin) for field, value in values.items()}


def strongest(*sources: Facts) -> Facts:
    """Merge statements; earlier ones win."""
    merged: Facts = {}
    for source in sources:
        for field, fact in source.items():
            if field in field_names():
                merged.setdefault(field, fact)
    return merged


def named_architecture(origin: str) -> str:
    """The architecture that an origin names; "" where it is another."""
    return origin.removeprefix(OF_ARCHITECTURE) if origin.startswith(OF_ARCHITECTURE) else ""


def is_assumed(origin: str) -> bool:
    """Whether a fact is a default of a table of `weights_map/`, or another assumption."""
    return origin.startswith(("weights_map/", ASSUMED))


def recorded(origin: str, *, assumed: bool) -> str:
    """Returns the origin of a fact that a record repeats: its first source, and the record.

    Args:
        origin: As the record states it; "" if it does not.
        assumed: Whether the record counts it among what was assumed, such as by a user's own table.
    """
    if not origin:
        return _BY_RECORD
    known = origin if is_assumed(origin) or not assumed else f"{ASSUMED}: {origin}"
    return known if is_recorded(known) else f"{known}{_REPEATED}"


def is_recorded(origin: str) -> bool:
    """Whether a record repeats a fact, so that its first source was another checkpoint's."""
    return origin.endswith(_BY_RECORD)


def first_origin(origin: str) -> str:
    """The origin that a fact had before any record repeated it; "" if the record has none."""
    return "" if origin == _BY_RECORD else origin.removesuffix(_REPEATED)


def show(value: object) -> str:
    """A value in a message: 32x24, not (32, 24)."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
