"""One page that needs nothing else: photographs, and what each of their patches attends to."""

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from PIL import Image

from vitconvert.errors import UsageError, printable
from vitconvert.pictures.colours import palette
from vitconvert.pictures.packing import Plane, packed
from vitconvert.pictures.photograph import Photograph

_LONGEST = 768  # pixels of a photograph in the page
_STILL = 320  # pixels of a picture in a notebook
_MOST_OF_ALL = 64_000_000  # characters of all maps of a page: a browser holds them several times
_SMALL = 2**16  # pixels below which PNG keeps all of them

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="generator" content="vitconvert"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
{style}</style></head><body>
{body}
<script type="application/json" id="data">{data}</script><script>
{script}</script></body></html>
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One photograph as one model sees it, for a page.

    Attributes:
        photograph: What the model saw.
        prefix: Names of the tokens before the patches.
        planes: What to show of them.
        query: What attends at first: a name, or the row and column of a patch.
        components: The colours of the patches, (rows * columns * 3) bytes; b"": none.
        model: Its name, where several are compared.
    """

    photograph: Photograph
    prefix: tuple[str, ...]
    planes: Sequence[Plane]
    query: str | tuple[int, int]
    components: bytes = b""
    model: str = ""


def page(panels: Iterable[Panel], *, title: str = "Attention") -> str:
    """The page; those of the same photograph are clicked together.

    Args:
        panels: In the order in which they are shown; each is packed as it comes.
        title: The heading.

    Raises:
        UsageError: A panel has too many maps for a page, or there are too many panels.
        VitConvertError: A photograph can no longer be read.
    """
    return _PAGE.format(
        title=html.escape(printable(title)),
        style=_shipped("page.css"),
        body=_shipped("page.html").format(title=html.escape(printable(title))),
        data=json.dumps(_content(panels)).replace("<", "\\u003c"),  # which could end the script
        script=_shipped("page.js"),
    )


def _content(panels: Iterable[Panel]) -> dict[str, Any]:
    """What the script of the page reads."""
    shown: list[Photograph] = []
    placed: list[dict[str, Any]] = []
    for panel in panels:
        photograph = panel.photograph
        number = next((i for i, other in enumerate(shown) if _is_same(other, photograph)), None)
        if number is None:
            number = len(shown)
            shown.append(photograph)
        placed.append({"photograph": number, **_placed(panel)})
        if sum(len(each["data"]) for each in placed) > _MOST_OF_ALL:
            raise UsageError(
                "These are too many photographs for one page.",
                evidence={"photographs": f"more than {len(shown) - 1}"},
                hint="show fewer, or fewer maps of each: --layers last, --heads mean.",
            )
    return {
        "palette": _base64(palette().tobytes()),
        "photographs": [_pictured(photograph) for photograph in shown],
        "views": placed,
    }


def _placed(panel: Panel) -> dict[str, Any]:
    found = {
        "model": printable(panel.model),
        "box": _shares(panel.photograph),
        "grid": panel.photograph.grid,
        "prefix": panel.prefix,
        "query": panel.query,
        **packed(panel.planes, len(panel.prefix)),
    }
    if panel.components:
        found["components"] = _base64(panel.components)
    return found


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def framed(text: str) -> str:
    """A page within a notebook."""
    return (
        '<iframe sandbox="allow-scripts" style="width: 100%; height: 44rem; border: 0" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )


def stills(pictures: Mapping[str, Image.Image]) -> str:
    """Pictures side by side within a notebook, each with its name."""
    figures = "".join(
        f'<figure style="margin: 0 1rem 0 0"><img src="{_data_uri(_within(picture, _STILL))}" '
        f'style="width: {_STILL}px; image-rendering: {_rendering(picture)}">'
        f"<figcaption>{html.escape(printable(name))}</figcaption></figure>"
        for name, picture in pictures.items()
    )
    return f'<div style="display: flex; flex-wrap: wrap">{figures}</div>'


def _is_same(one: Photograph, other: Photograph) -> bool:
    same_file = one.path is not None and one.path == other.path
    return (same_file or one.source is other.source) and (
        one.placement.original == other.placement.original
    )


def _shares(photograph: Photograph) -> list[float]:
    """Top, left, bottom and right of the patches, as shares of the photograph's sides."""
    height, width = photograph.placement.original
    top, left, bottom, right = photograph.placement.box
    return [top / height, left / width, bottom / height, right / width]


def _pictured(photograph: Photograph) -> dict[str, Any]:
    picture = photograph.picture()
    return {
        "name": printable(str(photograph.path or "in memory")),
        "width": picture.width,
        "height": picture.height,
        "picture": _data_uri(_within(picture, _LONGEST)),
    }


def _within(picture: Image.Image, longest: int) -> Image.Image:
    if max(picture.size) <= longest:
        return picture
    scale = longest / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.BILINEAR)


def _rendering(picture: Image.Image) -> str:
    return "pixelated" if picture.width < _STILL // 2 else "auto"


def _data_uri(picture: Image.Image) -> str:
    small = picture.width * picture.height <= _SMALL
    file = io.BytesIO()
    picture.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": 85}))
    return f"data:image/{'png' if small else 'jpeg'};base64,{_base64(file.getvalue())}"


def _shipped(name: str) -> str:
    return files("vitconvert.pictures").joinpath(name).read_text(encoding="utf-8")
