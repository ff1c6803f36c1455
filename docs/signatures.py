"""Options of reading in the API reference: functions take them as one `**reading`.

`inspect.signature` and `help` list them (`vitconvert.arguments`); who reads the source does not.
"""

import inspect
from typing import Any

import griffe

import vitconvert


class Listed(griffe.Extension):
    """Gives functions the parameters and the docstring that `help` shows."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the public functions of the package once it is read."""
        for name in vitconvert.__all__ if pkg.name == "vitconvert" else ():
            real = getattr(vitconvert, name)
            if inspect.isfunction(real) and hasattr(real, "__signature__"):
                _completed(pkg[f"{real.__module__}.{name}".removeprefix("vitconvert.")], real)


def _completed(function: griffe.Function, real: Any) -> None:
    shown = function.parameters
    listed = inspect.signature(real).parameters.values()
    function.parameters = griffe.Parameters(
        *(shown[one.name] if one.name in shown else _parameter(one) for one in listed)
    )
    assert function.docstring is not None
    function.docstring.value = inspect.getdoc(real) or ""


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    words = {"collections.abc.": "", "typing.": "", "os.": ""}
    annotation = str(one.replace(name="x", default=inspect.Parameter.empty))
    annotation = annotation.partition(": ")[2].strip("'")
    for long, short in words.items():
        annotation = annotation.replace(long, short)
    return griffe.Parameter(
        one.name,
        annotation=annotation,
        kind=griffe.ParameterKind.keyword_only,
        default=repr(one.default),
    )
