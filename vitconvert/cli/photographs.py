"""What `predict`, `embed` and `attention` share."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    refuse_given,
)
from vitconvert.cli.report import tell

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.errors import VitConvertError
    from vitconvert.preprocessing import Preprocessing

    class _Answer(Protocol):
        """What is found of a photograph, or why nothing is."""

        @property
        def error(self) -> VitConvertError | None: ...

    Result = TypeVar("Result", bound=_Answer)

STDIN = "-"
_FILE = click.Path(path_type=Path, dir_okay=False)

_ARGUMENTS = (
    click.argument("model"),
    click.argument("images", nargs=-1, required=True),
)
_LATER_ARGUMENTS = (
    click.argument("model", required=False),  # not for --check
    click.argument("images", nargs=-1),
)
_IMAGES = (
    click.option("-r", "--recursive", is_flag=True, help="Search subfolders too."),
    click.option(
        "-0",
        "--null",
        is_flag=True,
        help="Paths on stdin end with NUL, as from `find -print0`.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Where to compute."),
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
)
_COMPUTING = (
    click.option(
        "--batch-size",
        default=8,
        show_default=True,
        type=click.IntRange(min=1),
        help="How many images to compute at once.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1, max=4096),
        help="How many decode images, and how many torch takes; default: all processors.",
    ),
    dtype_option("Compute in it: bfloat16 is faster if the processor has it, but less precise."),
    click.option(
        "--runtime",
        default="torch",
        show_default=True,
        help="torch; onnxruntime or openvino, for which the model is exported once, checked and "
        "kept; or auto: what was measured to be the fastest here.",
    ),
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


# Headings of the help; the verbs add theirs.
GROUPS = {
    "Images": (
        *("recursive", "null", "mean", "std", "crop", "preprocessor", "fast_preprocessing"),
    ),
    "Computing": ("device", "dtype", "batch_size", "threads", "runtime", "fast"),
    "The model's files": (
        *("dialect", "table", "architecture", "set", "prefer", "tower", "ignore", "rescue"),
        *("adapter", "lora_scale"),
    ),
    "Downloads, and others": ("revision", "token", "cache_dir", "offline"),
}


def image_options(command: Command) -> Command:
    """The arguments and options of all that is about photographs."""
    rest = reading_options(fetching_options(json_line_options(command)))
    return apply_options((*_ARGUMENTS, *_IMAGES), rest)


def photograph_options(command: Command) -> Command:
    """Likewise, and how the model computes; `require_arguments` looks for the arguments."""
    rest = reading_options(fetching_options(json_line_options(command)))
    return apply_options((*_LATER_ARGUMENTS, *_IMAGES, *_COMPUTING), rest)


def named_checkpoint(options: dict[str, Any]) -> "Checkpoint":
    """The checkpoint that MODEL names."""
    from vitconvert.api import load_checkpoint
    from vitconvert.sources import locate

    located = locate(options["model"], **locate_options(options))
    checkpoint = load_checkpoint(located, **parse_reading(options))
    if not options["quiet"]:
        for doubt in checkpoint.doubts:
            tell(f"note: {doubt}", err=True)
    return checkpoint


def shared_arguments(options: dict[str, Any], checkpoint: "Checkpoint") -> dict[str, Any]:
    """The arguments that `vitconvert.predict` and `vitconvert.embed` share."""
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])
    names = (
        "batch_size",
        "recursive",
        "fast",
        "fast_preprocessing",
        "device",
        "threads",
        "runtime",
    )
    return {
        "tell": None if options["quiet"] else partial(tell, err=True),
        **{name: options[name] for name in names},
        "dtype": parse_dtype(options["dtype"]),
        "preprocessing": parse_preprocessing(options, lambda: checkpoint),
    }


def require_arguments(options: dict[str, Any]) -> None:
    """MODEL and IMAGES are missing only where nothing is computed."""
    for name in ("model", "images"):
        if not options[name]:
            raise click.UsageError(f"Missing argument '{name.upper()}'.")


def parse_preprocessing(
    options: dict[str, Any], checkpoint: "Callable[[], Checkpoint]"
) -> "Preprocessing | None":
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
    known = checkpoint()
    found = stated.applied_to(known.preprocessing, known.config)
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
    require_stdin(options)
    for image in options["images"]:
        if image == STDIN:
            yield from listed_on_stdin(options)
        else:
            yield image


def require_stdin(options: dict[str, Any]) -> None:
    """Refuse `--null` where no paths are read from stdin."""
    if STDIN not in options["images"]:
        refuse_given(["null"], "is about paths on stdin, which IMAGES do not name by -")


def listed_on_stdin(options: dict[str, Any]) -> Iterator[str]:
    """The paths on stdin."""
    separator = b"\0" if options["null"] else b"\n"
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

    from vitconvert.preprocessing.finding import find_images

    total = None
    if STDIN not in options["images"]:
        total = sum(1 for _ in find_images(options["images"], recursive=options["recursive"]))
    bar: Iterable[Result] = tqdm(results, total=total, unit="image", leave=False)
    return bar
