"""The steps from an image to what a model reads, stated as data and free of contradictions."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable, size_text
from vitconvert.preprocessing import backends
from vitconvert.preprocessing.backends import BACKENDS

Size = tuple[int, int]  # height, width
LONGEST_SIDE = 2**16  # of an image that a model reads, or that is cropped to it: pixels

_LONGEST_TEXT = 200
_LEAST, _LARGEST = 1e-6, 1e6  # beyond them, pixels overflow or all become the same

_OPENED = {
    "drop": "transparency dropped",
    "white": "put on white",
    "key": "alpha dropped, one transparent colour put on white",
}
_VOCABULARIES = {
    "interpolation": backends.INTERPOLATIONS,
    "resize": backends.RESIZES,
    "backend": tuple(BACKENDS),
    "transparency": backends.TRANSPARENCIES,
}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Convert, resize, crop, rescale, normalise, pad: each step; see `Preprocessing`."""

    image_size: Size  # of the result
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str  # one of backends.INTERPOLATIONS
    resize: str  # one of backends.RESIZES
    resize_size: Size | None  # before cropping; twice the shortest side for "shortest"
    crop: bool  # the middle is cut out, or padded, to image_size
    backend: str  # one of backends.BACKENDS: whose arithmetic
    transparency: str = "drop"  # one of backends.TRANSPARENCIES
    rescale_factor: float | None = 1 / 255  # None: values stay 0 to 255
    patch_size: int | None = None  # of resize "patches"
    max_patches: int | None = None
    pad: bool = False  # zeros at the right and below, after normalising, to image_size
    normalize: bool = True  # False: mean 0, std 1, and no arithmetic that could round
    origin: str  # where this was stated
    assumed: bool = False  # stated by nobody for this model, but usual where it comes from

    def __post_init__(self) -> None:
        if problems := list(_contradictions(self)):
            raise ConflictingFact("The preprocessing contradicts itself.", details=problems)
        filters = BACKENDS[self.backend].interpolations
        if self.interpolation not in filters:
            raise NotRepresentable(
                f"The {self.backend} backend cannot resize with the {self.interpolation} filter.",
                evidence={"filters": ", ".join(filters), "from": self.origin},
            )

    @property
    def channels(self) -> int:
        """Channels of the result: 3 for RGB, 1 for grey."""
        return len(self.mean)

    @property
    def of_sounds(self) -> bool:
        """Whether a recording becomes a spectrogram, instead of an image."""
        return self.backend == "kaldi"

    @property
    def cuts(self) -> bool:
        """Whether cropping has an effect: it has none on images squashed to their final size."""
        return self.crop and not (self.resize == "squash" and self.resize_size == self.image_size)

    @property
    def resizing(self) -> str:
        """What becomes of sizes, in words."""
        resized = size_text(self.resize_size or ())
        return {
            "shortest": f"shortest side to {(self.resize_size or (0,))[0]}",
            "cover": f"covering {resized}",
            "border": f"within {resized}",
            "longest": f"longest side to {(self.resize_size or (0,))[0]}",
            "squash": f"squashed to {resized}",
            "cut": f"the middle in the aspect ratio of {resized}, resized to it",
            "patches": f"at most {self.max_patches} patches of {self.patch_size}",
            "none": "not resized",
        }[self.resize]

    @property
    def filtering(self) -> str:
        """The filter in words, with what Pillow's and timm's filter of its name does otherwise."""
        backend, name = BACKENDS[self.backend], self.interpolation
        if name == "nearest":  # which computes nothing
            return name
        if not backend.antialias:
            # Torch's cubic without antialias has a = -0.75.
            own = " (a = -0.5)" if name == "bicubic" and backend.resize == "weights" else ""
            name = f"{name}{own} without antialias"
        return f"{name}, truncated to whole levels" if backend.truncate else name

    @property
    def opening(self) -> str:
        """What becomes of the EXIF orientation and of transparency, in words."""
        upright = BACKENDS[self.backend].upright
        turned = "turned as EXIF says" if upright else "the EXIF orientation ignored"
        return f"{turned}; {_OPENED[self.transparency]}"

    def differences(self, other: "Steps") -> tuple[str, ...]:
        """The differences from another preprocessing, one sentence per field."""
        found = []
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            same = mine == theirs or (field.name == "crop" and self.cuts == other.cuts)
            if field.name not in ("origin", "assumed") and not same:
                shown = (v if isinstance(v, str) else repr(v) for v in (mine, theirs))
                found.append("{} is {} here and {} there".format(field.name, *shown))
        return tuple(found)

    def to_dict(self) -> JsonDict:
        """All fields as JSON types."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: JsonObject) -> Self:
        """The inverse of `to_dict`.

        Raises:
            MissingFact: A field without a default is missing.
            ConflictingFact: A field is unknown or has a wrong value.
        """
        if not isinstance(values, Mapping):
            fact = f"preprocessing = {short(values)} should be an object with fields."
            raise ConflictingFact(fact)
        known = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - set(known)):
            raise ConflictingFact(f"Preprocessing has no {', '.join(unknown)}.")
        if missing := sorted(n for n, needed in known.items() if needed and n not in values):
            raise MissingFact(f"Preprocessing lacks {', '.join(missing)}.")
        fields = dict(values)
        for name in ("image_size", "resize_size"):
            if name == "image_size" or fields.get(name) is not None:
                fields[name] = height_width(fields[name], name)
        for name in ("mean", "std"):
            count = len(fields[name]) if isinstance(fields[name], list | tuple) else 1
            fields[name] = numbers(fields[name], name, count)
        if fields.get("rescale_factor") is not None:
            (fields["rescale_factor"],) = numbers(fields["rescale_factor"], "rescale_factor", 1)
        for name in ("patch_size", "max_patches"):
            if fields.get(name) is not None:
                (fields[name],) = whole_numbers(fields[name], name, 1)
        if not isinstance(fields["origin"], str):
            raise ConflictingFact(f"origin = {short(fields['origin'])} should be a text.")
        return cls(**fields)


def unit_mean_std(steps: Steps) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for pixels from 0 to 1."""
    if steps.rescale_factor == 1 / 255:
        return steps.mean, steps.std
    factor = 255 * (steps.rescale_factor or 1)
    return tuple(v / factor for v in steps.mean), tuple(v / factor for v in steps.std)


