"""Whole objects that torch.save wrote, such as torch.save(model, path): their tensors as data.

A pickled module names its class and gives the object's attributes. No class is looked up here: an
object is its name and its attributes, and the tensors of a module are those that its attributes
`_parameters`, `_buffers` and `_modules` hold, under the names that nn.Module.state_dict gives them.
What the class computes with them, and whether it has a state dict of its own, nobody knows then.

Source: torch/nn/modules/module.py, torch 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from vitconvert.errors import CorruptFile, some
from vitconvert.formats.torch.pickle_reader import Global, OddTensor, StoredTensor, StrangePickle
from vitconvert.formats.torch.reading import CheckpointReader
from vitconvert.formats.torch.unwrapping import MaybeWeight

_PARTS = ("_modules", "_parameters", "_buffers")
_TENSORS = ("torch._utils._rebuild", "torch._tensor._rebuild")
_NOT_SAVED = "_non_persistent_buffers_set"
_DEEPEST = 32  # modules in one another; an honest model has 10
_MOST_STEPS = 10**5  # of values and modules; a large model has 2000
_LONGEST = 200  # letters of a class's name


class Opaque(MaybeWeight):
    """An object of a class that nobody looked up, or what a call would have given."""

    def __init__(self, name: str) -> None:
        self.name = name[:_LONGEST]
        self.state: dict[object, object] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def is_module(self) -> bool:
        """Whether the attributes are those of an nn.Module."""
        return all(isinstance(self.state.get(part), dict) for part in _PARTS)


class RescueReader(CheckpointReader):
    """Reads what torch.save wrote of any objects; `passed` counts those that it did not make."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: dict[str, int] = {}

    def known(self, name: str) -> Global:
        """Any name is, because nothing is done with it."""
        return Global(name)

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        """A tensor, plain data, or an object without attributes."""
        if called.name == "builtins.set" and len(arguments) == 1:
            return arguments[0] if isinstance(arguments[0], list) else []
        try:
            super().known(called.name)
        except StrangePickle:
            return self._opaque(called)
        try:
            return super().described(called, arguments)
        except StrangePickle:
            if not called.name.startswith(_TENSORS):
                return self._opaque(called)
            # One of another class, or with attributes that are not plain data.
            return OddTensor("is a tensor of a class whose code would be needed to rebuild it.")

    def made(self, named: Global) -> object:
        """An object without attributes yet."""
        try:
            return super().made(named)
        except StrangePickle:
            return self._opaque(named)

    def set_attributes(self, made: object, attributes: object) -> None:
        """Those of an object, as a dictionary or as one and another for slots."""
        if not isinstance(made, Opaque):
            if not isinstance(made, OddTensor | StoredTensor):
                super().set_attributes(made, attributes)
            return
        for part in attributes if isinstance(attributes, tuple) else (attributes,):
            if isinstance(part, dict):
                made.state.update(part)

    def stored(self, identity: object) -> object:
        """A storage, or, in files from before torch 1.6, a class with its source."""
        match identity:
            case ("module", Global() as kind, *_):
                return kind
        return super().stored(identity)

    def _opaque(self, named: Global) -> Opaque:
        made = Opaque(named.name)
        self.passed[made.name] = self.passed.get(made.name, 0) + 1
        return made

    def _combine(self, opcode: str) -> None:
        """Like the usual reader, but objects may be made of arguments, filled, and called."""
        match opcode:
            case "NEWOBJ" if self.stack[-1:] != [()]:
                named, _ = self._last(2)
                self.stack.append(self._opaque(_named(named)))
            case "REDUCE" if len(self.stack) > 1 and isinstance(self.stack[-2], Opaque):
                called, _ = self._last(2)
                self.stack.append(self._opaque(Global(f"{called}()")))
            case "APPEND" | "SETITEM" if self._fills_opaque(-2 if opcode == "APPEND" else -3):
                self._last(1 if opcode == "APPEND" else 2)
            case "APPENDS" | "SETITEMS" if self.below and isinstance(self.below[-1][-1], Opaque):
                self._since_mark()
            case _:
                super()._combine(opcode)

    def _fills_opaque(self, place: int) -> bool:
        return len(self.stack) >= -place and isinstance(self.stack[place], Opaque)


def _named(named: object) -> Global:
    if type(named) is not Global:
        raise StrangePickle("an object of something that is no class")
    return named


