"""The pickle inside a TorchScript archive, read without calling anything.

Python's own unpickler calls what a pickle names. This one knows the few opcodes that torch's C++
pickler writes and builds descriptions: a module becomes the dictionary of its attributes, whatever
class it names, and a tensor says where its numbers lie.

Source: torch/csrc/jit/serialization/pickler.h and unpickler.cpp, torch 1.0 to 2.15.
"""

import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.errors import CorruptFile, UnsafeFile

STORAGES: Mapping[str, str] = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
}
"""torch's name of the dtype of each storage class."""

_TENSOR = "torch._utils._rebuild_tensor_v2"
_HOOKS = "collections.OrderedDict"  # the empty backward hooks of every tensor
# Values that are marked with their type, or with a device; the first argument is the value.
_MARKED = (
    "torch.jit._pickle.build_intlist",
    "torch.jit._pickle.build_doublelist",
    "torch.jit._pickle.build_boollist",
    "torch.jit._pickle.build_tensorlist",
    "torch.jit._pickle.restore_type_tag",
    "torch.device",
)
_MODULES = "__torch__."
_STRANGE = "values in an order that torch never writes"
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A run of numbers: a member of the archive."""

    dtype: str
    key: str
    length: int


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A strided view on a storage; offset and stride count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    """A class or function that the pickle names. Nothing looks it up."""

    name: str


def read_pickle(path: Path, data: bytes) -> object:
    """Read `data.pkl`: nested dictionaries of attributes, tensors as `StoredTensor`.

    Args:
        path: The archive, for messages.
        data: The pickle.

    Raises:
        CorruptFile: It is cut short, or says what torch's pickler never writes.
        UnsafeFile: It names classes that are neither modules nor tensors.
    """
    try:
        return _Machine(path).run(pickletools.genops(data))
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def _damaged(path: Path, reason: str) -> CorruptFile:
    return CorruptFile(
        "The pickle of this TorchScript archive is damaged.",
        evidence={"file": path, "reason": reason[:160]},
        hint="download it again.",
    )


class _Machine:
    """A stack, its marks and a memo, as in `pickletools`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[Any, Any] = {}

    def run(self, operations: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> object:
        for opcode, argument, _ in operations:
            self.step(opcode.name, argument)
        return self.stack.pop()  # the last opcode is STOP, or genops had raised

    def step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "PROTO" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(stack))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self.last(int(opcode[-1]))))
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "GLOBAL":
                stack.append(self.known(argument.replace(" ", ".")))
            case _ if opcode in _LITERALS:
                stack.append(argument)
            case _ if opcode in _CONSTANTS:
                stack.append(_CONSTANTS[opcode])
            case _:
                self.combine(opcode)

    def combine(self, opcode: str) -> None:
        """The opcodes that make a value of others, or fill one."""
        match opcode:
            case "SETITEM" | "SETITEMS":
                items = self.last(2) if opcode == "SETITEM" else self.since_mark()
                self.fill(dict(zip(items[::2], items[1::2], strict=True)))
            case "APPEND" | "APPENDS":
                items = self.last(1) if opcode == "APPEND" else self.since_mark()
                if type(self.stack[-1]) is not list:
                    raise ValueError(_STRANGE)
                self.stack[-1].extend(items)
            case "NEWOBJ":
                made, arguments = self.last(2)
                if type(made) is not _Global or arguments != ():
                    raise ValueError(_STRANGE)
                self.stack.append({})
            case "BUILD":
                self.fill(self.stack.pop())
            case "BINPERSID":
                self.stack.append(self.storage(self.stack.pop()))
            case "REDUCE":
                called, arguments = self.last(2)
                self.stack.append(self.described(called, arguments))
            case _:
                raise ValueError(f"torch writes no {opcode}")

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError(_STRANGE)
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        taken = self.stack[mark:]
        del self.stack[mark:]
        return taken

    def fill(self, items: object) -> None:
        """Put items into the dictionary on top, which others may have been given already."""
        target = self.stack[-1]
        if type(target) is not dict or type(items) is not dict:
            raise ValueError(_STRANGE)
        target.update(items)

    def known(self, name: str) -> _Global:
        if name in (_TENSOR, _HOOKS, *_MARKED, *STORAGES) or name.startswith(_MODULES):
            return _Global(name)
        raise UnsafeFile(
            "The TorchScript archive asks for a class that is neither a module nor a tensor.",
            evidence={"file": self.path, "class": name[:160]},
            meaning="torch writes no such archive of a plain model, so nothing was loaded.",
        )

    def storage(self, identity: object) -> Storage:
        match identity:
            case ("storage", _Global(name), str(key), str(), int(length)) if name in STORAGES:
                return Storage(dtype=STORAGES[name], key=key, length=length)
        raise ValueError(_STRANGE)

    def described(self, called: object, arguments: object) -> object:
        """What a call would give, without calling."""
        match called, arguments:
            case _Global(name), (value, *_) if name in _MARKED:
                return value
            case _Global(name), () if name == _HOOKS:
                return {}
            case _Global(name), (
                Storage() as storage,
                int(offset),
                tuple(shape),
                tuple(stride),
                *_,
            ) if name == _TENSOR:
                return StoredTensor(storage=storage, offset=offset, shape=shape, stride=stride)
        raise ValueError(_STRANGE)