def _contradictions(p: Steps) -> Iterator[str]:
    """Sentences about fields that have no such value, or contradict one another."""
    for name, words in _VOCABULARIES.items():
        if getattr(p, name) not in words:
            yield f"{name} = {short(getattr(p, name))} is not one of {', '.join(words)}"
    for name in ("crop", "pad", "normalize"):
        if not isinstance(getattr(p, name), bool):
            yield f"{name} = {short(getattr(p, name))} is neither true nor false"
    # Arithmetic
    if len(p.mean) not in (1, 3) or len(p.std) != len(p.mean):
        yield f"mean has {len(p.mean)} values and std {len(p.std)}: both need 3 (RGB) or 1 (grey)"
    if not p.normalize and (set(p.mean), set(p.std)) != ({0}, {1}):
        yield f"normalize = False needs mean 0 and std 1, not mean = {p.mean}, std = {p.std}"
    if 0 in p.std:
        yield f"std = {p.std} divides by zero"
    elif not all(_LEAST <= value <= _LARGEST for value in p.std):
        yield f"std = {p.std} must be from {_LEAST:g} to {_LARGEST:g}"
    if not all(abs(value) <= _LARGEST for value in (*p.mean, p.rescale_factor or 1)):
        yield f"mean and rescale_factor must be {_LARGEST:g} at most"
    if p.rescale_factor is not None and p.rescale_factor <= 0:
        yield f"rescale_factor = {p.rescale_factor} must be positive"
    dividing = [name for name, backend in BACKENDS.items() if backend.numbers == "divide"]
    if p.rescale_factor != 1 / 255 and p.backend in dividing:
        yield f"backend = {p.backend!r} always rescales by 1/255, not by {p.rescale_factor}"
    if p.of_sounds and (len(p.mean) != 1 or p.resize != "none" or p.crop):
        yield "a spectrogram has one channel, and is neither resized nor cropped"
    # Sizes
    if (p.resize == "patches") != bool(p.patch_size and p.max_patches):
        patches = f"patch_size = {p.patch_size}, max_patches = {p.max_patches}"
        yield f"resize = {p.resize!r} does not fit {patches}"
    if (p.resize in ("none", "patches")) != (p.resize_size is None):
        yield f"resize = {p.resize!r} does not fit resize_size = {p.resize_size}"
    if min(p.image_size + (p.resize_size or ())) < 1:
        yield f"{size_text(p.resize_size or p.image_size)} is not a size of an image"
    if p.resize == "cut" and p.backend in BACKENDS and BACKENDS[p.backend].resize != "weights":
        yield f"backend = {p.backend!r} does not cut before it resizes"
    if p.resize in ("shortest", "longest") and len(set(p.resize_size or ())) > 1:
        yield f"resize = {p.resize!r} needs one size, not {size_text(p.resize_size or ())}"
    if p.pad and (p.crop or p.resize not in ("none", "longest")):
        yield f"pad does not fit resize = {p.resize!r}, crop = {p.crop}"
    if not p.crop and not p.pad and p.resize not in ("none", "squash", "patches"):
        yield f"resize = {p.resize!r} without crop makes images of any size"
    if not p.crop and p.resize == "squash" and p.resize_size != p.image_size:
        yield (
            f"squashing to {size_text(p.resize_size or ())} without crop never makes "
            f"{size_text(p.image_size)}"
        )


