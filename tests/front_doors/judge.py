"""A library's front door and ours, on the same directory and the same image files."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

Asked = Callable[[Path], torch.Tensor]  # an image file to logits, features or tokens
EQUAL = 1e-5  # a relative difference that is rounding


@dataclass(frozen=True, kw_only=True)
class Door:
    """A model in a directory, and two ways to ask it about an image file.

    Attributes:
        write: Writes the model, every parameter random, as the library's users have it.
        theirs: Opens the directory as the library's users do.
        ours: Opens it with vitconvert.
        exact: (height, width) of the images that nothing has to resize.
    """

    write: Callable[[Path], None]
    theirs: Callable[[Path], Asked]
    ours: Callable[[Path], Asked]
    exact: tuple[int, int] = (24, 24)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Both answers to one image: how far they are apart, or the errors."""

    difference: float | None = None
    theirs: str = ""
    ours: str = ""

    @property
    def agrees(self) -> bool:
        """Whether both give the same numbers, or both refuse the image."""
        if self.difference is None:
            return bool(self.theirs and self.ours)
        return self.difference <= EQUAL

    def __str__(self) -> str:
        if self.difference is not None:
            return f"{self.difference:.0e}" if self.difference else "0"
        if self.theirs and self.ours:
            return f"both refuse: {self.theirs}; {self.ours}"
        return f"they refuse: {self.theirs}" if self.theirs else f"we refuse: {self.ours}"


def judged(door: Door, folder: Path, images: Mapping[str, Path]) -> dict[str, Verdict]:
    """The verdict on each kind of image."""
    with quietly():
        door.write(folder)
        theirs, ours = door.theirs(folder), door.ours(folder)
        return {kind: _compared(theirs, ours, image) for kind, image in images.items()}


def _compared(theirs: Asked, ours: Asked, image: Path) -> Verdict:
    wanted, found = answer(theirs, image), answer(ours, image)
    if isinstance(wanted, str) or isinstance(found, str):
        errors = (answer if isinstance(answer, str) else "" for answer in (wanted, found))
        return Verdict(**dict(zip(("theirs", "ours"), errors, strict=True)))
    if wanted.shape != found.shape:
        return Verdict(difference=np.inf)
    apart = (wanted.double() - found.double()).abs().max() / wanted.double().abs().max()
    return Verdict(difference=float(apart))


def answer(ask: Asked, image: Path) -> torch.Tensor | str:
    """Numbers, or what was raised: an error's reference word, if it is vitconvert's."""
    try:
        with torch.inference_mode():
            return torch.as_tensor(ask(image)).squeeze(0)
    except Exception as error:  # a library may raise anything
        return str(getattr(error, "code", type(error).__name__))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings and progress bars."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
