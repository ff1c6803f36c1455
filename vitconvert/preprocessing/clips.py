"""Clips: a folder of frames, a list of images or an array, as a model of videos reads them."""

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
        SourceError, CorruptFile, UnsafeFile: As for an image.
    """
    frames = frames_of(clip)
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


def frames_of(clip: Clip) -> list[Frame]:
    """The frames of a clip in their order; files of a folder by name, with numbers as numbers.

    Raises:
        UsageError: It is no clip.
        SourceError: It is no folder.
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
        return list(_files_in(Path(clip)))
    if isinstance(clip, Image.Image) or not isinstance(clip, Sequence):
        raise UsageError(
            f"A clip is a folder of frames, a list of images or an array, not a "
            f"{type(clip).__name__}."
        )
    return [frame if isinstance(frame, Image.Image) else Path(frame) for frame in clip]


def find_clips(
    sources: "ImageSource | Iterable[ImageSource]", *, recursive: bool = False
) -> Iterator[Path]:
    """The folders of frames that a user means: those named, or the folders in one without frames.

    Args:
        sources: Folders; `recursive` takes every folder in them that has frames.

    Raises:
        UsageError: One is no path.
    """
    for source in [sources] if isinstance(sources, str | PathLike | Image.Image) else sources:
        if isinstance(source, Image.Image):
            raise UsageError("The model reads clips, and this is an image.", hint=_HINT)
        folder = Path(source)
        if not folder.is_dir():
            yield folder
            continue
        inner = sorted((p for p in folder.iterdir() if _is_shown_folder(p)), key=_by_number)
        has_frames = any(_files_in(folder))
        if has_frames or not inner:
            yield folder
        if recursive or not has_frames:
            for place in inner:
                yield from find_clips(place, recursive=True) if recursive else [place]


_HINT = "name a folder that has the frames of one clip."


def _is_shown_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _files_in(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise SourceError(
            "The model reads clips, and this is no folder of frames.",
            evidence={"path": folder},
            hint=_HINT,
        )
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    yield from sorted((p for p in shown if p.suffix.lower() in SUFFIXES), key=_by_number)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """frame-10 comes after frame-9."""
    parts = _NUMBER.split(path.name)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
