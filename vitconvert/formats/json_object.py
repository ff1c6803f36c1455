"""JSON that says where tensors lie: the header of safetensors, and the index of shards."""

import json
from pathlib import Path

from vitconvert.errors import CorruptFile


def parse_object(path: Path, data: bytes, *, what: str) -> dict[str, object]:
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
        raise CorruptFile(
            f"{what} is not valid JSON.", evidence={"file": path, "reason": reason[:160]}
        ) from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{what} is not a JSON object.", evidence={"file": path})
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
