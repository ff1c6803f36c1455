"""`vitconvert inspect MODEL ...`."""

from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    computing_option,
    fetching_options,
    locate_options,
    parse_reading,
    reading_options,
    reporting_options,
)
from vitconvert.cli.report import inspection_report, print_json, tell
from vitconvert.errors import VitConvertError

if TYPE_CHECKING:
    from vitconvert.inspection import Inspection


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    several = "Of several, each is inspected, and the highest exit code counts."

    @click.command(name, help=f"{help_text} {several}")
    @click.argument("models", metavar="MODEL...", nargs=-1, required=True)
    @computing_option
    @reading_options
    @fetching_options
    @reporting_options
    def inspect_(**options: Any) -> int:
        if len(options["models"]) > 1:
            return _inspect_all(options)
        inspection = _inspect(options["models"][0], options)
        if options["as_json"]:
            print_json(_as_json(inspection))
        else:
            tell(_text(inspection, options))
        return _code(inspection)

    return inspect_


def _inspect_all(options: dict[str, Any]) -> int:
    """Inspect each of several, whatever is wrong with one, under its own name."""
    answers: dict[str, Any] = {}
    worst = 0
    for model in options["models"]:
        try:
            inspection = _inspect(model, options)
        except VitConvertError as error:
            worst = max(worst, error.exit_code)
            answers[model] = {"ok": False, "error": error.to_dict()}
            text = str(error)
        else:
            worst = max(worst, _code(inspection))
            answers[model] = _as_json(inspection)
            text = _text(inspection, options)
        if not options["as_json"]:
            tell(f"{model}: {text}" if options["quiet"] else f"{model}\n{text}\n")
    if options["as_json"]:
        print_json({"ok": worst == 0, "inspections": answers})
    return worst


def _inspect(model: str, options: dict[str, Any]) -> "Inspection":
    from vitconvert.api import inspect
    from vitconvert.sources import locate

    located = locate(model, **locate_options(options), headers_only=True)
    return inspect(located, **parse_reading(options))


def _as_json(inspection: "Inspection") -> dict[str, Any]:
    return {"ok": not inspection.problem, **inspection.to_dict()}


def _text(inspection: "Inspection", options: dict[str, Any]) -> str:
    return inspection.dialect or "unknown" if options["quiet"] else inspection_report(inspection)


def _code(inspection: "Inspection") -> int:
    return inspection.problem.exit_code if inspection.problem else 0
