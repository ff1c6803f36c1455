"""Wrappers that training programs put around weights: `weights_map/prefixes.toml`."""

import functools
from collections.abc import Mapping

from vitconvert.toml_files import read_tables


def prefixes() -> Mapping[str, str]:
    """Prefixes of every key, and the wrappers that they are from."""
    found: Mapping[str, str] = read_tables("prefixes")["prefixes"]
    return found


def wrapper_keys() -> tuple[str, ...]:
    """Keys of a checkpoint under which its weights lie, best first."""
    return tuple(read_tables("prefixes")["wrappers"])


def why_beside(key: str) -> str | None:
    """The meaning of a key of a wrapper's own, or None for any other key."""
    for name, reason in _beside():
        if key == name or (name.endswith("*") and key.startswith(name[:-1])):
            return reason
    return None


@functools.cache
def _beside() -> tuple[tuple[str, str], ...]:
    return tuple((name, str(reason)) for name, reason in read_tables("prefixes")["beside"].items())
