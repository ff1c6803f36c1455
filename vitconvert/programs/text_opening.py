"""Opening an output of two towers, and comparing what its texts lead to with the source's.

vitconvert computes no texts: the source's own program does, from the source's own files, and the
target's from the output.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import TextConfig
from vitconvert.errors import MissingPackage, NotRepresentable
from vitconvert.programs.opening import REFUSALS, Opened, cannot_load, random_images, verdict
from vitconvert.programs.program import explained_refusal, program_of
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.model import ViT
    from vitconvert.programs.both_towers import BothTowers


def open_both_towers(
    directory: Path, table: Table, source: Checkpoint, model: "ViT"
) -> tuple[Opened, ...]:
    """Load an output with the program that has both towers, and compare both.

    Args:
        directory: The output.
        table: How the text tower was written.
        source: What it was made of, with a text tower.
        model: What the image tower should compute.

    Raises:
        ParityFailed: The program cannot load the output.
    """
    from vitconvert.programs.isolation import isolated, side_by_side, silent_transformers

    assert source.text is not None
    program, ids = program_of(table), random_ids(source.text.config)
    images = random_images(model.config)
    with isolated(), silent_transformers():
        try:
            towers = _opened(directory, table)
        except (MissingPackage, NotRepresentable) as error:
            consumer = f"{table.title}, both towers"
            return (Opened(consumer=consumer, relative=None, why_not=error.fact.rstrip(".")),)
        model = model.float()
        theirs, ours = side_by_side(lambda: towers.images(images), lambda: model(images))
        of_images = verdict(f"{towers.name}, images", ours, theirs)
        of_texts = _compare_texts(towers, source, ids)
    # Those that have openers were asked for images already.
    return (of_texts,) if program.openers(model.config) else (of_images, of_texts)


def _opened(directory: Path, table: Table) -> "BothTowers":
    try:
        return program_of(table).open_both(directory)
    except (MissingPackage, NotRepresentable):
        raise
    except REFUSALS as error:
        problem = str(error).partition("\n")[0]
        raise cannot_load(f"{table.title}: its program cannot load the output.", problem) from error


def _compare_texts(towers: "BothTowers", source: Checkpoint, ids: "Tensor") -> Opened:
    from vitconvert.programs.isolation import side_by_side

    consumer = f"{towers.name}, texts"
    try:
        texts = _reference(source)
    except (MissingPackage, NotRepresentable) as error:
        return Opened(consumer=consumer, relative=None, why_not=error.fact.rstrip("."))
    theirs, wanted = side_by_side(lambda: towers.texts(ids), lambda: texts(ids))
    return verdict(consumer, wanted, theirs)


def _reference(source: Checkpoint) -> "Callable[[Tensor], Tensor]":
    assert source.text is not None
    with explained_refusal(source):
        return program_of(source.text.table).texts(source)


def random_ids(config: TextConfig) -> "Tensor":
    """Three texts of noise, as long as they may be, that end where the tower looks for it.

    Where the id of the end is outside the vocabulary, as with the defaults of a small
    `CLIPConfig`, no text can end.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    most, length = config.vocab_size - 1, config.context_length
    ids = torch.randint(0, max(most, 1), (3, length), generator=generator)
    if config.read_token == "last" or not 0 <= config.end_id < config.vocab_size:
        return ids
    end = config.end_id if config.read_token == "end" else most
    if config.read_token == "end":
        ids[ids == end] = 0 if end else most
    ids[torch.arange(3), torch.tensor([length - 1, length // 2, 0])] = end
    return ids
