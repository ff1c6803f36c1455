"""Maps as files: a page, a sheet of pictures, or a directory with one picture each."""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from vitconvert.atomic_write import atomic_file
from vitconvert.errors import UsageError
from vitconvert.pages import check_file
from vitconvert.pictures.page import page
from vitconvert.pictures.seen import Query
from vitconvert.pictures.view import View, ViewChoice
from vitconvert.preprocessing.pixels import MAX_PIXELS
from vitconvert.sources.located import RECORD
from vitconvert.version import VERSION

PANEL = 224  # pixels of the longer side of a picture
_GAP, _TITLE = 6, 18
_INK, _PAPER = (34, 34, 34), (255, 255, 255)


def panel(picture: Image.Image) -> Image.Image:
    """A picture with a longer side of `PANEL` pixels; the pixels of a smaller one stay flat."""
    scale = PANEL / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    resample = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return picture.resize(size, resample)


def sheet(titles: Sequence[str], rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Panels in rows and columns, on white, with a title above each column.

    Raises:
        UsageError: They are too many for one picture.
    """
    widths = [max(row[i].width for row in rows) for i in range(len(titles))]
    heights = [max(picture.height for picture in row) for row in rows]
    size = (
        sum(widths) + _GAP * (len(widths) - 1),
        _TITLE + sum(heights) + _GAP * (len(heights) - 1),
    )
    if size[0] * size[1] > MAX_PIXELS:
        raise UsageError(
            "These are too many images for one.",
            evidence={"images": len(rows), "images of each": len(titles)},
            hint="-o DIR (without .png) writes a file for each.",
        )
    whole = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default()
    left = 0
    for column, (title, width) in enumerate(zip(titles, widths, strict=True)):
        top = _TITLE
        while title and draw.textlength(title, font) > width:
            title = title[:-1]
        draw.text((left, 2), title, _INK, font)
        for row, height in zip(rows, heights, strict=True):
            shown = row[column].convert("RGBA")  # a raw map is transparent where nothing was seen
            whole.paste(shown, (left, top), shown)
            top += height + _GAP
        left += width + _GAP
    return whole


_LONGEST = 60  # characters of a name; in UTF-8, each may take four bytes of 255


def is_picture(output: Path) -> bool:
    """Whether a name is that of one picture.

    Raises:
        UsageError: It is that of a picture, but of a kind that is not written.
    """
    suffix = output.suffix.lower()
    if suffix in (".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg", ".pdf"):
        raise UsageError(
            f"Images are written as .png, not as {suffix}.", evidence={"output": output}
        )
    return suffix == ".png"


def write_page(
    path: Path,
    views: Iterable[View],
    heads: Sequence[int] | None,
    *,
    query: Query,
    title: str,
    overwrite: bool = False,
) -> None:
    """Write a page, whole or not at all.

    Raises:
        OutputExists: As for `check_file`, of what appeared meanwhile.
        VitConvertError: As for `page`.
    """
    text = page((view.panel(heads, query) for view in views), title=title)
    with atomic_file(path, check=partial(check_file, overwrite=overwrite)) as file:
        file.write(text.encode())


def write_sheet(
    path: Path, views: Iterable[View], choice: ViewChoice, *, overwrite: bool = False
) -> None:
    """Write one picture: a map at the image's own size if it is alone, else a sheet.

    Raises:
        UsageError: They are too many, or there is no such map.
        OutputExists: As for `check_file`, of what appeared meanwhile.
        VitConvertError: An image can no longer be read.
    """
    titles: list[str] = []
    rows: list[list[Image.Image]] = []
    alone: Image.Image | None = None
    for view in views:
        shown = list(choice.pictures(view))
        drawn = [draw() for _, draw in shown]
        alone = drawn[0] if len(drawn) == 1 and not rows else None
        titles = ["photograph", *(title for title, _ in shown)]
        rows.append([panel(view.maps.photograph.picture()), *map(panel, drawn)])
    with atomic_file(path, check=partial(check_file, overwrite=overwrite)) as file:
        file.write(_png(alone or sheet(titles, rows)))


def write_pictures(directory: Path, views: Iterable[View], choice: ViewChoice) -> None:
    """Write a picture for each map into a new directory, and their numbers as one JSON file.

    Raises:
        UsageError: There is no such map.
        VitConvertError: An image can no longer be read.
    """
    hashes: dict[str, str] = {}
    photographs = []
    stems: set[str] = set()
    for view in views:
        stem = _new_stem(view.maps.path, stems)
        written = []
        for title, draw in choice.pictures(view):
            name = f"{stem}-{re.sub('[^a-z0-9]+', '-', title)}.png"
            (directory / name).write_bytes(png := _png(draw()))
            written.append(name)
            hashes[name] = hashlib.sha256(png).hexdigest()
        photographs.append({**choice.to_dict(view), "files": written})
    # It states what vitconvert wrote, and may replace: `conversion.output`.
    record = {"vitconvert": VERSION, "sha256": hashes, "photographs": photographs}
    (directory / RECORD).write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8", newline="\n"
    )


def _new_stem(path: Path | None, taken: set[str]) -> str:
    """A name like the image's, which no other image has; nothing in it is a path."""
    wanted = re.sub(r"[^\w.-]", "_", path.stem if path else "image").lstrip(".")[:_LONGEST]
    stem, number = wanted or "image", 2
    while stem.casefold() in taken:
        stem, number = f"{wanted}-{number}", number + 1
    taken.add(stem.casefold())
    return stem


def _png(picture: Image.Image) -> bytes:
    file, metadata = io.BytesIO(), PngInfo()
    metadata.add_text("Software", "vitconvert")
    picture.save(file, "PNG", pnginfo=metadata)
    return file.getvalue()
