"""How a checkpoint's own project turns an image into numbers."""

import dataclasses
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import TableError, size_text, warn
from vitconvert.preprocessing import keras_hub, mmpretrain, open_clip, timm, transformers
from vitconvert.preprocessing.steps import Size, Steps, height_width, numbers

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from PIL import Image

    from vitconvert.preprocessing.clips import Clip

# Keys of the `[preprocessing]` section of a table in `weights_map/`
_REQUIRED = {"resize", "interpolation", "mean", "std", "backend"}
_OPTIONAL = {"crop_pct", "resize_size", "crop", "transparency", "pad", "rescale"}


class Preprocessing(Steps):  # without fields of its own, so it is a dataclass as it is
    """The images that a model was evaluated on, stated so that they can be made again.

    Sizes are (height, width) in pixels. `mean` and `std` have one value per channel, three for
    RGB and one for grey, on the scale that `rescale_factor` makes.

    The pixels are bit-identical to those of timm 1.0.31 (`create_transform` of
    `resolve_data_config`, images opened as its `ImageDataset` does), of transformers 5.23
    (`ViTImageProcessor`, `BitImageProcessor` and the like, with either backend) and of open_clip
    3.3 (`image_transform_v2`). The backends "tensorflow" and "big_vision" follow the sources of
    those projects and were not compared with TensorFlow.

    Raises:
        ConflictingFact: Fields contradict each other or have unknown values.
        NotRepresentable: The library's own backend has no such resizing.
    """

    def __call__(
        self,
        image: "Image.Image | PathLike[str] | bytes",
        *,
        fast: bool = False,
        max_pixels: int | None = None,
    ) -> "torch.Tensor":
        """The image, open or a file, as the model reads it: (C, H, W) float32.

        Args:
            image: An open image, which is left as it is, the path of one, or a file's content.
            fast: Read a JPEG file at 1/2, 1/4 or 1/8 of its size if it stays twice as large as it
                is resized to, shrink larger images by a whole factor first, and resize only what
                is kept. Pixels are then close to those of the source project, not equal: a
                image of 12 megapixels takes a fifth of the time and differs by 0.2 of 255
                levels on average, by 6 at most. Where nothing is shrunk, only single pixels
                differ. A backend without antialias ignores this option.
            max_pixels: The most pixels that an image may have, whatever memory that takes. By
                default, as many as 872 MB hold: 50 million and more. Where it is above Pillow's own
                limit, PIL.Image.MAX_IMAGE_PIXELS of this process is raised to it.

        Warns:
            VitConvertWarning: Pillow leaves something of the file out, as the source project does:
                numbers above 255, or all images but the first.

        Raises:
            SourceError: The file does not exist, or may not be read.
            CorruptFile: It is not an image, or it is damaged.
            InputMismatch: The image is too narrow, or has another size and nothing resizes it.
            UnsafeFile: It is so large, or so narrow, that it would exhaust memory.
        """
        import torch

        return torch.from_numpy(self.array(image, fast=fast, max_pixels=max_pixels))

    def array(
        self,
        image: "Image.Image | PathLike[str] | bytes",
        *,
        fast: bool = False,
        max_pixels: int | None = None,
    ) -> "NDArray[np.float32]":
        """The same as a numpy array; torch is not imported where Pillow does the resizing."""
        from vitconvert.preprocessing.transform import transformed

        file = Path(image) if isinstance(image, str | PathLike) else image
        return transformed(file, self, fast=fast, max_pixels=max_pixels, tell=warn)

    def clip(
        self,
        frames: "Clip",
        count: int | None = None,
        *,
        fast: bool = False,
        max_pixels: int | None = None,
    ) -> "torch.Tensor":
        """The frames of a clip as a model of videos reads them: (C, count, H, W) float32.

        Args:
            frames: A video file; a folder of image files, which are read by name, with numbers as
                numbers; a list of files and open images; or an array (frames, height, width,
                channels) of uint8.
            count: How many are read, `config.frames` of the model; of more, every
                (frames / count)-th, as transformers samples frames. None: all of them.
            fast, max_pixels: As for an image.

        Raises:
            InputMismatch: There are fewer frames, or one does not fit.
            UsageError: This is no clip.
            MissingPackage: It is a video, and torchcodec is not installed.
            SourceError, CorruptFile, UnsafeFile: As for an image.
        """
        import torch

        from vitconvert.preprocessing.clips import clip_array

        how = {"fast": fast, "max_pixels": max_pixels}
        return torch.from_numpy(clip_array(frames, self, count, tell=warn, **how))  # type: ignore[arg-type]

    def at_size(self, image_size: Size) -> "Preprocessing":
        """The same for images of another size; the same share of the image is cropped.

        If the share is the same for both sides, sizes are rounded as timm rounds them.
        """
        if image_size == self.image_size:
            return self
        resized, resize = self.resize_size, self.resize
        if resized is not None:
            resized = timm.resized_like(resized, self.image_size, image_size)
        if resize in ("shortest", "cover"):  # timm's choice: "cover" unless both are square
            square = len(set(image_size)) == len(set(resized or ())) == 1
            resize = "shortest" if square else "cover"
        elif resize == "longest" and resized:
            resized = (min(resized), min(resized))
        return dataclasses.replace(
            self,
            image_size=image_size,
            resize=resize,
            resize_size=resized,
            origin=f"{self.origin}, at {size_text(image_size)}",
        )

    @classmethod
    def from_timm(
        cls, pretrained_cfg: JsonObject, *, origin: str = "timm's pretrained_cfg"
    ) -> "Preprocessing":
        """Read a `pretrained_cfg` as timm 1.0.31 does.

        timm ignores the EXIF orientation and transparency, and reads one channel as grey. Where
        the cfg is silent, timm's defaults apply: 224 pixels, bicubic, crop_pct 0.875, ImageNet's
        mean and std.

        Raises:
            ConflictingFact: A value is malformed, or mean and std do not fit the channels.
        """
        return cls(**timm.from_pretrained_cfg(pretrained_cfg), origin=origin)

    def to_timm(self) -> JsonDict:
        """The keys of timm's `pretrained_cfg` that say the same, as far as timm can.

        `Preprocessing.from_timm(p.to_timm())` is what timm will do; `differences` lists what
        differs (resizing a Pillow image or a tensor; EXIF; transparency).

        Raises:
            NotRepresentable: timm has no such resizing.
        """
        return timm.to_pretrained_cfg(self)

    @classmethod
    def from_huggingface(
        cls,
        preprocessor_config: JsonObject,
        *,
        backend: str = "torchvision",
        model_type: str | None = None,
        image_size: Size | None = None,
        origin: str = "preprocessor_config.json",
    ) -> "Preprocessing":
        """Read a `preprocessor_config.json` as transformers 5.23 does.

        Old files (`feature_extractor_type`, whole numbers as sizes) are read as transformers reads
        them today. A file is opened as `pipeline(path)` opens it, by `load_image`: turned as EXIF
        says, and made RGB by Pillow, which drops alpha. What `do_convert_rgb` then puts on white is
        an image with one transparent colour, as of a GIF. An image that the user opened is another
        thing to transformers: it is not turned, and `do_convert_rgb` puts alpha on white, too.
        Qwen2-VL's, GLM-4V's and Pixtral's, which keep the shape of images, are read for one size
        that they keep, to which images of other sizes are resized.

        Args:
            preprocessor_config: The parsed file.
            backend: "torchvision", as AutoImageProcessor chooses by default, or "pil".
            model_type: The one in config.json, for files that name no processor.
            image_size: The model's, for files that neither resize nor crop, or keep any size.
            origin: Where the file came from.

        Raises:
            MissingFact: The file names no processor, or no fixed size.
            NotRepresentable: The processor, or one of its options, is not supported.
            ConflictingFact: A value is malformed.
        """
        fields = transformers.from_preprocessor_config(
            preprocessor_config, backend=backend, model_type=model_type, image_size=image_size
        )
        return cls(**fields, origin=origin)

    def to_huggingface(self) -> JsonDict:
        """The `preprocessor_config.json` that says the same, as far as transformers can.

        A crop needs BitImageProcessor (after resizing the shortest side) or DeiTImageProcessor
        (after squashing); ViTImageProcessor only squashes. The file cannot choose the backend. With
        `backend="pil"`, transformers makes timm's pixels, except that a crop is one pixel off where
        3, 7, 11, ... rows or columns are cut: timm rounds half a pixel to even, transformers down.
        `differences` from `from_huggingface` of the result lists the rest.

        Raises:
            NotRepresentable: transformers has no such resizing.
        """
        return transformers.to_preprocessor_config(self)

    @classmethod
    def from_openclip(
        cls,
        preprocess_cfg: JsonObject,
        *,
        image_size: Size,
        origin: str = "open_clip_config.json",
    ) -> "Preprocessing":
        """Read a `preprocess_cfg` as open_clip 3.3 does, for an encoder of this size.

        Raises:
            ConflictingFact: A value is malformed.
            NotRepresentable: Images are padded with a colour.
        """
        fields = open_clip.from_preprocess_cfg(preprocess_cfg, image_size=image_size)
        return cls(**fields, origin=origin)

    def to_openclip(self) -> JsonDict:
        """The `preprocess_cfg` that says the same, or comes near.

        open_clip resizes to exactly the size of the model's images, so that no margin is cropped
        away. `differences` from `from_openclip` of the result lists the rest.
        """
        return open_clip.to_preprocess_cfg(self)

    @classmethod
    def from_keras_hub(
        cls,
        image_converter: JsonObject,
        *,
        image_size: Size,
        channels: int = 3,
        origin: str = "image_converter.json",
    ) -> "Preprocessing":
        """Read an `image_converter.json` as KerasHub 0.32 does, for a model of this size.

        As Keras computes it of images read as whole numbers (`keras.utils.load_img`). Its backends
        differ where a resized number ends in one half: JAX and PyTorch by one level of 255 in up to
        0.2 % of numbers. NumPy's also clips to the darkest and lightest level of the image, and
        on PyTorch bicubic resizing without antialias has another cubic.

        Raises:
            ConflictingFact: A value is malformed.
            NotRepresentable: Images are padded, or resized by an unknown filter.
        """
        fields = keras_hub.from_image_converter(
            image_converter, image_size=image_size, channels=channels
        )
        return cls(**fields, origin=origin)

    def to_keras_hub(self) -> JsonDict:
        """The `config` of the `image_converter.json` that says the same, or comes near.

        KerasHub resizes to exactly the size of the model's images, so that no margin is cropped
        away. `differences` from `from_keras_hub` of the result lists the rest.

        Raises:
            NotRepresentable: KerasHub has no such resizing.
        """
        return keras_hub.to_image_converter(self)

    @classmethod
    def from_mmpretrain(
        cls, configuration: str, *, image_size: Size, origin: str = "MMPretrain's configuration"
    ) -> "Preprocessing":
        """Read the text of a configuration as MMPretrain 1.2 does; nothing of it is run.

        As its `ImageClassificationInferencer` prepares a file: opened by OpenCV, and resized by
        Pillow. What OpenCV would resize is refused.

        Raises:
            MissingFact: It states no pipeline.
            ConflictingFact: A value is malformed.
            NotRepresentable: It is not a text of assignments, or prepares images in another way.
        """
        config = mmpretrain.configuration(configuration)
        return cls(**mmpretrain.from_configuration(config, image_size=image_size), origin=origin)

    @classmethod
    def from_dialect(
        cls,
        section: JsonObject,
        *,
        image_size: Size,
        channels: int = 3,
        origin: str = "dialect default",
    ) -> "Preprocessing":
        """Read the `[preprocessing]` section of a table of `weights_map/`.

            resize          one of backends.RESIZES
            interpolation   one of backends.INTERPOLATIONS
            mean, std       a number for each channel, or one for all
            backend         one of backends.BACKENDS
            crop_pct        resize_size = floor(image_size / crop_pct); or
            resize_size     in pixels; without either, image_size
            crop            true by default, unless the image is squashed to image_size
            transparency    "drop" by default
            pad             at the right and below; false by default
            rescale         false: mean and std are of levels from 0 to 255

        Raises:
            TableError: A key is unknown or missing.
            ConflictingFact: A value is malformed.
        """
        unknown = sorted(set(section) - _REQUIRED - _OPTIONAL)
        missing = sorted(_REQUIRED - set(section))
        if unknown or missing:
            evidence = {"unknown": ", ".join(unknown) or "-", "missing": ", ".join(missing) or "-"}
            raise TableError(
                "A [preprocessing] section has unknown or missing keys.", evidence=evidence
            )
        if "crop_pct" in section and "resize_size" in section:
            raise TableError("A [preprocessing] section states both crop_pct and resize_size.")
        fields = dict(section)
        resize_size = timm.size_before_crop(image_size, fields.pop("crop_pct", 1.0))
        if "resize_size" in fields:
            resize_size = height_width(fields["resize_size"], "resize_size")
        if not fields.pop("rescale", True):
            fields["rescale_factor"] = None
        made = resize_size == image_size and section["resize"] == "squash"
        fields.setdefault("crop", not made and not section.get("pad", False))
        if section["resize"] == "shortest" and resize_size[0] != resize_size[1]:
            # A size that is not square has no one shortest side. open_clip and timm do the same.
            fields["resize"] = "cover"
        fields["resize_size"] = None if section["resize"] == "none" else resize_size
        for name in ("mean", "std"):
            fields[name] = numbers(section[name], name, channels)
        return cls(**fields, image_size=image_size, origin=origin)
