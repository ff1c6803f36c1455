"""What a hint names: flags on the command line, arguments in Python."""

import inspect
import pickle
import traceback

import click
import pytest

import vitconvert
from vitconvert.arguments import refuse
from vitconvert.cli import VERBS
from vitconvert.cli import vitconvert as verbs
from vitconvert.errors import ARGUMENTS, MissingFact, UsageError


def _arguments():
    """The names of arguments of all public functions."""
    for name in vitconvert.__all__:
        function = getattr(vitconvert, name)
        if inspect.isfunction(function):
            for argument, one in inspect.signature(function).parameters.items():
                if one.kind is one.VAR_KEYWORD:
                    (several,) = one.annotation.__args__  # Unpack[ReadArguments]
                    yield from several.__annotations__
                else:
                    yield argument


def test_each_flag_and_each_argument_exist():
    context = click.Context(verbs)
    options = {
        flag
        for verb in VERBS
        for one in verbs.get_command(context, verb).params
        for flag in one.opts
    }
    assert set(ARGUMENTS) <= options
    assert set(ARGUMENTS.values()) <= set(_arguments())


@pytest.mark.parametrize(
    ("hint", "note"),
    [
        ("--set a=1 --set b=2 and --mean state it.", "overrides=, mean="),
        ("`vitconvert verify A --table B` shows it; --batch-size N does not.", None),
        ("--force (in Python, overwrite=True) replaces it.", None),
    ],
)
def test_python_is_shown_arguments(hint, note):
    error = MissingFact("It is unknown.", hint=hint)
    shown = "".join(traceback.format_exception(pickle.loads(pickle.dumps(error))))
    assert ("in Python: " in shown) == bool(note)
    assert note is None or shown.endswith(f"\n  in Python: {note}\n")
    assert "in Python" not in error.text(brief=True)


def test_what_is_refused_is_called_as_it_was_given():
    with pytest.raises(UsageError) as error:
        refuse(["overrides", "lora_scale"], "this reads no file.")
    assert str(error.value).splitlines()[1:] == [
        "  overrides, lora_scale: this reads no file.",
        "  hint: leave out --set (in Python, overrides).",
    ]
    assert error.value.text(brief=True).splitlines()[1:] == [
        "  --set, --lora-scale: this reads no file.",
        "  hint: leave out --set.",
    ]
