"""`vitconvert export MODEL --to onnx -o FILE`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    Command,
    apply_options,
    fetching_options,
    locate_options,
    named_output,
    parse_reading,
    reading_options,
    reporting_options,
)
from vitconvert.cli.report import line, print_json, source_line, tell

if TYPE_CHECKING:
    from vitconvert.comparison import Comparison
    from vitconvert.runtimes.export import Exported
    from vitconvert.sources import Located

_HELP = """{summary}

The file is run in the runtime and compared with vitconvert's own model before it appears. Its
metadata have the names of the classes, the preprocessing, hashes of the source and its history.
"""
_EXPORT = (
    click.option(
        "--to",
        required=True,
        metavar="FORMAT",
        help="onnx (NAME.onnx), pt2 (torch.export: NAME.pt2) or openvino (NAME.xml and NAME.bin).",
    ),
    click.option(
        "-o",
        "--output",
        "file",
        type=click.Path(path_type=Path),
        required=True,
        callback=named_output,
        help="The file to write.",
    ),
    click.option(
        "--kind",
        type=click.Choice(["logits", "features", "tokens"]),
        help="What it computes; default: logits, or features if there is no head.",
    ),
    click.option("--softmax", is_flag=True, help="Give probabilities instead of logits."),
    click.option(
        "--with-preprocessing",
        is_flag=True,
        help="Take uint8 images (B, height, width, C), resized and cropped, and normalise them.",
    ),
    click.option(
        "--batch-size", type=click.IntRange(min=1), help="Fix the size of batches; default: any."
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float16"]),
        default="float32",
        show_default=True,
        help="Of weights and arithmetic; images and output stay float32.",
    ),
    click.option("--int8", is_flag=True, help="With --to onnx: dynamic quantisation to 8 bits."),
    click.option("--opset", type=int, help="With --to onnx; default: torch's choice."),
    click.option(
        "--images",
        multiple=True,
        metavar="PATH",
        help="Compare on these images too (a file, a folder or a pattern). May be repeated.",
    ),
    click.option(
        "--verify/--no-verify", default=True, show_default=True, help="Check it in the runtime."
    ),
    click.option("--force", is_flag=True, help="Replace an earlier export."),
)
_PASSED = ("to", "kind", "softmax", "with_preprocessing", "batch_size", "dtype", "int8", "opset")


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=_HELP.format(summary=help_text), short_help=help_text)
    @click.argument("model")
    @_options
    def export_(**options: Any) -> int:
        return _export(options)

    return export_


def _options(command: Command) -> Command:
    rest = reading_options(fetching_options(reporting_options(command)))
    return apply_options(_EXPORT, rest)


def _export(options: dict[str, Any]) -> int:
    from vitconvert.api import export_model
    from vitconvert.cli.typed_command import command_line
    from vitconvert.runtimes.export import ExportOptions, check_export
    from vitconvert.sources import locate

    passed = {name: options[name] for name in _PASSED}
    choice = {**passed, "output": passed["kind"]}
    del choice["kind"]
    check_export(options["file"], ExportOptions(**choice), overwrite=options["force"])
    located = locate(options["model"], **locate_options(options))
    exported = export_model(
        located,
        options["file"],
        **passed,
        images=list(options["images"]) or None,
        verify=options["verify"],
        overwrite=options["force"],
        command=command_line(),
        **parse_reading(options),
    )
    if options["as_json"]:
        print_json({"ok": True, **exported.to_dict()})
    else:
        tell(str(exported.output) if options["quiet"] else _report(exported, located))
    return 0


def _report(exported: "Exported", located: "Located") -> str:
    record = exported.record
    shape = " x ".join(map(str, record["input"]["shape"]))
    kind = "probabilities" if record["output"]["softmax"] else record["output"]["kind"]
    compared = [f"{c.images}: {_compared(c)}" for c in exported.comparisons]
    seen = exported.photographs
    lines = [
        source_line(located),
        line("images", f"{record['input']['dtype']}, {shape}"),
        line("output", f"{kind}, computed in {record['dtype']}"),
        line("verified", exported.runtime, *compared) if compared else line("verified", "no"),
        line(seen.images, _compared(seen)) if seen else "",
        *(line("note", note) for note in exported.notes),
        line("written", *exported.sha256),
    ]
    return "\n".join(text for text in lines if text)


def _compared(found: "Comparison") -> str:
    return (
        f"largest difference {found.relative:.1e} of the largest output, "
        f"{found.agreed} of {found.rows} with the same maximum"
    )
