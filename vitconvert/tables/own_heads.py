"""Heads that users put in place of a model's own: which names they have is data (`towers.toml`)."""

from collections.abc import Collection, Iterator, Mapping

from vitconvert.errors import MissingFact, TensorMismatch, VitConvertError, some
from vitconvert.tables.detection import Recognised, common_prefix
from vitconvert.tables.parts import WHOLE, Header, Part, Tower, sections
from vitconvert.tables.sizes import Shape


def with_own_head(header: Header, tower: Tower) -> Part | None:
    """A ViT whose head is one linear layer of another name, or stands beside the ViT's prefix.

    Everything in the file must be the ViT or this head: several heads are not chosen from.
    """
    beside = {name for name in header.shapes if not name.startswith(tower.prefix)}
    for head in _linear_layers(header, tower):
        layer = {f"{head}.weight", f"{head}.bias"} & header.shapes.keys()
        if beside <= layer and (part := _with_head(header, tower, head, layer)):
            return part
    return None


def _linear_layers(header: Header, tower: Tower) -> Iterator[str]:
    """Layers that users call their heads, inside a tower and beside it."""
    own: list[str] = sections()["heads"]["own"]
    starts = dict.fromkeys((tower.prefix, common_prefix(header.shapes), ""))
    for name in (start + name for start in starts for name in own):
        if len(header.shapes.get(f"{name}.weight", ())) == 2:
            yield name


def _with_head(header: Header, tower: Tower, head: str, layer: Collection[str]) -> Part | None:
    inside = header.inside(tower)
    body = {name: shape for name, shape in inside.items() if tower.prefix + name not in layer}
    for known in sections()["heads"]["known"]:
        renamed = {name.replace(head, known): name for name in layer}
        if renamed.keys() & body.keys():
            continue
        shapes = {**body, **{new: header.shapes[old] for new, old in renamed.items()}}
        if recognised := _one_that_fits(header, tower, shapes):
            names = {**{name: tower.prefix + name for name in body}, **renamed}
            _check_between(recognised, tower, head)
            return header.part(tower, recognised, names, head)
    return None


def _check_between(recognised: Recognised, tower: Tower, head: str) -> None:
    """Ask whether a head reads a layer that the dialect's own head passes by.

    Raises:
        MissingFact: There is such a layer, and nothing tells.
    """
    layers = tuple(sections()["heads"]["between"])
    found = [name for name in recognised.binding.ignored if name.startswith(layers)]
    if found:
        layer = tower.prefix + found[0].split(".")[0]
        raise MissingFact(
            f"Nothing tells whether the head {head} reads {layer} or passes it by.",
            evidence={"tensors": ", ".join(tower.prefix + name for name in found)},
            meaning=f"The head of a {recognised.table.title} reads the class token itself.",
            hint=f"--ignore '{layer}.*' says that this one does too; behind {layer}, no dialect "
            f"has a place for it: --ignore '{head}.*' takes the ViT without it.",
        )


def _one_that_fits(header: Header, tower: Tower, shapes: Mapping[str, Shape]) -> Recognised | None:
    try:
        found = header.fitting(shapes, tower)
    except VitConvertError:
        return None
    unlike: list[str] = sections()["heads"]["unlike"]
    fits = found is not None and not found.prefix and found.table.name not in unlike
    return found if fits else None


def check_heads(header: Header) -> None:
    """Refuse heads that are no linear layer, or several, of what is a ViT without them.

    Raises:
        TensorMismatch: The ViT is known, and its heads have no place in it.
    """
    start = common_prefix(header.shapes)
    heads = [name for name in header.shapes if _is_of_head(name, start)]
    body = {name: shape for name, shape in header.shapes.items() if name not in heads}
    if len(heads) > 2 and body and _one_that_fits(header, WHOLE, body):
        options = " ".join(f"--ignore '{group}.*'" for group in _groups(heads, start))
        raise _no_linear_head(heads, start, options)


def check_heads_beside(header: Header, part: Part) -> None:
    """Refuse the same beside a tower, where nothing but heads is.

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
        raise _no_place(list(beside), part, step)
    raise _no_linear_head(list(beside), start, step)


def _is_of_head(name: str, start: str) -> bool:
    """Whether a tensor's name begins with a word that users call heads."""
    word = name.removeprefix(start).split(".")[0]
    return "head" in word or word in sections()["heads"]["words"]


def _groups(names: list[str], start: str) -> list[str]:
    return list(dict.fromkeys(start + name.removeprefix(start).split(".")[0] for name in names))


def _no_place(names: list[str], part: Part, step: str) -> TensorMismatch:
    """One linear layer, of a ViT that has none or another."""
    table = part.recognised.table
    return TensorMismatch(
        "Nothing tells what the head beside this ViT reads.",
        evidence={"head": ", ".join(names), "dialect": f"{table.name} ({table.file})"},
        meaning="Models of this dialect have no head of this kind, or the ViT has its own already.",
        hint=f"{step} takes the ViT without it.",
    )


def _no_linear_head(names: list[str], start: str, step: str) -> TensorMismatch:
    groups = _groups(names, start)
    several = len(groups) > 1
    left = next((group for group in groups if _is_linear(group, start, names)), None)
    others = " ".join(f"--ignore '{group}.*'" for group in groups if group != left)
    return TensorMismatch(
        f"This ViT has {len(groups)} heads." if several else "This ViT's head is no linear layer.",
        evidence={"heads" if several else "head": some(names, 6)},
        meaning="A ViT has one linear layer for its classes; no dialect has a place for more.",
        hint=f"{step} takes the ViT without {'them' if several else 'it'}"
        + (f"; {others} leaves {left} alone." if several and left else "."),
    )


def _is_linear(group: str, start: str, names: list[str]) -> bool:
    """Whether a head is what would be taken for one if it were alone."""
    layer = {name for name in names if name.startswith(f"{group}.")}
    known = group.removeprefix(start) in sections()["heads"]["own"]
    return known and layer <= {f"{group}.weight", f"{group}.bias"}
