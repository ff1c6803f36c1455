"""`vitconvert golden SOURCE -o NAME.golden`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    computing_option,
    fetching_options,
    locate_options,
    named_output,
    parse_reading,
    reading_options,
    reporting_options,
)
from vitconvert.cli.report import line, print_json, tell

if TYPE_CHECKING:
    from vitconvert.parity.golden import Golden


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("source")
    @click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        callback=named_output,
        help="The file to write, NAME.golden.",
    )
    @click.option("--seed", default=0, show_default=True, help="Seed of the images.")
    @click.option("--batch", default=2, show_default=True, help="Images of each kind.")
    @click.option("--force", is_flag=True, help="Replace an earlier golden file.")
    @computing_option
    @reading_options
    @fetching_options
    @reporting_options
    def golden_(**options: Any) -> int:
        from vitconvert.api import record_golden
        from vitconvert.parity.golden import check_golden_output
        from vitconvert.sources import locate

        output, force = options["output"], options["force"]
        check_golden_output(output, overwrite=force)  # before anything is downloaded
        golden = record_golden(
            locate(options["source"], **locate_options(options)),
            output,
            seed=options["seed"],
            batch=options["batch"],
            overwrite=force,
            **parse_reading(options),
        )
        _tell(golden, output, options)
        return 0

    return golden_


def _tell(golden: "Golden", output: Path, options: dict[str, Any]) -> None:
    size = output.stat().st_size
    if options["as_json"]:
        recorded = {"verdict": golden.verdict, "reference": golden.reference}
        hashes = {"weights": golden.weights, "images": golden.images}
        print_json({"ok": True, "output": str(output), "bytes": size, **recorded, **hashes})
    elif options["quiet"]:
        tell(str(output))
    else:
        tell(line("golden", output, f"{size:,} bytes"))
        tell(line("verified", f"{golden.verdict}: {golden.reference}"))
        tell(line("weights", f"sha256 {golden.weights}"))
