"""The command of this run, as it may be published, and as it may be typed again."""

import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import click

Shown = Callable[[click.Parameter, object], object]


def command_line(*, but: Collection[str] = (), **instead: object) -> str:
    """The command as it is recorded, without token and local directories: it may be published.

    `instead` has other values for some options; those of `but` are left out.
    """
    from vitconvert.errors import printable
    from vitconvert.sources.references import published

    def shown(parameter: click.Parameter, value: object) -> object:
        if isinstance(value, bool):
            return value
        if parameter.name == "token":
            return "..."
        places = isinstance(parameter, click.Argument) or parameter.name in ("images", "adapter")
        public = published if places else printable
        if isinstance(value, tuple):
            return [public(str(one)) for one in value]
        return public(value.name if isinstance(value, Path) else str(value))

    return _typed(shown, instead, but)


def typed_again(**instead: object) -> str:
    """The command of this run, with other values for some options."""
    return _typed(lambda parameter, value: "..." if parameter.name == "token" else value, instead)


def _typed(shown: Shown, instead: Mapping[str, object], but: Collection[str] = ()) -> str:
    context = click.get_current_context()
    words = ["vitconvert", str(context.info_name)]
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
    return shlex.join(words)
