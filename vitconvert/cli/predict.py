"""`vitconvert predict MODEL IMAGE...`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli import photographs, scale
from vitconvert.cli.options import GroupedCommand, named_output
from vitconvert.cli.photographs import (
    FailureCount,
    named_checkpoint,
    named_images,
    photograph_options,
    reported,
    require_arguments,
    shared_arguments,
)
from vitconvert.cli.scale import (
    compute_shards,
    is_directory,
    report_check,
    require_directory,
    scale_options,
)
from vitconvert.errors import UsageError, printable

if TYPE_CHECKING:
    from vitconvert.inference.predict import Candidate, Prediction

_HELP = """{summary}

IMAGES are files, folders, quoted patterns ("photos/**/*.jpg"), or - for a list of paths on stdin.
An image that cannot be read is reported on stderr and does not stop the others; the exit code is
then 1.

With -o, the answers become Parquet files in a directory, for any number of images, as of `embed`.
"""

_GROUPS = {
    "What comes out": ("topk", "labels", "output", "as_json", "quiet"),
    **scale.GROUPS,
    **photographs.GROUPS,
}


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(
        name,
        cls=GroupedCommand,
        groups=_GROUPS,
        help=_HELP.format(summary=help_text),
        short_help=help_text,
    )
    @click.option(
        "--top",
        "--topk",
        "topk",
        default=5,
        show_default=True,
        type=click.IntRange(min=1),
        help="How many classes to print for each image.",
    )
    @click.option(
        "--labels",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Names of the classes: a line each, or JSON (a list, or a config.json's id2label).",
    )
    @click.option(
        "-o", "--output", callback=named_output, help="A directory; without it, lines on stdout."
    )
    @scale_options
    @photograph_options
    def predict(**options: Any) -> int:
        return _predict(options)

    return predict


def _predict(options: dict[str, Any]) -> int:
    from vitconvert.api import predict
    from vitconvert.inference.stating import labels_in

    if options["check"]:
        return report_check(options)
    require_arguments(options)
    if options["output"]:
        return _into_directory(options)
    require_directory(None)
    checkpoint = named_checkpoint(options)
    failures = FailureCount()
    labels = checkpoint.labels
    if options["labels"]:
        labels = labels_in(options["labels"], checkpoint.config.num_classes)
    predictions = predict(
        checkpoint,
        named_images(options),
        topk=options["topk"],
        labels=labels,
        **shared_arguments(options, checkpoint),
    )
    for prediction in reported(predictions, options, failures, printing=True):
        if options["as_json"]:
            click.echo(json.dumps(prediction.to_dict()))
        elif not prediction.error:
            click.echo(_lines(prediction, quiet=options["quiet"]))
    if labels and labels.doubtful and not options["quiet"]:
        click.echo(f"labels assumed: {labels.origin.removeprefix('assumed: ')}", err=True)
    return failures.exit_code


def _into_directory(options: dict[str, Any]) -> int:
    from vitconvert.inference.stating import labels_in

    if not is_directory(options["output"], ()):
        raise UsageError(
            "Classes are written into a directory, of Parquet files.",
            evidence={"output": options["output"]},
            hint="name one without a suffix; or --json > FILE.jsonl.",
        )
    labels = None
    if options["labels"]:
        labels = labels_in(options["labels"], named_checkpoint(options).config.num_classes)
    return compute_shards(options, "classes", topk=options["topk"], labels=labels)


def _lines(prediction: "Prediction", *, quiet: bool) -> str:
    path = printable(str(prediction.path or ""))
    if quiet:
        best = prediction.top[0]
        return f"{path}\t{_name(best)}"
    rows = [f"  {c.probability:7.2%}  {_name(c)}" for c in prediction.top]
    return "\n".join([path, *rows])


def _name(found: "Candidate") -> str:
    return printable(found.label or str(found.index))
