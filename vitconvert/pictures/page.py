"""Maps of images as one page that needs no other file, small enough to be sent.

Each row (what one query attends to) is stored in 8 bits between its own 2nd and 98th percentile, so
that a row of small numbers keeps its picture. The page says how many levels lie between them. Of
large models, what patches attend to by single heads is kept as means over squares of patches.

Letters: H heads, N tokens, P patches, R rows of all planes together.
"""

import base64
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from numbers import Integral
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitconvert.errors import UsageError, printable
from vitconvert.pages import GENERATOR, shown
from vitconvert.pictures.overlay import CUT, bounds_of, palette
from vitconvert.pictures.seen import SeenImage

MOST_CHARACTERS = 1_270_000  # of base64 for one image and model; with the image, 1.5 MB
_MOST_NUMBERS = 2**26  # a browser holds them, too
LEVELS = (256, 128, 64, 32, 16)
_SQUARES = (1, 2, 3, 4, 8)  # patches of a side


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One matrix of maps: what each query (row) attends to.

    Attributes:
        what: "attention", "rollout", "pooling", "similarity" or "norms".
        layer: The block, or 0 where there are none.
        head: A number, or "mean".
        rows: (rows, N): a row for each token; of a rollout, one more for map pooling's query; of
            pooling and norms, one alone.
        side: Of the squares of patches that have a row together.
    """

    what: str
    layer: int = 0
    head: int | str = "mean"
    rows: Tensor
    side: int = 1


def planes_by_head(
    what: str, layer: int, attention: Tensor, heads: Sequence[int] | None
) -> Iterator[Plane]:
    """The mean over heads, and the heads that are asked for, of attention (H, rows, N).

    Raises:
        UsageError: There are not all of these heads.
    """
    yield Plane(what=what, layer=layer, rows=attention.mean(0))
    for head in chosen_heads(heads, len(attention)):
        yield Plane(what=what, layer=layer, head=head, rows=attention[head])


def chosen_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Heads counted from 0, each once, of such as may be counted from the end too; None: all.

    Raises:
        UsageError: There are not all of these heads.
    """
    if heads is None:
        return list(range(count))
    there = range(-count, count)
    if absent := [h for h in heads if not isinstance(h, Integral) or int(h) not in there]:
        raise UsageError(
            f"There is no head {absent[0]!r}.", evidence={"heads": f"0 to {count - 1}"}
        )
    return sorted({head % count for head in heads})


def _in_squares(plane: Plane, prefix: int, grid: tuple[int, int], side: int) -> Plane:
    """Of a single head, what squares of patches attend to, on average."""
    if plane.head == "mean" or len(plane.rows) == 1:
        return plane
    down, across = grid
    columns = math.ceil(across / side)
    square = torch.arange(down)[:, None] // side * columns + torch.arange(across) // side
    counts = square.flatten().bincount()
    sums = torch.zeros(len(counts), plane.rows.shape[1], dtype=torch.float32).index_add(
        0, square.flatten(), plane.rows[prefix:].float()
    )
    rows = torch.cat((plane.rows[:prefix], sums / counts[:, None]))
    return replace(plane, rows=rows, side=side)


def packed(
    planes: Sequence[Plane],
    prefix: int,
    grid: tuple[int, int],
    *,
    most: int = MOST_CHARACTERS,
) -> dict[str, Any]:
    """Planes as JSON types: what each is, and all numbers deflated, in base64.

    The numbers are, one array after another: the bounds of the patches of each row, (R,)
    float32 each; what each row gives to the prefix tokens, (R, prefix) float32; the levels of the
    patches, (R, P) uint8. All are little-endian.

    Args:
        planes: All of the same tokens.
        prefix: How many of these stand before the patches.
        grid: Patches down and across.
        most: Characters of base64.

    Raises:
        UsageError: They do not fit, with 16 levels and large squares either.
    """
    count = sum(len(plane.rows) for plane in planes)
    patches = planes[0].rows.shape[1] - prefix
    too_many = UsageError(
        "The maps are too many for a page.",
        evidence={"maps": count, "patches of each": patches},
        hint="show fewer blocks or heads: --layers last, --heads mean (in Python, layers=1).",
    )
    if count * patches > _MOST_NUMBERS:
        raise too_many
    for side in _SQUARES:
        coarse = [_in_squares(plane, prefix, grid, side) for plane in planes]
        if found := _deflated(coarse, prefix, most):
            return found
    raise too_many


def _deflated(planes: Sequence[Plane], prefix: int, most: int) -> dict[str, Any]:
    """The planes with as many levels as fit; nothing if they do not with the fewest."""
    named = [[p.what, p.layer, p.head, len(p.rows), p.side] for p in planes]
    rows = torch.cat([plane.rows for plane in planes]).float().numpy()
    values = rows[:, prefix:]
    least, largest = bounds_of(values, CUT)
    numbers = b"".join(part.astype("<f4").tobytes() for part in (least, largest, rows[:, :prefix]))
    share = (values - least[:, None]) / np.where(largest > least, largest - least, 1)[:, None]
    share = share.clip(0, 1)
    for levels in LEVELS:
        content = numbers + np.rint(share * (levels - 1)).astype(np.uint8).tobytes()
        # For maps, looking for repeated bytes takes ten times as long and mostly saves nothing.
        deflate = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
        data = _base64(deflate.compress(content) + deflate.flush())
        if len(data) <= most:
            return {"levels": levels, "planes": named, "data": data}
    return {}


