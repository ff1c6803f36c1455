"""Lists of arguments in the API reference: the docstrings that `help` shows.

Who reads the source finds the help of each option in its dataclass (`arguments.described_by`).
"""

import inspect
from typing import Any, is_typeddict

import griffe

import vitconvert


class ArgumentLists(griffe.Extension):
    """Gives each public `TypedDict` the docstring that `help` shows."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change them once the package is read."""
        for name in vitconvert.__all__ if pkg.name == "vitconvert" else ():
            real = getattr(vitconvert, name)
            if is_typeddict(real):
                listed = pkg[f"{real.__module__}.{name}".removeprefix("vitconvert.")]
                shown = inspect.getdoc(real) or ""
                listed.docstring.value = shown.replace("*", r"\*")  # of patterns, not of emphasis
