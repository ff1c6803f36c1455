"""The command of this run, as it may be published, and as it may be typed again."""

import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click


def command_line() -> str:
    """The command as it is recorded, without token and local directories: it may be published."""
    return _typed(_publishable)


def typed_again(**instead: Any) -> str:
    """The command of this run, with other values for some options."""
    return _typed(lambda parameter, value: "..." if parameter.name == "token" else value, instead)


def _typed(
    shown: Callable[[click.Parameter, Any], Any], instead: Mapping[str, Any] = MappingProxyType({})
) -> str:
    context = click.get_current_context()
    words = ["vitconvert", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if typed or name in instead:
            words += _as_typed(parameter, shown(parameter, instead.get(name, context.params[name])))
    return shlex.join(words)


def _as_typed(parameter: click.Parameter, value: Any) -> list[str]:
    """The words of an option or an argument on the command line."""
    if isinstance(parameter, click.Argument):
        return [str(value)]
    if value is True or value is False:
        return [(parameter.opts if value else parameter.secondary_opts)[0]]
    values = value if parameter.multiple else [value]
    return [word for each in values for word in (parameter.opts[0], str(each))]


def _publishable(parameter: click.Parameter, value: Any) -> Any:
    from vitconvert.errors import printable
    from vitconvert.sources.references import published

    if isinstance(parameter, click.Argument):
        return published(value)
    if isinstance(value, bool):
        return value
    if parameter.name == "images":
        return [published(each) for each in value]
    if parameter.multiple:
        return [printable(str(each)) for each in value]
    if isinstance(parameter.type, click.Path):
        return printable(value.name)
    if parameter.name == "adapter":
        return published(value)
    return "..." if parameter.name == "token" else printable(str(value))
