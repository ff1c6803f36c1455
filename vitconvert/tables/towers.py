"""Finding the ViT among a checkpoint's tensors: all of them, or those of one vision encoder.

`weights_map/towers.toml` has their prefixes. A prefix is taken only if a table explains every
tensor under it.
"""

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from vitconvert.errors import (
    AmbiguousDialect,
    MissingFact,
    TensorMismatch,
    UnknownDialect,
    UsageError,
    VitConvertError,
    nearest,
    some,
)
from vitconvert.tables.axes import Shape
from vitconvert.tables.detection import Recognised, common_prefix, identifies
from vitconvert.tables.names import first_part, separator_of
from vitconvert.tables.others import seems_to_be
from vitconvert.tables.parts import WHOLE, FoundViT, Header, Tower, tower_words
from vitconvert.wrappers import is_averaged

_END_OF_WORD = re.compile("[./]")
_MOST_WORDS = 8  # of a prefix that nobody knows
_FEWEST = 8  # tensors of a ViT
_MOST_NEAR = 3  # prefixes that are named where none fits


def with_own_head(header: Header, tower: Tower) -> FoundViT | None:
    """A ViT whose head is one linear layer of another name, or stands beside the ViT's prefix.

    Everything in the file must be the ViT or this head: several heads are not chosen from.
    """
    beside = {name for name in header.shapes if not name.startswith(tower.prefix)}
    own: list[str] = tower_words()["heads"]["own"]
    starts = dict.fromkeys((tower.prefix, common_prefix(header.shapes), ""))
    for head in (start + name for start in starts for name in own):
        layer = {f"{head}.weight", f"{head}.bias"} & header.shapes.keys()
        linear = len(header.shapes.get(f"{head}.weight", ())) == 2
        if linear and beside <= layer and (part := _with_head(header, tower, head, layer)):
            return part
    return None


def _with_head(header: Header, tower: Tower, head: str, layer: Collection[str]) -> FoundViT | None:
    inside = header.inside(tower)
    body = {name: shape for name, shape in inside.items() if tower.prefix + name not in layer}
    for known in tower_words()["heads"]["known"]:
        renamed = {name.replace(head, known): name for name in layer}
        if renamed.keys() & body.keys():
            continue
        shapes = {**body, **{new: header.shapes[old] for new, old in renamed.items()}}
        if recognised := _one_that_fits(header, tower, shapes):
            names = {**{name: tower.prefix + name for name in body}, **renamed}
            break
    else:
        return None
    # A layer that the dialect's own head passes by, and this one may read.
    layers = tuple(tower_words()["heads"]["between"])
    if found := [name for name in recognised.binding.ignored if name.startswith(layers)]:
        between = tower.prefix + found[0].split(".")[0]
        raise MissingFact(
            f"It is unknown whether the head {head} reads {between}.",
            evidence={"tensors": ", ".join(tower.prefix + name for name in found)},
            meaning=f"The head of a {recognised.table.title} reads the class token itself.",
            hint=f"--ignore '{between}.*' says that this one does too; behind {between}, no "
            f"dialect has a place for it: --ignore '{head}.*' takes the ViT without it.",
        )
    return header.part(tower, recognised, names, head)


def _one_that_fits(header: Header, tower: Tower, shapes: Mapping[str, Shape]) -> Recognised | None:
    try:
        found = header.fitting(shapes, tower)
    except VitConvertError:
        return None
    unlike: list[str] = tower_words()["heads"]["unlike"]
    fits = found is not None and not found.prefix and found.table.name not in unlike
    return found if fits else None


def check_heads(header: Header) -> None:
    """Refuse heads that are no linear layer, or several, of what is a ViT without them.

    Raises:
        TensorMismatch: The ViT is known, and its heads have no place in it.
    """
    if header.tables and not any(table.builtin for table in header.tables):
        return  # what its rows leave out is said of each tensor
    start = common_prefix(header.shapes)
    heads = [name for name in header.shapes if _is_of_head(name, start)]
    body = {name: shape for name, shape in header.shapes.items() if name not in heads}
    # Two tensors are the weight and bias of one linear layer, of another name or shape.
    if len(heads) > 2 and body and _one_that_fits(header, WHOLE, body):
        sign = separator_of(heads[0])
        options = " ".join(f"--ignore '{group}{sign}*'" for group in _groups(heads, start))
        raise _no_linear_head(heads, start, options)


