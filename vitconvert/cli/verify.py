"""`vitconvert verify MODEL`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    fetching_options,
    locate_options,
    parse_reading,
    reading_options,
    reporting_options,
)
from vitconvert.cli.report import print_json, tell

if TYPE_CHECKING:
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
        "--tolerance",
        type=click.FloatRange(min=0),
        default=2e-5,
        show_default=True,
        help="Largest relative difference in float32.",
    )
    @click.option("--seed", default=0, show_default=True, help="Seed of the noise images.")
    @click.option(
        "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page."
    )
    @click.option("--force", is_flag=True, help="Replace the page if it exists.")
    @reading_options
    @fetching_options
    @reporting_options
    def verify_(**options: Any) -> int:
        page: Path | None = options["report"]
        if page:
            _check_page(page, overwrite=options["force"])
        report = _verify(options)
        if page:
            _write_page(page, report)
        if options["as_json"]:
            print_json({"ok": report.ok, **report.to_dict()})
        else:
            tell(report.verdict if options["quiet"] else report.summary())
        if not report.verified:
            return NOT_COMPARED
        return 0 if report.ok else 3

    return verify_


def _check_page(page: Path, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that the page may be written."""
    from vitconvert.errors import OutputExists

    if page.exists() and not overwrite:
        raise OutputExists(
            "The report already exists.",
            evidence={"report": page},
            hint="--force replaces it; --report names another file.",
        )


def _write_page(page: Path, report: "ParityReport") -> None:
    from vitconvert.containers.whole_file import whole_file

    with whole_file(page) as file:
        file.write(report.to_html().encode())


def _verify(options: dict[str, Any]) -> "ParityReport":
    from vitconvert.api import load_checkpoint, verify
    from vitconvert.parity.golden_file import is_golden
    from vitconvert.sources import locate

    fetching = locate_options(options)
    against = options["against"]
    return verify(
        load_checkpoint(locate(options["model"], **fetching), **parse_reading(options)),
        against=locate(against, **fetching) if against and not is_golden(against) else against,
        tolerance=options["tolerance"],
        seed=options["seed"],
    )
