"""How an image becomes the input of a checkpoint's ViT, by its files and tensors."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.recognition import RecognisedViT
from vitconvert.checkpoint.stating import with_stated_pixels
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    VitConvertError,
    printable,
    size_text,
    warn,
)
from vitconvert.facts.statements import Statements
from vitconvert.formats import Container
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.keras_hub import is_image_converter
from vitconvert.tables.architectures import preparation_of, preparations
from vitconvert.tables.parts import FoundViT
from vitconvert.tables.table import Table

_RGB = 3
_UNKNOWN = "preprocessing is unknown"  # how a note on it begins


def preprocessing_of(
    vit: RecognisedViT, said: Statements, config: ViTConfig, options: ReadOptions
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """How an image becomes the ViT's input, or None if nothing states it; and notes on it.

    What the options of reading say comes before the files.

    Raises:
        ConflictingFact: The files are about the ViT alone, and what they or its tensors say of
            images cannot be.
        MissingFact, NotRepresentable: What the options say is not known.
    """
    known, notes = (None, ()) if options.preprocessor else _known(vit, said, config)
    found = with_stated_pixels(known, options, config)
    if found is None or found is known:
        return found, notes
    kept = (note for note in notes if known and known.origin not in note)
    return found, (*kept, f"preprocessing: {found.origin}")


def _known(
    vit: RecognisedViT, said: Statements, config: ViTConfig
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """The preprocessing by files and tensors."""
    stated, notes = _stated(vit.companions, vit.part, config, said)
    container, usual = vit.container, vit.part.recognised.table.preprocessing
    keys = normalising_tensors(vit)
    if stated is None or len(keys) != 2:
        return stated, notes
    mean = _numbers(container, keys[0], (stated.mean, usual["mean"]))
    std = _numbers(container, keys[1], (stated.std, usual["std"]))
    note = "the model normalises pixels itself: its mean and deviation are part of preprocessing"
    return replace(stated, mean=mean, std=std, normalize=True), (*notes, note)


def normalising_tensors(vit: RecognisedViT) -> list[str]:
    """Names of the tensors that hold mean and deviation, where the project's model normalises.

    `[constants]` of the dialect's table names them.
    """
    normalising = vit.part.recognised.table.normalising
    ends = [normalising.get(name) for name in ("mean", "std")]
    return [key for end in ends for key in vit.container.manifest if end and key.endswith(end)]


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
            hint="use tensors: vitconvert.load_model(...)(images).",
        )
    why = [note for note in checkpoint.ledger.notes if note.startswith(_UNKNOWN)]
    known = checkpoint.table.ecosystem in preparations()
    by_name = "; --architecture NAME takes that of its library" if known else ""
    fact = "No file states this checkpoint's preprocessing."
    if why:
        fact = "This checkpoint's preprocessing is stated, but not supported."
    of_videos = " or video_preprocessor_config.json" if checkpoint.config.clips else ""
    raise MissingFact(
        fact,
        evidence={"dialect": checkpoint.dialect, **({"why": "; ".join(why)} if why else {})},
        hint=f"put its preprocessor_config.json{of_videos}, or timm's config.json, beside the "
        "weights, or state it: --preprocessor FILE, or --mean and --std (in Python, preprocessing, "
        f"or load_checkpoint(..., preprocessor=FILE)){by_name}.",
    )


def warn_of_assumed(preprocessing: Preprocessing) -> None:
    """Tell the user of a preprocessing that nobody stated for the model."""
    if preprocessing.assumed:
        word = "" if "assumed" in preprocessing.origin else "assumed: "
        state = "--preprocessor FILE, or --mean, --std, --crop and --interpolation, state it"
        warn(f"preprocessing: {word}{preprocessing.origin}; {state}")


def _stated(
    companions: Companions, part: FoundViT, config: ViTConfig, said: Statements
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """The preprocessing by the files, or why it is unknown."""
    table = part.recognised.table
    # A larger model may cut images into tiles or pad them: that is no reason to refuse its ViT.
    larger = part.tower.prefix or isinstance(companions.whole_config.get("vision_config"), Mapping)
    try:
        stated = stated_preprocessing(companions, table, config)
    except VitConvertError as error:
        if larger:
            return None, (f"{_UNKNOWN}: the larger model's is not read ({error.fact})",)
        # Weights mean the same whatever prepares images; only what is damaged or wrong is refused.
        if not isinstance(error, NotRepresentable | MissingFact):
            raise
        file = Path(str(error.evidence.get("file", "the file beside the weights"))).name
        return None, (f"{_UNKNOWN}: {file} is not read ({error.fact})",)
    if larger and stated is not None and stated.image_size != config.image_size:
        sizes = [size_text(size) for size in (stated.image_size, config.image_size)]
        return None, (
            f"{_UNKNOWN}: the larger model's gives {sizes[0]} pixels, and the ViT reads {sizes[1]}",
        )
    if stated is not None or ("preprocessing" in companions.own and not said.architecture):
        return stated, ()
    for name in said.names(table):
        try:
            found = preprocessing_of_name(table, name, config, arguments=said.arguments)
        except VitConvertError as error:  # of arguments, which the tensors do without
            return None, (f"{_UNKNOWN}: the training's is not read ({error.fact})",)
        if found:
            return found, (f"preprocessing is {found.origin}; no file states it",)
    return None, ()


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


def stated_preprocessing(
    files: Companions, table: Table, config: ViTConfig
) -> Preprocessing | None:
    """How an image becomes the model's input, or None if nothing states it.

    Args:
        files: What lies beside the weights.
        table: The dialect; its `[preprocessing]` is the weakest statement.
        config: The model's configuration.

    What was unknown when vitconvert wrote the files stays so, unless somebody stated it since: the
    defaults of the dialect that they are in now were never the model's.

    Raises:
        MissingFact, ConflictingFact, NotRepresentable: As the reader of each project's file. The
            error names the file.
    """
    if config.in_channels not in (1, 3):
        return None  # files of images have no such channels
    own, unknown = None, "preprocessing" in files.own
    if stated := files.own.get("preprocessing"):
        with _naming(files.located.own):
            own = Preprocessing.from_dict(stated)
    if own and not files.record.unspoken:
        return own
    cfg = files.config.get("pretrained_cfg")
    # timm's own are those of ImageNet's red, green and blue
    silent = isinstance(cfg, dict) and not all(cfg.get(name) for name in ("mean", "std"))
    unknown = unknown or (silent and config.in_channels == 1)
    found = _live(files, config, without_timm=unknown and silent) or own
    section = table.preprocessing
    if found or unknown or not section:
        return found
    if config.in_channels != _RGB and any(
        # Red, green and blue apart, which says nothing of grey images.
        isinstance(v := section.get(name), list) and len(set(v)) > 1
        for name in ("mean", "std")
    ):
        return None
    usual = Preprocessing.from_dialect(
        section,
        image_size=config.image_size,
        channels=config.in_channels,
        origin=table.origin,
    )
    return replace(usual, assumed=True)


def _live(files: Companions, config: ViTConfig, *, without_timm: bool) -> Preprocessing | None:
    """The preprocessing by the project's own files, where they state all of it.

    The preprocessor's word comes first, but for a config.json that alone was written again since
    vitconvert wrote both: timm knows no other file.
    """
    newer = files.record.edited == {"config"} and "pretrained_cfg" in files.config
    stating = files.located.preprocessor
    if stating is not None and files.preprocessor is not None and not newer:
        with _naming(stating):
            if is_image_converter(files.preprocessor):
                return Preprocessing.from_keras_hub(
                    files.preprocessor,
                    image_size=config.image_size,
                    channels=config.in_channels,
                )
            return Preprocessing.from_huggingface(
                files.preprocessor,
                model_type=files.config.get("model_type"),
                image_size=config.image_size,
                origin=stating.name,
            )
    if isinstance(cfg := files.config.get("pretrained_cfg"), dict):
        if without_timm:
            return None
        with _naming(files.located.config):
            return Preprocessing.from_timm(cfg)
    meta = files.container.extras.get("meta")
    if isinstance(meta, Mapping) and isinstance(text := meta.get("cfg"), str):
        origin = "MMPretrain's configuration in meta.cfg beside the weights"
        return Preprocessing.from_mmpretrain(text, image_size=config.image_size, origin=origin)
    stated = files.config.get("preprocess_cfg")
    cfg = stated if isinstance(stated, dict) else {}
    if cfg or "model_cfg" in files.config:  # beside which open_clip has its own defaults
        said = {"origin": "open_clip's defaults; open_clip_config.json does not state it"}
        with _naming(files.located.config):
            return Preprocessing.from_openclip(
                cfg, image_size=config.image_size, **({} if cfg else said)
            )
    return None


def preprocessing_of_name(
    table: Table, name: str, config: ViTConfig, arguments: JsonObject
) -> Preprocessing | None:
    """A project's preprocessing for an architecture, or None if it is not known.

    Args:
        table: The dialect.
        name: The architecture, with a tag or without.
        config: The model's configuration.
        arguments: Of a training script, which override it: timm's `resolve_data_config`.

    Raises:
        ConflictingFact: An argument is malformed.
    """
    said = preparation_of(table.ecosystem, name)
    if said is None or config.in_channels != _RGB:
        return None
    own = {field: arguments[field] for field in said if arguments.get(field)}
    more = f", {', '.join(own)} by the arguments of the training" if own else ""
    usual = Preprocessing.from_timm(
        {**said, **own, "input_size": [_RGB, *config.image_size]},
        origin=f"{table.ecosystem}'s own for {printable(name)[:80]}{more}",
    )
    return replace(usual, assumed=True)


@contextmanager
def _naming(file: Path | None) -> Iterator[None]:
    """Name the file first in every error about its content."""
    try:
        yield
    except VitConvertError as error:
        error.evidence = {"file": str(file), **error.evidence}
        raise
