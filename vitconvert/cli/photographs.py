"""What `predict` and `embed` share."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vitconvert.cli.options import (
    Command,
    apply_options,
    dtype_option,
    fetching_options,
    json_line_options,
    locate_options,
    parse_dtype,
    parse_reading,
    reading_options,
)
from vitconvert.cli.report import tell

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.predict import Prediction
    from vitconvert.preprocessing import Preprocessing

    Result = TypeVar("Result", Prediction, Embedding)

STDIN = "-"
_FILE = click.Path(path_type=Path, dir_okay=False)

_PHOTOGRAPHS = (
    click.argument("model"),
    click.argument("images", nargs=-1, required=True),
    click.option("-r", "--recursive", is_flag=True, help="Search subfolders too."),
    click.option(
        "-0",
        "--null",
        is_flag=True,
        help="Paths on stdin end with NUL, as from `find -print0`.",
    ),
    click.option(
        "--batch-size",
        default=8,
        show_default=True,
        type=click.IntRange(min=1),
        help="How many images to compute at once.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Where to compute."),
    click.option(
        "--runtime",
        default="torch",
        show_default=True,
        help="torch; onnxruntime or openvino, for which the model is exported once, checked and "
        "kept; or auto: what was measured to be the fastest here.",
    ),
    click.option("--mean", metavar="NUMBERS", help="Of pixels from 0 to 1: 0.5 or 0.48,0.46,0.41."),
    click.option("--std", metavar="NUMBERS", help="Likewise, their standard deviation."),
    click.option(
        "--crop",
        type=click.FloatRange(0, 1, min_open=True),
        help="The share of the resized image that is kept, such as 0.875.",
    ),
    click.option(
        "--preprocessor",
        type=_FILE,
        help="A preprocessor_config.json, or timm's config.json, to be used for the images.",
    ),
    dtype_option("Compute in it: bfloat16 is faster if the processor has it, but less precise."),
    click.option(
        "--fast/--no-fast",
        default=True,
        show_default=True,
        help="Faster arithmetic, equal within rounding.",
    ),
    click.option(
        "--fast-preprocessing",
        is_flag=True,
        help="Read large images faster: pixels are close to the project's own, but not equal.",
    ),
)


def photograph_options(command: Command) -> Command:
    """The arguments and options that both verbs have."""
    rest = reading_options(fetching_options(json_line_options(command)))
    return apply_options(_PHOTOGRAPHS, rest)


def named_checkpoint(options: dict[str, Any]) -> "Checkpoint":
    """The checkpoint that MODEL names."""
    from vitconvert.api import load_checkpoint
    from vitconvert.sources import locate

    located = locate(options["model"], **locate_options(options))
    return load_checkpoint(located, **parse_reading(options))


def shared_arguments(options: dict[str, Any], checkpoint: "Checkpoint") -> dict[str, Any]:
    """The arguments that `vitconvert.predict` and `vitconvert.embed` share."""
    names = ("batch_size", "recursive", "fast", "fast_preprocessing", "device", "runtime")
    return {
        "tell": None if options["quiet"] else partial(tell, err=True),
        **{name: options[name] for name in names},
        "dtype": parse_dtype(options["dtype"]),
        "preprocessing": _stated(options, checkpoint),
    }


def _stated(options: dict[str, Any], checkpoint: "Checkpoint") -> "Preprocessing | None":
    """What the options say of photographs, which is told on stderr; None if they say nothing."""
    from vitconvert.inference.stating import StatedPixels

    stated = StatedPixels(
        mean=_numbers(options, "mean"),
        std=_numbers(options, "std"),
        crop=options["crop"],
        preprocessor=options["preprocessor"],
    )
    if not stated:
        return None
    found = stated.applied_to(checkpoint.preprocessing, checkpoint.config)
    if not options["quiet"]:
        tell(f"preprocessing: {found.origin}", err=True)
    return found


def _numbers(options: dict[str, Any], name: str) -> list[float] | None:
    if options[name] is None:
        return None
    try:
        return [float(number) for number in options[name].split(",")]
    except ValueError:
        wanted = "is no number, nor several with commas between them."
        raise click.BadParameter(f"{options[name]!r} {wanted}", param_hint=f"--{name}") from None


def named_images(options: dict[str, Any]) -> Iterator[str]:
    """IMAGES, where `-` is replaced by the paths on stdin."""
    for image in options["images"]:
        if image == STDIN:
            yield from _listed(b"\0" if options["null"] else b"\n")
        else:
            yield image


def _listed(separator: bytes) -> Iterator[str]:
    lines: Iterable[bytes] = sys.stdin.buffer
    if separator != b"\n":
        lines = sys.stdin.buffer.read().split(separator)
    for line in lines:
        if path := line.rstrip(b"\r\n") if separator == b"\n" else line:
            yield os.fsdecode(path)


@dataclass
class FailureCount:
    """How many images failed so far."""

    failed: int = 0

    @property
    def exit_code(self) -> int:
        """1 if any failed, else 0."""
        return 1 if self.failed else 0


def reported(
    results: "Iterable[Result]", options: dict[str, Any], failures: FailureCount, *, printing: bool
) -> "Iterator[Result]":
    """Pass results on as they come, and report progress and failures on stderr.

    There is no progress bar if results are printed on the same terminal.
    """
    watched = sys.stderr.isatty() and not (printing and sys.stdout.isatty())
    for result in _with_progress(results, options) if watched and not options["quiet"] else results:
        if result.error:
            failures.failed += 1
            click.echo(str(result.error), err=True)
        yield result


def _with_progress(results: "Iterable[Result]", options: dict[str, Any]) -> "Iterable[Result]":
    from tqdm import tqdm

    from vitconvert.inference.images import find_images

    total = None
    if STDIN not in options["images"]:
        total = sum(1 for _ in find_images(options["images"], recursive=options["recursive"]))
    bar: Iterable[Result] = tqdm(results, total=total, unit="image", leave=False)
    return bar
