"""Where facts come from, in words that stay true when a record of them is read back."""

_BY_RECORD = "vitconvert.json"
_ASSUMED = "assumed"


def is_assumed(origin: str) -> bool:
    """Whether a fact is a default of a table of `weights_map/`, or another assumption."""
    return origin.startswith(("weights_map/", _ASSUMED))


def recorded(origin: str, *, assumed: bool) -> str:
    """Where a fact comes from that a record repeats: its first source, and that there is a record.

    Args:
        origin: As the record states it; "" if it does not.
        assumed: Whether the record counts it among what was assumed, such as by a user's own table.
    """
    if not origin:
        return _BY_RECORD
    known = origin if is_assumed(origin) or not assumed else f"{_ASSUMED}: {origin}"
    return known if is_recorded(known) else f"{known}, by {_BY_RECORD}"


def is_recorded(origin: str) -> bool:
    """Whether a record repeats a fact, so that its first source was another checkpoint's."""
    return origin.endswith(_BY_RECORD)
