"""Heads that users put in place of a model's own: which names they have is data (`towers.toml`)."""

from collections.abc import Collection, Iterator, Mapping

from vitconvert.errors import TensorMismatch, VitConvertError, some
from vitconvert.tables.binding import Shape
from vitconvert.tables.detection import Recognised
from vitconvert.tables.parts import WHOLE, Header, Part, Tower, sections


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
    for name in dict.fromkeys((*(tower.prefix + name for name in own), *own)):
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
            return header.part(tower, recognised, names, head)
    return None


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
    heads = [name for name in header.shapes if _is_of_head(name)]
    body = {name: shape for name, shape in header.shapes.items() if name not in heads}
    if len(heads) > 2 and body and _one_that_fits(header, WHOLE, body):
        groups = dict.fromkeys(name.split(".")[0] for name in heads)
        options = " ".join(f"--ignore '{group}.*'" for group in groups)
        raise _no_linear_head(heads, options)


def check_heads_beside(header: Header, part: Part) -> None:
    """Refuse the same beside a tower, where nothing but heads is.

    Raises:
        TensorMismatch: That is so.
    """
    inside = set(part.names.values())
    beside = {name: shape for name, shape in header.shapes.items() if name not in inside}
    if beside and all(_is_of_head(name) and len(shape) <= 2 for name, shape in beside.items()):
        raise _no_linear_head(list(beside), f"--tower {part.tower.prefix.rstrip('.')}")


def _is_of_head(name: str) -> bool:
    """Whether a tensor's name begins with a word that users call heads."""
    word = name.split(".")[0]
    return "head" in word or word in sections()["heads"]["words"]


def _no_linear_head(names: list[str], step: str) -> TensorMismatch:
    groups = list(dict.fromkeys(name.split(".")[0] for name in names))
    several = len(groups) > 1
    return TensorMismatch(
        f"This ViT has {len(groups)} heads." if several else "This ViT's head is no linear layer.",
        evidence={"heads" if several else "head": some(names, 6)},
        meaning="A ViT has one linear layer for its classes; no dialect has a place for more.",
        hint=f"{step} takes the ViT without {'them' if several else 'it'}"
        + (f"; --ignore '{groups[-1]}.*' leaves {groups[0]} alone." if several else "."),
    )
