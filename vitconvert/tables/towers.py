"""ViTs inside larger models, and heads that users put in place of a model's own.

Where they are is data (`weights_map/towers.toml`). A tower's prefix is taken as a whole or not at
all, and only where a table explains every tensor under it.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitconvert.errors import (
    AmbiguousDialect,
    NotRepresentable,
    TensorMismatch,
    UsageError,
    VitConvertError,
    nearest,
)
from vitconvert.tables.binding import Shape
from vitconvert.tables.detection import Recognised, fitting, recognise
from vitconvert.tables.table import Table
from vitconvert.toml_files import LazyToml, tables_dir


@dataclass(frozen=True, kw_only=True)
class Part:
    """The ViT among a checkpoint's tensors.

    Attributes:
        names: What its dialect calls a tensor -> what the file calls it.
        outside: The file's other tensors, and what they are.
        prefix: What stands before the tower's names in the file.
        section: Where config.json is about it, as a path of keys with dots; "" is all of it.
        model: Whose tower this is, in words; "" where the whole file is the ViT.
        recognised: Its dialect.
    """

    names: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    section: str = ""
    model: str = ""
    recognised: Recognised

    @property
    def ignored(self) -> Mapping[str, str]:
        """What of the file plays no part, and why."""
        return {**self.recognised.binding.ignored, **self.recognised.wrappers_own, **self.outside}

    def notes(self) -> tuple[str, ...]:
        """Which part of the file this is, in a sentence."""
        notes = []
        if self.prefix:
            whose = f" ({self.model})" if self.model else ""
            notes.append(f"the image tower under {self.prefix.rstrip('.')}{whose} was taken")
        if heads := [
            (new, old) for new, old in self.names.items() if new != old[len(self.prefix) :]
        ]:
            notes += [f"{old} is the head's {new.rpartition('.')[2]}" for new, old in heads]
        return tuple(notes)


@functools.cache
def _sections() -> Mapping[str, Any]:
    return LazyToml((tables_dir() / "towers.toml").read_text(encoding="utf-8"))


def tower_prefixes() -> tuple[str, ...]:
    """What may stand before the names of a larger model's image tower."""
    return tuple(_sections()["towers"])


def find_part(
    shapes: Mapping[str, Shape],
    their_config: Mapping[str, Any],
    *,
    tables: Iterable[Table] | None = None,
    tower: str | None = None,
) -> Part:
    """Find the one ViT among a checkpoint's tensors: all of them, or those of a tower.

    Args:
        shapes: Names and shapes from the checkpoint's header.
        their_config: The `config.json` beside it.
        tables: The dialects to try; by default, all of `weights_map/`.
        tower: What stands before the names of the tower to take; "" takes the whole file.

    Raises:
        UsageError: No tensor begins with `tower`.
        AmbiguousDialect: There are several towers, or several dialects for one.
        UnknownDialect, TensorMismatch: No table explains the tensors, nor those of any tower.
        NotRepresentable: config.json names a model that computes something else from them.
    """
    _check_model(their_config)
    candidates = None if tables is None else list(tables)
    if tower:
        return _stated(shapes, their_config, candidates, tower)
    whole = fitting(shapes, candidates, their_config)
    if whole is None and tower is None:
        parts = list(_parts(shapes, their_config, candidates))
        if len(parts) > 1:
            raise _several(parts)
        if parts:
            _check_head(parts[0])
            return parts[0]
    whole = whole or recognise(shapes, candidates, their_config)
    return Part(names={name: name for name in shapes}, recognised=whole)


def _check_head(part: Part) -> None:
    """Refuse a head of several layers, or several heads: the ViT alone is another model."""
    heads: Iterable[str] = _sections()["heads"]["own"]
    words = tuple(f"{head.split('.')[0]}." for head in heads)
    if part.outside and all(name.startswith(words) for name in part.outside):
        raise TensorMismatch(
            "The head of this ViT is more than one linear layer.",
            evidence={"head": ", ".join(list(part.outside)[:6])},
            meaning="A ViT has one, so no dialect has a place for these layers.",
            hint=f"--tower {part.prefix.rstrip('.')} takes the ViT without them.",
        )