class Rescue:
    """The tensors of the modules in what a pickle holds.

    Attributes:
        modules: Names of the classes whose tensors are taken, outermost ones only.
        hooks: How many hooks and functions hang on them.
    """

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.hooks = 0
        self.steps = 0
        self.done: dict[int, object] = {}

    def plain(self, value: object, depth: int = 0) -> object:
        """A value with mappings of tensors where modules stood, and where objects held modules.

        Raises:
            StrangePickle: It holds itself, or more than can be walked through.
        """
        self._count(depth)
        if id(value) in self.done:
            return self.done[id(value)]
        self.done[id(value)] = found = value  # where it holds itself, as callbacks do
        if isinstance(value, Opaque) and value.is_module:
            self.modules.append(value.name)
            found = dict(self._state_dict(value, "", depth))
        elif isinstance(value, Opaque):
            if any(isinstance(inner, Opaque) and inner.is_module for inner in value.state.values()):
                found = {key: self.plain(inner, depth + 1) for key, inner in value.state.items()}
        elif isinstance(value, dict):
            found = {key: self.plain(inner, depth + 1) for key, inner in value.items()}
        self.done[id(value)] = found
        return found

    def _state_dict(self, module: Opaque, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
        """What nn.Module.state_dict would give, but for hooks and overrides."""
        self._count(depth)
        state = module.state
        self.hooks += sum(
            len(value)
            for key, value in state.items()
            if isinstance(key, str) and key.endswith("_hooks") and isinstance(value, dict)
        )
        passing = state.get(_NOT_SAVED)
        not_saved = passing if isinstance(passing, list) else []
        parameters, buffers, modules = (
            _named_items(state[part]) for part in ("_parameters", "_buffers", "_modules")
        )
        saved = {name: value for name, value in buffers.items() if name not in not_saved}
        if both := parameters.keys() & saved.keys():
            raise StrangePickle(f"{some(sorted(both))} is a parameter and a buffer")
        for name, value in (*parameters.items(), *saved.items()):
            if value is not None:
                yield prefix + name, value
        for name, inner in modules.items():
            if inner is None:
                continue
            if not isinstance(inner, Opaque) or not inner.is_module:
                raise StrangePickle(f"{prefix}{name} is no module")
            yield from self._state_dict(inner, f"{prefix}{name}.", depth + 1)

    def _count(self, depth: int) -> None:
        self.steps += 1
        if depth > _DEEPEST or self.steps > _MOST_STEPS:
            raise StrangePickle("modules in a circle, too deeply or in too many places")

    def notes(self, passed: Mapping[str, int]) -> tuple[str, ...]:
        """What was taken, what was passed over, and what is not known.

        Args:
            passed: How many objects of each class, and calls of each function, were not made.
        """
        if not passed:
            return ()
        objects = f"{sum(passed.values())} objects of {len(passed)} classes and functions"
        if not self.modules:
            return (f"rescued: {objects} beside the tensors were not made ({some(passed)})",)
        hooks = f"; {self.hooks} of their hooks were passed over" if self.hooks else ""
        return (
            f"rescued: the tensors of {some(dict.fromkeys(self.modules))}, read as data; "
            f"{objects} were not made ({some(passed)}){hooks}",
            "rescued: the code of these classes was not read, so that the model computes what its "
            "tensors' names say is taken from the names alone",
        )


def described(reader: CheckpointReader, data: bytes | IO[bytes]) -> tuple[object, tuple[str, ...]]:
    """What a pickle holds, with notes on what was passed over if the reader rescues.

    Raises:
        StrangePickle: It is damaged, or holds what the reader does not read.
    """
    value = reader.read(data)
    if not isinstance(reader, RescueReader):
        return value, ()
    rescue = Rescue()
    return rescue.plain(value), rescue.notes(reader.passed)


def not_rescued(path: Path, error: StrangePickle) -> CorruptFile:
    """The error for a pickle whose tensors are not known without its classes."""
    return CorruptFile(
        "The tensors of this file cannot be read as data.",
        evidence={"file": path, "reason": str(error)[:160]},
        hint="where you trust the file, load it with the program that wrote it and save the "
        "tensors alone: torch.save(model.state_dict(), path).",
    )


def _named_items(value: object) -> dict[str, object]:
    items = value if isinstance(value, dict) else {}
    if not all(isinstance(name, str) for name in items):
        raise StrangePickle("a module whose tensors have names that are not text")
    return items
