"""Arguments and options of the verbs, as fields of dataclasses.

A verb is a subclass of `Verb`: its fields are what is typed, and `run` does it and returns the exit
code. The options that one class declares stand together in the help, under its heading. What many
verbs share are classes too, each built on the next: `Reading`, `Fetching`, `Reporting`.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, get_args, get_origin

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from vitconvert.arguments import Option, options_of
from vitconvert.checkpoint import ReadArguments, ReadOptions
from vitconvert.checkpoint.options import IMAGES
from vitconvert.cli.report import print_json, silence, tell

if TYPE_CHECKING:
    import torch

    from vitconvert.checkpoint import Checkpoint
    from vitconvert.sources import Located

AGAINST = "against"
DTYPES = click.Choice(["keep", "float32", "float16", "bfloat16"])
MEASURED = click.Choice([*DTYPES.choices, "auto"])
_CAST: Mapping[str, str | None] = {"keep": None, "auto": "float32"}
FILE = click.Path(path_type=Path, dir_okay=False)


def flag(
    about: str, *names: str, default: object = None, heading: str = "", **settings: object
) -> Any:
    """A field that is an option.

    Args:
        about: Its help.
        names: Such as "-q"; without a long one, --NAME-OF-THE-FIELD is added.
        default: What it is where it is not typed.
        heading: What it stands under in the help; by default, the heading of its class.
        settings: Of a `click.Option`. Its type follows from that of the field.
    """
    shown = {"help": about, "show_default": default not in (None, ()) and default is not False}
    return field(default=default, metadata={"flag": (names, shown | settings), "heading": heading})


def output_flag(about: str, *names: str, **settings: object) -> Any:
    """A flag, by default `-o`, that names what is written."""
    names = names or ("-o", "--output")
    return flag(about, *names, default=None, heading="", callback=_not_stdout, **settings)


def _not_stdout(_: click.Context, option: click.Parameter, value: object) -> object:
    if value is not None and str(value) in ("", "-"):
        from vitconvert.errors import UsageError

        raise UsageError(
            f"{option.opts[-1]} {str(value)!r} is not a file or directory to write to.",
            hint="name a file or a directory; ./- is one that is called -.",
        )
    return value


def argument(metavar: str | None = None, **settings: object) -> Any:
    """A field that is typed by its place."""
    return field(default=None, metadata={"argument": {"metavar": metavar, **settings}})


def image_size_flag() -> Any:
    """A flag that means what `--image-size` of `convert` does."""
    about = "Resample positions: 384 or 224x320 (height x width); or, unknown, the size of images."
    return flag(about, heading=IMAGES, metavar="SIZE")


def max_image_pixels_flag(only: str = "") -> Any:
    """A flag that allows larger images, or refuses smaller ones; `only` says of which images."""
    about = "The most pixels of an image; default: as many as 872 MB hold, 50 million and more."
    return flag(f"{only}{about}", type=click.IntRange(min=1), metavar="N")


def flags_of(
    kind: type,
    side: str = "",
    *,
    heading: str = "",
    images: bool = True,
    only: Collection[str] | None = None,
) -> Any:
    """A field that holds the options of a dataclass by name, each with a flag of its own.

    Args:
        kind: The dataclass, whose fields are made by `arguments.option`.
        side: Which of two checkpoints they are about; the flags end with it: `--table-b`.
        heading: As of `flag`; an option may have its own.
        images: Whether those on images and classes are among them.
        only: Names of the options that are among them; by default, all.
    """
    of = (kind, side, images and not side, only)
    return field(default_factory=dict, metadata={"flags": of, "heading": heading})


def _numbers(_: click.Context, __: click.Parameter, typed: str | None) -> tuple[float, ...] | None:
    try:
        return None if typed is None else tuple(float(number) for number in typed.split(","))
    except ValueError:
        wanted = "is not a number, nor several with commas between them."
        raise click.BadParameter(f"{typed!r} {wanted}") from None


def _flags(
    kind: type, side: str, images: bool = False, only: Collection[str] | None = None
) -> dict[str, click.Option]:
    of_side = f"For {f'--{side}' if side == AGAINST else side.upper()} only." if side else ""
    defaults = {one.name: one.default for one in fields(kind)}
    flags = {}
    for name, one in options_of(kind).items():
        if (one.heading == IMAGES and not images) or (only is not None and name not in only):
            continue
        typed = one.flag or f"--{name.replace('_', '-')}"
        if typed == "--dtype":  # which verbs have of their own: it is said of weights, or reading
            continue
        default = defaults[name]
        usual: dict[str, Any] = (
            {} if default in (None, ()) or default is False else {"default": default}
        )
        if default is True:
            typed = f"{typed}/--no-{typed[2:]}"
        flags[name] = click.Option(
            [f"{typed}-{side}" if side else typed],
            help=of_side or one.about + " May be repeated." * one.repeats,
            **usual,
            show_default=bool(usual) and default != "",
            metavar=one.metavar,
            multiple=one.repeats,
            is_flag=one.kind is bool or None,
            type=_type_of(one),
            callback=_numbers if one.kind is tuple else None,
        )
    return flags


def _type_of(one: Option) -> Any:
    """What click reads an option as."""
    if one.choices:
        return click.Choice(one.choices)
    least = one.values.least
    if least is not None and least >= 0:
        return click.FloatRange(least) if one.kind is float else click.IntRange(int(least))
    return FILE if one.kind is Path else str if one.kind is tuple else one.kind


def _grouped(one: "Field[Any]", heading: str) -> Iterator[tuple[str, click.Parameter]]:
    """What click knows a field of a verb by, each with what it stands under in the help."""
    heading = one.metadata.get("heading") or heading
    if "flags" not in one.metadata:
        yield from ((heading, parameter) for parameter in _parameters(one))
        return
    kind, *which = one.metadata["flags"]
    for name, option in _flags(kind, *which).items():
        yield options_of(kind)[name].heading or heading, option


def _parameters(one: "Field[Any]") -> list[click.Parameter]:
    """The argument or option of a field, if it is one."""
    repeats = get_origin(one.type) is tuple
    (kind, *_) = get_args(one.type) or (one.type,)  # of `str | None` and `tuple[str, ...]`
    found: dict[str, Any] = {"type": click.Path(path_type=Path) if kind is Path else kind}
    if "argument" in one.metadata:
        found["shell_complete"] = _files
        found |= {"nargs": -1 if repeats else 1, "required": True, **one.metadata["argument"]}
        return [click.Argument([one.name], **found)]
    if "flag" not in one.metadata:
        return []
    names, settings = one.metadata["flag"]
    if not any(name.startswith("--") for name in names):
        names = (*names, f"--{one.name.replace('_', '-')}")
    if one.default is not None:
        found["default"] = one.default
    found |= {"is_flag": kind is bool or None, "multiple": repeats, **settings}
    return [click.Option([one.name, *names], **found)]


def _files(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """What a shell completes by its own files: references are paths, mostly."""
    return [CompletionItem(typed, type="file")]


@dataclass(kw_only=True)
class Verb:
    """What is typed after `vitconvert`."""

    details: ClassVar[str] = ""  # what follows the verb's one line in its help

    def run(self) -> int:
        raise NotImplementedError

    @classmethod
    def of(cls, typed: Mapping[str, object]) -> Self:
        """A verb with the values that click parsed."""
        found: dict[str, Any] = {}
        for one in fields(cls):
            if "flags" in one.metadata:
                flags = _flags(*one.metadata["flags"]).items()
                found[one.name] = {name: typed[str(option.name)] for name, option in flags}
            elif one.name in typed:
                found[one.name] = typed[one.name]
        return cls(**found)


class VerbCommand(click.Command):
    """A verb as click's command, whose help lists options under the headings of their classes."""

    def __init__(self, verb: type[Verb], name: str, about: str) -> None:
        self.groups: dict[str, list[click.Parameter]] = {}
        left = {one.name: one for one in fields(verb)}
        for kind in verb.__mro__:  # a verb's own options come before those that it shares
            for name_of_field in inspect.get_annotations(kind):
                if one := left.pop(name_of_field, None):
                    for heading, parameter in _grouped(one, vars(kind).get("heading", "Options")):
                        self.groups.setdefault(heading, []).append(parameter)
        super().__init__(
            name,
            # Places come before options, in the usage and in commands that are printed.
            params=sorted(chain(*self.groups.values()), key=lambda one: one.param_type_name),
            callback=lambda **typed: verb.of(typed).run(),
            help=about + verb.details,
            short_help=about,
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them; `--help`, which is in no group, comes last."""
        groups = {heading: [*group] for heading, group in self.groups.items()}
        [*groups.values()][-1] += [one for one in self.get_params(ctx) if one not in self.params]
        for heading, group in groups.items():
            options = [one for one in group if isinstance(one, click.Option)]
            if records := [record for one in options if (record := one.get_help_record(ctx))]:
                with formatter.section(heading):
                    formatter.write_dl(records)


@dataclass(kw_only=True)
class Reporting(Verb):
    """Options on how to print the result."""

    heading = "What comes out"

    as_json: bool = flag("Print one JSON object on stdout.", "--json", default=False)
    quiet: bool = flag("Print only the result, show no progress.", "-q", default=False)
    verbose: bool = flag("Print messages with all their lines.", "-v", default=False)

    def report(
        self,
        facts: Callable[[], Mapping[str, object]],
        *,
        short: object,
        long: Callable[[], Iterable[str]],
        ok: bool = True,
    ) -> None:
        """Print a result in the way that was asked for: as JSON, in a word, or in lines."""
        try:
            if self.as_json:
                print_json({"ok": ok, **facts()})
            elif lines := [str(short)] if self.quiet else [*filter(None, long())]:
                tell(*lines)
        except BrokenPipeError:  # what was to be done is done
            silence()


@dataclass(kw_only=True)
class Fetching(Reporting):
    """Options on how to get the checkpoint."""

    heading = "Downloads, and others"

    revision: str | None = flag("Branch, tag or commit of a Hub repository.")
    token: str | None = flag("For private and gated repositories; default: `hf auth login`.")
    cache_dir: Path | None = flag("Where downloads are kept.")
    offline: bool = flag("Use the cache only, and no network.", default=False)

    def fetching(self) -> dict[str, Any]:
        """The same, as `sources.locate` takes them."""
        names = ("revision", "token", "cache_dir", "offline", "quiet")
        return {name: getattr(self, name) for name in names}


def settings(typed: Sequence[str]) -> dict[str, str]:
    """What `--set` says: a field and its value, each time.

    Raises:
        BadParameter: It is not FIELD=VALUE.
    """
    found = {}
    for setting in typed:
        name, _, value = setting.partition("=")
        if not name or not value:
            raise click.BadParameter(
                f"{setting!r} is not FIELD=VALUE, such as {name.strip() or 'num_heads'}=12.",
                param_hint="--set",
            )
        found[name.strip()] = value.strip()
    return found


@dataclass(kw_only=True)
class Reading(Fetching):
    """Options on how to read a checkpoint."""

    heading = "The model's files"

    read: Mapping[str, Any] = flags_of(ReadOptions)
    # Verbs without `--dtype` cast nothing.
    dtype: str | None = None
    dequantise: str | None = None
    # Verbs without `--image-size` resample nothing.
    image_size: str | None = None

    def reading(self) -> ReadArguments:
        """The same, as `vitconvert.load_checkpoint` takes them.

        Raises:
            BadParameter: `--set` is not FIELD=VALUE.
        """
        adapter = self.read["adapter"]
        if adapter:
            from vitconvert.sources import locate

            # As the model is, but for its revision and --tower.
            adapter = locate(adapter, **self.fetching() | {"revision": None})
        read = {
            **self.read,
            "overrides": settings(self.read["overrides"]),
            "adapter": adapter,
            "dequantise": self.dequantise,
        }
        return cast(ReadArguments, read)

    def read_options(self) -> ReadOptions:
        """The same, with what the weights are cast to."""
        cast_to = _CAST.get(str(self.dtype), self.dtype)
        return ReadOptions.of(self.reading()).cast(cast_to).sized(self.image_size)

    def located(self, reference: str, *, headers_only: bool = False) -> "Located":
        """The local files of a checkpoint that is read so."""
        from vitconvert.sources import locate

        tower = self.read["tower"]
        return locate(reference, **self.fetching(), tower=tower, headers_only=headers_only)

    def of_one(self, own: Mapping[str, Any]) -> Self:
        """The same verb for one of two checkpoints, of which some options speak alone."""
        both = self.read
        merged = {
            name: (*both[name], *value) if isinstance(value, tuple) else value or both[name]
            for name, value in own.items()
        }
        return replace(self, read=merged)


@dataclass(kw_only=True)
class Computed(Reading):
    """Verbs that cast no weights, nor give classes and preprocessing to anything.

    `--dtype` is what quantised weights are computed in.
    """

    heading = Reading.heading

    read: Mapping[str, object] = flags_of(ReadOptions, images=False)
    dequantise: str | None = flag(
        options_of(ReadOptions)["dequantise"].about,
        "--dtype",
        type=click.Choice(options_of(ReadOptions)["dequantise"].choices),
    )


@dataclass(kw_only=True)
class Against(Reading):
    """Options on how to read the checkpoint that another one is compared with."""

    heading = "The files of --against"

    against: str | None = None
    read_against: Mapping[str, Any] = flags_of(ReadOptions, AGAINST)

    def checkpoint_against(self) -> "Checkpoint":
        """The checkpoint of `--against`, which is read as these options alone say."""
        from vitconvert.checkpoint import read_checkpoint
        from vitconvert.checkpoint.companions import hashed
        from vitconvert.errors import VitConvertError

        other = replace(self, read=self.read_against)
        try:
            return read_checkpoint(hashed(other.located(str(self.against))), other.read_options())
        except VitConvertError as error:
            error.hint = of_side(error.hint, AGAINST)
            raise

    def require_against(self, why_not: str) -> None:
        """Refuse these options where no checkpoint is read by them.

        Raises:
            UsageError: There are such options.
        """
        names = [str(one.name) for one in _flags(ReadOptions, AGAINST).values()]
        refuse_given(names, f"is about reading a checkpoint, and {why_not}")


def of_side(hint: str | None, side: str) -> str | None:
    """A hint on reading a checkpoint, with the flags for one of two: `--table-b`.

    Commands of other verbs, in backticks, have no sides.
    """
    names = "|".join(str(one.opts[0]) for one in _flags(ReadOptions, "").values())
    flag = re.compile(rf"`[^`]*`|(?<![\w-])({names})(?![\w-])")
    return hint and flag.sub(lambda found: f"{found[0]}-{side}" if found[1] else found[0], hint)


def given_options(names: Iterable[str]) -> Iterator[str]:
    """Those of the options that were typed, as they were declared: "--shard-rows"."""
    context = click.get_current_context()
    declared = {parameter.name: parameter.opts for parameter in context.command.params}
    for name in names:
        if name in declared and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield declared[name][-1] if declared[name][-1][0] == "-" else declared[name][-1].upper()


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


def parse_dtype(name: str | None) -> "torch.dtype | str | None":
    """`--dtype`, as functions take it; None keeps the dtype, and auto measures two."""
    if name in ("keep", "auto"):  # without importing torch
        return None if name == "keep" else name
    import torch

    dtype: torch.dtype = getattr(torch, str(name))
    return dtype
