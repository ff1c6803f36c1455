"""`vitconvert inspect MODEL`."""

from typing import Any

import click

from vitconvert.cli.options import (
    fetching_options,
    locate_options,
    parse_reading,
    reading_options,
    reporting_options,
)
from vitconvert.cli.report import inspection_report, print_json, tell


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("model")
    @reading_options
    @fetching_options
    @reporting_options
    def inspect_(**options: Any) -> int:
        from vitconvert.api import inspect
        from vitconvert.sources import locate

        located = locate(options["model"], **locate_options(options), headers_only=True)
        inspection = inspect(located, **parse_reading(options))
        if options["as_json"]:
            print_json({"ok": not inspection.problem, **inspection.to_dict()})
        elif options["quiet"]:
            tell(inspection.dialect or "unknown")
        else:
            tell(inspection_report(inspection))
        return inspection.problem.exit_code if inspection.problem else 0

    return inspect_
