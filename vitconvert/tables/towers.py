"""Finding the ViT among a checkpoint's tensors: all of them, or those of one image tower.

Where towers are is data (`weights_map/towers.toml`). A tower's prefix is taken as a whole or not at
all, and only where a table explains every tensor under it.
"""

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vitconvert.errors import AmbiguousDialect, UnknownDialect, UsageError, VitConvertError, nearest
from vitconvert.tables.detection import common_prefix
from vitconvert.tables.own_heads import check_heads, check_heads_beside, with_own_head
from vitconvert.tables.parts import WHOLE, Header, Part, Tower, sections


def find_part(header: Header, tower: str | None = None) -> Part:
    """Find the one ViT among a checkpoint's tensors.

    Args:
        header: The checkpoint's.
        tower: What stands before the names of the tower to take; "" takes the whole file.

    Raises:
        UsageError: No tensor begins with `tower`.
        AmbiguousDialect: There are several towers, or several dialects for one.
        UnknownDialect, TensorMismatch: No table explains the tensors, nor those of any tower.
        NotRepresentable: config.json names a model that computes something else from them.
    """
    header.check_model(WHOLE)
    if tower:
        return _stated(header, tower)
    denied: UnknownDialect | None = None
    try:
        if recognised := header.fitting(header.shapes, WHOLE):
            return header.part(WHOLE, recognised)
        own = _with_own_head(header)
    except UnknownDialect as error:  # config.json calls the file as a whole another model's
        denied, own = error, None
    if own is not None:
        return own
    found = [] if tower == "" else _towers(header)
    if denied is not None:
        found = [part for part in found if header.config_of(part.tower)]
    if any(part.recognised.binding.fits for part in found):
        return _the_one(header, found)
    if denied is not None:
        raise denied
    check_heads(header)
    try:
        return header.part(WHOLE, header.nearest(header.shapes, WHOLE))
    except UnknownDialect:
        # The accounts of a tower say what it lacks.
        if found:
            return _the_one(header, found)
        raise


def _with_own_head(header: Header) -> Part | None:
    """The whole file with a head of the user's, or what a wrapper's prefix stands before."""
    start = common_prefix(header.shapes)
    wrapped = Tower(prefix=start, section="", model="a wrapper of training")
    return with_own_head(header, WHOLE) or (with_own_head(header, wrapped) if start else None)


@functools.cache
def _known() -> Mapping[str, Tower]:
    return {prefix: Tower(prefix=prefix, **said) for prefix, said in sections()["towers"].items()}


def tower_prefixes() -> tuple[str, ...]:
    """What may stand before the names of a larger model's image tower."""
    return tuple(_known())


def _stated(header: Header, prefix: str) -> Part:
    """The tower that the user names.

    Raises:
        UsageError: No tensor begins so.
        NotRepresentable: config.json names a model that computes something else.
        UnknownDialect, AmbiguousDialect: Not one table explains the tensors under it.
    """
    prefix = prefix if prefix.endswith((".", "/")) else f"{prefix}."
    section = _section_called(prefix, header.config)
    tower = _known().get(prefix, Tower(prefix=prefix, section=section))
    inside = header.inside(tower)
    if not inside:
        raise UsageError(
            f"No tensor begins with {prefix!r}.",
            evidence={"beginnings": ", ".join(_beginnings(header, prefix))},
            hint="--tower takes one of these, or any other that names begin with.",
        )
    header.check_model(tower)
    return header.part(tower, header.nearest(inside, tower))


def _section_called(prefix: str, config: Mapping[str, Any]) -> str | None:
    """The section of config.json that is called like a prefix, if there is one."""
    word = prefix.rstrip("./").rpartition(".")[2]
    called = (f"{word}_config", word, "vision_config", "backbone_config")
    return next((name for name in called if isinstance(config.get(name), Mapping)), None)


def _beginnings(header: Header, tower: str) -> list[str]:
    """What the user may have meant: known towers of the file, or what its names begin with."""
    towers = [t.prefix.rstrip(".") for t in _known().values() if header.inside(t)]
    words = dict.fromkeys(name.split(".")[0] for name in header.shapes)
    return list(dict.fromkeys(towers or nearest(tower, words, 4) or words))[:6]


def _towers(header: Header) -> list[Part]:
    """Every part of the file that looks like an image tower, even if it does not fit its dialect.

    Raises:
        UnknownDialect, NotRepresentable: config.json says that one is another model.
        AmbiguousDialect: Several dialects explain one.
    """
    found: dict[Tower, Part] = {}
    candidates = list(_candidates(header))
    for tower in sorted(candidates, key=lambda tower: -len(tower.prefix)):
        if any(inner.prefix.startswith(tower.prefix) for inner in found):
            continue  # a tower was found deeper inside
        if part := _under(header, tower):
            found[tower] = part
    return [found[tower] for tower in candidates if tower in found]


def _candidates(header: Header) -> Iterator[Tower]:
    """Places of known towers, in the file or in what a wrapper's prefix stands before."""
    for start in dict.fromkeys(("", common_prefix(header.shapes))):
        for tower in _known().values():
            yield replace(tower, prefix=start + tower.prefix)


def _under(header: Header, tower: Tower) -> Part | None:
    inside = header.inside(tower)
    if not inside:
        return None
    if part := with_own_head(header, tower):
        return part
    recognised = header.fitting(inside, tower)
    if recognised is None:
        with suppress(VitConvertError):
            recognised = header.nearest(inside, tower)
    if recognised is None:
        return None
    header.check_model(tower)
    return header.part(tower, recognised)


def _the_one(header: Header, found: list[Part]) -> Part:
    if len(found) == 1:
        check_heads_beside(header, found[0])
        return found[0]
    raise AmbiguousDialect(
        "This file holds several ViTs.",
        evidence={
            part.tower.prefix: f"{part.recognised.table.name}, {part.tower.model}" for part in found
        },
        hint=f"name one: --tower {found[0].tower.prefix.rstrip('.')} (in Python, tower=).",
    )
