"""Options that several verbs share."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from vitconvert.arguments import Option, options_of
from vitconvert.checkpoint import ReadOptions

if TYPE_CHECKING:
    import torch

    from vitconvert.checkpoint import Checkpoint

Command = TypeVar("Command", bound=Callable[..., Any])


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings.

    Args:
        groups: Heading -> names of parameters; what no heading has stands under the last.
        arguments: As of a `click.Command`.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        listed = {name for names in self.groups.values() for name in names}
        rest = [name for name in records if name not in listed]
        last = list(self.groups)[-1]
        for heading, names in self.groups.items():
            shown = [*names, *(rest if heading == last else ())]
            with formatter.section(heading):
                formatter.write_dl([record for name in shown if (record := records.get(name))])


def given_options(names: Iterable[str]) -> Iterator[str]:
    """Those of the options that were typed, as they were declared: "--shard-rows"."""
    context = click.get_current_context()
    declared = {parameter.name: parameter.opts for parameter in context.command.params}
    for name in names:
        if name in declared and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield declared[name][-1] if declared[name][-1][0] == "-" else declared[name][-1].upper()


def named_output(_: click.Context, option: click.Parameter, value: Any) -> Any:
    """A callback: no output has the name that elsewhere stands for stdout, or none at all.

    Raises:
        UsageError: This one does.
    """
    if value is not None and str(value) in ("", "-"):
        from vitconvert.errors import UsageError

        raise UsageError(
            f"{option.opts[-1]} {str(value)!r} names no place that is written to.",
            hint="name a file or a directory; ./- is one that is called -.",
        )
    return value


def refuse_given(names: Iterable[str], why: str) -> None:
    """Refuse those of the options that were typed, since nothing would come of them.

    Args:
        names: Of their parameters.
        why: What goes on after the option, as in "is for a page".

    Raises:
        UsageError: One was typed.
    """
    from vitconvert.errors import UsageError

    if option := next(given_options(names), None):
        raise UsageError(f"{option} {why}.", hint=f"leave out {option}.")


def dtype_option(help_text: str) -> Callable[[Command], Command]:
    """`--dtype`, which `parse_dtype` reads."""
    return click.option(
        "--dtype",
        type=click.Choice(["keep", "float32", "float16", "bfloat16"]),
        default="keep",
        show_default=True,
        help=help_text,
    )


AGAINST = "against"

# Flag -> what it is, of the options on how to read a checkpoint. `--dtype` stands alone: verbs that
# cast weights have one of their own.
_READING = {
    one.flag or f"--{name.replace('_', '-')}": one for name, one in options_of(ReadOptions).items()
}
_COMPUTING = _READING.pop("--dtype")


def flag_of(
    flag: str, option: Option, name: str | None = None, **more: Any
) -> Callable[[Command], Command]:
    """An option that a dataclass states, as click's."""
    kinds: dict[type, dict[str, Any]] = {
        bool: {"is_flag": True},
        Path: {"type": click.Path(path_type=Path, dir_okay=False)},
    }
    said: dict[str, Any] = {
        "help": option.about,
        "metavar": option.metavar,
        "multiple": option.repeats,
    }
    said |= kinds.get(option.kind, {"type": option.kind})
    if option.choices:
        said["type"] = click.Choice(option.choices)
    return click.option(flag, *([name] if name else ()), **{**said, **more})


_CHANGING = (
    click.option("--image-size", help="Resample positions: 384 or 224x320 (height x width)."),
    click.option("--patch-size", help="Resize the patches, as in FlexiViT: 8 or 8x16."),
    click.option("--in-channels", type=int, help="Adapt to images of this many channels."),
    click.option(
        "--num-classes", type=int, help="A new head of zeros for this many classes; 0 removes it."
    ),
    click.option(
        "--classes",
        multiple=True,
        help="Keep these classes of the head: 3,7,tabby (index or name). Quote a name that has "
        "commas: '3,\"tench, Tinca tinca\"'. May be repeated.",
    ),
    dtype_option("Cast the weights."),
    click.option(
        "--allow",
        multiple=True,
        metavar="STEP",
        help="Allow a step that the target needs; a refusal names those. May be repeated.",
    ),
)
_FETCHING = (
    click.option("--revision", help="Branch, tag or commit of a Hub repository."),
    click.option("--token", help="For private and gated repositories; default: `hf auth login`."),
    click.option("--cache-dir", type=click.Path(path_type=Path), help="Where downloads are kept."),
    click.option("--offline", is_flag=True, help="Use the cache only, and no network."),
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
        "--json",
        "as_json",
        is_flag=True,
        help="Print a line of JSON for each image, or, with a directory, for what happens.",
    ),
    _QUIET,
)


