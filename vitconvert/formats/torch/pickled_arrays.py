"""Plain pickles of NumPy's arrays, as detectron2's model zoo has them (`.pkl`).

The pickle is read as those of torch are: nothing is called, and an array becomes a description of
where its numbers lie in the file. Protocol 2 of Python 3 writes bytes as text, in which no array
lies as it is; detectron2's files have protocol 2 of Python 2, or 3 and later.

Source: `__reduce__` and `__setstate__` of ndarray and dtype (numpy/_core/src/multiarray/methods.c
and descriptor.c, numpy 1.16 to 2.4); pickletools for the opcodes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from vitconvert.errors import UnsafeFile
from vitconvert.formats.container import ITEM_SIZE, Container
from vitconvert.formats.headers import corrupt
from vitconvert.formats.npz import DTYPES
from vitconvert.formats.torch.pickle_reader import (
    HOOKS,
    BoundedFile,
    Global,
    PickleReader,
    Storage,
    StoredTensor,
    StrangePickle,
)
from vitconvert.formats.torch.unwrapping import STAND_INS, StandIn, container_of, stand_in
from vitconvert.formats.zip_archive import Member

_PACKAGES = ("numpy._core", "numpy.core")  # since numpy 2, and before
_EMPTY_ARRAYS = {f"{package}.multiarray._reconstruct" for package in _PACKAGES}
_WHOLE_ARRAYS = {f"{package}.numeric._frombuffer" for package in _PACKAGES}  # protocol 5
_DTYPE = "numpy.dtype"
_ENCODED = "_codecs.encode"
_KNOWN = {*_WHOLE_ARRAYS, _ENCODED, HOOKS, *STAND_INS}
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_TEXTS = ("BINSTRING", "SHORT_BINSTRING")  # of Python 2, in which bytes are text
_LONGEST_TEXT = 10_000  # bytes of a name; longer ones are the numbers of an array
_MOST_AXES = 64  # of numpy 2


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Bytes of the file."""

    offset: int
    length: int


class _Text(str):
    """Text of Python 2, which may be a name, or the numbers of a small array."""

    run: _Run


@dataclass(eq=False)
class _DType:
    """A dtype of numpy: "f4", and the order of its bytes."""

    code: str
    order: str = "|"

    def __str__(self) -> str:
        """torch's name, or numpy's of what torch has no name for."""
        native = self.order != ">" or self.code in ("i1", "u1", "b1")
        return DTYPES.get(self.code, self.code) if native else self.order + self.code


