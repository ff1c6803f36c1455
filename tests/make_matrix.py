"""Write the table of conversions in weights_map/CONVERSIONS.md: `python -m tests.make_matrix`.

Each cell is a conversion that was done: a small model of the row's project is written for the
column's, opened by what is there to open it, compared, converted back, and compared byte by byte.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import vitconvert
from tests.make_dialects import CONVERSIONS
from tests.matrix_sources import SOURCES, Source
from tests.packages import keras_in_numpy
from tests.small_models import small_config
from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.conversion.convert import Conversion
from vitconvert.conversion.target import describe
from vitconvert.errors import NotRepresentable
from vitconvert.model import ViT
from vitconvert.programs.opening import Opened, open_both_towers, open_output
from vitconvert.programs.program import program_of
from vitconvert.sources import locate
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

BEGIN, END = "<!-- matrix: written by tests/make_matrix.py -->", "<!-- end of matrix -->"
# Who computed, by the word that a verdict begins with. A capital letter: bit by bit the same.
LETTERS = {
    "timm": "t",
    "transformers": "h",
    "torchvision": "v",
    "vit-pytorch": "l",
    "open_clip": "o",
    "mlxim": "m",
    "segment-anything": "a",
    "keras_hub": "k",
    "equimo": "e",
    "mmpretrain": "",  # its import takes seconds: tests/originals/test_mmpretrain.py computes
    # These compute nothing.
    "torch.load": "p",
    "numpy.load": "n",
    "h5py.File": "5",
    "safetensors.torch.load_file": "s",
    "msgpack.unpackb": "f",
    "gguf.GGUFReader": "g",
}
READERS = "pns5fg"
_CONFIG = small_config(
    image_size=(8, 8),
    num_classes=1,
    embed_dim=8,
    depth=1,
    num_heads=1,
    head_dim=8,
    mlp_dim=8,
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A row's checkpoint, with what its cells have in common."""

    checkpoint: Checkpoint
    model: ViT
    options: Mapping[str, object]
    folder: Path


def columns() -> list[str]:
    """The libraries of which a dialect can be written; other files hold more than a ViT."""
    return sorted({table.ecosystem for table in builtin_tables().values() if _written(table)})


def _written(table: Table) -> bool:
    inert = (key.text for key, *_ in (*table.constants, *table.holds))
    known = canonical_tensors().keys() | set(inert)
    return all(known.intersection(group) for group in table.requires)


def row(name: str) -> str:
    """A row of the table: every conversion of one project's model."""
    cells = cells_of(name, columns())
    return f"| `{name.split()[0]}` {SOURCES[name].title} | {' | '.join(cells)} |"


def cells_of(name: str, targets: Sequence[str]) -> list[str]:
    """The cells of some columns of a row."""
    with tempfile.TemporaryDirectory() as folder:
        origin = _origin(SOURCES[name], Path(folder))
        return [_cell(origin, to) for to in targets]


def _origin(source: Source, folder: Path) -> Origin:
    path = source.write(folder / "source")
    options = {"dialect": source.dialect, "overrides": source.stated}
    return Origin(
        checkpoint=read_checkpoint(locate(path), ReadOptions(**options)),
        model=vitconvert.load_model(path, **options),
        options=options,
        folder=folder,
    )


def _cell(origin: Origin, to: str) -> str:
    """What became of a conversion, after the steps that it needs."""
    steps: tuple[str, ...] = ()
    while True:
        try:
            conversion = _convert(origin, to, steps)
            break
        except NotRepresentable as error:
            if set(error.steps) <= set(steps):
                return f"no: {_obstacles(error)}"
            steps = tuple(dict.fromkeys((*steps, *error.steps)))
    opened = _opened(origin, conversion)
    if not conversion.ledger.changed:
        _require_same_bytes(origin, conversion)
    return f"{' '.join(f'`{step}`' for step in steps) or 'exact'} {opened}"


def _convert(origin: Origin, to: str, steps: tuple[str, ...]) -> Conversion:
    return vitconvert.convert(
        origin.checkpoint,
        to=to,
        output=origin.folder / to,
        allow=steps,
        verify=False,
    )


def _opened(origin: Origin, conversion: Conversion) -> str:
    """The letters of those who opened the output and agreed."""
    table = builtin_tables()[conversion.target_dialect]
    # A step that was taken was measured on the way, and left another model.
    changed = conversion.ledger.changed
    model = vitconvert.load_model(conversion.output) if changed else origin.model
    verdicts = open_output(conversion.output, table, model)
    texts = _texts(origin, conversion, model)
    for verdict in (*verdicts, *texts):
        verdict.raise_if_failed()
    return "".join(_letter(verdict) for verdict in verdicts) + (" + text" if texts else "")


