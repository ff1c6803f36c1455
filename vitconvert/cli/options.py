"""Options that several verbs share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import torch

Command = TypeVar("Command", bound=Callable[..., Any])


def dtype_option(help_text: str) -> Callable[[Command], Command]:
    """`--dtype`, which `parse_dtype` reads."""
    return click.option(
        "--dtype",
        type=click.Choice(["keep", "float32", "float16", "bfloat16"]),
        default="keep",
        show_default=True,
        help=help_text,
    )


_READING = (
    click.option("--dialect", help="Name of the source's dialect or ecosystem; default: detected."),
    click.option(
        "--table",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A TOML file with a dialect of your own.",
    ),
    click.option("--architecture", help="Name of the architecture, for files that cannot tell."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="FIELD=VALUE",
        help="State a fact that tensors cannot tell, such as num_heads=3. May be repeated.",
    ),
    click.option(
        "--prefer",
        metavar="KEY",
        help="Of several state dicts in a torch checkpoint, this one; default: averaged weights.",
    ),
)
_CHANGING = (
    click.option("--image-size", help="Resample positions: 384 or 224x320 (height x width)."),
    click.option("--patch-size", help="Resize the patches, as FlexiViT: 8 or 8x16."),
    click.option("--in-channels", type=int, help="Read images of this many channels."),
    click.option(
        "--num-classes", type=int, help="A new head of zeros for so many classes; 0 takes it off."
    ),
    click.option("--classes", help="Keep these classes of the head: 3,7,tabby (index or name)."),
    dtype_option("Cast the weights."),
    click.option(
        "--allow",
        multiple=True,
        metavar="STEP",
        help="Allow a step that keeps the function and changes bytes. May be repeated.",
    ),
)
_FETCHING = (
    click.option("--revision", help="Branch, tag or commit of a Hub repository."),
    click.option("--token", help="For private and gated repositories; default: `hf auth login`."),
    click.option("--cache-dir", type=click.Path(path_type=Path), help="Where downloads are kept."),
    click.option("--offline", is_flag=True, help="Use the cache and ask no server."),
)
_QUIET = click.option(
    "-q", "--quiet", is_flag=True, help="Print only the result, show no progress."
)
_REPORTING = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    _QUIET,
)
_JSON_LINES = (
    click.option(
        "--json", "as_json", is_flag=True, help="Print a line of JSON for each image as it comes."
    ),
    _QUIET,
)


def reading_options(command: Command) -> Command:
    """What says how to read a checkpoint."""
    return apply_options(_READING, command)


def changing_options(command: Command) -> Command:
    """What says how the model is to be changed."""
    return apply_options(_CHANGING, command)


def fetching_options(command: Command) -> Command:
    """What says how to get it."""
    return apply_options(_FETCHING, command)


def reporting_options(command: Command) -> Command:
    """What says how to answer."""
    return apply_options(_REPORTING, command)


def json_line_options(command: Command) -> Command:
    """What says how to answer image by image."""
    return apply_options(_JSON_LINES, command)


def apply_options(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Decorate with the options in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """`--set field=value`, as the loading functions take it."""
    parsed = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals or not field or not value:
            raise click.BadParameter(f"{setting!r} is not FIELD=VALUE.", param_hint="--set")
        parsed[field.strip()] = value.strip()
    return parsed


def parse_reading(options: dict[str, Any]) -> dict[str, Any]:
    """The reading options, as `vitconvert.load_checkpoint` takes them."""
    names = ("dialect", "architecture", "table", "prefer")
    overrides = parse_settings(options["settings"])
    return {name: options[name] for name in names} | {"overrides": overrides}


def locate_options(options: dict[str, Any]) -> dict[str, Any]:
    """The part of a verb's options that says how to get a checkpoint."""
    names = ("revision", "token", "cache_dir", "offline", "quiet")
    return {name: options[name] for name in names}


def parse_dtype(name: str) -> "torch.dtype | None":
    """`--dtype`, as the loading functions take it; None keeps what there is."""
    if name == "keep":  # and torch need not be imported
        return None
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype
