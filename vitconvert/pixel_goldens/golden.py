"""Pixel goldens: images, and the exact numbers that a model's own project makes of them.

A golden is a directory that needs no Python to be read:

    NAME.png, NAME.jpg     the images
    pixels.safetensors     a tensor for each image and step, such as "edges.png/resized"
    vitconvert.json        what the steps are, the tensors' shapes and sha256, and who vouches

Where the project's own code gives the bits that vitconvert gives, every step is kept. Where it
gives others, its result alone is kept; where it refuses an image, nothing is.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image, features

from vitconvert.conversion.output import atomic_output
from vitconvert.documents import JsonDict, JsonObject, read_object, write_json
from vitconvert.errors import (
    CorruptFile,
    InputMismatch,
    ParityFailed,
    VitConvertError,
    printable,
    size_text,
    what_was_raised,
)
from vitconvert.formats import hash_file, open_container, write_safetensors
from vitconvert.pixel_goldens.images import Drawing, draw
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.image_files import open_image
from vitconvert.preprocessing.pixels import Pixels
from vitconvert.preprocessing.transform import Seen, transformed
from vitconvert.programs.isolation import isolated
from vitconvert.sources.located import RECORD
from vitconvert.version import VERSION

STEPS = ("decoded", "resized", "cropped", "normalised")
TENSORS = "pixels.safetensors"
_KEY, _FORMAT = "pixel_golden", 1
_EQUAL, _OTHER, _REFUSED = "equal", "only the result is known", "refused"

# What a project's own code makes of an open image: (C, H, W), or one of them in a batch.
Prepare = Callable[[Image.Image], object]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One image of a golden.

    Attributes:
        about: What it is.
        plain: Whether every decoder reads it alike.
        verdict: "equal" to the project's own code; or that its result alone is kept, or that it
            refuses the image, and why; or "not verified".
        mode: Pillow's word for the channels of what is decoded and resized.
        steps: The arrays, (C, H, W), by step.
    """

    about: str
    plain: bool
    verdict: str
    mode: str
    steps: Mapping[str, Pixels] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class PixelGolden:
    """Reference pixels: images after each preprocessing step of a model's own library.

    Attributes:
        source: The checkpoint, or where its preprocessing was stated.
        reference: The library's own code, with its version; "" if none was run.
        preprocessing: The steps, as vitconvert states them.
        images: By the name of the file.
        versions: Of vitconvert, Pillow and its decoder of JPEG, which made the steps.
        folder: Where it lies.
    """

    source: str
    reference: str
    preprocessing: Preprocessing
    images: Mapping[str, Recorded]
    versions: Mapping[str, str]
    folder: Path

    @cached_property
    def others(self) -> Mapping[str, Recorded]:
        """The images that the project's own code refuses, or prepares to other bits."""
        known = self.images.items() if self.reference else ()
        return {name: one for name, one in known if one.verdict != _EQUAL}

    @property
    def verdict(self) -> str:
        """Who vouches for the numbers, in a line."""
        if not self.reference:
            return "not verified: the project's own code was not run"
        count = len(self.images)
        return f"{count - len(self.others)} of {count} images bit-equal to {self.reference}"

    @property
    def words(self) -> Mapping[str, str]:
        """What each step does."""
        return in_words(self.preprocessing)

    def to_dict(self) -> JsonDict:
        """What `vitconvert.json` says, but for the hashes of the files."""
        return {
            _KEY: _FORMAT,
            "source": self.source,
            "reference": self.reference,
            "verdict": self.verdict,
            "versions": dict(self.versions),
            "preprocessing": self.preprocessing.to_dict(),
            "steps": dict(self.words),
            "images": {name: _stated(name, image) for name, image in self.images.items()},
        }


_ARITHMETIC = {
    "pil": "by Pillow, in whole numbers",
    "uint8": "by torch, on uint8 tensors",
    "float": "by torch, on float tensors",
    "weights": "by Keras, rounded to whole numbers",
}


def in_words(steps: Preprocessing) -> dict[str, str]:
    """What each step does, for whoever writes it in another language."""
    backend, mode = BACKENDS[steps.backend], "RGB" if steps.channels > 1 else "L"
    antialias = backend.antialias and steps.interpolation != "nearest"
    odd = {"down": "rounded down", "even": "half a pixel rounded to even"}[backend.crop_rounding]
    middle = f"the middle {size_text(steps.image_size)}, its corner {odd}"
    padding = f", then zeros at the right and below, to {size_text(steps.image_size)}"
    padding = padding if steps.pad else ""
    factor = f"times {steps.rescale_factor:.9g}" if steps.rescale_factor else "as it is"
    return {
        "decoded": f"{'as Pillow opens it' if own_modes(steps) else mode}; {steps.opening}",
        "resized": f"{steps.resizing}, {steps.interpolation} {_ARITHMETIC[backend.resize]}, "
        f"{'with' if antialias else 'without'} antialias",
        "cropped": middle if steps.cuts else "nothing is cut off",
        "normalised": f"{factor}{', less mean, over std' if steps.normalize else ''}{padding}",
    }