def check_heads_beside(header: Header, part: FoundViT) -> None:
    """Refuse the same beside an encoder, where nothing but heads is.

    Raises:
        TensorMismatch: That is so.
    """
    inside, start = set(part.names.values()), common_prefix(header.shapes)
    beside = {name: shape for name, shape in header.shapes.items() if name not in inside}
    of_heads = (_is_of_head(name, start) and len(shape) <= 2 for name, shape in beside.items())
    if not beside or not all(of_heads):
        return
    step = f"--tower {part.tower.prefix.rstrip('.')}"
    if len(beside) <= 2 and {name.rpartition(".")[2] for name in beside} <= {"weight", "bias"}:
        # One linear layer, of a ViT that has none or another.
        table = part.recognised.table
        raise TensorMismatch(
            "It is unknown what the head of this ViT reads.",
            evidence={"head": ", ".join(beside), "dialect": f"{table.name} ({table.file})"},
            meaning="Models of this dialect have no head of this kind, or the ViT has its own "
            "already.",
            hint=f"{step} takes the ViT without it.",
        )
    raise _no_linear_head(list(beside), start, step)


def _is_of_head(name: str, start: str) -> bool:
    """Whether a tensor's name begins with a word that users call heads."""
    word = first_part(name.removeprefix(start))
    return "head" in word or word in tower_words()["heads"]["words"]


def _groups(names: list[str], start: str) -> list[str]:
    return list(dict.fromkeys(start + first_part(name.removeprefix(start)) for name in names))


def _no_linear_head(names: list[str], start: str, step: str) -> TensorMismatch:
    groups = _groups(names, start)
    several = len(groups) > 1
    own: list[str] = tower_words()["heads"]["own"]
    left = None  # what would be taken for the head if it were alone
    for group in groups:
        sign = separator_of(names[0])
        layer = {name for name in names if name.startswith(f"{group}{sign}")}
        linear = layer <= {f"{group}{sign}{kind}" for kind in ("weight", "kernel", "bias")}
        if left is None and linear and group.removeprefix(start) in own:
            left = group
    others = " ".join(
        f"--ignore '{group}{separator_of(names[0])}*'" for group in groups if group != left
    )
    return TensorMismatch(
        f"This ViT has {len(groups)} heads." if several else "The head is not a linear layer.",
        evidence={"heads" if several else "head": some(names, 6)},
        meaning="A ViT has one linear layer for its classes; no dialect has a place for more.",
        hint=f"{step} takes the ViT without {'them' if several else 'it'}"
        + (f"; {others} leaves {left} alone." if several and left else "."),
    )


def find_part(header: Header, tower: str | None = None) -> FoundViT:
    """Find the one ViT among a checkpoint's tensors.

    Args:
        header: The checkpoint's.
        tower: What stands before the names of the encoder to take; "" takes the whole file.

    Raises:
        UsageError: No tensor begins with `tower`.
        AmbiguousDialect: There are several encoders, or several dialects for one.
        UnknownDialect, TensorMismatch: No table explains the tensors, nor those of any encoder.
        NotRepresentable: config.json names a model that computes something else from them.
    """
    header.check_model(WHOLE)
    if tower:
        return _stated(header, tower if tower.endswith((".", "/")) else f"{tower}.")
    denied: UnknownDialect | None = None
    own: FoundViT | None = None
    try:
        if recognised := header.fitting(header.shapes, WHOLE):
            return header.part(WHOLE, recognised)
        # The file with a head of the user's, or what a wrapper's prefix stands before.
        start = common_prefix(header.shapes)
        wrapped = Tower(prefix=start, section="", model="a wrapper of training")
        own = with_own_head(header, WHOLE) or (with_own_head(header, wrapped) if start else None)
    except UnknownDialect as error:  # config.json calls the file as a whole another model's
        denied = error
    if own is not None:
        return own
    found = [] if tower == "" else _towers(header)
    if denied is not None:
        found = [part for part in found if header.config_of(part.tower)]
    if any(part.recognised.binding.fits for part in found):
        return _averaged(header, _the_one(header, found))
    if denied is not None:
        raise denied
    if tower is None and (guessed := _below_any_prefix(header)):
        return _the_one(header, guessed)
    check_heads(header)
    try:
        return header.part(WHOLE, header.nearest_dialect(header.shapes, WHOLE))
    except UnknownDialect as error:
        if found and not error.alike:  # the accounts of an encoder say what it lacks
            return _the_one(header, found)
        if tower is None and (near := _nearly_below(header)):
            error.evidence |= near
            error.hint = f"{_or_towers(near)} says what is missing there. Else: {error.hint}"
        raise


