"""Whole objects that torch.save wrote, such as torch.save(model, path): their tensors as data.

A pickled module names its class and gives the object's attributes. No class is looked up here: an
object is its name and its attributes, and the tensors of a module are those that its attributes
`_parameters`, `_buffers` and `_modules` hold, under the names that nn.Module.state_dict gives them.
What the class computes with them, and whether it has a state dict of its own, nobody knows then.

Source: torch/nn/modules/module.py, torch 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from vitconvert.errors import VitConvertError, some
from vitconvert.formats.headers import corrupt
from vitconvert.formats.torch.pickle_reader import Global, OddTensor, StoredTensor, StrangePickle
from vitconvert.formats.torch.reading import SAVE_TENSORS, CheckpointReader
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
        super().__init__(name[:_LONGEST])
        self.state: dict[object, object] = {}

    @property
    def is_module(self) -> bool:
        """Whether the attributes are those of an nn.Module."""
        return all(isinstance(self.state.get(part), dict) for part in _PARTS)


class RescueReader(CheckpointReader):
    """Reads what torch.save wrote of any objects, and the tensors of modules among them."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, int] = {}  # objects of each class that were not made, and calls
        self._modules: list[str] = []  # classes whose tensors are taken, outermost ones only
        self._hooks = 0
        self._steps = 0
        self._done: dict[int, object] = {}

    def read(self, data: bytes | IO[bytes]) -> object:
        """What a pickle holds, with mappings of tensors where modules stood."""
        value = self._plain(super().read(data))
        if self._passed:
            count = sum(self._passed.values())
            objects = f"{count} objects of {len(self._passed)} classes and functions"
            self.notes = (
                f"rescued: {objects} beside the tensors were not made ({some(self._passed)})",
            )
            if self._modules:
                hooks = f"; {self._hooks} of their hooks were ignored" if self._hooks else ""
                self.notes = (
                    f"rescued: the tensors of {some(dict.fromkeys(self._modules))}, read as data; "
                    f"{objects} were not made ({some(self._passed)}){hooks}",
                    "rescued: the code of these classes was not read; what the model computes is "
                    "taken from the names of its tensors",
                )
        return value

    def known(self, name: str) -> Global:
        """Any name is, because nothing is done with it."""
        return Global(name)

    def described(self, called: Global, arguments: tuple[object, ...]) -> object:
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
        self._passed[made.kind] = self._passed.get(made.kind, 0) + 1
        return made

    def _combine(self, opcode: str) -> None:
        """Like the usual reader, but objects may be made of arguments, filled, and called."""
        place = {"APPEND": -2, "SETITEM": -3}.get(opcode, 0)  # of what is filled
        match opcode:
            case "NEWOBJ" if self.stack[-1:] != [()]:
                named, _ = self._last(2)
                if type(named) is not Global:
                    raise StrangePickle("an object of something that is not a class")
                self.stack.append(self._opaque(named))
            case "REDUCE" if len(self.stack) > 1 and isinstance(self.stack[-2], Opaque):
                called, _ = self._last(2)
                self.stack.append(self._opaque(Global(f"{called}()")))
            case "APPEND" | "SETITEM" if len(self.stack) >= -place and isinstance(
                self.stack[place], Opaque
            ):
                self._last(-place - 1)
            case "APPENDS" | "SETITEMS" if self.below and isinstance(self.below[-1][-1], Opaque):
                self._since_mark()
            case _:
                super()._combine(opcode)

    def _plain(self, value: object, depth: int = 0) -> object:
        """A value with mappings of tensors where modules stood, and where objects held modules."""
        self._count(depth)
        if id(value) in self._done:
            return self._done[id(value)]
        self._done[id(value)] = found = value  # where it holds itself, as callbacks do
        if isinstance(value, Opaque) and value.is_module:
            self._modules.append(value.kind)
            found = dict(self._state_dict(value, "", depth))
        elif isinstance(value, Opaque):
            if any(isinstance(inner, Opaque) and inner.is_module for inner in value.state.values()):
                found = {key: self._plain(inner, depth + 1) for key, inner in value.state.items()}
        elif isinstance(value, dict):
            found = {key: self._plain(inner, depth + 1) for key, inner in value.items()}
        self._done[id(value)] = found
        return found

    def _state_dict(self, module: Opaque, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
        """What nn.Module.state_dict would give, but for hooks and overrides."""
        self._count(depth)
        state = module.state
        for key, value in state.items():
            if isinstance(key, str) and key.endswith("_hooks") and isinstance(value, dict):
                self._hooks += len(value)
        passing = state.get(_NOT_SAVED)
        not_saved = passing if isinstance(passing, list) else []
        modules, parameters, buffers = (_named_items(state[part]) for part in _PARTS)
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
                raise StrangePickle(f"{prefix}{name} is not a module")
            yield from self._state_dict(inner, f"{prefix}{name}.", depth + 1)

    def _count(self, depth: int) -> None:
        self._steps += 1
        if depth > _DEEPEST or self._steps > _MOST_STEPS:
            raise StrangePickle("modules in a circle, too deeply or in too many places")

    def refusal(
        self, path: Path, _pickled: bytes | IO[bytes], error: StrangePickle
    ) -> VitConvertError:
        """The error for a pickle whose tensors are not known without its classes."""
        fact = "The tensors of this file cannot be read as data."
        return corrupt(path, fact, hint=SAVE_TENSORS, reason=str(error)[:160])


def _named_items(value: object) -> dict[str, object]:
    items = value if isinstance(value, dict) else {}
    if not all(isinstance(name, str) for name in items):
        raise StrangePickle("a module whose tensors have names that are not text")
    return items
