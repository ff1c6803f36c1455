"""What `predict`, `embed` and `attention` share."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from vitconvert.arguments import options_of
from vitconvert.checkpoint.options import IMAGES, PIXELS
from vitconvert.cli.options import (
    MEASURED,
    Reading,
    Reporting,
    argument,
    flag,
    flags_of,
    image_size_flag,
    parse_dtype,
    refuse_given,
)
from vitconvert.cli.report import tell
from vitconvert.inference.options import ComputeOptions

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.errors import VitConvertError

    class _Answer(Protocol):
        """What is found of an image, or why nothing is."""

        @property
        def error(self) -> VitConvertError | None: ...

    Result = TypeVar("Result", bound=_Answer)

STDIN = "-"
ABOUT_IMAGES = """

IMAGES are files, folders, quoted patterns ("photos/**/*.jpg"), or - for a list of paths on stdin.
"""


@dataclass(kw_only=True)
class Images(Reading):
    """Options on images, and what is done with each."""

    heading = IMAGES

    model: str = argument()
    images: tuple[str, ...] = argument()
    image_size: str | None = image_size_flag()
    recursive: bool = flag("Search subfolders too.", "-r", default=False)
    null: bool = flag("Paths on stdin end with NUL, as from `find -print0`.", "-0", default=False)
    compute: Mapping[str, Any] = flags_of(
        ComputeOptions, heading="Computing", only=("max_image_pixels", "device")
    )
    as_json: bool = flag(
        "Print a line of JSON for each image, or, with a directory, for what happens.",
        "--json",
        default=False,
        heading=Reporting.heading,
    )
    failed: int = 0  # images, so far

    @property
    def exit_code(self) -> int:
        """1 if an image failed, else 0."""
        return 1 if self.failed else 0

    def load_checkpoint(self) -> "Checkpoint":
        """The checkpoint that MODEL names; what is doubtful about it is printed."""
        from vitconvert.checkpoint import read_checkpoint
        from vitconvert.conversion.changes import at_size

        options = self.read_options()
        checkpoint = at_size(read_checkpoint(self.located(self.model), options), options.image_size)
        if not self.quiet:
            for doubt in checkpoint.doubts:
                tell(f"note: {doubt}", err=True)
        self.tell_preprocessing(checkpoint)
        return checkpoint

    def tell_preprocessing(self, checkpoint: "Checkpoint") -> None:
        """Print, on stderr, what the options make of images, if they say anything of them."""
        stated = (self.read[name] for name in (*PIXELS, "preprocessor"))
        found = checkpoint.preprocessing
        if found is None or found.assumed or self.quiet:  # a warning tells what is assumed
            return
        if any(one is not None for one in stated):
            tell(f"preprocessing: {found.origin}", err=True)

    def named_images(self) -> Iterator[str]:
        """IMAGES, where `-` is replaced by the paths on stdin."""
        self.require_stdin()
        for image in self.images:
            if image == STDIN:
                yield from self.listed_on_stdin()
            else:
                yield image

    def require_stdin(self) -> None:
        """Refuse `--null` where no paths are read from stdin."""
        if STDIN not in self.images:
            refuse_given(["null"], "is about paths on stdin, which IMAGES do not name by -")

    def listed_on_stdin(self) -> Iterator[str]:
        """The paths on stdin."""
        typed = sys.stdin.buffer
        lines = typed.read().split(b"\0") if self.null else (line.rstrip(b"\r\n") for line in typed)
        yield from map(os.fsdecode, filter(None, lines))

    def reported(
        self, results: "Iterable[Result]", *, printing: bool, clips: bool = False
    ) -> "Iterator[Result]":
        """Pass results on as they come, and report progress and failures on stderr.

        There is no progress bar if results are printed on the same terminal. It counts images, or
        `clips`.
        """
        if sys.stderr.isatty() and not self.quiet and not (printing and sys.stdout.isatty()):
            from tqdm import tqdm

            from vitconvert.preprocessing.clips import find_clips
            from vitconvert.preprocessing.finding import find_images

            find, unit = (find_clips, "clip") if clips else (find_images, "image")
            total = None
            if STDIN not in self.images:
                total = sum(1 for _ in find(self.images, recursive=self.recursive))
            results = tqdm(results, total=total, unit=unit, leave=False)
        for result in results:
            if result.error:
                self.failed += 1
                click.echo(result.error.text(brief=True), err=True)
            yield result


@dataclass(kw_only=True)
class Computing(Images):
    """Options on how a model computes."""

    heading = "Computing"

    model: str = argument(required=False)  # `--check` needs neither
    images: tuple[str, ...] = argument(required=False)
    dtype: str = flag(options_of(ComputeOptions)["dtype"].about, default="keep", type=MEASURED)
    compute: Mapping[str, Any] = flags_of(ComputeOptions)

    def require_arguments(self) -> None:
        """Refuse a call without MODEL or IMAGES.

        Raises:
            UsageError: Of click.
        """
        for name in ("model", "images"):
            if not getattr(self, name):
                raise click.UsageError(f"Missing argument '{name.upper()}'.")

    def tell_begin(self) -> None:
        """Say on a terminal what takes seconds, before torch is imported."""
        if sys.stderr.isatty() and not self.quiet:
            tell("reading the model ...", err=True)

    def computing(self) -> dict[str, Any]:
        """The arguments that `vitconvert.predict` and `vitconvert.embed` share."""
        if threads := self.compute["threads"]:
            import torch

            torch.set_num_threads(threads)
        return {
            **self.compute,
            "recursive": self.recursive,
            "tell": None if self.quiet else partial(tell, err=True),
            "dtype": parse_dtype(self.dtype),
        }