def reading_options(command: Command) -> Command:
    """Options on how to read a checkpoint."""
    return apply_options(tuple(flag_of(*each) for each in _READING.items()), command)


def reading_options_of(side: str) -> Callable[[Command], Command]:
    """The same for one of two checkpoints, such as `--table-b` and `--table-against`."""
    only = f"For {f'--{side}' if side == AGAINST else side.upper()} only."
    options = tuple(flag_of(f"{flag}-{side}", one, help=only) for flag, one in _READING.items())
    return lambda command: apply_options(options, command)


def computing_option(command: Command) -> Command:
    """`--dtype` of verbs that cast no weights: what quantised ones are computed in."""
    return flag_of("--dtype", _COMPUTING, "dequantise")(command)


def changing_options(command: Command) -> Command:
    """Options on how to change the model."""
    return apply_options(_CHANGING, command)


def fetching_options(command: Command) -> Command:
    """Options on how to get the checkpoint."""
    return apply_options(_FETCHING, command)


def reporting_options(command: Command) -> Command:
    """Options on how to print the result."""
    return apply_options(_REPORTING, command)


def json_line_options(command: Command) -> Command:
    """Options on how to print a result for each image."""
    return apply_options(_JSON_LINES, command)


def apply_options(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Decorate a command with options, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """`--set FIELD=VALUE`, as the loading functions take it."""
    parsed = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals or not field or not value:
            raise click.BadParameter(f"{setting!r} is not FIELD=VALUE.", param_hint="--set")
        parsed[field.strip()] = value.strip()
    return parsed


def parse_classes(options: tuple[str, ...]) -> list[str] | None:
    """`--classes`, as `vitconvert.convert` takes it: fields of CSV, where quotes keep commas."""
    import csv

    if not options:
        return None
    try:
        rows = [next(csv.reader([text], skipinitialspace=True), []) for text in options]
    except csv.Error as error:
        raise click.BadParameter(f"{error}.", param_hint="--classes") from None
    return [name.strip() for row in rows for name in row or [""]]


def parse_reading(options: dict[str, Any], side: str | None = None) -> dict[str, Any]:
    """The reading options, as `vitconvert.load_checkpoint` takes them.

    Args:
        options: What was given.
        side: One of two checkpoints, of which the options of `reading_options_of` speak; they come
            before those for both.
    """
    said = {name: options[name] for name in map(_name, _READING)}
    for name, own in _said_of(side, options).items() if side else ():
        said[name] = (*said[name], *own) if isinstance(own, tuple) else own or said[name]
    said["overrides"] = parse_settings(said.pop("set"))
    said["dequantise"] = options.get("dequantise")
    said["cast_to"] = None if options.get("dtype") == "keep" else options.get("dtype")
    if said["adapter"]:
        from vitconvert.sources import locate

        # As the model is, but for its revision and tower.
        where = locate_options(options) | {"revision": None, "tower": None}
        said["adapter"] = locate(said["adapter"], **where)
    return said


def checkpoint_against(options: dict[str, Any]) -> "Checkpoint":
    """The checkpoint of `--against`, of which the options of `reading_options_of` alone speak."""
    from vitconvert.api import load_checkpoint
    from vitconvert.checkpoint.companions import hashed
    from vitconvert.errors import VitConvertError
    from vitconvert.sources import locate

    said = {**options, **_said_of(AGAINST, options)}
    try:
        located = hashed(locate(options[AGAINST], **locate_options(said)))
        return load_checkpoint(located, **parse_reading(said))
    except VitConvertError as error:
        if error.hint:
            flags = rf"(?<![\w-])({'|'.join(_READING)})(?![\w-])"
            error.hint = re.sub(flags, rf"\1-{AGAINST}", error.hint)
        raise


def require_against(options: dict[str, Any], why_not: str) -> None:
    """Refuse options on how to read `--against` where no checkpoint is.

    Raises:
        UsageError: There are such options.
    """
    endings = (f"{name}_{AGAINST}" for name in _said_of(AGAINST, options))
    refuse_given(endings, f"is about reading a checkpoint, and {why_not}")


def _said_of(side: str, options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[f"{name}_{side}"] for name in map(_name, _READING)}


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def locate_options(options: dict[str, Any]) -> dict[str, Any]:
    """The fetching options, as `sources.locate` takes them."""
    names = ("revision", "token", "cache_dir", "offline", "quiet")
    return {**{name: options[name] for name in names}, "tower": options.get("tower")}


def parse_dtype(name: str) -> "torch.dtype | None":
    """`--dtype`, as the loading functions take it; None keeps the dtype."""
    if name == "keep":  # without importing torch
        return None
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype
