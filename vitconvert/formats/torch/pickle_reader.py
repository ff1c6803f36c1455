"""Pickles, read without calling anything.

Python's own unpickler calls what a pickle names. These readers know the few opcodes that torch
writes, and those that Python's pickler writes for others, and build descriptions: a tensor has
the place of its numbers. Which names a pickle may use, and what they describe, is defined for each
kind of file.

Time and memory are bounded by the length of the pickle. Nothing is copied that a pickle can name
again and again, and what a dictionary hashes and compares is short.

Source: torch/serialization.py, torch/_utils.py and torch/csrc/jit/serialization/pickler.h, torch
1.6 to 2.15.
"""

import pickletools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from os import fstat
from typing import IO, Any, BinaryIO

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
    "torch.ComplexDoubleStorage": "complex128",  # this and the next are no dtypes of weights
    "torch.QInt8Storage": "qint8",
    "torch.QUInt8Storage": "quint8",
    "torch.QInt32Storage": "qint32",
}
"""torch's name of the dtype of each storage class."""

UNTYPED_STORAGE = "torch.storage.UntypedStorage"
"""The storage of dtypes that came after storage classes: a run of bytes."""

TENSOR = "torch._utils._rebuild_tensor_v2"
UNTYPED_TENSOR = "torch._utils._rebuild_tensor_v3"  # on an untyped storage, with its dtype
HOOKS = "collections.OrderedDict"  # the empty backward hooks of every tensor

_STRANGE = "values in an order that torch never writes"
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# A tensor takes 30 opcodes, and a large checkpoint with its optimizer's state 50,000; a million
# takes two seconds.
_MOST_OPCODES = 1_000_000
_LONGEST_KEY = 10_000
_LONGEST_NAME = 1000
_LARGEST_KEY = 2**63  # a million larger numbers may share one hash, and a lookup then takes hours


class StrangePickle(ValueError):
    """A pickle that is damaged, or holds something unknown here."""


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
class Global:
    """A class, function or constant that the pickle names. Nothing looks it up."""

    name: str

    def __str__(self) -> str:
        return self.name


class OddTensor:
    """A tensor whose numbers do not lie in the file as they are; `fact` goes on after its name."""

    def __init__(self, fact: str) -> None:
        self.fact = fact


def names_in(data: bytes | IO[bytes]) -> set[str]:
    """What a pickle names, up to where it is damaged."""
    found = set()
    try:
        for opcode, argument in islice(_opcodes(data), _MOST_OPCODES):
            if opcode == "GLOBAL":
                found.add(_name(argument))
    except ValueError:
        pass
    return found


def _opcodes(data: bytes | IO[bytes]) -> Iterator[tuple[str, Any]]:
    return ((opcode.name, argument) for opcode, argument, _ in pickletools.genops(data))


def _name(argument: str) -> str:
    """The name that a GLOBAL gives, with the module of Python 3."""
    module, _, name = argument.partition(" ")
    return f"{'builtins' if module == '__builtin__' else module}.{name}"


