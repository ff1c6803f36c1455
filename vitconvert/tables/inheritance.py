"""The sections of a dialect's file, merged with those of the table that it extends."""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitconvert.documents import check_values, read_bytes
from vitconvert.errors import SourceError, TableError, nearest
from vitconvert.toml_files import LazyToml, tables_dir

# Files of weights_map/ that are not dialects.
_OTHERS = (
    *("canonical", "prefixes", "downloads", "architectures", "translations", "towers"),
    *("others", "preprocessing", "drafts"),
)
# What a table says of itself alone.
_NOT_INHERITED = ("requires", "named_only", "historic", "install", "resampling")

Sections = Mapping[str, Any]

MOST_BYTES = 2**20  # of a table; the longest of ours has a hundredth
# tomllib looks through all parts of a key again for each of them (CPython 3.11).
_CHAIN = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){32}")


TEXT = "text/"  # the folder of the tables of text towers
CORES = "cores/"  # of what several tables begin with, and which is no dialect itself


def builtin_texts(folder: str = "") -> Mapping[str, str]:
    """The text of every table of `weights_map/`, or of a folder in it, by name, sorted."""
    return _texts(folder)


def builtin_sections(name: str, folder: str = "") -> Sections:
    """The sections of a table of `weights_map/`, each parsed when it is first asked for."""
    return _sections(name, folder)


def builtin_text(name: str) -> str:
    """The text of a dialect, or of `cores/NAME`; "" if there is none."""
    if name.startswith(CORES):
        return _texts(CORES).get(name.removeprefix(CORES), "")
    return _texts("").get(name, "")


@functools.cache  # of its own: to it, a default that is written out is another call
def _texts(folder: str) -> Mapping[str, str]:
    place = tables_dir() / folder
    files = {stem_of(f): f for f in place.iterdir() if f.name.endswith(".toml")}
    names = sorted(files.keys() - set(_OTHERS))
    return {name: _read(files[name], builtin_label(folder + name)) for name in names}


@functools.cache
def _sections(name: str, folder: str) -> Sections:
    sections = LazyToml(builtin_texts(folder)[name])
    return _on_top_of_parent(name, builtin_label(folder + name), sections, folder)


def read_sections(file: Path, label: str) -> Sections:
    """The sections of any file.

    Raises:
        TableError: It cannot be read, is not TOML or extends what is no table.
    """
    return _on_top_of_parent(stem_of(file), label, _parse(_read(file, label), label))


def stem_of(file: Path) -> str:
    """The name of the dialect in a file."""
    return file.name.removesuffix(".toml")


def builtin_label(name: str) -> str:
    """The name of a file of `weights_map/` in messages."""
    return f"weights_map/{name}.toml"


def mistake(label: str, place: str, problem: object, hint: str | None = None) -> TableError:
    """A mistake at a place of a file."""
    return TableError(
        "The table does not parse.",
        evidence={"file": label, "place": place, "problem": problem},
        hint=hint,
    )


def place_of(section: str, key: str) -> str:
    """The name of an entry in messages: the section before the key, as in TOML."""
    return f"{section}.{key}" if key.isidentifier() else f'{section}."{key}"'


def _read(file: Path, label: str) -> str:
    try:
        return read_bytes(file, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
    except ValueError as error:
        raise _not_toml(label, error) from None
    except SourceError as error:
        near = nearest(file.name, (other.name for other in file.parent.glob("*.toml")), 3)
        raise TableError(
            "The table cannot be read.",
            evidence={"file": label, "problem": error.evidence["reason"]},
            hint=f"did you mean {' or '.join(str(file.parent / name) for name in near)}?"
            if near
            else None,
        ) from None


def _parse(text: str, label: str) -> Sections:
    import tomllib

    if chain := _CHAIN.search(text):
        raise _not_toml(label, f"a key of too many parts: {chain[0][:40]}...")
    try:
        sections = tomllib.loads(text)
        check_values(sections)
    except (ValueError, RecursionError) as error:  # the first, too, of a number without end
        raise _not_toml(label, error) from None
    return sections


def _not_toml(label: str, problem: object) -> TableError:
    return TableError(
        "The table is not TOML.",
        evidence={"file": label, "problem": problem},
        hint="keys that hold dots or braces must be quoted.",
    )


def _on_top_of_parent(name: str, label: str, data: Sections, folder: str = "") -> Sections:
    dialect = data.get("dialect")
    if not isinstance(dialect, dict) or "extends" not in dialect:
        return data
    extended = str(dialect["extends"])
    if extended.startswith(CORES):
        folder = CORES
    parent = extended.removeprefix(CORES)
    known = parent in builtin_texts(folder)
    if not known or extended == name:
        raise TableError(
            f"The table extends {extended!r}, which is {'itself' if known else 'no table'}.",
            evidence={"file": label},
        )
    return _OnTop(builtin_sections(parent, folder), data)


class _OnTop(Mapping[str, Any]):
    """Sections on top of a parent's, merged key by key when they are first asked for."""

    def __init__(self, parent: Sections, own: Sections) -> None:
        self._parent, self._own = parent, own
        self._merged: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._merged:
            self._merged[name] = self._merge(name)
        return self._merged[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._parent, *self._own)))

    def __len__(self) -> int:
        return len({*self._parent, *self._own})

    def _of_another_project(self) -> bool:
        own, base = (
            d if isinstance(d, dict) else {} for d in (self["dialect"], self._parent["dialect"])
        )
        return bool(own.get("ecosystem") != base.get("ecosystem"))

    def _merge(self, name: str) -> Any:
        if name not in self._parent:
            return self._own[name]
        base = self._parent[name]
        own = self._own.get(name, {})
        if name == "dialect":
            base = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
        elif name == "preprocessing" and self._of_another_project():
            base = {}  # the same tensors, but images are prepared by other code
        elif name == "rows" and isinstance(base, dict) and isinstance(own, dict):
            # Else a parent's row for one of the two would count more than the child's for both.
            gathered = {key.removesuffix("{p}") for key in own if key.endswith(".{p}")}
            alone = {start + kind for start in gathered for kind in ("weight", "bias")}
            base = {key: value for key, value in base.items() if key not in alone}
        return _merge(base, own)


def _merge(base: Any, top: Any) -> Any:
    """Sections key by key; those of `top` replace those of `base`."""
    if not isinstance(base, dict) or not isinstance(top, dict):
        return top
    return base | {key: _merge(base[key], v) if key in base else v for key, v in top.items()}