def _texts(origin: Origin, conversion: Conversion, model: ViT) -> tuple[Opened, ...]:
    """What the target's program makes of both encoders, where the text encoder went along."""
    if not conversion.ledger.carried:
        return ()
    written = read_checkpoint(locate(conversion.output)).text
    assert written is not None
    verdicts = open_both_towers(conversion.output, written.table, origin.checkpoint, model)
    assert verdicts[-1].relative is not None, verdicts
    return verdicts


def _letter(verdict: Opened) -> str:
    if verdict.why_not:
        return ""
    letter = LETTERS[verdict.consumer.split()[0]]
    return letter.upper() if verdict.bit_equal and letter not in READERS else letter


def _require_same_bytes(origin: Origin, conversion: Conversion) -> None:
    """From there back to where it came from: names, dtypes, shapes and bytes.

    A dialect whose files hold more than a ViT is not written, or not without a text encoder. So its
    ViT returns under vitconvert's own names; so do sums, of which other parts come back.
    """
    checkpoint = origin.checkpoint
    pieces = (piece for a in checkpoint.weights.plan.assemblies for piece in a.pieces)
    summed = any(piece.axes.summed for piece in pieces)
    if (summed or not _holds_alone(checkpoint)) and not conversion.ledger.carried:
        before = checkpoint.tensors
        after = vitconvert.load_checkpoint(conversion.output).tensors
    else:
        back = origin.folder / f"{conversion.output.name}-and-back"
        vitconvert.convert(conversion.output, to=checkpoint.dialect, output=back, verify=False)
        carried = bool(conversion.ledger.carried)
        written = read_checkpoint(locate(back))
        before, after = _tensors(checkpoint, carried), _tensors(written, carried)
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name


def _holds_alone(checkpoint: Checkpoint) -> bool:
    """Whether the files of a checkpoint's dialect may hold the vision encoder by itself."""
    if not checkpoint.text or not _written(checkpoint.table):
        return _written(checkpoint.table)
    try:
        model = replace(describe(checkpoint), text=None)
        return bool(program_of(checkpoint.table).fit(checkpoint.table, model))
    except NotRepresentable:
        return False


def _tensors(checkpoint: Checkpoint, carried: bool) -> dict[str, torch.Tensor]:
    """Under the project's own names, without what plays no part."""
    weights = checkpoint.weights
    prefix = weights.recognised.prefix
    names = {name.removeprefix(prefix): name for name in weights.container.manifest}
    text = checkpoint.text.keys if checkpoint.text and carried else ()
    return {
        short: weights.container.read(name)
        for short, name in names.items()
        if short not in checkpoint.ledger.ignored or short in text
    }


def _obstacles(error: NotRepresentable) -> str:
    """What stands in the way of the dialect that comes nearest, in a few words."""
    if error.fact.startswith("No dialect"):
        reasons = [detail.partition(": ")[2] for detail in error.details]
    else:
        what, *_ = error.in_one_line().split("; not zero")
        reasons = [what.replace("; tensor ", "; tensors ")]
    nearest = min(
        reasons,
        key=lambda told: (_strangeness(told), len(_words(told)), "no place" not in told),
    )
    return ", ".join(_words(nearest))


def _strangeness(told: str) -> int:
    """Where only numerics differ, everything else fits."""
    if "the weights need" in told or "no architecture with these fixed parts" in told:
        return 0
    return 1 if _words(told) != [told] else 2


def _words(told: str) -> list[str]:
    """The fields or tensors that a reason names, without what differs from block to block."""
    before, _, tensors = told.rpartition("tensors ")
    if before:
        names = re.sub(r" and \d+ more$", "", tensors).split(", ")
        lacks = "lacks " if "lacks" in before else ""
        short = (
            re.sub(r"^(blocks\.[^.]+|\{\w+\})\.|\.(weight|bias|gamma)$", "", name) for name in names
        )
        return [f"{lacks}{name}" for name in dict.fromkeys(short)]
    parts = (re.findall(r"\w+", part) for part in told.split("; "))
    named = (next((word for word in words if hasattr(_CONFIG, word)), "") for words in parts)
    return list(dict.fromkeys(filter(None, named))) or [told]


def head() -> list[str]:
    """The two lines above the rows."""
    names = " | ".join(f"to `{name}`" for name in columns())
    return [f"| from | {names} |", "|---" * (len(columns()) + 1) + "|"]


def table() -> str:
    """The whole table."""
    return "\n".join([*head(), *(row(name) for name in SOURCES)])


def committed() -> list[str]:
    """The lines of the table in the document."""
    text = CONVERSIONS.read_text(encoding="utf-8")
    return text.partition(BEGIN)[2].partition(END)[0].split("\n")[1:-1]


def filled(text: str, made: str) -> str:
    """The document with this table in it."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{made}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    keras_in_numpy()
    text = CONVERSIONS.read_text(encoding="utf-8")
    CONVERSIONS.write_text(filled(text, table()), encoding="utf-8")