class _Reader(PickleReader):
    """Describes arrays and what stands beside them, in the protocols 2 to 5."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        super().__init__()
        self.path = path
        self.file = file
        self.members: dict[str, Member] = {}  # where the numbers of arrays lie

    def known(self, name: str) -> Global:
        if name in _KNOWN:
            return Global(name)
        raise UnsafeFile(
            "This Python pickle asks for more than arrays of NumPy.",
            evidence={"file": self.path, "class": name[:160]},
            meaning="Reading a pickle can run any code, so it was not opened.",
            hint="if you trust the file, load it with the program that wrote it and save the "
            "arrays with numpy.savez or safetensors.",
        )

    def described(self, called: Global, arguments: tuple[object, ...]) -> object:
        match called.name, arguments:
            case name, (str(code), bool() | 0 | 1, bool() | 0 | 1) if name == _DTYPE:
                return _DType(str(code))
            case name, (Global("numpy.ndarray"), (0,), _) if name in _EMPTY_ARRAYS:
                return self.array(_Run(offset=0, length=0), _DType("f4"), (0,), fortran=False)
            case name, (_Run() as run, _DType() as dtype, shape, "C" | "F" as order) if (
                name in _WHOLE_ARRAYS
            ):
                return self.array(run, dtype, shape, fortran=order == "F")
            case name, (str(), str()) if name == _ENCODED:
                return None  # bytes as text: b"b" for an array that is not filled yet
            case name, _ if name in STAND_INS:
                return stand_in(name)
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        raise StrangePickle(f"numpy makes no {named.name} so")

    def set_attributes(self, made: object, attributes: object) -> None:
        """Of arrays, which are made empty, what they hold; of dtypes, the order of bytes."""
        match made, attributes:
            case StoredTensor(), (1, shape, _DType() as dtype, bool() | 0 | 1 as fast, data):
                array = self.array(_run(data), dtype, shape, fortran=bool(fast))
                vars(made).update(vars(array))  # others may have been given it already
            case _DType(), (3 | 4, str(order), None, None, None, int(), int(), int()):
                made.order = str(order)
            case (OrderedDict(), dict()) | (StandIn(), _):
                pass  # what stands beside the arrays
            case _:
                raise StrangePickle("an array or a dtype that is not a plain one")

    def array(self, run: _Run, dtype: _DType, shape: object, *, fortran: bool) -> StoredTensor:
        """An array whose numbers lie in the file, the last axis fastest, or the first."""
        if (
            not isinstance(shape, tuple)
            or len(shape) > _MOST_AXES
            or not all(type(axis) is int and 0 <= axis <= sys.maxsize for axis in shape)
        ):
            raise StrangePickle("an array of no shape")
        fast_first = shape if fortran else shape[::-1]
        steps = tuple(accumulate(fast_first[:-1], mul, initial=1))[: len(shape)]
        key, name = str(run.offset), str(dtype)
        self.members[key] = Member(name=key, size=run.length, crc=0, stored=True, offset=run.offset)
        storage = Storage(dtype=name, key=key, length=run.length // ITEM_SIZE.get(name, 1))
        if name in ITEM_SIZE and storage.length != prod(shape):
            raise StrangePickle(f"an array of {prod(shape)} numbers with the bytes of others")
        stride = steps if fortran else steps[::-1]
        return StoredTensor(storage=storage, offset=0, shape=shape, stride=stride)

    def _step(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "PROTO" if 2 <= argument <= 5:
                pass
            case "FRAME":
                pass
            case "SHORT_BINUNICODE" | "BINUNICODE8":
                self.stack.append(argument)
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "STACK_GLOBAL":
                module, name = self._last(2)
                if not isinstance(module, str) or not isinstance(name, str):
                    raise StrangePickle("a name that is not text")
                self.stack.append(self.known(f"{module}.{name}"))
            case _ if opcode in _BYTES:
                self.stack.append(self._run_before(len(argument)))
            case _ if opcode in _TEXTS and len(argument) <= _LONGEST_TEXT:
                text = _Text(argument)
                text.run = self._run_before(len(argument))
                self.stack.append(text)
            case _ if opcode in _TEXTS:
                self.stack.append(self._run_before(len(argument)))
            case _:
                super()._step(opcode, argument)

    def _run_before(self, length: int) -> _Run:
        """The bytes that pickletools has just read, as the argument of this opcode."""
        return _Run(offset=self.file.tell() - length, length=length)


def _run(data: object) -> _Run:
    """Where the numbers of an array lie."""
    match data:
        case _Run():
            return data
        case _Text():
            return data.run
        case list():  # of objects, which `container_of_tensors` names by their dtype
            return _Run(offset=0, length=0)
    raise StrangePickle("bytes as text, as Python 3 writes them in protocol 2; newer ones do not")


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the pickle; the numbers of its arrays stay on disk.

    Args:
        path: The file.
        prefer: Wrapper keys to try before the usual ones.

    Raises:
        CorruptFile: The pickle is damaged, or holds no named arrays of numbers.
        UnsafeFile: It asks for other classes, or its arrays are far larger than the file.
        MissingFact: It holds several models.
    """
    with path.open("rb") as file:
        reader = _Reader(path, file)
        try:
            value = reader.read(cast(IO[bytes], BoundedFile(file, sys.maxsize)))
        except StrangePickle as error:
            raise corrupt(
                path,
                "This begins as a Python pickle, but cannot be read as named arrays.",
                meaning="It is truncated or changed, or its program keeps arrays another way.",
                hint="download it again, or load it with the program that wrote it and save the "
                "arrays with numpy.savez.",
                reason=str(error)[:160],
            ) from error
    return container_of(path, value, reader.members, prefer, form="pickle")
