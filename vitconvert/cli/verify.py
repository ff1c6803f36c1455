"""`vitconvert verify MODEL`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    AGAINST,
    checkpoint_against,
    computing_option,
    fetching_options,
    locate_options,
    named_output,
    parse_reading,
    reading_options,
    reading_options_of,
    reporting_options,
    require_against,
)
from vitconvert.cli.report import print_json, tell

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.parity.report import ParityReport

NOT_COMPARED = 1


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("model")
    @click.option(
        "--against",
        help="Another checkpoint that should compute the same function, or a golden file.",
    )
    @click.option(
        "--module",
        metavar="MODULE:NAME",
        help="A model of your own to verify, such as team.models:build_vit; your code is run. It "
        "gets the tensors of MODEL if it has their names; --against or MODEL measures it.",
    )
    @click.option(
        "--layer",
        "layers",
        multiple=True,
        metavar="YOURS=OURS",
        help="With --module: modules whose outputs are the same, such as encoder.0=blocks.0.",
    )
    @click.option(
        "--images",
        multiple=True,
        metavar="PATH",
        help="Compare on images too (a file, a folder or a pattern; the first 32), through both "
        "preprocessings. May be repeated.",
    )
    @click.option(
        "--dtypes",
        metavar="NAMES",
        help="Measure lower precision too, such as float16,bfloat16: how far it is from float64, "
        "layer by layer, and whether numbers overflow. float32 or float64 alone is compared alone.",
    )
    @click.option(
        "--tolerance",
        type=click.FloatRange(min=0),
        default=2e-5,
        show_default=True,
        help="Largest relative difference in float32.",
    )
    @click.option("--seed", default=0, show_default=True, help="Seed of the noise images.")
    @click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=named_output,
        help="Write an HTML page.",
    )
    @click.option("--force", is_flag=True, help="Replace the page if it exists.")
    @computing_option
    @reading_options
    @reading_options_of(AGAINST)
    @fetching_options
    @reporting_options
    def verify_(**options: Any) -> int:
        from vitconvert.pages import check_file

        page: Path | None = options["report"]
        if page:
            check_file(page, overwrite=options["force"])
        _check_options(options)
        report = _verify(options)
        if page:
            from vitconvert.whole import whole_file

            check = partial(check_file, overwrite=options["force"])
            with whole_file(page, check=check) as file:
                file.write(report.to_html().encode())
        if options["as_json"]:
            print_json({"ok": report.ok, **report.to_dict()})
        else:
            tell(report.verdict if options["quiet"] else report.summary())
        if not report.verified:
            return NOT_COMPARED
        return 0 if report.ok else 3

    return verify_


def _verify(options: dict[str, Any]) -> "ParityReport":
    from vitconvert.api import load_checkpoint, verify
    from vitconvert.checkpoint.companions import hashed
    from vitconvert.checkpoint.reading import not_quantised
    from vitconvert.errors import UnknownDialect
    from vitconvert.parity.golden import is_golden
    from vitconvert.sources import locate

    located = hashed(locate(options["model"], **locate_options(options)))
    against, asked = options[AGAINST], options["dequantise"]
    two = against and not is_golden(against)
    if two:  # of which one may be quantised
        options = {**options, "dtype": asked, "dequantise": None}
    reading = parse_reading(options)
    try:
        checkpoint = load_checkpoint(located, **reading)
    except UnknownDialect:
        if not options["module"]:
            raise
        # The table is about the module alone, then; the report says which tensors were loaded.
        checkpoint = load_checkpoint(located, **{**reading, "table": None, "dialect": None})
    other = checkpoint_against(options) if two else against
    if asked and two and not (checkpoint.ledger.dequantised or other.ledger.dequantised):
        raise not_quantised(asked, options["model"], against)
    measured = {
        "tolerance": options["tolerance"],
        "seed": options["seed"],
        "images": options["images"] or None,
    }
    if options["dtypes"]:
        measured["dtypes"] = [name.strip() for name in options["dtypes"].split(",")]
    if options["module"]:
        return _verify_module(options, checkpoint, other or checkpoint, measured)
    return verify(checkpoint, against=other, **measured)


def _verify_module(
    options: dict[str, Any],
    checkpoint: "Checkpoint",
    against: "Checkpoint | str",
    measured: dict[str, Any],
) -> "ParityReport":
    """Compare a model that the user's own code builds."""
    from torch import nn

    from vitconvert.api import verify
    from vitconvert.parity.own_models import build_own_model, load_into

    names = {name: options[name] for name in ("dialect", "table")}
    model = build_own_model(options["module"])
    loaded = f"{options['module']}: {load_into(model, checkpoint)}"
    report = verify(
        model,
        against=against,
        layers=dict(layer.split("=", 1) for layer in options["layers"]) or None,
        **({} if options["layers"] or not isinstance(model, nn.Module) else names),
        **measured,
    )
    return replace(report, notes=(loaded, *report.notes))


def _check_options(options: dict[str, Any]) -> None:
    from vitconvert.errors import UsageError
    from vitconvert.parity.golden import is_golden

    if not options[AGAINST]:
        require_against(options, "--against is missing")
    elif is_golden(options[AGAINST]):
        require_against(options, "--against is a golden file")
    if wrong := [layer for layer in options["layers"] if not all(layer.partition("="))]:
        raise UsageError(f"--layer {wrong[0]} is not YOURS=OURS.")
    if options["layers"] and not options["module"]:
        raise UsageError("--layer needs --module, a model of your own.")
