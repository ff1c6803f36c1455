"""Write the table of transformers' classes in weights_map/CONVERSIONS.md.

`python -m tests.make_classes` does. What a class is read as, which class it becomes again, and the
ecosystems that hold it as it is.
tests/huggingface/test_every_class.py does each of these conversions by the default command.
"""

import re
import tempfile
from pathlib import Path

from tests.huggingface.every_class import STATED, classes, saved
from tests.make_dialects import CONVERSIONS
from tests.make_matrix import columns
from vitconvert.checkpoint import ReadOptions, read_checkpoint
from vitconvert.conversion.target import choose_without_steps, describe
from vitconvert.errors import NotRepresentable
from vitconvert.programs.target import Target
from vitconvert.sources import locate

BEGIN = "<!-- classes: written by tests/make_classes.py -->"
END = "<!-- end of classes -->"
HEAD = ["| class | read as | in `hf` again | other targets |", "|---|---|---|---|"]


def row(name: str, folder: Path) -> str:
    """A class, from a checkpoint of it in a folder that is new."""
    options = ReadOptions(dialect="hf", overrides=STATED.get(name[:6], {}))
    checkpoint = read_checkpoint(locate(saved(name, folder)), options)
    model = describe(checkpoint)
    held: dict[str, Target] = {}
    for ecosystem in columns():
        try:
            held[ecosystem] = choose_without_steps(ecosystem, model).target
        except NotRepresentable:
            continue
    again = held.pop("hf", None)
    text = model.text and again and again.text
    written = str(again.their_config["architectures"][0]) if again else "-"
    names = ", ".join(f"`{ecosystem}`" for ecosystem in held)
    return f"| {name} | `{checkpoint.dialect}` | {written}{' + text' if text else ''} | {names} |"


def committed() -> dict[str, str]:
    """The rows of the table in the document, by their classes."""
    text = CONVERSIONS.read_text(encoding="utf-8")
    rows = text.partition(BEGIN)[2].partition(END)[0].strip().split("\n")[len(HEAD) :]
    return {row.split()[1]: row for row in rows}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder) / name) for name in sorted(classes())]
    made = "\n".join([BEGIN, *HEAD, *rows, END])
    text = CONVERSIONS.read_text(encoding="utf-8")
    text = re.sub(f"{BEGIN}.*?{END}", lambda _: made, text, flags=re.DOTALL)
    CONVERSIONS.write_text(text, encoding="utf-8")
