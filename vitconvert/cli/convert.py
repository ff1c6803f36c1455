"""`vitconvert SOURCE MODEL`: convert, verify, write, report."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    changing_options,
    fetching_options,
    locate_options,
    named_output,
    parse_classes,
    parse_dtype,
    parse_reading,
    reading_options,
    refuse_given,
    reporting_options,
)
from vitconvert.cli.plan import print_plan
from vitconvert.cli.report import conversion_report, print_json, tell
from vitconvert.cli.typed_command import command_line, typed_again
from vitconvert.sources.references import looks_like_path

if TYPE_CHECKING:
    from vitconvert.sources import Located

# Ecosystems whose models have names, and the prefix that `sources.locate` knows them by.
_NAMED = {
    "timm": "timm",
    "hf": "hf",
    "jax": "google",
    "torchvision": "torchvision",
    "dino": "dino",
}


def command(source: str, help_text: str) -> click.Command:
    """The command of one source ecosystem."""

    @click.command(source, help=help_text)
    @click.argument("model")
    @click.option("--to", default="vit", show_default=True, help="Target ecosystem or dialect.")
    @click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        callback=named_output,
        help="Directory; default: NAME-TARGET.",
    )
    @click.option(
        "--checkpoint",
        type=click.Path(path_type=Path, exists=True),
        help="A local file or directory to use instead of the download.",
    )
    @click.option("--scan", is_flag=True, help="For big_vision: all blocks stacked in one array.")
    @changing_options
    @click.option(
        "--image-only",
        is_flag=True,
        help="Leave the text tower behind, where the target has a place for both.",
    )
    @click.option(
        "--max-shard-size", help="Split safetensors into files of at most this size, such as 5GB."
    )
    @click.option("--verify/--no-verify", default=True, help="Compare logits; on by default.")
    @click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
    @click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="List every tensor (--dry-run), and every dialect that refuses the model.",
    )
    @click.option("--force", is_flag=True, help="Replace an earlier output.")
    @reading_options
    @fetching_options
    @reporting_options
    def convert_(**options: Any) -> int:
        return _convert(source, options)

    if source == "timm":
        random = click.option(
            "--no-pretrained", is_flag=True, help="Use random weights; needs no network."
        )
        convert_ = random(convert_)
    return convert_


def _convert(source: str, options: dict[str, Any]) -> int:
    from vitconvert.api import convert
    from vitconvert.conversion.output import check_output

    output = options["output"] or Path(_default_name(options["model"], _target(options)))
    check_output(output, overwrite=options["force"])
    arguments = {
        "to": _target(options),
        **_reading(source, options),
        **_changes(options),
        "allow": options["allow"],
        "image_only": options["image_only"],
        "max_shard_size": options["max_shard_size"],
        "output": output,
    }
    with ExitStack() as stack, _naming_the_command():
        located = _locate(source, options, stack)
        if options["dry_run"]:
            return print_plan(located, arguments, options)
        conversion = convert(
            located,
            **arguments,
            verify=options["verify"],
            overwrite=options["force"],
            command=command_line(),
        )
    if options["as_json"]:
        print_json({"ok": True, **conversion.to_dict()})
    elif options["quiet"]:
        click.echo(os.fsencode(conversion.output))
    else:
        tell(conversion_report(conversion))
    return 0


@contextmanager
def _naming_the_command() -> Iterator[None]:
    """Within the block, a refusal is given the command that works."""
    from vitconvert.errors import NotRepresentable, Quantised, UnsafeFile

    try:
        yield
    except UnsafeFile as error:
        if error.rescuable:
            error.evidence["command"] = typed_again(rescue=True)
        raise
    except Quantised as error:
        if error.computable:
            error.evidence["command"] = typed_again(dtype="float32")
        raise
    except NotRepresentable as error:
        if error.steps:
            command = typed_again(allow=error.steps)
        elif others := [name for name in error.holders if name != error.source]:
            command = typed_again(**_other_target(_usual_among(others)))
        else:
            raise
        error.evidence = {"command": command, **error.evidence}
        raise


def _usual_among(targets: Sequence[str]) -> str:
    """The target that most users have a use for."""
    return next(name for name in ("timm", "hf", "vit", *targets) if name in targets)


def _other_target(to: str) -> dict[str, Any]:
    """The options that name another target, and a directory that is not called after the old."""
    typed = click.get_current_context().params
    if typed["output"] is None:
        return {"to": to}
    output = typed["output"]
    return {"to": to, "output": output.with_name(output.name.replace(typed["to"], to))}


def _target(options: dict[str, Any]) -> str:
    to: str = options["to"]
    if options["scan"] and to != "big_vision":
        raise click.BadParameter(f"{to} has no stacked blocks.", param_hint="--scan")
    return "big_vision_scan" if options["scan"] else to


def _locate(source: str, options: dict[str, Any], stack: ExitStack) -> "Located":
    from vitconvert.sources import locate

    if options.get("no_pretrained"):
        refuse_given(("checkpoint", "revision"), "is about weights, and --no-pretrained has none")
        from vitconvert.sources.timm_names import random_timm

        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return random_timm(options["model"], directory)
    if options["checkpoint"]:
        refuse_given(["revision"], "is about a download, and --checkpoint is in its place")
        located = locate(options["checkpoint"])
        return replace(located, name=located.name or options["model"])
    return locate(_reference_for(source, options["model"]), **locate_options(options))


def _reading(source: str, options: dict[str, Any]) -> dict[str, Any]:
    from vitconvert.tables.dialects import is_of

    reads_by_table = options["table"] and not is_of(options["to"], options["table"])
    dialect = options["dialect"] or (None if reads_by_table else _ecosystem_of(source))
    return parse_reading(options) | {"dialect": dialect}


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    names = ("image_size", "patch_size", "in_channels", "num_classes")
    return {
        **{name: options[name] for name in names},
        "classes": parse_classes(options["classes"]),
        "dtype": parse_dtype(options["dtype"]),
    }


def _default_name(model: str, to: str) -> str:
    """A directory in the current one, named after the model and the target."""
    path = Path(model)
    # os.path, because Path raises for names that are too long.
    name = path.stem if os.path.isfile(path) else path.name.split(":")[-1]  # noqa: PTH113
    return f"{name or 'model'}-{to}"


def _reference_for(source: str, model: str) -> str:
    """The reference for `sources.locate`; a name that exists on disk is always a path."""
    prefix = _NAMED.get(source)
    is_path = os.path.exists(model) or looks_like_path(model)  # noqa: PTH110 (never an error)
    if prefix is None or is_path or ":" in model or (source == "timm" and "/" in model):
        return model
    return f"{prefix}:{model}"


def _ecosystem_of(source: str) -> str | None:
    """The ecosystem that a source verb stands for; None: detected among all."""
    # All of these but the first stand for several ecosystems each.
    return None if source in ("file", "hf", "jax", "openclip", "dino") else source
