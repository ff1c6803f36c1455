"""How an image becomes the input of a checkpoint's ViT, by its files and tensors."""

import math
from collections.abc import Mapping
from dataclasses import replace

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.recognition import Reading
from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, MissingFact, VitConvertError, size_text
from vitconvert.facts.statements import Statements
from vitconvert.formats import Container
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.stated import preprocessing_of_name, stated_preprocessing
from vitconvert.tables.parts import Part
from vitconvert.tables.table import Table


def preprocessing_of(
    read: Reading, config: ViTConfig
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """How an image becomes the ViT's input, or None if nothing states it; and notes on it.

    Raises:
        MissingFact, ConflictingFact, NotRepresentable: The files are about the ViT alone, and what
            they or its tensors say of images cannot be.
    """
    assert read.statements is not None
    stated, notes = _stated(read.companions, read.found, config, read.statements)
    scaled, more = _with_own_scale(stated, read.container, read.found.recognised.table)
    return scaled, (*notes, *more)


def needed_preprocessing(checkpoint: Checkpoint) -> Preprocessing:
    """The preprocessing of a checkpoint, without which its images cannot be prepared.

    Raises:
        MissingFact: Nothing says what it is.
        ConflictingFact: The model reads other channels than image files have.
    """
    if checkpoint.preprocessing is not None:
        return checkpoint.preprocessing
    if (channels := checkpoint.config.in_channels) not in (1, 3):
        raise ConflictingFact(
            f"Image files have 1 or 3 channels, and this model reads {channels}.",
            evidence={"dialect": checkpoint.dialect},
            hint="compute with tensors of your own: vitconvert.load_model(...)(images).",
        )
    raise MissingFact(
        "Nothing says how this checkpoint's images are prepared.",
        evidence={"dialect": checkpoint.dialect},
        hint="put its preprocessor_config.json, or timm's config.json, beside the weights, or "
        "state it where that is an option: --preprocessor FILE, or --mean and --std (in Python, "
        "preprocessing).",
    )


def _stated(
    companions: Companions, part: Part, config: ViTConfig, said: Statements
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """The preprocessing by the files, or why it is unknown.

    A larger model may cut images into tiles or pad them: that is no reason to refuse its ViT.
    """
    table = part.recognised.table
    larger = part.tower.prefix or isinstance(companions.whole_config.get("vision_config"), Mapping)
    try:
        stated = stated_preprocessing(companions, table, config)
    except VitConvertError as error:
        if not larger:
            raise
        return None, (f"preprocessing is unknown: the larger model's is not read ({error.fact})",)
    if larger and stated is not None and stated.image_size != config.image_size:
        sizes = [size_text(size) for size in (stated.image_size, config.image_size)]
        return None, (
            f"preprocessing is unknown: the larger model's gives {sizes[0]} pixels, and the ViT "
            f"reads {sizes[1]}",
        )
    if stated is None and (said.architecture or "preprocessing" not in companions.own):
        return _of_name(table, config, said)
    return stated, ()


def _of_name(
    table: Table, config: ViTConfig, said: Statements
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    for name in said.names(table):
        try:
            found = preprocessing_of_name(table, name, config, arguments=said.arguments)
        except VitConvertError as error:  # of arguments, which the tensors do without
            return None, (f"preprocessing is unknown: the training's is not read ({error.fact})",)
        if found:
            return found, (f"preprocessing is {found.origin}, as nothing else says it",)
    return None, ()


def _with_own_scale(
    preprocessing: Preprocessing | None, container: Container, table: Table
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """The same with what the project's model does to pixels before its ViT reads them.

    The files beside the weights leave normalising to such a model. Which two tensors hold its mean
    and deviation, `mean_in` and `std_in` in `[preprocessing]` of the dialect's table say.
    """
    names = [table.preprocessing.get(name) for name in ("mean_in", "std_in")]
    keys = [key for name in names for key in container.manifest if name and key.endswith(name)]
    if preprocessing is None or len(keys) != len(names):
        return preprocessing, ()
    usual, said = table.preprocessing, preprocessing
    mean = _numbers(container, keys[0], (said.mean, usual["mean"]))
    std = _numbers(container, keys[1], (said.std, usual["std"]))
    scaled = replace(preprocessing, mean=mean, std=std, normalize=True)
    note = "the model normalises pixels itself: its mean and deviation are part of preprocessing"
    return scaled, (note,)


def _numbers(
    container: Container, key: str, known: tuple[tuple[float, ...], ...]
) -> tuple[float, ...]:
    """Those of a tensor, in the digits of numbers that are known, where they round to the same."""
    import torch

    found = container.read(key).flatten()
    for numbers in known:
        if torch.equal(torch.tensor(numbers, dtype=found.dtype), found):
            return tuple(numbers)
    return tuple(n if math.isfinite(n) else 0.0 for n in found.tolist())
