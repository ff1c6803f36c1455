"""Wrappers that training programs put around weights: `weights_map/prefixes.toml`."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from vitconvert.toml_files import read_tables

_COUNTS = ("n_averaged", "steps")  # beside `module`, of torch's and MMEngine's averaged models


def prefixes() -> Mapping[str, str]:
    """Prefixes of every key, and the wrappers that they are from."""
    found: Mapping[str, str] = read_tables("prefixes")["prefixes"]
    return found


def wrapper_keys() -> tuple[str, ...]:
    """Keys of a checkpoint under which its weights lie, best first."""
    return tuple(read_tables("prefixes")["wrappers"])


def is_averaged(key: str) -> bool:
    """Whether a key is called as averaged weights are."""
    known = read_tables("prefixes")["averaged"]
    words = set(known["words"])
    return key not in known["unlike"] and not words.isdisjoint(key.lower().split("_"))


def first_where(level: Mapping[str, object]) -> tuple[str, ...]:
    """The keys that come before all others, by what is in them or which keys lie beside them."""
    tables = read_tables("prefixes")
    by_name: Mapping[str, list[str]] = tables["first_with"]
    by_key: Mapping[str, str] = tables["first"]
    holding = (
        key
        for end, keys in by_name.items()
        for key in keys
        if isinstance(inner := level.get(key), Mapping)
        and any(str(name).endswith(end) for name in inner)
    )
    return (*holding, *(key for mark, key in by_key.items() if mark in level))


def why_beside(key: str) -> str | None:
    """The meaning of a key of a wrapper's own, or None for any other key."""
    for name, reason in _beside():
        if key == name or (name.endswith("*") and key.startswith(name[:-1])):
            return reason
    return None


def words_within() -> Mapping[str, str]:
    """Words that wrappers put into names, and the wrappers that they are from."""
    tables = read_tables("prefixes")
    return {**tables["within"], **tables["within_alone"]}


def unwrapped(names: Collection[str], kept: Iterable[str] = ()) -> dict[str, str]:
    """Names without the words of wrappers of a part -> the names as they are, in their order.

    A word stays where something stands beside it that may as well be a module of the model, and
    where two names would be the same without it.

    Args:
        names: Of tensors, with dots.
        kept: Words that are no wrapper's here.
    """
    always: set[str] = set(read_tables("prefixes")["within"]) - set(kept)
    alone: set[str] = set(read_tables("prefixes")["within_alone"]) - set(kept)
    if not any(f".{word}." in f".{name}" for name in names for word in always | alone):
        return {name: name for name in names}
    below: Counter[str] = Counter()  # how many names begin with a path
    for name in names:
        words = name.split(".")
        below.update(".".join(words[:depth]) for depth in range(len(words) + 1))

    def plain(name: str) -> str:
        words = name.split(".")
        return ".".join(
            word
            for at, word in enumerate(words)
            if word not in always
            # At the root, `[prefixes]` has the word, and what may stand beside it.
            and not (word in alone and at and _only(below, words, at))
        )

    found = {plain(name): name for name in names}
    return found if len(found) == len(names) else {name: name for name in names}


def _only(below: Counter[str], words: list[str], at: int) -> bool:
    """Whether all names that begin as this one does have this word next, but for a count."""
    above = ".".join(words[:at])
    counts = sum(f"{above}.{name}" in below for name in _COUNTS)
    last = at + 1 == len(words)
    return not last and below[above] - counts == below[".".join(words[: at + 1])]


@functools.cache
def _beside() -> tuple[tuple[str, str], ...]:
    return tuple((name, str(reason)) for name, reason in read_tables("prefixes")["beside"].items())