def config_section(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The object at a dotted path of a config.json; empty if there is none."""
    section: Any = config
    for step in path.split(".") if path else ():
        section = section.get(step) if isinstance(section, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _check_model(their_config: Mapping[str, Any]) -> None:
    others: Mapping[str, str] = _sections()["others"]
    kind = their_config.get("model_type")
    if isinstance(kind, str) and kind in others:
        raise NotRepresentable(
            f"This is {others[kind]}.",
            evidence={"config.json": f"model_type = {kind!r}"},
            meaning="Its tensors have the names of a plain ViT's, and mean another function.",
        )


def _stated(
    shapes: Mapping[str, Shape],
    their_config: Mapping[str, Any],
    tables: list[Table] | None,
    tower: str,
) -> Part:
    prefix = tower if tower.endswith((".", "/")) else f"{tower}."
    known: Mapping[str, Mapping[str, str]] = _sections()["towers"]
    if not any(name.startswith(prefix) for name in shapes):
        raise UsageError(
            f"No tensor begins with {prefix!r}.",
            evidence={"beginnings": ", ".join(_beginnings(shapes, tower))},
        )
    about = known.get(prefix, {})
    section = about.get("section") or _section_of(their_config, prefix)
    model = about.get("model", "a larger model")
    found = _under(shapes, their_config, tables, prefix, section, model)
    if found is None:
        # Says what is wrong with the tensors, as for a file that holds them alone.
        inside = {n.removeprefix(prefix): s for n, s in shapes.items() if n.startswith(prefix)}
        recognised = recognise(inside, tables, config_section(their_config, section))
        return _part(shapes, {n: prefix + n for n in inside}, prefix, section, model, recognised)
    return found


def _section_of(their_config: Mapping[str, Any], prefix: str) -> str:
    """The section of config.json that is called like a prefix, if there is one."""
    word = prefix.rstrip("./").rpartition(".")[2]
    sections = (f"{word}_config", word, "vision_config", "backbone_config")
    return next((s for s in sections if isinstance(their_config.get(s), dict)), "")


def _beginnings(shapes: Iterable[str], tower: str) -> list[str]:
    found = dict.fromkeys(name.split(".")[0] for name in shapes)
    return nearest(tower, found, 4) or list(found)[:4]


def _parts(
    shapes: Mapping[str, Shape], their_config: Mapping[str, Any], tables: list[Table] | None
) -> Iterator[Part]:
    """Every tower of the file; or the file itself, with a head of another name."""
    if found := _with_own_head(shapes, shapes, their_config, tables, "", ""):
        yield found
        return
    taken: list[str] = []
    for prefix, about in _sections()["towers"].items():
        if any(other.startswith(prefix) for other in taken):
            continue  # a tower was found deeper inside
        part = _under(shapes, their_config, tables, prefix, about["section"], about["model"])
        if part is not None:
            taken.append(prefix)
            yield part


def _under(
    shapes: Mapping[str, Shape],
    their_config: Mapping[str, Any],
    tables: list[Table] | None,
    prefix: str,
    section: str,
    model: str,
) -> Part | None:
    """The tower under a prefix, if a table explains it."""
    inside = {n[len(prefix) :]: shape for n, shape in shapes.items() if n.startswith(prefix)}
    if not inside:
        return None
    config = config_section(their_config, section)
    if part := _with_own_head(inside, shapes, config, tables, prefix, section):
        return part
    try:
        recognised = fitting(inside, tables, config)
    except VitConvertError:
        return None
    if recognised is None:
        return None
    return _part(shapes, {n: prefix + n for n in inside}, prefix, section, model, recognised)


def _part(
    shapes: Mapping[str, Shape],
    names: Mapping[str, str],
    prefix: str,
    section: str,
    model: str,
    recognised: Recognised,
) -> Part:
    used = set(names.values())
    why = f"outside the image tower {prefix.rstrip('.')}"
    return Part(
        names=names,
        outside={name: why for name in shapes if name not in used},
        prefix=prefix,
        section=section,
        model=model,
        recognised=recognised,
    )


def _with_own_head(
    inside: Mapping[str, Shape],
    shapes: Mapping[str, Shape],
    config: Mapping[str, Any],
    tables: list[Table] | None,
    prefix: str,
    section: str,
) -> Part | None:
    """A ViT whose head is one linear layer of another name, under its prefix or beside it.

    Everything in the file must be the ViT or this head: several heads are not chosen from.
    """
    own = [*(prefix + head for head in _sections()["heads"]["own"]), *_sections()["heads"]["own"]]
    beside = [name for name in shapes if not name.startswith(prefix)]
    for head in dict.fromkeys(own):
        weight, bias = f"{head}.weight", f"{head}.bias"
        if len(shapes.get(weight, ())) != 2 or any(n not in (weight, bias) for n in beside):
            continue
        body = {n: s for n, s in inside.items() if prefix + n not in (weight, bias)}
        for known in _sections()["heads"]["known"]:
            renamed = {f"{known}.weight": weight, f"{known}.bias": bias}
            found = {new: old for new, old in renamed.items() if old in shapes}
            if found.keys() & body.keys():
                continue
            try:
                tried = fitting(
                    {**body, **{n: shapes[o] for n, o in found.items()}}, tables, config
                )
            except VitConvertError:
                continue
            if tried and not tried.prefix:
                names = {**{n: prefix + n for n in body}, **found}
                return _part(shapes, names, prefix, section, "", tried)
    return None


def _several(parts: list[Part]) -> AmbiguousDialect:
    return AmbiguousDialect(
        "This file holds several ViTs.",
        evidence={part.prefix: f"{part.recognised.table.name}, {part.model}" for part in parts},
        hint=f"name one: --tower {parts[0].prefix.rstrip('.')} (in Python, tower=).",
    )
