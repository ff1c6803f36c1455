"""What the verbs share that ask a checkpoint about photographs."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.inference.embed import Embedding
    from vitconvert.inference.predict import Prediction

    Result = TypeVar("Result", Prediction, Embedding)

STDIN = "-"

_PHOTOGRAPHS = (
    click.argument("model"),
    click.argument("images", nargs=-1, required=True),
    click.option("-r", "--recursive", is_flag=True, help="Look into the folders of folders too."),
    click.option(
        "-0",
        "--null",
        is_flag=True,
        help="The paths on stdin end with NUL, as `find -print0` does.",
    ),
    click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1)),
    click.option("--device", default="cpu", show_default=True),
    dtype_option("Compute in it: bfloat16 is faster where the processor has it, and rougher."),
    click.option(
        "--fast/--no-fast",
        default=True,
        show_default=True,
        help="Arithmetic that is faster, and the same within rounding.",
    ),
    click.option(
        "--fast-preprocessing",
        is_flag=True,
        help="Read large images faster: pixels are close to the project's own, not equal.",
    ),
)


def photograph_options(command: Command) -> Command:
    """What says which photographs, and how they are looked at."""
    rest = reading_options(fetching_options(json_line_options(command)))
    return apply_options(_PHOTOGRAPHS, rest)


def named_checkpoint(options: dict[str, Any]) -> "Checkpoint":
    """The checkpoint that MODEL means."""
    from vitconvert.api import load_checkpoint
    from vitconvert.sources import locate

    located = locate(options["model"], **locate_options(options))
    return load_checkpoint(located, **parse_reading(options))


def shared_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `predict` and `embed` share."""
    names = ("batch_size", "recursive", "fast", "fast_preprocessing", "device")
    return {name: options[name] for name in names} | {"dtype": parse_dtype(options["dtype"])}


def named_images(options: dict[str, Any]) -> Iterator[str]:
    """IMAGES, with the paths that stdin lists in the place of `-`."""
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
        """1 if any did."""
        return 1 if self.failed else 0


def reported(
    results: "Iterable[Result]", options: dict[str, Any], failures: FailureCount, *, printing: bool
) -> "Iterator[Result]":
    """Pass results on as they come, and tell of progress and of failures on stderr.

    There is no progress bar between the lines of a terminal that results are printed on.
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
