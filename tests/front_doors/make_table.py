"""Write tests/front_doors/README.md: `python -m tests.front_doors.make_table [LIBRARY ...]`.

Each cell is a model asked about an image file by its library and by vitconvert. A library is a line
in LIBRARIES: a name of each model, and its `Door`. Without names, all libraries are asked.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")  # as most of KerasHub's users have it

from tests.front_doors import (
    hugging_face,
    of_keras_hub,
    of_mmpretrain,
    of_open_clip,
    of_segment_anything,
    of_timm,
    of_torchvision,
    other_ways,
    transformers_doors,
)
from tests.front_doors.images import write_images
from tests.front_doors.judge import Door, Verdict, judged, quietly

README = Path(__file__).parent / "README.md"
IMAGES = Path(__file__).parents[2] / "docs" / "pages" / "images.md"
LIBRARIES: Mapping[str, Mapping[str, Door]] = {
    "transformers": hugging_face.DOORS,
    "timm": of_timm.DOORS,
    "open_clip": of_open_clip.DOORS,
    "torchvision": of_torchvision.DOORS,
    "KerasHub": of_keras_hub.DOORS,
    "segment-anything": of_segment_anything.DOORS,
    "MMPretrain": of_mmpretrain.DOORS,
}
_SIDE = 48  # of the images that show what ways into a library differ in


def marks(name: str) -> tuple[str, str]:
    """What stands before and after what is written of a library, or of its ways."""
    return f"<!-- {name}: written by tests/front_doors/make_table.py -->", f"<!-- end of {name} -->"


def table(first: str, kinds: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {first} | {' | '.join(kinds)} |", f"|{'---|' * (1 + len(kinds))}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def replaced(text: str, name: str, content: str) -> str:
    """A document with another content between the marks of a name."""
    begin, end = map(re.escape, marks(name))
    found, count = re.subn(
        f"({begin}\n).*?(\n{end})", lambda m: f"{m[1]}{content}{m[2]}", text, flags=re.DOTALL
    )
    assert count == 1, name
    return found


def verdicts(doors: Mapping[str, Door], folder: Path) -> dict[str, dict[str, Verdict]]:
    """The verdicts of a library's models."""
    found = {}
    for name, door in doors.items():
        images = write_images(folder / name / "images", door.exact)
        found[name] = judged(door, folder / name / "model", images)
        print(name, flush=True)
    return found


def write_library(name: str, folder: Path) -> None:
    """Ask about all images, and write the table."""
    found = verdicts(LIBRARIES[name], folder)
    kinds = list(next(iter(found.values())))
    rows = {model: [str(of[kind]) for kind in kinds] for model, of in found.items()}
    text = README.read_text(encoding="utf-8")
    README.write_text(replaced(text, name, table("model", kinds, rows)), encoding="utf-8")


def write_ways(folder: Path) -> None:
    """Measure what ways into transformers differ in, and write it into the page on images."""
    images = write_images(folder / "images", (_SIDE, _SIDE))
    parts = []
    for title, processor in transformers_doors.PROCESSORS.items():
        with quietly():
            rows = transformers_doors.distances(folder / processor, processor, images)
        shown = {f"`{way}`": cells for way, cells in rows.items()}
        parts.append(f"{title}\n\n{table('way', list(images), shown)}")
    text = IMAGES.read_text(encoding="utf-8")
    text = replaced(text, "ways into transformers", "\n\n".join(parts))
    IMAGES.write_text(text, encoding="utf-8")


def write_other_ways(folder: Path) -> None:
    """Likewise of the other libraries."""
    images = write_images(folder / "images", (_SIDE, _SIDE))
    parts = []
    for title, into in other_ways.WAYS.items():
        with quietly():
            rows = transformers_doors.apart(into(), images)
        shown = {f"`{way}`": cells for way, cells in rows.items()}
        parts.append(f"{title}\n\n{table('way', list(images), shown)}")
    text = IMAGES.read_text(encoding="utf-8")
    text = replaced(text, "ways into other libraries", "\n\n".join(parts))
    IMAGES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asked = sys.argv[1:] or [*LIBRARIES, "ways"]
        for library in filter(asked.__contains__, LIBRARIES):
            write_library(library, Path(made) / library)
        if "transformers" in asked:
            write_ways(Path(made) / "ways")
        if "ways" in asked:
            write_other_ways(Path(made) / "other ways")
