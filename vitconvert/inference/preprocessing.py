"""How a checkpoint's own project turns a photograph into numbers."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.inference import backends, processor_config, processor_writing
from vitconvert.inference.backends import BACKENDS, Size

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The images that a model was evaluated on, stated so that they can be made again.

    Sizes are (height, width) in pixels. `mean` and `std` have one value per channel, three for
    RGB and one for grey, on the scale that `rescale_factor` makes.

    The pixels are equal, to the last bit, to those of timm 1.0.31 (`create_transform` of
    `resolve_data_config`, images opened as its `ImageDataset` does) and of transformers 5.23
    (`ViTImageProcessor`, `BitImageProcessor` and their kin, with either backend). The backends
    "tensorflow" and "big_vision" follow the sources of those projects and were not compared with
    TensorFlow.

    Raises:
        ConflictingFact: Fields contradict each other or have values outside their vocabulary.
        NotRepresentable: The project's own backend has no such resizing.
    """

    image_size: Size  # what comes out
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
    normalize: bool = True  # False: mean 0, std 1, and no arithmetic that could round
    origin: str  # where this was stated

    def __post_init__(self) -> None:
        if problems := _contradictions(self):
            raise ConflictingFact("The preprocessing contradicts itself.", details=problems)
        filters = BACKENDS[self.backend].interpolations
        if self.interpolation not in filters:
            raise NotRepresentable(
                f"The {self.backend} backend does not resize with the {self.interpolation} filter.",
                evidence={"filters": ", ".join(filters), "from": self.origin},
            )

    @property
    def channels(self) -> int:
        """Channels that come out: 3 for RGB, 1 for grey."""
        return len(self.mean)

    @property
    def cuts(self) -> bool:
        """Whether cropping has an effect: it has none on images squashed to their last size."""
        return self.crop and not (self.resize == "squash" and self.resize_size == self.image_size)

    def __call__(
        self, image: "Image.Image | PathLike[str]", *, fast: bool = False
    ) -> "torch.Tensor":
        """The image, open or a file, as the model reads it: (C, H, W) float32.

        Args:
            image: An open image, which is left as it is, or the path of one.
            fast: Read a JPEG file at 1/2, 1/4 or 1/8 of its size if it stays twice as large as it
                is resized to, average whole pixels first where there are more, and resize only
                what is kept. Pixels are then close to those of the source project, not equal: of
                12 megapixels, in a fifth of the time, by 0.2 of 255 levels on average and 6 at
                most; equal but for single pixels where nothing is shrunk. What is resized without
                antialias is done exactly all the same.

        Raises:
            SourceError: The file is not there, or may not be read.
            CorruptFile: It is no image, or a damaged one.
            InputMismatch: The image is too narrow, or of another size when nothing resizes it.
            UnsafeFile: It is so large, or so narrow, that it would exhaust memory.
        """
        import torch

        return torch.from_numpy(self.array(image, fast=fast))

    def array(
        self, image: "Image.Image | PathLike[str]", *, fast: bool = False
    ) -> "NDArray[np.float32]":
        """As calling, without importing torch where Pillow does the resizing."""
        from vitconvert.inference.transform import transformed

        return transformed(
            Path(image) if isinstance(image, str | PathLike) else image, self, fast=fast
        )

    def differences(self, other: "Preprocessing") -> tuple[str, ...]:
        """What another preprocessing does otherwise, one sentence per field."""
        return tuple(
            f"{field.name} is {_shown(mine)} here and {_shown(theirs)} there"
            for field in dataclasses.fields(self)
            if field.name != "origin"
            and not (field.name == "crop" and self.cuts == other.cuts)
            and (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        )

    def at_size(self, image_size: Size) -> "Preprocessing":
        """The same pipeline for images of another size; what is cropped stays the same share.

        Where both sides have one share, sizes are rounded as timm rounds them at that size.
        """
        resized, resize = self.resize_size, self.resize
        if resized is not None:
            resized = processor_writing.rescaled(resized, self.image_size, image_size)
        if resize in ("shortest", "cover"):  # the latter is what timm does unless all is square
            square = len(set(image_size)) == len(set(resized or ())) == 1
            resize = "shortest" if square else "cover"
        return dataclasses.replace(
            self,
            image_size=image_size,
            resize=resize,
            resize_size=resized,
            origin=f"{self.origin}, at {_by(image_size)}",
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON types."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """The inverse of `to_dict`.

        Raises:
            MissingFact: A field without a default is missing.
            ConflictingFact: There is a field too many, or one has a wrong value.
        """
        if not isinstance(values, Mapping):
            raise ConflictingFact(f"preprocessing = {values!r} holds no fields.")
        known = {f.name: f for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - set(known)):
            raise ConflictingFact(f"Preprocessing has no {', '.join(unknown)}.")
        missing = sorted(
            name
            for name, field in known.items()
            if field.default is dataclasses.MISSING and name not in values
        )
        if missing:
            raise MissingFact(f"Preprocessing lacks {', '.join(missing)}.")
        fields = dict(values)
        for name in ("image_size", "resize_size"):
            if name == "image_size" or fields.get(name) is not None:
                fields[name] = processor_config.pair(fields[name], name)
        for name in ("mean", "std"):
            count = len(fields[name]) if isinstance(fields[name], list | tuple) else 1
            fields[name] = processor_config.numbers(fields[name], name, count)
        if fields.get("rescale_factor") is not None:
            factor = fields["rescale_factor"]
            (fields["rescale_factor"],) = processor_config.numbers(factor, "rescale_factor", 1)
        return cls(**fields)

    @classmethod
    def from_timm(
        cls, pretrained_cfg: Mapping[str, Any], *, origin: str = "timm's pretrained_cfg"
    ) -> "Preprocessing":
        """What timm 1.0.31 does with this `pretrained_cfg`.

        timm opens images without their EXIF orientation, forgets transparency, and reads one
        channel as grey. Where the cfg is silent, timm's defaults are meant: 224 pixels, bicubic,
        crop_pct 0.875, ImageNet's mean and std.

        Raises:
            ConflictingFact: A value is malformed, or mean and std do not fit the channels.
        """
        return cls(**processor_config.fields_from_timm(pretrained_cfg), origin=origin)

    def to_timm(self) -> dict[str, Any]:
        """The keys of timm's `pretrained_cfg` that say the same, as far as timm has the words.

        `Preprocessing.from_timm(p.to_timm())` is what timm will do; `differences` tells how that
        departs (who resizes: a Pillow image or a tensor; EXIF; transparency).

        Raises:
            NotRepresentable: timm has no such resizing.
        """
        return processor_writing.pretrained_cfg(self)

    @classmethod
    def from_huggingface(
        cls,
        preprocessor_config: Mapping[str, Any],
        *,
        backend: str = "torchvision",
        model_type: str | None = None,
        image_size: Size | None = None,
        origin: str = "preprocessor_config.json",
    ) -> "Preprocessing":
        """What transformers 5.23 does with this `preprocessor_config.json`.

        Old files (`feature_extractor_type`, whole numbers as sizes) mean what transformers makes
        of them today. Its own loader, `load_image`, turns a photograph upright by its EXIF
        orientation; where the file does not say `do_convert_rgb`, it also forgets transparency.

        Args:
            preprocessor_config: The parsed file.
            backend: "torchvision", as AutoImageProcessor chooses by default, or "pil".
            model_type: That of config.json, for files that name no processor.
            image_size: The model's, for files that neither resize nor crop.
            origin: Where the file came from.

        Raises:
            MissingFact: The file names no processor, or no fixed size.
            NotRepresentable: The processor, or something it is asked to do, is not supported.
            ConflictingFact: A value is malformed.
        """
        fields = processor_config.fields_from_huggingface(
            preprocessor_config, backend=backend, model_type=model_type, image_size=image_size
        )
        return cls(**fields, origin=origin)

    def to_huggingface(self) -> dict[str, Any]:
        """The `preprocessor_config.json` that says the same, as far as transformers can.

        A crop needs BitImageProcessor (from a shortest side) or DeiTImageProcessor (from a
        squashed image); ViTImageProcessor only squashes. The file cannot choose the backend:
        with `backend="pil"`, timm's pixels come out but for crops that are a pixel off where
        three modulo four rows or columns are cut, because timm rounds half a pixel to even and
        transformers down. `differences` to `from_huggingface` of the result tells the rest.

        Raises:
            NotRepresentable: transformers has no such resizing.
        """
        return processor_writing.preprocessor_config(self)

    @classmethod
    def from_openclip(
        cls,
        preprocess_cfg: Mapping[str, Any],
        *,
        image_size: Size,
        origin: str = "open_clip_config.json",
    ) -> "Preprocessing":
        """What open_clip 3.3 does with this `preprocess_cfg`, for a tower of this size.

        Raises:
            ConflictingFact: A value is malformed.
            NotRepresentable: Images are padded with a colour.
        """
        fields = processor_config.fields_from_openclip(preprocess_cfg, image_size=image_size)
        return cls(**fields, origin=origin)

    def to_openclip(self) -> dict[str, Any]:
        """The `preprocess_cfg` that says the same, or comes near.

        open_clip resizes to the size of the tower's images, so that a crop takes no margin away.
        `differences` to `from_openclip` of the result tells the rest.
        """
        return processor_writing.preprocess_cfg(self)

    @classmethod
    def from_dialect(
        cls,
        section: Mapping[str, Any],
        *,
        image_size: Size,
        channels: int = 3,
        origin: str = "dialect default",
    ) -> "Preprocessing":
        """What a table of `weights_map/` says its project does.

            resize          one of backends.RESIZES
            interpolation   one of backends.INTERPOLATIONS
            mean, std       a number for each channel, or one for all
            backend         one of backends.BACKENDS
            crop_pct        resize_size = floor(image_size / crop_pct); or
            resize_size     in pixels; without either, image_size
            crop            by default, unless the image is squashed to image_size
            transparency    "drop" by default

        Raises:
            TableError: A key is unknown or missing.
            ConflictingFact: A value is malformed.
        """
        fields = processor_config.fields_from_dialect(
            section, image_size=image_size, channels=channels
        )
        return cls(**fields, origin=origin)


def _contradictions(p: Preprocessing) -> list[str]:
    vocabularies = {
        "interpolation": backends.INTERPOLATIONS,
        "resize": backends.RESIZES,
        "backend": tuple(BACKENDS),
        "transparency": backends.TRANSPARENCIES,
    }
    unknown = [
        f"{name} = {getattr(p, name)!r} is none of {', '.join(words)}"
        for name, words in vocabularies.items()
        if getattr(p, name) not in words
    ]
    untrue = [
        f"{name} = {getattr(p, name)!r} is neither true nor false"
        for name in ("crop", "normalize")
        if not isinstance(getattr(p, name), bool)
    ]
    return [*unknown, *untrue, *_arithmetic_contradictions(p), *_size_contradictions(p)]


def _arithmetic_contradictions(p: Preprocessing) -> Iterator[str]:
    if len(p.mean) not in (1, 3) or len(p.std) != len(p.mean):
        yield f"{len(p.mean)} means and {len(p.std)} deviations: photographs have 1 or 3"
    if not p.normalize and (set(p.mean), set(p.std)) != ({0}, {1}):
        yield f"normalize = False with mean = {p.mean}, std = {p.std}"
    if 0 in p.std:
        yield f"std = {p.std} divides by zero"
    if p.rescale_factor is not None and p.rescale_factor <= 0:
        yield f"rescale_factor = {p.rescale_factor} must be positive"
    dividing = [name for name, backend in BACKENDS.items() if backend.numbers == "divide"]
    if p.rescale_factor != 1 / 255 and p.backend in dividing:
        yield f"backend = {p.backend!r} always divides by 255, not {p.rescale_factor}"


def _size_contradictions(p: Preprocessing) -> Iterator[str]:
    if (p.resize == "patches") != bool(p.patch_size and p.max_patches):
        yield f"resize = {p.resize!r} with at most {p.max_patches} patches of {p.patch_size}"
    if (p.resize in ("none", "patches")) != (p.resize_size is None):
        yield f"resize = {p.resize!r} with resize_size = {p.resize_size}"
    if min(p.image_size + (p.resize_size or ())) < 1:
        yield f"{_by(p.resize_size or p.image_size)} pixels are no image"
    if p.resize == "shortest" and p.resize_size and p.resize_size[0] != p.resize_size[1]:
        yield f"the shortest side cannot be both of {_by(p.resize_size)}"
    if not p.crop and p.resize not in ("none", "squash", "patches"):
        yield f"resize = {p.resize!r} without cropping makes images of any size"
    if not p.crop and p.resize == "squash" and p.resize_size != p.image_size:
        yield (
            f"squashing to {_by(p.resize_size or ())} without cropping never makes "
            f"{_by(p.image_size)}"
        )


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
