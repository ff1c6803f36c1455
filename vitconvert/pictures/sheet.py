"""Pictures of several photographs as one: a row for each photograph, a column for each map."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from vitconvert.errors import UsageError
from vitconvert.preprocessing.pixels import MAX_PIXELS

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
            "These are too many pictures for one.",
            evidence={"photographs": len(rows), "pictures of each": len(titles)},
            hint="-o DIR (without .png) writes a file for each.",
        )
    whole = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default()
    left = 0
    for column, (title, width) in enumerate(zip(titles, widths, strict=True)):
        top = _TITLE
        draw.text((left, 2), _fitting(title, draw, font, width), _INK, font)
        for row, height in zip(rows, heights, strict=True):
            shown = row[column].convert("RGBA")  # a raw map is transparent where nothing was seen
            whole.paste(shown, (left, top), shown)
            top += height + _GAP
        left += width + _GAP
    return whole


def _fitting(
    title: str,
    draw: ImageDraw.ImageDraw,
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
    width: int,
) -> str:
    while title and draw.textlength(title, font) > width:
        title = title[:-1]
    return title
