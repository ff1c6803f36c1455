"""`predict` and `embed` into a directory of Parquet files, for any number of images."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.arguments import options_of
from vitconvert.cli.images import STDIN, Computing
from vitconvert.cli.options import flag, flags_of, given_options, parse_dtype, refuse_given
from vitconvert.cli.report import tell
from vitconvert.cli.shard_progress import duration, in_shards, progress
from vitconvert.embedding.options import (
    OF_RAY,
    PARQUETS,
    TARS,
    RunOptions,
    check_engine,
)
from vitconvert.errors import UsageError, printable
from vitconvert.inference.options import ComputeOptions, FeatureOptions

if TYPE_CHECKING:
    from vitconvert.embedding.embedder import Task
    from vitconvert.embedding.options import Event
    from vitconvert.embedding.sources import Sources


_OF_SHARDS = (
    *("shard_rows", "store", "keep", "image_column"),
    *("plan", "append", "retry_failed", "only", "max_errors", "check"),
)


@dataclass(kw_only=True)
class Scaled(Computing):
    """Options of an output that is a directory."""

    heading = "Any number of images, into a directory of Parquet files"

    output: str | None = None
    which: Mapping[str, Any] = field(default_factory=dict)
    force: bool = False
    course: Mapping[str, Any] = flags_of(RunOptions, only=options_of(RunOptions).keys() - {"store"})
    keep: tuple[str, ...] = flag("A column that is kept.", default=(), metavar="COLUMN")
    image_column: str | None = flag("The column of images in Parquet sources.")
    plan: bool = flag("Only count images, and estimate time and size.", default=False)
    check: str | None = flag("Only check that an output is complete.", metavar="DIR")

    def require_arguments(self) -> None:
        """Refuse a call without MODEL or IMAGES, or with an engine that there is not."""
        super().require_arguments()
        check_engine(self.course["engine"])


def is_directory(output: str, suffixes: tuple[str, ...]) -> bool:
    """Whether an output is a directory of Parquet files, and not one file."""
    # os.path, because Path raises for names that are too long.
    named_so = "://" in output or output.endswith(("/", os.sep))
    if named_so or os.path.isdir(output):  # noqa: PTH112
        return True
    return not output.endswith(suffixes) and not Path(output).suffix


def require_directory(images: tuple[str, ...], output: str | None) -> None:
    """Options and archives for a directory are not ignored where there is none.

    Raises:
        UsageError: One of them was typed.
    """
    archives = [image for image in images if image.lower().endswith((*TARS, *PARQUETS))]
    for typed in (*given_options((*_OF_SHARDS, "engine", *OF_RAY)), *archives):
        raise UsageError(
            f"{typed} is for a directory of Parquet files.",
            evidence={"output": output or "stdout"},
            hint="-o features/ names one.",
        )


def report_check(options: Scaled) -> int:
    """Read an output whole, and say what is wrong with it.

    Raises:
        UsageError: Something else is asked for as well.
    """
    every = (str(one.name) for one in click.get_current_context().command.params)
    others = (name for name in every if name not in ("check", "as_json", "quiet"))
    refuse_given(others, "plays no part where --check reads what an output has")
    from vitconvert.embedding import require_package

    require_package("pyarrow")
    from vitconvert.embedding.shards import check

    report = check(str(options.check))
    if options.as_json:
        click.echo(json.dumps(report.to_dict()))
    else:
        images = report.rows + report.failed
        tell(f"{in_shards(images, report.shards)}; {report.failed} failed")
        for problem in report.problems:
            tell(f"  {printable(problem)}")
        tell("complete" if report.whole else "not complete")
    return 0 if report.whole else 1


def compute_shards(options: Scaled, computed: str, **task: Any) -> int:
    """Compute what the output lacks; 1 if images failed, or shards were given up."""
    from vitconvert.embedding import require_package

    require_package("pyarrow")
    _check_options(options)
    work, sources, how = _task(options, computed, **task), _sources(options), _how(options)
    output = str(options.output)
    if options.plan:
        return _plan(work, sources, how.store, as_json=options.as_json)
    from vitconvert.embedding.run import run

    every = how.only is None and not (how.retry_failed or how.append)
    total = sources.count if every else lambda: None
    shown = progress(total, as_json=options.as_json, quiet=options.quiet)
    kept = False

    def notify(event: "Event") -> None:
        nonlocal kept
        kept = kept or event.what == "shard" or event.known > 0
        shown(event)

    try:
        finished = run(work, sources, output, how, notify)
    except KeyboardInterrupt:
        shown.close()
        if kept:
            tell("finished shards are kept: the same command goes on with the others.", err=True)
        else:
            tell("no shard was finished: the same command begins again.", err=True)
        raise
    finally:
        shown.close()
    return 1 if finished.failed or finished.known_failed or finished.abandoned else 0


def _check_options(options: Scaled) -> None:
    for option in given_options(["force"]):
        raise UsageError(
            f"{option} replaces a file; a directory goes on where it was.",
            evidence={"output": options.output},
            hint="remove the directory, or name another with -o.",
        )
    for option in given_options(OF_RAY) if options.course["engine"] != "ray" else ():
        raise UsageError(f"{option} is for --engine ray.")


def _task(options: Scaled, computed: str, **task: Any) -> "Task":
    from vitconvert.api.inference import engines_for
    from vitconvert.embedding.embedder import Task

    computing = ComputeOptions(**options.compute, dtype=parse_dtype(options.dtype))
    found = Task(
        model=options.model,
        computed=computed,
        fetching={**options.fetching(), "quiet": True},
        reading=options.read_options(),
        which=FeatureOptions(**options.which),
        computing=computing,
        make_engine=engines_for(computing, None if options.quiet else partial(tell, err=True)),
        **task,
    )
    if found.reading.of_images:
        options.tell_preprocessing(found.checkpoint())
    return found.settled()


def _sources(options: Scaled) -> "Sources":
    from vitconvert.embedding.sources import Sources

    options.require_stdin()
    given = options.images
    return Sources(
        given=given,
        listed=options.listed_on_stdin() if STDIN in given else (),
        recursive=options.recursive,
        keep=options.keep,
        image_column=options.image_column,
    )


def _how(options: Scaled) -> RunOptions:
    return RunOptions(**{**options.course, "only": _only(options.course["only"])})


def _only(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    k, slash, n = text.partition("/")
    if not slash or not k.isdecimal() or not n.isdecimal():
        raise UsageError(f"--only {text} is not K/N, such as 2/8.")
    return int(k), int(n)


def _plan(task: "Task", sources: "Sources", store: str, *, as_json: bool) -> int:
    from vitconvert.embedding.run import estimate

    found = estimate(task, sources, store=store)
    if as_json:
        click.echo(json.dumps(vars(found)))
    else:
        tell(
            f"{found.images:,} images: about {duration(found.seconds)} in one process here, and "
            f"{_bytes(found.bytes)} (from {found.tried} images)"
        )
    return 0


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
