"""Lines of the reports that several verbs print, and the command as it is printed or recorded."""

import errno
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

import click

from vitconvert.atomic_write import portable_name
from vitconvert.errors import (
    VitConvertError,
    as_flags,
    as_typed,
    is_address,
    printable,
    without_secrets,
)
from vitconvert.file_formats import suffixes

if TYPE_CHECKING:
    from vitconvert.config import ViTConfig
    from vitconvert.sources import Located

_MARGIN = 15
_FEW = 3  # ignored tensors of one reason that are listed by name
SHOWN = 12  # tensors that differ, or are left over, without -v
_PLACES = ("images", "calibrate", "adapter")  # options that name places of this machine


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on stdout, in ASCII, which steers no terminal."""
    click.echo(json.dumps(value, indent=2, default=str))


def silence() -> None:
    """Send what is printed from now on nowhere: the reader of our output (`| head`) is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_is_gone(error: OSError) -> bool:
    """Whether an error says that nobody reads our output any more; Windows has two words for it."""
    unnamed = sys.platform == "win32" and error.errno == errno.EINVAL and not error.filename
    return unnamed or isinstance(error, BrokenPipeError)


def refused_by_system(error: OSError) -> VitConvertError:
    """An error of the operating system, as a message."""
    hint = "is the disk full, or the folder not writable? No partial file was left."
    if error.errno == errno.EIO:
        hint = "the disk fails, or the network that it is on: copy the file elsewhere first."
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "its owner, or chmod, gives you the right to read or write there."
    return VitConvertError(
        f"The operating system reported: {error.strerror or error}.",
        evidence={"file": error.filename} if error.filename else {},
        hint=hint,
    )


class Verdict(str):
    """Text whose first line is green on a terminal if all is well, else red; None is yellow."""

    def __new__(cls, text: str, ok: bool | None) -> Self:
        made = super().__new__(cls, text)
        made.colour = {True: "green", False: "red", None: "yellow"}[ok]
        return made

    colour: str


def tell(*texts: str, err: bool = False) -> None:
    """Lines of text on stdout; what would steer a terminal is escaped."""
    plain = False if os.environ.get("NO_COLOR") else None  # no-color.org; None: as the stream is
    click.echo("\n".join(map(_shown, texts)), err=err, color=plain)


def _shown(text: str) -> str:
    first, *rest = map(printable, text.split("\n"))
    colour = text.colour if isinstance(text, Verdict) else None
    return "\n".join([click.style(first, fg=colour) if colour else first, *rest])


def line(title: str, *texts: object) -> str:
    """A title and what belongs to it, aligned; each text is one line. "" without texts."""
    if not texts:
        return ""
    first, *rest = [printable(as_flags(str(text))) for text in texts]
    return "\n".join([f"{title:<{_MARGIN}}{first}", *(f"{'':<{_MARGIN}}{r}" for r in rest)])


def some_lines(lines: Iterable[str], most: int | None) -> list[str]:
    """The first lines, and how many follow; all of them if `most` is None."""
    lines = list(lines)
    if most is None or len(lines) <= most:
        return lines
    return [*lines[:most], f"and {len(lines) - most} more; -v lists all"]


def times(text: str, count: int) -> str:
    """A line that stands for several."""
    return f"{text}  x {count}" if count > 1 else text


def one_line_for_all_blocks(lines: Iterable[str], *, verbose: bool = False) -> list[str]:
    """Lines that differ only in the number of the block become one, unless verbose."""
    from vitconvert.tables.names import runs

    return list(lines) if verbose else [times(text, count) for text, count in runs(lines)]


def show(value: object) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def place_of(located: "Located") -> str:
    """Where a checkpoint came from, without what may be a secret."""
    return without_secrets(located.repo or located.url or located.reference)


def named_after(model: str) -> str:
    """What is written in the current directory is called, before an ending, if nothing says it."""
    # Not what follows a question mark: it may be a secret.
    path = Path(unquote(urlsplit(model).path) if is_address(model) else model)
    # os.path, because Path raises for names that are too long.
    is_file = os.path.isfile(path) or (is_address(model) and path.suffix in suffixes())  # noqa: PTH113
    name = Path(path.name.removesuffix(".tar")).stem if is_file else path.name.split(":")[-1]
    return portable_name(name) or "model"


