"""From errors to text on stderr (or JSON on stdout) and an exit code."""

import errno
import json
import os
import re
import sys

import click

from vitconvert.errors import UsageError, VitConvertError

INTERRUPTED = 130
_COMMAND = re.compile(r"`[^`]*`")
# Options of earlier versions -> what to do today.
_GONE = {
    "--audit": "`verify MODEL --dtypes float16,bfloat16` measures lower precision.",
    "--gradients": "torch.autograd.grad of both models, in Python, compares gradients.",
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


def run(command: click.Command, arguments: list[str]) -> int:
    """Run a command and return its exit code; a user's mistake is a message, never a traceback."""
    as_json = "--json" in arguments
    verbose = not {"-v", "--verbose"}.isdisjoint(arguments)
    verb = next((word for word in arguments if not word.startswith("-")), "")
    try:
        code = command.main(arguments, prog_name="vitconvert", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except VitConvertError as error:
        if error.hint and isinstance(command, click.Group):
            error.hint += _where_it_is_an_option(error.hint, command, verb)
        return _report(error, as_json, verbose=verbose)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _named_setting(error)
        if as_json:
            return _report(UsageError(error.format_message()), as_json)
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output (such as `| head`) is gone; nobody would see a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _report(_refused_by_system(error), as_json)


def _report(error: VitConvertError, as_json: bool, *, verbose: bool = False) -> int:
    if as_json:
        # One line, because verbs may have printed lines of JSON before.
        click.echo(json.dumps({"ok": False, "error": error.to_dict()}))
    else:
        click.echo(error.text(verbose=verbose), err=True)
    return error.exit_code


def _where_it_is_an_option(hint: str, verbs: click.Group, verb: str) -> str:
    """What a hint names and this verb lacks, and a verb that has it; "" if it lacks nothing."""
    context = click.Context(verbs)

    def options(name: str) -> set[str]:
        found = verbs.get_command(context, name)
        return (
            {flag for p in found.params for flag in (*p.opts, *p.secondary_opts)}
            if found
            else set()
        )

    named = dict.fromkeys(_FLAG.findall(_COMMAND.sub("", hint)))
    if not verb or not (lacking := [flag for flag in named if flag not in options(verb)]):
        return ""
    every = ["file", *verbs.list_commands(context)]  # a conversion's output needs the fewest
    other = next((name for name in every if options(name).issuperset(lacking)), None)
    if other is None:
        return ""
    first = ": convert first, and name its output here" if "--to" in options(other) else ""
    return (
        f" `vitconvert {verb}` has no {' and no '.join(lacking)}; `vitconvert {other}` has{first}."
    )


def _named_setting(error: click.NoSuchOption) -> click.UsageError:
    """A fact of the model is no option of its own, as many expect: --set states it."""
    from vitconvert.config import field_names

    if instead := _GONE.get(error.option_name):
        return click.UsageError(f"{error.message} {instead}", error.ctx)
    field = error.option_name.lstrip("-").replace("-", "_")
    options = error.ctx.command.params if error.ctx is not None else []
    if field not in field_names() or not any("--set" in option.opts for option in options):
        return error
    return click.UsageError(f"{error.message} Did you mean '--set {field}=...'?", error.ctx)


def _refused_by_system(error: OSError) -> VitConvertError:
    evidence = {"file": error.filename} if error.filename else {}
    hint = "is the disk full, or the place not writable? Nothing half-written was left."
    if error.errno == errno.EIO:
        hint = "the disk fails, or the network that it is on: copy the file elsewhere first."
    return VitConvertError(
        f"The operating system refused: {error.strerror or error}.", evidence=evidence, hint=hint
    )
