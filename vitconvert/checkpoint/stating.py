"""What a user states about images and classes, where a checkpoint is silent or wrong."""

import dataclasses
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from vitconvert.checkpoint.options import PIXELS, ReadOptions
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, parse_object, read_bytes, read_object
from vitconvert.errors import ConflictingFact, CorruptFile, MissingFact
from vitconvert.labels import Labels, stated_labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.keras_hub import is_image_converter
from vitconvert.preprocessing.timm import size_before_crop

USER = "stated by you"


def with_stated_pixels(
    known: Preprocessing | None, said: ReadOptions, config: ViTConfig
) -> Preprocessing | None:
    """What is known of images, with what is stated in its place.

    Where neither says how images are resized, they are as timm resizes them: bicubic, and the
    middle 0.875 is kept.

    Raises:
        MissingFact: Mean or std is stated by nobody.
        ConflictingFact, NotRepresentable: The file, or a number, makes no sense.
    """
    if said.preprocessor is not None:
        known = preprocessing_in(Path(said.preprocessor), config)
    names = [name for name in PIXELS if getattr(said, name) is not None]
    if not names:
        return known
    if known is None:
        return stated_alone(said, config)
    fields: JsonDict = {}
    for name, values in (("mean", said.mean), ("std", said.std)):
        if values is not None:
            fields[name] = for_channels(values, name, known.channels)
            fields |= {"normalize": True}
    if fields and known.rescale_factor != 1 / 255:
        raise ConflictingFact(
            "--mean and --std are for pixels from 0 to 1, and this model scales differently.",
            evidence={"from": known.origin, "rescale_factor": known.rescale_factor},
            hint="--preprocessor FILE states the whole preprocessing.",
        )
    if said.interpolation is not None:
        fields["interpolation"] = said.interpolation
    if said.crop is not None:
        fields |= resized_for(known.image_size, said.crop)
    origin = f"{known.origin}; {', '.join(names)}: {USER}"
    return dataclasses.replace(known, **fields, origin=origin)


def stated_alone(said: ReadOptions, config: ViTConfig) -> Preprocessing:
    """What is stated where nothing else is known.

    Raises:
        MissingFact: Mean or std is stated by nobody.
    """
    missing = [f"--{name}" for name in ("mean", "std") if getattr(said, name) is None]
    if missing:
        raise MissingFact(
            "No file states how this checkpoint's images are normalised.",
            evidence={"missing": " and ".join(missing)},
            hint="state --mean and --std, or --preprocessor FILE.",
        )
    channels = config.in_channels
    stated = {
        "input_size": [channels, *config.image_size],
        "mean": for_channels(said.mean or (), "mean", channels),
        "std": for_channels(said.std or (), "std", channels),
        "crop_pct": said.crop,
        "interpolation": said.interpolation,
    }
    usual = {"bicubic": said.interpolation, "crop 0.875": said.crop}
    assumed = " and ".join(name for name, value in usual.items() if value is None)
    origin = f"{USER}; assumed: {assumed}, as in timm" if assumed else USER
    return dataclasses.replace(
        Preprocessing.from_timm(stated, origin=origin), assumed=bool(assumed)
    )


def preprocessing_in(file: Path, config: ViTConfig) -> Preprocessing:
    """What a file of transformers, timm, KerasHub or MMPretrain says, for the model's size.

    Raises:
        SourceError, CorruptFile: It cannot be read.
        MissingFact, ConflictingFact, NotRepresentable: As the reader of each project's file.
    """
    origin = f"{file.name}, {USER}"
    if file.suffix == ".py":
        text = read_bytes(file).decode(errors="replace")
        return Preprocessing.from_mmpretrain(text, image_size=config.image_size, origin=origin)
    stated = read_object(file)
    cfg = stated.get("pretrained_cfg", stated)
    if isinstance(cfg, dict) and ("input_size" in cfg or "pretrained_cfg" in stated):
        found = Preprocessing.from_timm(cfg, origin=origin)
        if found.image_size != config.image_size:
            found = found.at_size(config.image_size)
    elif is_image_converter(stated):
        size, channels = config.image_size, config.in_channels
        found = Preprocessing.from_keras_hub(
            stated, image_size=size, channels=channels, origin=origin
        )
    else:
        found = Preprocessing.from_huggingface(stated, image_size=config.image_size, origin=origin)
    return found


def stated_names(said: ReadOptions, num_classes: int) -> Labels | None:
    """The names that are stated for the classes, or None.

    Raises:
        SourceError, CorruptFile: Their file cannot be read.
        ConflictingFact: There are more or fewer names than classes.
    """
    if said.labels is None:
        return None
    names, source = said.labels, "labels"
    if isinstance(names, str | PathLike):
        file = Path(names)
        names, source = names_in(file), file.name
    labels = stated_labels(num_classes, names, origin=f"{source}, {USER}")
    if labels is None:
        raise ConflictingFact(
            f"{source} has no names for the classes.",
            evidence={"classes": num_classes},
        )
    return labels


def names_in(file: Path) -> Sequence[str]:
    """Names by a file: a line each, or JSON: a list, or what `id2label` of config.json is.

    Or Keras' `imagenet_class_index.json`, which has a synset beside each name.
    """
    try:
        text = read_bytes(file).decode("utf-8-sig").strip()
        if text[:1] == "[":
            names = parse_object(b'{"names": %s}' % text.encode())["names"]
        elif text[:1] == "{":
            stated = parse_object(text.encode())
            names = stated.get("id2label", stated)
            if isinstance(names, dict):
                # Keras' file has a synset beside each name: {"0": ["n01440764", "tench"], ...}
                pairs = [n for n in names.values() if isinstance(n, list) and len(n) == 2]
                if names and len(pairs) == len(names):
                    names = {index: name for index, (_, name) in names.items()}
        else:
            names = [line.strip() for line in text.splitlines()]
    except ValueError as error:
        raise CorruptFile(
            f"{file.name} does not name classes.", evidence={"file": file, "problem": error}
        ) from None
    return names  # type: ignore[no-any-return]


def for_channels(stated: float | Sequence[float], name: str, channels: int) -> tuple[float, ...]:
    """A number for each channel, where one may stand for all.

    Raises:
        ConflictingFact: There are other numbers of them.
    """
    values = tuple(stated) if isinstance(stated, Sequence) else (stated,)
    if len(values) not in (1, channels):
        raise ConflictingFact(
            f"--{name} has {len(values)} numbers, and images have {channels} channels."
        )
    return values * (channels if len(values) == 1 else 1)


def resized_for(image_size: tuple[int, int], share: float) -> JsonDict:
    """The shortest side is resized so that the middle of the image is this share of it."""
    resized = size_before_crop(image_size, share)
    square = resized[0] == resized[1]
    return {
        "resize": "shortest" if square else "cover",
        "resize_size": resized,
        "crop": True,
    }