def source_line(located: "Located") -> str:
    """Where a checkpoint came from, and whether its hash was published."""
    revision = f" @ {located.revision[:12]}" if located.revision else ""
    checked = [f"sha256 as published: {', '.join(located.verified)}"] if located.verified else []
    moved = [str(located.fetched)] if located.fetched else []
    return line("source", f"{place_of(located)}{revision}", *checked, *moved)


def config_lines(config: "ViTConfig") -> list[str]:
    """Every fact that decides the function, by origin, with assumptions apart."""
    from vitconvert.facts.fact import is_assumed

    known = [f"{why}: {said}" for why, said in _by_origin(config) if not is_assumed(why)]
    return [line("configuration", *known), line("assumed", *assumptions(config))]


def assumptions(config: "ViTConfig") -> list[str]:
    """What was assumed, and why."""
    from vitconvert.facts.fact import is_assumed

    found = [(said, origin) for origin, said in _by_origin(config) if is_assumed(origin)]
    return [f"{said} ({reason_assumed(origin)})" for said, origin in found]


def reason_assumed(origin: str) -> str:
    """Why a value was assumed, in words: shown by the tensors, or usual in its dialect."""
    from vitconvert.facts.fact import ASSUMED

    if origin.startswith(ASSUMED):
        return origin.removeprefix(f"{ASSUMED}: ")
    return f"usual in this dialect, {origin}"


def _by_origin(config: "ViTConfig") -> list[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for name, value in config.function().items():
        # Features that the model lacks say little to a reader.
        if value is not False and value not in (0, ()):
            groups.setdefault(config.origins.get(name, ""), []).append(f"{name} {show(value)}")
    groups.pop("", None)  # defaults without an origin have no effect
    return [(origin, ", ".join(said)) for origin, said in groups.items()]


def ignored_lines(ignored: Mapping[str, str], *, verbose: bool = False) -> list[str]:
    """Tensors that play no part; unless it is verbose, the many of one reason on one line."""
    reasons: dict[str, list[str]] = {}
    for name, why in ignored.items():
        reasons.setdefault(why, []).append(name)
    texts: list[str] = []
    for why, names in reasons.items():
        if len(names) > _FEW and not verbose:
            names = [f"{len(names)} tensors, {names[0]} ... {names[-1]}"]
        texts += [f"{name}: {why}" for name in names]
    return texts


Shown = Callable[[click.Parameter, object], object]


def command_line(*, but: Collection[str] = (), **instead: object) -> str:
    """The command as it is recorded, without token and local directories: it may be published.

    `instead` has other values for some options; those of `but` are left out.
    """
    from vitconvert.sources.references import published

    def shown(parameter: click.Parameter, value: object) -> object:
        if isinstance(value, bool):
            return value
        if parameter.name == "token":
            return "..."
        places = isinstance(parameter, click.Argument) or parameter.name in _PLACES
        public = published if places else printable
        if isinstance(value, tuple):
            return [public(str(one)) for one in value]
        return public(value.name if isinstance(value, Path) else str(value))

    return _typed(shown, instead, but)


def typed_again(*, but: Collection[str] = (), **instead: object) -> str:
    """The command of this run, with other values for some options, and without those in `but`."""
    return _typed(_without_token, instead, but)


def typed_for(verb: str, *, but: Collection[str] = (), **instead: object) -> str:
    """The command of another verb, with the options of this run that are not among `but`."""
    return _typed(_without_token, instead, but, verb)


def _without_token(parameter: click.Parameter, value: object) -> object:
    return "..." if parameter.name == "token" else value


def _typed(
    shown: Shown, instead: Mapping[str, object], but: Collection[str] = (), verb: str = ""
) -> str:
    context = click.get_current_context()
    words = ["vitconvert", verb or str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in but or (not typed and name not in instead):
            continue
        value = shown(parameter, instead.get(name, context.params[name]))
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            values = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
            for each in values if parameter.multiple else [",".join(values)]:
                words += [parameter.opts[0], each]
    return as_typed(*words)