_LONGEST = 768  # pixels of an image in the page
_MOST_OF_IMAGE = 150_000  # characters of base64, if a lower quality reaches that
_STILL = 320  # pixels of a picture in a notebook
_MOST_OF_ALL = 64_000_000  # characters of all maps of a page: a browser holds them several times
_SMALL = 2**16  # pixels below which PNG keeps all of them

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
{generator}<meta name="viewport" content="width=device-width">
<title>{title}</title><style>
{style}</style></head><body>
{body}
<script type="application/json" id="data">{data}</script><script>
{script}</script></body></html>
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One image as one model sees it, for a page.

    Attributes:
        photograph: What the model saw.
        prefix: Names of the tokens before the patches.
        planes: What to show of them.
        query: What attends at first: a name, or the row and column of a patch.
        components: The colours of the patches, (rows * columns * 3) bytes; b"": none.
        model: Its name, where several are compared.
        said: What the model says of the image.
    """

    photograph: SeenImage
    prefix: tuple[str, ...]
    planes: Sequence[Plane]
    query: str | tuple[int, int]
    components: bytes = b""
    model: str = ""
    said: str = ""


def page(panels: Iterable[Panel], *, title: str = "Attention") -> str:
    """The page; panels of the same image are clicked together.

    Args:
        panels: In the order in which they are shown; each is packed as it comes.
        title: The heading.

    Raises:
        UsageError: A panel has too many maps for a page, or there are too many panels.
        VitConvertError: An image can no longer be read.
    """
    return _PAGE.format(
        title=shown(title),
        generator=GENERATOR,
        style=_shipped("page.css"),
        body=_shipped("page.html").format(title=shown(title)),
        data=json.dumps(_content(panels)).replace("<", "\\u003c"),  # which could end the script
        script=_shipped("page.js"),
    )


def _content(panels: Iterable[Panel]) -> dict[str, Any]:
    """The JSON that the script of the page reads."""
    images: list[SeenImage] = []
    views: list[dict[str, Any]] = []
    characters = 0
    for panel in panels:
        seen = panel.photograph
        number = next((i for i, other in enumerate(images) if _is_same(other, seen)), None)
        if number is None:
            number = len(images)
            images.append(seen)
        height, width = seen.placement.original
        top, left, bottom, right = seen.placement.box
        view = {
            "photograph": number,
            "model": printable(panel.model),
            "box": [top / height, left / width, bottom / height, right / width],
            "grid": seen.grid,
            "prefix": panel.prefix,
            "query": panel.query,
            "said": printable(panel.said),
            **packed(panel.planes, len(panel.prefix), seen.grid),
        }
        if panel.components:
            view["components"] = _base64(panel.components)
        views.append(view)
        characters += len(view["data"])
        if characters > _MOST_OF_ALL:
            raise UsageError(
                "These are too many images for one page.",
                evidence={"images": f"more than {len(images) - 1}"},
                hint="show fewer, or fewer maps of each: --layers last, --heads mean.",
            )
    pictured = []
    for seen in images:
        picture = seen.picture()
        size = {"width": picture.width, "height": picture.height}
        name = printable(seen.path.name if seen.path else "in memory")
        pictured.append({"name": name, **size, "picture": _data_uri(_within(picture, _LONGEST))})
    return {
        "palette": _base64(palette().tobytes()),
        "cut": CUT,
        "photographs": pictured,
        "views": views,
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def stills(pictures: Mapping[str, Image.Image]) -> str:
    """Pictures side by side within a notebook, each with its name."""
    figures = "".join(
        f'<figure style="margin: 0 1rem 0 0"><img src="{_data_uri(_within(picture, _STILL))}" '
        f'style="width: {_STILL}px; image-rendering: '
        f'{"pixelated" if picture.width < _STILL // 2 else "auto"}">'
        f"<figcaption>{shown(name)}</figcaption></figure>"
        for name, picture in pictures.items()
    )
    return f'<div style="display: flex; flex-wrap: wrap">{figures}</div>'


def _is_same(one: SeenImage, other: SeenImage) -> bool:
    same_file = one.path is not None and one.path == other.path
    return (same_file or one.source is other.source) and (
        one.placement.original == other.placement.original
    )


def _within(picture: Image.Image, longest: int) -> Image.Image:
    if max(picture.size) <= longest:
        return picture
    scale = longest / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.BILINEAR)


def _data_uri(picture: Image.Image) -> str:
    small = picture.width * picture.height <= _SMALL
    found = ""
    for quality in (85, 70, 50, 30, 15):
        file = io.BytesIO()
        picture.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": quality}))
        found = _base64(file.getvalue())
        if small or len(found) <= _MOST_OF_IMAGE:
            break
    return f"data:image/{'png' if small else 'jpeg'};base64,{found}"


def _shipped(name: str) -> str:
    return files("vitconvert.pictures").joinpath(name).read_text(encoding="utf-8")
