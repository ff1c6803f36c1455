"""`predict` and `embed` into a directory of Parquet files, for any number of images."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    Command,
    apply_options,
    given_options,
    locate_options,
    parse_dtype,
    parse_reading,
)
from vitconvert.cli.photographs import STDIN, listed_on_stdin, parse_preprocessing
from vitconvert.cli.report import tell
from vitconvert.errors import UsageError, printable
from vitconvert.scale import require_extra

if TYPE_CHECKING:
    from vitconvert.inference.batches import Engine
    from vitconvert.scale.embedder import Task
    from vitconvert.scale.events import Event
    from vitconvert.scale.options import RunOptions
    from vitconvert.scale.plan import Sources

_SECONDS = 10  # between lines of progress where there is no terminal

_SCALE = (
    click.option(
        "--shard-rows",
        default=65536,
        show_default=True,
        type=click.IntRange(min=1),
        help="Images of a Parquet file, at most.",
    ),
    click.option("--keep", multiple=True, metavar="COLUMN", help="A column that goes along."),
    click.option("--image-column", help="The column of images in Parquet sources."),
    click.option("--plan", is_flag=True, help="Only list the images, and estimate time and size."),
    click.option("--append", is_flag=True, help="Add images that the output does not have."),
    click.option("--retry-failed", is_flag=True, help="Compute shards with failures again."),
    click.option("--only", metavar="K/N", help="Compute the K-th of N parts of the plan."),
    click.option("--max-errors", type=click.IntRange(min=0), help="End if more images fail."),
    click.option("--check", metavar="DIR", help="Only prove that an output is whole."),
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="This process, or workers of Ray.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Of a cluster; default: $RAY_ADDRESS, the one of this machine, or a new one on it.",
    ),
    click.option("--workers", type=click.IntRange(min=1), help="How many; default: all that fit."),
    click.option(
        "--cpus-per-worker",
        type=click.FloatRange(min=0),
        default=1,
        show_default=True,
        help="Processors that Ray reserves, and threads if --threads says nothing.",
    ),
    click.option(
        "--gpus-per-worker",
        type=click.FloatRange(min=0),
        default=0,
        show_default=True,
        help="GPUs that Ray reserves, for --device cuda.",
    ),
)
_OF_SHARDS = (
    *("shard_rows", "store", "keep", "image_column"),
    *("plan", "append", "retry_failed", "only", "max_errors", "check"),
)
_OF_RAY = ("address", "workers", "cpus_per_worker", "gpus_per_worker")
GROUPS = {
    "Any number of images, into a directory of Parquet files": _OF_SHARDS,
    "Workers for that": ("engine", *_OF_RAY),
}


def scale_options(command: Command) -> Command:
    """Options of an output that is a directory."""
    return apply_options(_SCALE, command)


def is_directory(output: str, suffixes: tuple[str, ...]) -> bool:
    """Whether an output is a directory of Parquet files, and not one file."""
    # os.path, because Path raises for names that are too long.
    if "://" in output or output.endswith("/") or os.path.isdir(output):  # noqa: PTH112
        return True
    return not output.endswith(suffixes) and not Path(output).suffix


def require_directory(output: str | None) -> None:
    """Options for a directory are not ignored where there is none.

    Raises:
        UsageError: One of them was typed.
    """
    for option in given_options((*_OF_SHARDS, "engine", *_OF_RAY)):
        raise UsageError(
            f"{option} is for a directory of Parquet files.",
            evidence={"output": output or "stdout"},
            hint="-o features/ names one.",
        )


def report_check(options: dict[str, Any]) -> int:
    """Read an output whole, and say what is wrong with it."""
    require_extra("pyarrow", "scale")
    from vitconvert.scale.checking import check

    report = check(options["check"])
    if options["as_json"]:
        click.echo(json.dumps(report.to_dict()))
    else:
        rows = f"{report.rows} of {report.images} images have answers, {report.failed} failed"
        tell(f"{report.shards} of {report.units} shards; {rows}")
        for problem in report.problems:
            tell(f"  {printable(problem)}")
        tell("whole" if report.whole else "not whole")
    return 0 if report.whole else 1


def compute_shards(options: dict[str, Any], computed: str, **task: Any) -> int:
    """Compute what the output lacks; 1 if images failed, or shards were given up."""
    require_extra("pyarrow", "scale")
    _check_options(options)
    work, sources, how = _task(options, computed, **task), _sources(options), _how(options)
    output = str(options["output"])
    if options["plan"]:
        return _plan(work, sources, output, how, as_json=options["as_json"])
    from vitconvert.scale.run import run

    shown = _shown(options)
    try:
        finished = run(work, sources, output, how, shown)
    except KeyboardInterrupt:
        shown.close()
        tell("finished shards are kept: the same command goes on with the others.", err=True)
        raise
    finally:
        shown.close()
    return 1 if finished.failed or finished.known_failed or finished.abandoned else 0


def _check_options(options: dict[str, Any]) -> None:
    for option in given_options(["force"]):
        raise UsageError(
            f"{option} replaces a file; a directory goes on where it was.",
            evidence={"output": options["output"]},
            hint="remove the directory, or name another with -o.",
        )
    for option in given_options(_OF_RAY) if options["engine"] != "ray" else ():
        raise UsageError(f"{option} is for --engine ray.")


def _task(options: dict[str, Any], computed: str, **task: Any) -> "Task":
    from vitconvert.checkpoint import ReadOptions
    from vitconvert.scale.embedder import Task

    names = ("fast", "fast_preprocessing", "device", "batch_size", "threads")
    fetching = locate_options(options)
    fetching.pop("tower")
    found = Task(
        model=options["model"],
        computed=computed,
        fetching={**fetching, "quiet": True},
        reading=ReadOptions(**parse_reading(options)),
        dtype=parse_dtype(options["dtype"]),
        engine=_engines(options),
        **{name: options[name] for name in names},
        **task,
    )
    stated = parse_preprocessing(options, found.checkpoint)
    return dataclasses.replace(found, preprocessing=stated) if stated else found


def _engines(options: dict[str, Any]) -> "Callable[..., Engine] | None":
    if options["runtime"] == "torch":
        return None
    from vitconvert.export.fastest import engines

    asked = {"dtype": parse_dtype(options["dtype"]), "fast": options["fast"]}
    told = None if options["quiet"] else partial(tell, err=True)
    return engines(options["runtime"], device=options["device"], tell=told, **asked)


def _sources(options: dict[str, Any]) -> "Sources":
    from vitconvert.scale.plan import Sources

    given = options["images"]
    return Sources(
        given=given,
        listed=listed_on_stdin(options) if STDIN in given else (),
        recursive=options["recursive"],
        keep=options["keep"],
        image_column=options["image_column"],
    )


def _how(options: dict[str, Any]) -> "RunOptions":
    from vitconvert.scale.options import RunOptions

    names = ("shard_rows", "append", "retry_failed", "max_errors", "engine", "address", "workers")
    return RunOptions(
        **{name: options[name] for name in names},
        store=options.get("store", "float32"),
        only=_only(options["only"]),
        cpus_per_worker=options["cpus_per_worker"],
        gpus_per_worker=options["gpus_per_worker"],
    )


def _only(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    k, slash, n = text.partition("/")
    if not slash or not k.isdecimal() or not n.isdecimal():
        raise UsageError(f"--only {text} is not K/N, such as 2/8.")
    return int(k), int(n)


def _plan(
    task: "Task", sources: "Sources", output: str, how: "RunOptions", *, as_json: bool
) -> int:
    from vitconvert.scale.estimate import estimate
    from vitconvert.scale.run import prepared

    loaded = task.load()
    with prepared(sources, output, how, loaded) as (folder, plan):
        found = estimate(folder, plan, loaded, store=how.store)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return 0
    tell(_in_shards(found.images, found.shards))
    tell(
        f"about {_duration(found.seconds)} in one process here, and {_bytes(found.bytes)} "
        f"(from {found.tried} images)"
    )
    return 0


def _shown(options: dict[str, Any]) -> "_Quiet":
    if options["as_json"]:
        return _JsonLines()
    if options["quiet"]:
        return _Quiet()
    return _Bar() if sys.stderr.isatty() else _Lines()


class _Quiet:
    """Tells only of what went wrong."""

    def __call__(self, event: "Event") -> None:
        """Tell of it, if it is worth telling."""
        match event.what:
            case "shard" | "abandoned":
                _tell_of_shard(event, lambda text: tell(text, err=True))
            case "finished" if event.failed or event.abandoned:
                tell(_summary(event), err=True)

    def close(self) -> None:
        """There are no more events, whatever happened."""


class _JsonLines(_Quiet):
    """A line of JSON for each event; images are told of once a second at most."""

    def __init__(self) -> None:
        self._images = self._failed = 0
        self._told = time.monotonic()

    def __call__(self, event: "Event") -> None:
        """Print it."""
        if event.what == "images":
            self._images += event.images
            self._failed += event.failed
            if time.monotonic() - self._told < 1:
                return
        self._told = time.monotonic()
        if self._images:
            _print({"what": "images", "images": self._images, "failed": self._failed})
            self._images = self._failed = 0
        if event.what != "images":
            _print(event.to_dict())


class _Bar(_Quiet):
    """A bar on a terminal: images, rate, time left, failures."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._failed = 0

    def __call__(self, event: "Event") -> None:
        """Show it."""
        from tqdm import tqdm

        if event.what == "planned":
            total = event.images + event.known
            self._bar = tqdm(total=total, initial=event.known, unit="image", leave=False)
        elif event.what == "images":
            self._bar.update(event.images)
            if event.failed:
                self._failed += event.failed
                self._bar.set_postfix(failed=self._failed)
        elif event.what == "finished":
            self.close()
            tell(_summary(event), err=True)
        else:
            _tell_of_shard(event, lambda text: self._bar.write(text, file=sys.stderr))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


