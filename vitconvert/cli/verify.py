"""`vitconvert verify MODEL`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    fetching_options,
    parse_reading,
    reading_options,
    talking_options,
)
from vitconvert.cli.references import locate_options
from vitconvert.cli.report import print_json

if TYPE_CHECKING:
    from vitconvert.parity.report import ParityReport

NOT_COMPARED = 1


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("model")
    @click.option("--against", help="Another checkpoint that should compute the same function.")
    @click.option(
        "--tolerance",
        type=click.FloatRange(min=0),
        default=2e-5,
        show_default=True,
        help="Largest relative difference in float32.",
    )
    @click.option("--seed", default=0, show_default=True, help="Of the noise images.")
    @click.option(
        "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page."
    )
    @reading_options
    @fetching_options
    @talking_options
    def verify_(**options: Any) -> int:
        report = _compare(options)
        if options["report"]:
            options["report"].write_text(report.to_html(), encoding="utf-8")
        if options["as_json"]:
            print_json({"ok": report.ok, **report.to_dict()})
        else:
            click.echo(report.verdict if options["quiet"] else report.summary())
        if not report.verified:
            return NOT_COMPARED
        return 0 if report.ok else 3

    return verify_


def _compare(options: dict[str, Any]) -> "ParityReport":
    from vitconvert.api import load_checkpoint, verify
    from vitconvert.sources import locate

    fetching = locate_options(options)
    against = options["against"]
    return verify(
        load_checkpoint(locate(options["model"], **fetching), **parse_reading(options)),
        against=locate(against, **fetching) if against else None,
        tolerance=options["tolerance"],
        seed=options["seed"],
    )