def record(
    preprocessing: Preprocessing,
    output: Path,
    *,
    source: str,
    own: tuple[str, Prepare] | None,
    overwrite: bool = False,
) -> PixelGolden:
    """Draw images, prepare them, compare with the project's own code, and write the directory.

    Args:
        preprocessing: The steps.
        output: The directory. It appears whole or not at all.
        source: Whose they are.
        own: The name of the project's own code, and that code.
        overwrite: Replace what vitconvert wrote there.

    Raises:
        InputMismatch: The model reads no image, such as one of sounds.
        ParityFailed: The project's own code gives other numbers for every plain image.
        OutputExists, UsageError: As for `check_output`.
    """
    drawings = [*draw(preprocessing.image_size, preprocessing.resize)]
    with isolated():  # the project's own code may depend on settings
        images = {one.name: _recorded(one, preprocessing, own) for one in drawings}
    golden = PixelGolden(
        source=source,
        reference=own[0] if own else "",
        preprocessing=preprocessing,
        images=images,
        versions=_versions(),
        folder=output,
    )
    told = [f"{name}: {one.verdict}" for name, one in images.items()]
    if not any(one.steps for one in images.values()):
        raise InputMismatch("The model reads none of the images.", details=told)
    if own and all(name in golden.others for name, one in images.items() if one.plain):
        raise ParityFailed(
            f"vitconvert does not make the pixels of {own[0]}.",
            evidence={"preprocessing": preprocessing.origin},
            details=told,
        )
    with atomic_output(output, overwrite=overwrite) as folder:
        for one in drawings:
            (folder / one.name).write_bytes(one.content)
        tensors = {
            f"{name}/{step}": torch.from_numpy(array.copy())
            for name, image in images.items()
            for step, array in image.steps.items()
        }
        write_safetensors(folder / TENSORS, tensors)
        hashes = {file.name: hash_file(file) for file in sorted(folder.iterdir())}
        write_json(folder / RECORD, golden.to_dict() | {"sha256": hashes})
    return golden


def seen_of(file: Path | bytes | Image.Image, steps: Preprocessing) -> Seen:
    """The arrays of every step."""
    seen: Seen = {}
    seen["normalised"] = transformed(file, steps, seen=seen)
    return {step: seen[step] for step in STEPS}


def _recorded(one: Drawing, steps: Preprocessing, own: tuple[str, Prepare] | None) -> Recorded:
    with open_image(one.content) as image:
        mode = image.mode if own_modes(steps) else "L" if steps.channels == 1 else "RGB"
        seen: Mapping[str, Pixels] = {}
        verdict = "not verified"
        try:
            seen = seen_of(one.content, steps)
        except VitConvertError as error:
            verdict = f"{_REFUSED} by vitconvert: {error.fact}"
        if own:
            try:
                theirs = torch.as_tensor(own[1](image)).detach().cpu().float().numpy()
            except Exception as error:  # a project may raise anything
                verdict, seen = f"{_REFUSED}: {printable(what_was_raised(error))[:200]}", {}
            else:
                theirs = theirs[0] if theirs.ndim == 4 and len(theirs) == 1 else theirs
                same = bool(seen) and np.array_equal(theirs, seen["normalised"])
                verdict = _EQUAL if same else _OTHER
                seen = seen if same else {"normalised": theirs}
    return Recorded(about=one.about, plain=one.plain, verdict=verdict, mode=mode, steps=seen)


def own_modes(steps: Preprocessing) -> bool:
    """Whether images are resized as they are, and become RGB afterwards."""
    return BACKENDS[steps.backend].converts_last


def _versions() -> dict[str, str]:
    jpeg = features.version("libjpeg_turbo") or features.version("jpg") or "?"
    return {"vitconvert": VERSION, "pillow": features.version("pil") or "?", "libjpeg": jpeg}


def _stated(name: str, image: Recorded) -> JsonDict:
    return {
        "about": image.about,
        "plain": image.plain,
        "verdict": image.verdict,
        "mode": image.mode,
        "steps": {
            step: {
                "tensor": f"{name}/{step}",
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            }
            for step, array in image.steps.items()
        },
    }


def arrays_of(path: Path) -> dict[str, Pixels]:
    """All arrays of a file; floats that numpy has not, such as bfloat16, as float32."""
    with open_container(path) as container:
        return {name: as_array(container.read(name)).copy() for name in container.manifest}


def as_array(numbers: object) -> Pixels:
    """An array of whatever has numbers, also of torch's types that numpy has not."""
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.detach().cpu()
        narrow = numbers.is_floating_point() and numbers.itemsize < torch.float32.itemsize
        return (numbers.float() if narrow else numbers).numpy()
    return np.asarray(numbers)


def read(folder: Path) -> PixelGolden:
    """Read a golden that anybody may have written.

    Raises:
        SourceError: There is none.
        CorruptFile: It is none, or it contradicts itself.
    """
    stated = read_object(folder / RECORD)
    try:
        if stated[_KEY] != _FORMAT:
            raise ValueError(f"format {stated[_KEY]!r}; {_FORMAT} is read here")
        arrays = arrays_of(folder / TENSORS)
        return PixelGolden(
            source=str(stated["source"]),
            reference=str(stated["reference"]),
            preprocessing=Preprocessing.from_dict(stated["preprocessing"]),
            images={
                name: _of_json(name, image, arrays) for name, image in stated["images"].items()
            },
            versions={str(k): str(v) for k, v in stated["versions"].items()},
            folder=folder,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptFile(
            "This is not a pixel golden, or it is damaged.",
            evidence={"file": folder / RECORD, "problem": lacks[:200]},
            hint="record it again: `vitconvert golden SOURCE --pixels -o DIRECTORY`.",
        ) from None


def _of_json(name: str, image: JsonObject, arrays: Mapping[str, Pixels]) -> Recorded:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not a file name")
    steps = {step: arrays[f"{name}/{step}"] for step in STEPS if step in image["steps"]}
    if any(array.ndim != 3 for array in steps.values()):
        raise ValueError(f"{name} has arrays that are not images")
    words = {word: str(image[word]) for word in ("about", "verdict", "mode")}
    return Recorded(plain=image["plain"] is True, steps=steps, **words)
