"""One image, from a file or open, as a model reads it; and what is left out of it."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitconvert.errors import InputMismatch, SourceError, VitConvertError, warn
from vitconvert.inference.decoding import JpegDecoder
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.clips import clip_array
from vitconvert.preprocessing.finding import not_images
from vitconvert.preprocessing.transform import transformed

# A file, an open image, the content of a file, what reads that, or the reason why there is none.
Picture = Path | Image.Image | bytes | Callable[[], bytes] | VitConvertError


class Output(NamedTuple):
    """What becomes of an image."""

    path: Path | None  # None for other images than files
    result: Tensor | VitConvertError  # or the reason why there is none
    remarks: tuple[str, ...] = ()  # what of the file was left out


Prepare = Callable[[Picture], Output]  # `prepare_image`, whose options are known

_NAMED = 3  # files, of which something is left out


def processors() -> int:
    """How many processors this process may use, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LeftOut:
    """What is left out of the images, or clips, of a run, and of which: told once, at the end."""

    def __init__(self, unit: str = "image") -> None:
        self._unit = unit
        self._counts = Counter[str]()
        self._names = defaultdict[str, list[str]](list)
        self._lock = Lock()

    def add(self, image: Picture, remarks: Iterable[str]) -> None:
        """Count the remarks on an image, which may have a name."""
        name = image if isinstance(image, Path) else getattr(image, "filename", "")
        for fact in remarks:
            with self._lock:
                self._counts[fact] += 1
                if name:  # the same names, whichever thread is first
                    self._names[fact] = sorted([*self._names[fact], Path(name).name])[:_NAMED]

    def warn(self) -> None:
        """Tell the user, a warning for each fact."""
        for fact, count in self._counts.items():
            names = self._names[fact]
            more = f" and {count - len(names)} more, see remarks" if count > len(names) else ""
            named = f" ({', '.join(names)}{more})" if names else ""
            warn(f"{count} {self._unit}{'s' * (count != 1)}{named}: {fact}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Images that are computed together.

    Attributes:
        outputs: Of each image, its path, and its tensor or error.
        images: The tensors, (B, C, H, W), where they lie in memory that is used again.
        release: Says that `images` and these tensors are read no more.
    """

    outputs: list[Output]
    images: Tensor | None = None
    release: Callable[[], None] = lambda: None


def prepare_image(
    image: Picture,
    preprocessing: Preprocessing,
    *,
    frames: int = 0,
    fast: bool = False,
    max_pixels: int | None = None,
    decoder: JpegDecoder | None = None,
) -> Output:
    """What the model reads of an image, or the reason why it reads nothing.

    With `frames`, of a clip: a video, or a folder of frames. With a `decoder`, what that can
    prepare is on its device.
    """
    path: Path | None = image if isinstance(image, Path) else None
    if isinstance(image, VitConvertError):
        return Output(None, image)
    remarks: list[str] = []
    try:
        if not frames and path is not None and os.path.isdir(path):  # noqa: PTH112 (no error)
            others = not_images(path)
            raise SourceError(
                "There are no images in this folder.",
                evidence={"image": path, **({"there": others} if others else {})},
                hint="--recursive (in Python, recursive=True) looks into subfolders too.",
            )
        if callable(image) and not isinstance(image, Image.Image):
            image = image()
        if decoder and isinstance(image, Path | bytes):
            on_device = decoder(image, max_pixels)
            if on_device is not None:
                return Output(path, on_device)
        make = partial(_clip, count=frames) if frames else transformed
        prepared = make(
            image, steps=preprocessing, fast=fast, max_pixels=max_pixels, tell=remarks.append
        )
        return Output(path, torch.from_numpy(prepared), tuple(remarks))
    except VitConvertError as error:
        if path is not None:
            error.evidence.setdefault("clip" if frames else "image", str(path))
        return Output(path, error, tuple(remarks))


def _clip(path: Path | Image.Image | bytes, **how: Any) -> NDArray[np.float32]:
    """The clip in a video, or in a folder of frames."""
    if not isinstance(path, Path):
        raise InputMismatch("The model reads clips: videos or folders of frames, no open image.")
    return clip_array(path, **how)