@functools.cache
def _known() -> Mapping[str, Tower]:
    return {
        prefix: Tower(prefix=prefix, **said) for prefix, said in tower_words()["towers"].items()
    }


def tower_prefixes() -> tuple[str, ...]:
    """Prefixes that the names of a larger model's vision encoder may have."""
    return tuple(_known())


def _stated(header: Header, prefix: str) -> FoundViT:
    """The encoder that the user names.

    Raises:
        UsageError: No tensor begins so.
        NotRepresentable: config.json names a model that computes something else.
        UnknownDialect, AmbiguousDialect: Not one table explains the tensors under it.
    """
    tower = _known().get(prefix, _unknown(header, prefix))
    inside = header.inside(tower)
    if not inside:
        towers = [t.prefix.rstrip(".") for t in _known().values() if header.inside(t)]
        words = dict.fromkeys(map(first_part, header.shapes))
        meant = list(dict.fromkeys(towers or nearest(prefix, words, 4) or words))[:6]
        raise UsageError(
            f"No tensor begins with {prefix!r}.",
            evidence={"beginnings": ", ".join(meant)},
            hint="--tower takes one of these, or any other that names begin with.",
        )
    header.check_model(tower)
    return header.part(tower, header.nearest_dialect(inside, tower))


def _unknown(header: Header, prefix: str) -> Tower:
    """An encoder below any prefix, with the section of config.json that is called like it."""
    word = prefix.rstrip("./").rpartition(".")[2]
    called = (f"{word}_config", word, "vision_config", "backbone_config")
    config = header.config
    section = next((name for name in called if isinstance(config.get(name), Mapping)), None)
    return Tower(prefix=prefix, section=section)


def _below_any_prefix(header: Header) -> list[FoundViT]:
    """Every ViT below a prefix that nobody knows, where a table explains all that is below it.

    Raises:
        NotRepresentable: config.json names a model that computes something else.
        UnknownDialect: It names a model that no table knows.
        AmbiguousDialect: Several dialects explain one.
    """
    found: list[FoundViT] = []
    if seems_to_be(header.shapes, alike=True):
        return found  # a model that has a ViT's names, and computes something else
    for alike in _prefixes(header):
        for prefix in alike:
            if prefix.startswith(tuple(part.tower.prefix for part in found)):
                continue  # what is taken apart further is the same ViT
            tower = replace(_unknown(header, prefix), model="an unknown prefix", guessed=True)
            inside = header.inside(tower)
            recognised = header.fitting(inside, tower)
            part = header.part(tower, recognised) if recognised else None
            if len(inside) < len(header.shapes):  # its head may stand beside it
                part = with_own_head(header, tower) or part
            if part is None:
                break  # what has the same names fits no better
            header.check_model(tower)
            _check_guess(header, part)
            found.append(part)
    return found


def _prefixes(header: Header) -> list[list[str]]:
    """Prefixes below which a ViT may be, the shorter first; those with the same names together.

    Blocks of a model have the same names: a table is tried on one of them.
    """
    below: dict[str, list[str]] = {}
    for name in header.shapes:
        ends = itertools.islice(_END_OF_WORD.finditer(name), _MOST_WORDS)
        for end in (mark.end() for mark in ends):
            below.setdefault(name[:end], []).append(name[end:])
    alike: dict[tuple[str, ...], list[str]] = {}
    for prefix, names in sorted(below.items(), key=lambda item: len(item[0])):
        if len(names) >= _FEWEST:
            alike.setdefault(tuple(names), []).append(prefix)
    return list(alike.values())


