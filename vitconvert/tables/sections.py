"""The sections of a dialect's file, on top of those of the table that it extends."""

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vitconvert.errors import TableError
from vitconvert.tables.directory import tables_dir

# Files of weights_map/ that are not dialects.
_OTHERS = ("canonical", "prefixes", "downloads", "architectures")
# What a table says of itself alone.
_NOT_INHERITED = ("requires", "named_only", "allowed_as", "install")

Sections = Mapping[str, Any]


@functools.cache
def builtin_texts() -> Mapping[str, str]:
    """The text of every dialect of `weights_map/`, by name, sorted."""
    files = {stem_of(f): f for f in tables_dir().iterdir() if f.name.endswith(".toml")}
    names = sorted(files.keys() - set(_OTHERS))
    return {name: _read(files[name], builtin_label(name)) for name in names}


def builtin_sections(name: str) -> Sections:
    """The sections of a dialect of `weights_map/`.

    Raises:
        TableError: The file, or one that it extends, is not TOML.
    """
    return _on_top_of_parent(name, builtin_label(name), _own_sections(name), ())


def read_sections(file: Traversable | Path, label: str) -> Sections:
    """The sections of any file.

    Raises:
        TableError: It cannot be read, is not TOML or extends what is no table.
    """
    return _on_top_of_parent(stem_of(file), label, _parse(_read(file, label), label), ())


def stem_of(file: Traversable | Path) -> str:
    """The name of the dialect in a file."""
    return file.name.removesuffix(".toml")


def builtin_label(name: str) -> str:
    """How messages call a file of `weights_map/`."""
    return f"weights_map/{name}.toml"


@functools.cache
def _own_sections(name: str) -> Sections:
    return _parse(builtin_texts()[name], builtin_label(name))


def _read(file: Traversable | Path, label: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _not_toml(label, error) from None
    except OSError as error:
        raise TableError(
            "The table cannot be read.", evidence={"file": label, "problem": error.strerror}
        ) from None


def _parse(text: str, label: str) -> Sections:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(label, error) from None


def _not_toml(label: str, problem: Exception) -> TableError:
    return TableError(
        "The table is not TOML.",
        evidence={"file": label, "problem": problem},
        hint="Keys that hold dots or braces must be quoted.",
    )


def _on_top_of_parent(name: str, label: str, data: Sections, children: tuple[str, ...]) -> Sections:
    dialect = data.get("dialect")
    if not isinstance(dialect, dict) or "extends" not in dialect:
        return data
    parent = str(dialect["extends"])
    if parent in (*children, name) or parent not in builtin_texts():
        raise TableError(
            f"The table extends {dialect['extends']!r}, which is "
            + ("itself." if parent in builtin_texts() else "no table."),
            evidence={"file": label},
        )
    base = _on_top_of_parent(
        parent, builtin_label(parent), _own_sections(parent), (*children, name)
    )
    inherited = {k: v for k, v in base["dialect"].items() if k not in _NOT_INHERITED}
    return _merge({**base, "dialect": inherited}, data)


def _merge(base: Sections, top: Sections) -> dict[str, Any]:
    """Sections key by key; what `top` sets to false is taken away."""
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both and isinstance(old, dict) else value
    return merged