def numbers(values: object, name: str, count: int, *, repeat: bool = True) -> tuple[float, ...]:
    """`count` finite numbers; with `repeat`, one number, or several equal ones, may stand for them.

    Raises:
        ConflictingFact: The value is something else.
    """
    found = tuple(values) if isinstance(values, Iterable) else (values,)
    if repeat and found and all(v == found[0] for v in found):
        found = found[:1] * count
    finite = all(
        isinstance(v, int | float)
        and not isinstance(v, bool)
        # JSON's whole numbers may be larger than a float.
        and abs(v) <= sys.float_info.max
        for v in found
    )
    if len(found) != count or not finite:
        wanted = "a number" if count == 1 else f"{count} numbers"
        raise ConflictingFact(f"{name} = {short(values)} should be {wanted}.")
    return tuple(map(float, found))


def positive(value: object, name: str) -> float:
    """One number above zero.

    Raises:
        ConflictingFact: The value is something else.
    """
    (number,) = numbers(value, name, 1)
    if number <= 0:
        raise ConflictingFact(f"{name} = {value} must be positive.")
    return number


def whole_numbers(values: object, name: str, count: int, *, repeat: bool = True) -> tuple[int, ...]:
    """`count` numbers of pixels, as `numbers` reads them.

    Raises:
        ConflictingFact: The value is something else.
    """
    found = numbers(values, name, count, repeat=repeat)
    if not all(v.is_integer() and 1 <= v <= LONGEST_SIDE for v in found):
        raise ConflictingFact(f"{name} = {short(values)} should be whole numbers of pixels.")
    return tuple(map(int, found))


def height_width(values: object, name: str) -> Size:
    """A (height, width) in pixels; a single number means both.

    Raises:
        ConflictingFact: The value is something else.
    """
    height, width = whole_numbers(values, name, 2)
    return height, width


def short(value: object) -> str:
    """A value of somebody's, for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