def _check_guess(header: Header, part: FoundViT) -> None:
    """Leave it to the user where config.json speaks of a model, and not of this ViT.

    Raises:
        UnknownDialect: That is so. Names the option that takes the ViT.
    """
    kind, table = header.config.get("model_type"), part.recognised.table
    sections = header.config_of(part.tower), header.config
    if not isinstance(kind, str) or any(identifies(table, section) for section in sections):
        return
    prefix = part.tower.prefix
    raise UnknownDialect(
        "The model that config.json names is unknown.",
        evidence={
            "config.json": f"model_type = {kind!r}",
            "nearest": f"{table.name} ({table.title}), which explains all below {prefix!r}",
        },
        meaning="The larger model may compute another function with these tensors.",
        hint=f"--tower {prefix.rstrip('./')} (in Python, tower=) reads them as a ViT of that kind.",
    )


def _nearly_below(header: Header) -> dict[str, str]:
    """Prefixes below which a table explains most: each with what it is, in words."""
    near: dict[str, str] = {}
    for prefix, *more in _prefixes(header):
        tower = _unknown(header, prefix)
        blocks = more or prefix.startswith(tuple(near))
        if blocks or len(near) >= _MOST_NEAR:
            continue
        try:
            binding = header.nearest_dialect(header.inside(tower), tower).binding
        except VitConvertError:
            continue
        if any(name.startswith("patch_embed.") for name in (*binding.links, *binding.partial)):
            share = f"{binding.explained} of {len(binding.shapes)} tensors"
            near[prefix] = f"{binding.table.name} explains {share}"
    return near


def _or_towers(prefixes: Iterable[str]) -> str:
    """The options that name these encoders."""
    return " or ".join(f"--tower {prefix.rstrip('./')}" for prefix in prefixes)


def _towers(header: Header) -> list[FoundViT]:
    """Every part of the file that looks like a vision encoder, even if it does not fit its dialect.

    Raises:
        UnknownDialect, NotRepresentable: config.json says that one is another model.
        AmbiguousDialect: Several dialects explain one.
    """
    found: dict[Tower, FoundViT] = {}
    # Known encoders, in the file or in what a wrapper's prefix stands before.
    candidates = [
        replace(tower, prefix=start + tower.prefix)
        for start in dict.fromkeys(("", common_prefix(header.shapes)))
        for tower in _known().values()
    ]
    # `vision_model.vision_tower.` before `vision_model.`: the inner one is the ViT.
    for tower in sorted(candidates, key=lambda tower: -len(tower.prefix)):
        deeper = any(inner.prefix.startswith(tower.prefix) for inner in found)
        if not deeper and (part := _under(header, tower)):
            found[tower] = part
    return [found[tower] for tower in dict.fromkeys(candidates) if tower in found]


def _under(header: Header, tower: Tower) -> FoundViT | None:
    inside = header.inside(tower)
    if not inside:
        return None
    if part := with_own_head(header, tower):
        return part
    recognised = header.fitting(inside, tower)
    if recognised is None:
        with suppress(VitConvertError):
            recognised = header.nearest_dialect(inside, tower)
    if recognised is None:
        return None
    header.check_model(tower)
    return header.part(tower, recognised)


def _averaged(header: Header, part: FoundViT) -> FoundViT:
    """The averaged weights of a ViT, which a program keeps beside it, or the ViT itself.

    As of those that lie under a key of their own, the averaged ones come first.
    """
    plain = part.tower.prefix
    inside = header.inside(part.tower)
    some_name = next(iter(inside))
    for prefix in (n.removesuffix(some_name) for n in header.shapes if n.endswith(some_name)):
        if not any(map(is_averaged, prefix.split("."))) or prefix.startswith(plain):
            continue
        model = f"the averages of {plain.rstrip('./')}"
        tower = replace(part.tower, prefix=prefix, model=model)
        if header.inside(tower) == inside and not any(map(is_averaged, plain.split("."))):
            return header.part(tower, part.recognised)
    return part


def _the_one(header: Header, found: list[FoundViT]) -> FoundViT:
    if len(found) == 1:
        check_heads_beside(header, found[0])
        return found[0]
    raise AmbiguousDialect(
        "This file holds several ViTs.",
        evidence={
            part.tower.prefix: f"{part.recognised.table.name}, {part.tower.model}" for part in found
        },
        hint=f"name one: {_or_towers(part.tower.prefix for part in found)} (in Python, tower=).",
    )
