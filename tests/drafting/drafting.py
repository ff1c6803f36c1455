"""A file in a spelling, a reference of the same or of other weights, and what a draft got right."""

from pathlib import Path

import torch
from safetensors.torch import save_file

import vitconvert
from tests.drafting.spellings import Spelling, weights
from vitconvert import ViTConfig
from vitconvert.drafting.draft_text import draft_text, parse_draft, row_as_certain
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.detection import common_prefix
from vitconvert.tables.table import Table


def reference(folder: Path, config: ViTConfig, tensors: dict[str, torch.Tensor]):
    """A checkpoint in our own names."""
    file = folder / "reference.safetensors"
    save_file(tensors, file)
    stated = {k: v for k, v in config.to_dict().items() if v is not None}
    return vitconvert.load_checkpoint(file, dialect="vit", overrides=stated)


def spelled(folder: Path, spelling: Spelling, config: ViTConfig, tensors) -> Path:
    """The same in a project's names."""
    file = folder / "theirs.safetensors"
    generator = torch.Generator().manual_seed(7)
    beside = {k: torch.randn(shape, generator=generator) for k, shape in spelling.beside.items()}
    save_file({**spelling.written(tensors, config), **beside}, file)
    return file


def draft(folder: Path, spelling: Spelling, *, same: bool, **changes):
    config = spelling.vit(**changes)
    tensors = weights(spelling, config)
    others = tensors if same else weights(spelling, config, seed=1)
    like = reference(folder, config, others)
    file = spelled(folder, spelling, config, tensors)
    table = folder / "team.toml"
    return vitconvert.draft_table(file, like=like, output=table, ignore=spelling.ignore), file


def wrong_rows(found, spelling: Spelling, shapes) -> list[str]:
    """Rows of a draft that are not what a person says, guesses as well: by what they link."""
    truth = {
        "dialect": {"title": "truth", "source": "by hand"},
        "words": {word: list(texts) for word, texts in spelling.words.items()},
        "rows": spelling.rows,
    }
    wanted = _links(Table("truth", "truth", truth), shapes)
    believed = [row_as_certain(row) for row in found.rows]
    prefix = common_prefix(shapes)  # a table does without it
    inside = {name[len(prefix) :]: shape for name, shape in shapes.items()}
    ours = _links(parse_draft(draft_text("x", "y", believed, {}, {}, (), {})), inside, prefix)
    wrong = {name for name in canonical_tensors() if ours.get(name) != wanted.get(name)}
    return [row.name for row in found.rows if wrong & _expanded(row.name)]


def missed_rows(found, spelling: Spelling) -> set[str]:
    """What a person says, and the draft does not even guess."""
    return set(spelling.expressions()) - {n for row in found.rows for n in _expanded(row.name)}


def _expanded(name: str) -> set[str]:
    return {name.replace("{p}", kind) for kind in ("weight", "bias")}


def _links(table, shapes, prefix=""):
    """Canonical name, of all blocks -> what it is made of."""
    found: dict[str, set[object]] = {}
    for links in bind(table, shapes).links.values():
        for link in links:
            said = (
                str(sorted(link.indices.items())),
                link.our_step,
                link.theirs and prefix + link.theirs,
            )
            layout = _atoms(link) if link.theirs else ()
            found.setdefault(link.tensor.text, set()).add((*said, layout, link.their_step))
    return found


def _atoms(link):
    """The order of axes; `(head dim)` and `head dim` are the same numbers."""
    return link.their_axes.names