class _Lines(_Quiet):
    """A line now and then, where nothing can be drawn over."""

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()
        self._total = self._images = self._failed = 0

    def __call__(self, event: "Event") -> None:
        """Print it, if it is time."""
        if event.what == "planned":
            self._total = event.images
            known = f"; {event.known:,} are there already" if event.known else ""
            tell(f"{_in_shards(event.images, event.shards)}{known}", err=True)
        elif event.what == "images":
            self._images += event.images
            self._failed += event.failed
            if time.monotonic() - self._told >= _SECONDS:
                self._told = time.monotonic()
                tell(self._line(), err=True)
        elif event.what == "finished":
            tell(_summary(event), err=True)
        else:
            _tell_of_shard(event, lambda text: tell(text, err=True))

    def _line(self) -> str:
        rate = self._images / (time.monotonic() - self._begun)
        left = _duration((self._total - self._images) / rate)
        failed = f", {self._failed:,} failed" if self._failed else ""
        return f"{self._images:,} of {self._total:,}, {rate:.1f} a second, {left} left{failed}"


def _tell_of_shard(event: "Event", say: Callable[[str], Any]) -> None:
    if event.what == "abandoned":
        say(f"shard {event.number} was given up: {printable(event.message or '')}")
    elif event.changed:
        say(f"shard {event.number}: {event.changed} files changed after the plan was made")


def _print(told: dict[str, Any]) -> None:
    click.echo(json.dumps(told))
    sys.stdout.flush()  # a pipe would keep it for later


def _summary(event: "Event") -> str:
    parts = [_in_shards(event.images, event.shards)]
    if event.failed:
        parts.append(f"{event.failed:,} failed, see failed/")
    if event.known_failed:
        parts.append(f"{event.known_failed:,} failed before")
    if event.changed:
        parts.append(f"{event.changed:,} changed after the plan was made")
    if event.abandoned:
        parts.append(f"given up: {event.abandoned:,}")
    return "; ".join(parts)


def _in_shards(images: int, shards: int) -> str:
    return f"{_counted(images, 'image')} in {_counted(shards, 'shard')}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
