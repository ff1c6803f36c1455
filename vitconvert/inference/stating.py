"""What a user states about images and classes, where a checkpoint is silent or wrong."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.documents import parse_object, read_bytes, read_object
from vitconvert.errors import ConflictingFact, CorruptFile, MissingFact
from vitconvert.labels import Labels, stated_labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.keras_hub import is_image_converter
from vitconvert.preprocessing.timm import size_before_crop

USER = "you"


@dataclass(frozen=True, kw_only=True)
class StatedPixels:
    """What becomes of images; None where nothing is said.

    Attributes:
        mean, std: One number, or one for each channel, for pixels from 0 to 1.
        crop: The share of the resized image that is kept, such as 0.875.
        preprocessor: A `preprocessor_config.json`, timm's `config.json` or `pretrained_cfg`, or
            KerasHub's `image_converter.json`.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    crop: float | None = None
    preprocessor: Path | None = None

    def __bool__(self) -> bool:
        return self != StatedPixels()

    def applied_to(self, known: Preprocessing | None, config: ViTConfig) -> Preprocessing:
        """What is known, with what is stated in its place.

        Where neither says how images are resized, they are as timm resizes them: bicubic, and the
        middle 0.875 is kept.

        Raises:
            MissingFact: Mean or std is stated by nobody.
            ConflictingFact, NotRepresentable: The file, or a number, makes no sense.
        """
        if self.preprocessor is not None:
            known = preprocessing_in(self.preprocessor, config)
        if known is None:
            return self._alone(config)
        fields: dict[str, Any] = {}
        channels = known.channels
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None:
                fields[name] = _for_channels(values, name, channels)
                fields |= {"normalize": True}
        if fields and known.rescale_factor != 1 / 255:
            raise ConflictingFact(
                "--mean and --std are for pixels from 0 to 1, and these are scaled otherwise.",
                evidence={"from": known.origin, "rescale_factor": known.rescale_factor},
                hint="--preprocessor FILE states all of it.",
            )
        if self.crop is not None:
            fields |= _cropped(known.image_size, self.crop)
        if not fields:
            return known
        names = ", ".join(name for name in ("mean", "std", "crop") if getattr(self, name))
        return dataclasses.replace(known, **fields, origin=f"{known.origin}; {names}: {USER}")

    def _alone(self, config: ViTConfig) -> Preprocessing:
        missing = [f"--{name}" for name in ("mean", "std") if getattr(self, name) is None]
        if missing:
            raise MissingFact(
                "Nothing says how this checkpoint's images are normalised.",
                evidence={"missing": " and ".join(missing)},
                hint="state --mean and --std, or --preprocessor FILE.",
            )
        channels = config.in_channels
        stated = {
            "input_size": [channels, *config.image_size],
            "mean": _for_channels(self.mean or (), "mean", channels),
            "std": _for_channels(self.std or (), "std", channels),
            "crop_pct": self.crop,
        }
        assumed = "bicubic" if self.crop else "bicubic and crop 0.875"
        return Preprocessing.from_timm(stated, origin=f"{USER}; assumed: {assumed}, as in timm")


def preprocessing_in(file: Path, config: ViTConfig) -> Preprocessing:
    """What a file of transformers, of timm or of KerasHub says, for images of the model's size.

    Raises:
        SourceError, CorruptFile: It cannot be read.
        MissingFact, ConflictingFact, NotRepresentable: As the reader of each project's file.
    """
    stated = read_object(file)
    cfg = stated.get("pretrained_cfg", stated)
    origin = f"{file.name}, {USER}"
    if isinstance(cfg, dict) and ("input_size" in cfg or "pretrained_cfg" in stated):
        found = Preprocessing.from_timm(cfg, origin=origin)
    elif is_image_converter(stated):
        size, channels = config.image_size, config.in_channels
        found = Preprocessing.from_keras_hub(
            stated, image_size=size, channels=channels, origin=origin
        )
    else:
        found = Preprocessing.from_huggingface(stated, image_size=config.image_size, origin=origin)
    return found


def labels_in(file: Path, num_classes: int) -> Labels:
    """Names of classes: a line each, or JSON (a list, or what `id2label` of config.json is).

    Raises:
        SourceError, CorruptFile: The file cannot be read.
        ConflictingFact: There are more or fewer names than classes.
    """
    try:
        content = read_bytes(file)
        text = content.decode("utf-8-sig").strip()
        if text[:1] == "[":
            names = parse_object(b'{"names": %s}' % text.encode())["names"]
        elif text[:1] == "{":
            stated = parse_object(text.encode())
            names = stated.get("id2label", stated)
        else:
            names = [line.strip() for line in text.splitlines()]
    except ValueError as error:
        raise CorruptFile(
            f"{file.name} does not name classes.", evidence={"file": file, "problem": error}
        ) from None
    labels = stated_labels(num_classes, names, origin=f"{file.name}, {USER}")
    if labels is None:
        raise ConflictingFact(
            f"{file.name} gives the classes no names.", evidence={"classes": num_classes}
        )
    return labels


def _for_channels(values: Sequence[float], name: str, channels: int) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        raise ConflictingFact(
            f"--{name} has {len(values)} numbers, and images have {channels} channels."
        )
    return tuple(values) * (channels if len(values) == 1 else 1)


def _cropped(image_size: tuple[int, int], share: float) -> dict[str, Any]:
    """The shortest side is resized so that the middle of the image is this share of it."""
    resized = size_before_crop(image_size, share)
    square = resized[0] == resized[1]
    return {
        "resize": "shortest" if square else "cover",
        "resize_size": resized,
        "crop": True,
    }
