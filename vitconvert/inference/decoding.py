"""JPEG files decoded and resized by the GPU that computes: close to the library's pixels, sooner.

nvJPEG decodes (by torchcodec 0.17, or by torchvision 0.29, where that is deprecated), and torch
resizes the tensor with antialias, in float32. A model's own library does both on the processor,
perhaps with Pillow. How far these pixels are from its own is measured on the first images, and
reported.

Untested: no GPU was available. The same code runs on a processor in the tests.
"""

import io
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitconvert.errors import MissingPackage, UsageError, warn, what_was_raised
from vitconvert.preprocessing import Preprocessing, image_files
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.effects import PixelScale
from vitconvert.preprocessing.pixels import middle
from vitconvert.preprocessing.steps import Steps, unit_mean_std
from vitconvert.preprocessing.transform import size_resized, transformed
from vitconvert.settings import without_warnings

_FILTERS, _RESIZES = ("bilinear", "bicubic"), ("shortest", "cover", "squash")
_MEASURED = 8  # images

Decode = Callable[..., Tensor]


class JpegDecoder:
    """What prepares JPEG files on a device, and knows how far that is from the usual pixels."""

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        """Make sure that it works here.

        Raises:
            UsageError: The preprocessing has other steps, or nothing decodes on this device.
            MissingPackage: Neither torchcodec nor torchvision is installed.
        """
        if reason := _obstacle(preprocessing):
            raise UsageError(
                f"The images of this model cannot be prepared on a GPU: {reason}.",
                evidence={"from": preprocessing.origin},
                hint="leave out --decode (in Python, decode=).",
            )
        self.preprocessing, self.device = preprocessing, device
        self._decode = _decoder_of_jpegs()
        self._lock, self._to_measure, self._told = Lock(), _MEASURED, False
        self._differences: list[tuple[float, float]] = []  # mean and largest of each, in levels
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        try:
            found = f"decoded on {self._decoded(file.getvalue()).device.type}"
        except Exception as error:  # of whatever kind the package's are
            found = what_was_raised(error)
        if found != f"decoded on {device.type}":
            raise UsageError(
                f"JPEG files cannot be decoded on {device} here.",
                evidence={"by": self._decode.__module__, "found": found},
                hint="leave out --decode (in Python, decode=).",
            )

    def __call__(self, image: Path | bytes, max_pixels: int | None = None) -> Tensor | None:
        """(C, H, W) float32 on the device; None of an image that is prepared in the usual way.

        That is any but an upright JPEG in colours that is as large as what is cut out of it. So is
        one that cannot be decoded, of which Pillow says what is wrong.

        Raises:
            VitConvertError: As `preprocessing.transform.transformed`.
        """
        steps, backend = self.preprocessing, BACKENDS[self.preprocessing.backend]
        with image_files.open_image(image, max_pixels=max_pixels) as header:
            size = image_files.size_of(header, upright=False)
            turned = image_files.is_turned(header, upright=backend.upright)
            if header.format != "JPEG" or header.mode != "RGB" or turned:
                return None
            resized = size_resized(steps, size)
            if any(side < kept for side, kept in zip(resized, steps.image_size, strict=True)):
                return None
            with image_files.memory_for(header, backend, steps.transparency, max_pixels=max_pixels):
                with image_files.decoding(image_files.path_of(header)):
                    content = image if isinstance(image, bytes) else image.read_bytes()
                try:
                    levels = self._decoded(content)
                except RuntimeError:
                    return None
                if levels.shape != (3, *size):
                    return None
                numbers = _prepared(levels, resized, steps)
        self._measure(image, numbers, max_pixels)
        return numbers

    def _decoded(self, content: bytes) -> Tensor:
        """(3, H, W) uint8."""
        encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with without_warnings(DeprecationWarning):
            return self._decode(encoded, mode="RGB", device=self.device)

    def _measure(self, image: Path | bytes, numbers: Tensor, max_pixels: int | None) -> None:
        with self._lock:
            self._to_measure -= 1
            if self._to_measure < 0:
                return
        steps = self.preprocessing
        usual = transformed(image, steps, max_pixels=max_pixels)
        apart = np.abs((numbers.cpu().numpy() - usual) * PixelScale.of(steps, steps).factor)
        self._differences.append((float(apart.mean()), float(apart.max())))

    def warn(self) -> None:
        """Report, once, how far pixels are from the usual ones, if that was measured.

        Only while no thread decodes: `image_files.decoding` holds warnings back.
        """
        found = list(self._differences)
        if not found or self._told:
            return
        self._told = True
        means, largest = zip(*found, strict=True)
        warn(
            f"JPEG files were decoded and resized on {self.device}: on the first {len(found)}, "
            f"pixels differ from the library's own by {sum(means) / len(found):.2g} of 255 levels "
            f"on average, by {max(largest):.2g} at most"
        )


def _obstacle(steps: Preprocessing) -> str:
    """Why no images are prepared by tensors so; "" if they are."""
    backend = BACKENDS[steps.backend]
    if steps.of_sounds or steps.channels != 3:
        return "they are not in colours"
    if steps.resize not in _RESIZES or steps.pad or backend.resize == "weights":
        return f"the resizing is {steps.resizing}, of {steps.backend}"
    if steps.interpolation not in _FILTERS:
        return f"the filter is {steps.interpolation}"
    return ""


def _decoder_of_jpegs() -> Decode:
    try:
        from torchcodec.decoders import decode_jpeg
    except ImportError:
        try:
            from torchvision.io import decode_jpeg
        except ImportError:
            raise MissingPackage(
                "Decoding on a GPU needs torchcodec, or torchvision.", hint="pip install torchcodec"
            ) from None
    return decode_jpeg  # type: ignore[no-any-return]


@torch.inference_mode()
def _prepared(levels: Tensor, size: tuple[int, int], steps: Steps) -> Tensor:
    """(3, H, W) uint8 as the model reads it, where it lies: (3, *image_size) float32."""
    backend, x = BACKENDS[steps.backend], levels.float()
    if x.shape[1:] != size:
        x = F.interpolate(
            x[None],
            size=size,
            mode=steps.interpolation,
            align_corners=False,
            antialias=backend.antialias,
        )[0]
        if backend.resize != "float":  # as tensors of uint8 are resized
            x = x.round().clamp(0, 255)
        elif backend.truncate:
            x = x.trunc()
    if steps.crop:
        top, left = (middle(*pair, backend) for pair in zip(size, steps.image_size, strict=True))
        x = x[:, top : top + steps.image_size[0], left : left + steps.image_size[1]]
    mean, std = (
        255 * torch.tensor(values, dtype=torch.float32, device="cpu").view(-1, 1, 1).to(x.device)
        for values in unit_mean_std(steps)
    )
    return (x - mean) / std
