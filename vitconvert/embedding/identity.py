"""Whether rows may stand in one output: they are numbers of the same function of the same kind."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitconvert.errors import ConflictingFact

_LONGEST = 60


def check_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare the identity of an output with that of a run.

    Raises:
        ConflictingFact: They differ; it names in what.
    """
    differing = list(_differences(found, _plain(wanted), ""))
    if differing:
        raise ConflictingFact(
            "The output holds other numbers, and they are not mixed.",
            evidence={
                name: f"{_short(old)} there, {_short(new)} now" for name, old, new in differing
            },
            hint="name another output with -o, or repeat what was said when this one was begun.",
        )


def _differences(found: Any, wanted: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in found.keys() | wanted.keys():
            inner = f"{name} {key}".strip()
            yield from _differences(found.get(key), wanted.get(key), inner)
    elif found != wanted:
        yield name, found, wanted


def _plain(value: Any) -> Any:
    """As it is once it was written as JSON, and read."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
