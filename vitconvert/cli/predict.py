"""`vitconvert predict MODEL IMAGE...`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    fetching_options,
    parse_settings,
    reading_options,
    talking_options,
)
from vitconvert.cli.references import locate_options
from vitconvert.cli.report import print_json
from vitconvert.errors import MissingFact

if TYPE_CHECKING:
    from vitconvert.inference.predict import Prediction


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("model")
    @click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
    @click.option("--topk", default=5, show_default=True, type=click.IntRange(min=1))
    @click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1))
    @click.option("--device", default="cpu", show_default=True)
    @click.option(
        "--fast/--no-fast",
        default=True,
        show_default=True,
        help="Arithmetic that is faster, and the same within rounding.",
    )
    @reading_options
    @fetching_options
    @talking_options
    def predict(**options: Any) -> int:
        return _predict(options)

    return predict


def _predict(options: dict[str, Any]) -> int:
    from vitconvert.inference.predict import predict
    from vitconvert.loading import build_model, read_checkpoint
    from vitconvert.sources import locate

    checkpoint = read_checkpoint(
        locate(options["model"], **locate_options(options)),
        dialect=options["dialect"],
        overrides=parse_settings(options["settings"]),
        architecture=options["architecture"],
        table=options["table"],
    )
    if checkpoint.preprocessing is None:
        raise MissingFact(
            "Nothing says how this checkpoint's images are prepared.",
            evidence={"dialect": checkpoint.dialect},
            hint="Put its preprocessor_config.json, or timm's config.json, beside the weights.",
        )
    predictions = predict(
        build_model(checkpoint, device=options["device"], fast=options["fast"]),
        options["images"],
        checkpoint.preprocessing,
        topk=min(options["topk"], checkpoint.config.num_classes or 1),
        labels=checkpoint.labels,
        batch_size=options["batch_size"],
    )
    labels = checkpoint.labels
    assumed = labels.origin if labels and labels.assumed else None
    if options["as_json"]:
        failed = any(p.error for p in predictions)
        listed = [p.to_dict() for p in predictions]
        print_json({"ok": not failed, "labels_assumed": assumed, "predictions": listed})
    else:
        for prediction in predictions:
            click.echo(_lines(prediction, quiet=options["quiet"]))
        if assumed and not options["quiet"]:
            click.echo(f"labels assumed: {assumed}", err=True)
    return 1 if any(p.error for p in predictions) else 0


def _lines(prediction: "Prediction", *, quiet: bool) -> str:
    if prediction.error:
        return f"{prediction.path}\n{prediction.error}"
    if quiet:
        best = prediction.top[0]
        return f"{prediction.path}\t{best.label or best.index}"
    rows = [f"  {c.probability:7.2%}  {c.label or c.index}" for c in prediction.top]
    return "\n".join([str(prediction.path), *rows])
