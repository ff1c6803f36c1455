"""`vitconvert table FILE --like REFERENCE -o NAME.toml`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import fetching_options, locate_options, named_output, reporting_options
from vitconvert.cli.report import line, print_json, tell

if TYPE_CHECKING:
    from vitconvert.drafting.draft import Draft
    from vitconvert.sources import Located

_SHOWN = 12  # tensors that are left, without -v


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    more = "Rows that are certain can be used at once; guesses are commented out, with the reason."

    @click.command(name, help=f"{help_text} {more}")
    @click.argument("source", metavar="FILE")
    @click.option(
        "--like",
        required=True,
        metavar="ARCHITECTURE_OR_FILE",
        help="A ViT of the same sizes: a name of timm, or a checkpoint. One that has the same "
        "weights tells the most.",
    )
    @click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        callback=named_output,
        help="The table to write, NAME.toml.",
    )
    @click.option("--prefer", metavar="KEY", help="Which state dict of a torch checkpoint to read.")
    @click.option(
        "--ignore",
        multiple=True,
        metavar="PATTERN",
        help="Leave tensors out, such as 'text.*'. May be repeated.",
    )
    @click.option("--force", is_flag=True, help="Replace an earlier draft.")
    @click.option("-v", "--verbose", is_flag=True, help="List every row and every tensor left.")
    @fetching_options
    @reporting_options
    def table_(**options: Any) -> int:
        return _draft(options)

    return table_


def _draft(options: dict[str, Any]) -> int:
    from vitconvert.api import draft_table
    from vitconvert.drafting.draft_text import check_draft_output
    from vitconvert.sources import locate

    output, force = options["output"], options["force"]
    check_draft_output(output, overwrite=force)  # before anything is downloaded
    draft = draft_table(
        locate(options["source"], **locate_options(options)),
        like=_like(options),
        output=output,
        prefer=options["prefer"],
        ignore=options["ignore"],
        overwrite=force,
    )
    if options["as_json"]:
        print_json({"ok": draft.problem is None, "output": str(output), **draft.to_dict()})
    elif options["quiet"]:
        tell(str(output))
    else:
        tell(_report(draft, options))
    return 0


def _like(options: dict[str, Any]) -> "str | Located":
    """The name of an architecture as it is; a checkpoint located as the file is."""
    from vitconvert.drafting.draft import is_architecture
    from vitconvert.sources import locate

    like: str = options["like"]
    if is_architecture(like):
        return like
    return locate(like, **{**locate_options(options), "revision": None})


def _report(draft: "Draft", options: dict[str, Any]) -> str:
    from vitconvert.tables.names import runs

    left = [f"{name}  x {n}" if n > 1 else name for name, n in runs(draft.left)]
    verbose = options["verbose"]
    most = len(left) if verbose else _SHOWN
    more = [f"and {len(left) - most} more; -v lists all"] if len(left) > most else []
    rows = [f"{row.name} = {row.spelling}: {row.reason}" for row in draft.certain]
    guesses = [f"{row.name} = {row.spelling}: {row.reason}" for row in draft.guesses]
    facts = [f"{name} = {value}" for name, value in draft.config.items()]
    texts = [
        line("source", draft.source),
        line("like", draft.like),
        line("values", draft.values),
        line("certain", f"{len(rows)} rows", *(rows if verbose else [])),
        line("guesses", f"{len(guesses)} rows, commented out", *guesses),
        line("ignored", f"{len(draft.ignored)} tensors") if draft.ignored else "",
        line("left", f"{len(draft.left)} tensors", *left[:most], *more),
        line("not found", *draft.unfilled) if draft.unfilled else "",
        line("as in like", *facts) if facts else "",
        line("output", options["output"]),
        line("next", *_next(draft, options)),
    ]
    return "\n".join(text for text in texts if text)


def _next(draft: "Draft", options: dict[str, Any]) -> list[str]:
    if draft.problem is None:
        return [f"vitconvert file {options['source']} --table {options['output']} -o OUTPUT"]
    return [f"the table does not read the file yet: {draft.problem.fact}", *draft.problem.details]
