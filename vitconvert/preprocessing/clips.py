"""Clips: a video file, a folder of frames, a list of images or an array, as a model reads them."""

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitconvert.errors import InputMismatch, SourceError, UsageError
from vitconvert.preprocessing.finding import SUFFIXES
from vitconvert.preprocessing.steps import Steps
from vitconvert.preprocessing.transform import transformed
from vitconvert.preprocessing.videos import VIDEOS, Video, require_torchcodec

if TYPE_CHECKING:
    from vitconvert.preprocessing.finding import ImageSource

Frame = Path | Image.Image
Clip = str | PathLike[str] | Sequence[str | PathLike[str] | Image.Image] | NDArray[np.uint8]
_RANK = 4  # of an array of frames: time, rows, columns, channels
_NUMBER = re.compile(r"(\d+)")


def clip_array(
    clip: Clip,
    steps: Steps,
    count: int | None,
    *,
    fast: bool = False,
    max_pixels: int | None = None,
    tell: Callable[[str], None],
) -> NDArray[np.float32]:
    """A clip as the model reads it, (C, count, H, W): each frame is prepared as an image.

    Of more frames than `count`, as many are taken evenly, as `BaseVideoProcessor.sample_frames` of
    transformers 5.24 takes them; None takes all of them.

    Raises:
        InputMismatch: There are fewer frames, or none.
        UsageError: It is no clip.
        MissingPackage: It is a video, and torchcodec is not installed.
        SourceError, CorruptFile, UnsafeFile: As for an image.
    """
    frames = frames_of(clip, max_pixels=max_pixels)
    wanted = len(frames) if count is None else count
    if not frames or len(frames) < wanted:
        raise InputMismatch(
            f"The clip has {len(frames)} frames, and the model reads {max(wanted, 1)}.",
            evidence={"clip": clip} if isinstance(clip, str | PathLike) else {},
        )
    if len(frames) > wanted:
        tell(f"{wanted} of {len(frames)} frames are read, at even steps from the first")
    taken = (frames[index] for index in taken_frames(len(frames), wanted))
    how = {"fast": fast, "max_pixels": max_pixels, "tell": tell}
    return np.stack([transformed(frame, steps, **how) for frame in taken], axis=1)  # type: ignore[arg-type]


def taken_frames(total: int, count: int) -> Sequence[int]:
    """Which of `total` frames are read: every (total / count)-th, rounded down."""
    return [number * total // count for number in range(count)]


def frames_of(clip: Clip, *, max_pixels: int | None = None) -> Sequence[Frame]:
    """The frames of a clip in their order; files of a folder by name, with numbers as numbers.

    Raises:
        UsageError: It is no clip.
        SourceError: There is no such file or folder, or it is an image.
        MissingPackage, CorruptFile, UnsafeFile: As for a `Video`.
    """
    if isinstance(clip, np.ndarray):
        if clip.ndim != _RANK or clip.dtype != np.uint8 or clip.shape[-1] not in (1, 3):
            raise UsageError(
                "An array of frames is (frames, height, width, channels) of uint8.",
                evidence={"found": f"{clip.shape} of {clip.dtype}"},
            )
        return [
            Image.fromarray(frame.squeeze(-1) if frame.shape[-1] == 1 else frame) for frame in clip
        ]
    if isinstance(clip, str | PathLike):
        path = Path(clip)
        if path.is_file() and path.suffix.lower() not in SUFFIXES:
            return Video(path, max_pixels=max_pixels)
        return list(_files_in(path))
    if isinstance(clip, Image.Image) or not isinstance(clip, Sequence):
        raise UsageError(
            f"A clip is a video file, a folder of frames, a list of images or an array, not a "
            f"{type(clip).__name__}."
        )
    return [frame if isinstance(frame, Image.Image) else Path(frame) for frame in clip]


def find_clips(
    sources: "ImageSource | Iterable[ImageSource]", *, recursive: bool = False
) -> Iterator[Path]:
    """The videos and folders of frames that a user means: those named, or those in a folder.

    Args:
        sources: Videos, folders, patterns; a folder that has frames is a clip itself, and in
            another its videos and folders are. `recursive` looks into these, too.

    Raises:
        UsageError: One is no path.
        MissingPackage: There is a video, and torchcodec is not installed.
    """
    for source in [sources] if isinstance(sources, str | PathLike | Image.Image) else sources:
        if isinstance(source, Image.Image):
            raise UsageError("The model reads clips, and this is an image.", hint=_HINT)
        path = Path(source)
        if glob.has_magic(os.fspath(source)) and not path.exists():
            matches = sorted(glob.glob(os.fspath(source), recursive=True))  # noqa: PTH207 (absolute)
            yield from find_clips(matches, recursive=recursive) if matches else [path]
        elif not path.is_dir():
            if path.suffix.lower() in VIDEOS:
                require_torchcodec()
            yield path
        else:
            yield from _clips_in(path, recursive=recursive)


def _clips_in(folder: Path, *, recursive: bool) -> Iterator[Path]:
    has_frames = any(_files_in(folder))
    inner = [
        path
        for path in sorted(folder.iterdir(), key=_by_number)
        if not path.name.startswith(".")
        and (path.is_dir() or path.suffix.lower() in VIDEOS)
        and (recursive or not has_frames)
    ]
    if has_frames or not inner:
        yield folder
    for path in inner:
        yield from find_clips(path, recursive=True) if recursive or path.is_file() else [path]


_HINT = "name a video file, or a folder that has the frames of one clip."


def _files_in(folder: Path) -> Iterator[Path]:
    if not folder.exists():
        raise SourceError("There is no such file or folder.", evidence={"clip": folder})
    if not folder.is_dir():
        raise SourceError(
            "The model reads clips, and this is an image.", evidence={"clip": folder}, hint=_HINT
        )
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    yield from sorted((p for p in shown if p.suffix.lower() in SUFFIXES), key=_by_number)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """frame-10 comes after frame-9."""
    parts = _NUMBER.split(path.name)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