class PickleReader:
    """A stack, its marks and a memo, as in `pickletools`.

    A subclass for each kind of archive defines what names mean there.
    """

    most_opcodes = _MOST_OPCODES

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}  # by their keys, in the order of the pickle
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stack at each open mark
        self.memo: dict[Any, Any] = {}

    def known(self, name: str) -> Global:
        """What a name stands for, if the archive may use it."""
        raise NotImplementedError

    def described(self, called: Global, arguments: tuple[object, ...]) -> object:
        """What a call would give, without calling."""
        match called.name, arguments:
            case name, () if name == HOOKS:
                return OrderedDict()
            case name, (storage, int(offset), tuple(shape), tuple(stride), bool(), dict()) if (
                name == TENSOR and type(storage) is Storage
            ):
                return StoredTensor(storage=storage, offset=offset, shape=shape, stride=stride)
        raise StrangePickle(_STRANGE)

    def made(self, named: Global) -> object:
        """An object of a class, before its attributes are set."""
        raise NotImplementedError

    def set_attributes(self, made: object, attributes: object) -> None:
        """Give an object that was made its attributes."""
        raise NotImplementedError

    def stored(self, identity: object) -> object:
        """The storage that a pickle names, as archives name it."""
        match identity:
            # Before torch 1.6, None follows; before 0.4, a view on a storage may.
            case ("storage", Global() as kind, str(key), str(), int(length), *more) if (
                more in ([], [None]) and len(key) <= _LONGEST_KEY and 0 <= length < _LARGEST_KEY
            ):
                dtype = "uint8" if kind.name == UNTYPED_STORAGE else STORAGES.get(kind.name)
                if dtype is None:
                    raise StrangePickle(_STRANGE)
                storage = Storage(dtype=dtype, key=key, length=length)
                if self.storages.setdefault(key, storage) != storage:  # torch takes the first
                    raise StrangePickle(f"storage {key[:80]!r} is described in two ways")
                return storage
        raise StrangePickle(_STRANGE)

    def read(self, data: bytes | IO[bytes]) -> object:
        """Describe what a pickle holds; of a file, the one that begins where it stands.

        Raises:
            StrangePickle: It is truncated, or holds what torch's pickler never writes.
        """
        try:
            for number, (opcode, argument) in enumerate(_opcodes(data)):
                if number == self.most_opcodes:
                    raise StrangePickle(f"more than {self.most_opcodes:,} values")
                self._step(opcode, argument)
            return self.stack.pop()  # the last opcode is STOP, or genops had raised
        except (ValueError, LookupError, TypeError) as error:
            raise StrangePickle(str(error) or type(error).__name__) from error

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case _ if opcode in _LITERALS:
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "MARK":
                self.below.append(stack)
                self.stack = []
            case "TUPLE":
                items = self._since_mark()
                self.stack.append(tuple(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._last(int(opcode[-1]))))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "GLOBAL":
                stack.append(self.known(_name(argument)))
            case _ if opcode in _CONSTANTS:
                stack.append(_CONSTANTS[opcode])
            case "STOP":
                pass
            case "PROTO" if argument == 2:
                pass
            case _:
                self._combine(opcode)

    def _combine(self, opcode: str) -> None:
        """The opcodes that make a value of others, or fill one."""
        match opcode:
            case "SETITEM" | "SETITEMS":
                items = self._last(2) if opcode == "SETITEM" else self._since_mark()
                target = self.stack[-1]  # which other values may hold already
                if not isinstance(target, dict) or not all(map(_is_key, items[::2])):
                    raise StrangePickle(_STRANGE)
                target.update(zip(items[::2], items[1::2], strict=True))
            case "APPEND" | "APPENDS":
                items = self._last(1) if opcode == "APPEND" else self._since_mark()
                if type(self.stack[-1]) is not list:
                    raise StrangePickle(_STRANGE)
                self.stack[-1].extend(items)
            case "NEWOBJ":
                named, arguments = self._last(2)
                if type(named) is not Global or arguments != ():
                    raise StrangePickle(_STRANGE)
                self.stack.append(self.made(named))
            case "BUILD":
                attributes = self.stack.pop()
                self.set_attributes(self.stack[-1], attributes)
            case "BINPERSID":
                self.stack.append(self.stored(self.stack.pop()))
            case "REDUCE":
                called, arguments = self._last(2)
                if type(called) is not Global or type(arguments) is not tuple:
                    raise StrangePickle(_STRANGE)
                self.stack.append(self.described(called, arguments))
            case _:
                raise StrangePickle(f"torch writes no {opcode}")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise StrangePickle(_STRANGE)
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _since_mark(self) -> list[Any]:
        taken, self.stack = self.stack, self.below.pop()
        return taken


class BoundedFile:
    """The beginning of a file, of which no pickle reads more than there is, or may be."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.tell = file.tell
        self._file = file
        self._rest = min(fstat(file.fileno()).st_size, most)

    def read(self, size: int) -> bytes:
        """The next bytes, of which there may be fewer."""
        return self._counted(self._file.read(min(size, self._rest)))

    def readline(self) -> bytes:
        """The rest of a line, which is a name."""
        return self._counted(self._file.readline(min(_LONGEST_NAME, self._rest)))

    def _counted(self, data: bytes) -> bytes:
        self._rest -= len(data)
        return data


def _is_key(value: object) -> bool:
    """Whether a value is hashed and compared at once, whatever other keys there are."""
    if isinstance(value, str):
        return len(value) <= _LONGEST_KEY
    if isinstance(value, int):
        return abs(value) < _LARGEST_KEY
    if isinstance(value, tuple):
        return len(value) <= 8 and all(not isinstance(v, tuple) and _is_key(v) for v in value)
    by_identity = type(value).__hash__ is object.__hash__
    return value is None or isinstance(value, float | Global) or by_identity
