"""What `.metadata` says: names, shapes and places of tensors. Nothing in the pickle is called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.containers.container import ITEM_SIZE, TensorInfo
from vitconvert.containers.mapped_file import checked_shape, shown
from vitconvert.containers.torch.pickle_reader import Global, PickleReader, StrangePickle
from vitconvert.errors import CorruptFile, UnsafeFile

_LONGEST = 2**28  # bytes; the metadata of a ViT with its optimizer take 500 KB
_MODULE = "torch.distributed.checkpoint.metadata."
_PLACE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_SIZE = "torch.Size"
_CALLED = (_SIZE, "torch.serialization._get_layout", f"{_MODULE}_MEM_FORMAT_ENCODING")
_KINDS = (_PLACE, "collections.OrderedDict", *_CALLED)
_PATHS = re.compile(r"pathlib(\._local)?\.(Pure)?(Posix|Windows)?Path")
_DTYPE = re.compile(r"torch\.(\w+)")
_MOST_PARTS = 4096  # of one tensor: more than processes of any run


@dataclass(frozen=True, kw_only=True)
class Part:
    """Where a part of a tensor lies: in the whole, and in a file of a process."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A value of the dict that was saved.

    Attributes:
        name: In `.metadata`, its keys joined by dots.
        keys: On the way to it.
        info: Of a tensor; None for any other value, which is a pickle of its own.
        parts: Of a tensor.
    """

    name: str
    keys: tuple[str, ...]
    info: TensorInfo | None
    parts: tuple[Part, ...]


class _Object:
    """An object of torch's, with its attributes."""

    def __init__(self, kind: str) -> None:
        self.kind, self.state = kind, {}  # type: ignore[var-annotated]


class _Reader(PickleReader):
    """Reads pickles of protocol 4, which `pickle.dump` writes, of a few classes."""

    def known(self, name: str) -> Global:
        patterns = (_DTYPE, _PATHS)
        if not (name in _KINDS or name.startswith(_MODULE)) and not any(
            pattern.fullmatch(name) for pattern in patterns
        ):
            raise StrangePickle(f"{name[:160]} is not known here")
        return Global(name)

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        if called.name == _SIZE and len(arguments) == 1 and isinstance(arguments[0], tuple):
            return arguments[0]
        if called.name in _CALLED or _PATHS.fullmatch(called.name):
            return called.name
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        return _Object(named.name)

    def set_attributes(self, made: object, attributes: object) -> None:
        if not isinstance(made, _Object):
            raise StrangePickle("attributes of what has none")
        made.state = attributes if isinstance(attributes, dict) else {"state": attributes}

    def _step(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "SHORT_BINUNICODE":
                self.stack.append(argument)
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "STACK_GLOBAL":
                module, name = self._last(2)
                if not isinstance(module, str) or not isinstance(name, str):
                    raise StrangePickle("a name that is no text")
                self.stack.append(self.known(f"{module}.{name}"))
            case _:
                super()._step(opcode, argument)


def read_metadata(path: Path) -> dict[str, Saved]:
    """What was saved, by its name in `.metadata`.

    Raises:
        CorruptFile: The file is truncated or contradicts itself.
        UnsafeFile: It asks for classes that are not those of torch's own metadata.
    """
    if (size := path.stat().st_size) > _LONGEST:
        raise CorruptFile(
            "The metadata of this distributed checkpoint are longer than any checkpoint's.",
            evidence={"file": path, "found": f"{size:,} bytes"},
        )
    try:
        described = _Reader().read(path.read_bytes())
    except StrangePickle as error:
        if "is not known here" in str(error):
            raise _unsafe(path, error) from error
        raise _corrupt(path, str(error)) from error
    try:
        return _saved(path, described)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _corrupt(path, str(error) or type(error).__name__) from error


def _saved(path: Path, described: Any) -> dict[str, Saved]:
    state = described.state
    kinds, keys = state["state_dict_metadata"], state.get("planner_data") or {}
    places: dict[tuple[str, tuple[int, ...] | None], _Object] = {}
    for index, place in state["storage_data"].items():
        places[index.state["fqn"], _numbers(index.state.get("offset"))] = place
    return {
        name: Saved(
            name=name,
            keys=_keys(name, keys),
            info=_info(path, name, kind),
            parts=tuple(_parts(path, name, kind, places)),
        )
        for name, kind in kinds.items()
    }


def _keys(name: str, keys: Mapping[str, Any]) -> tuple[str, ...]:
    """The way to a value; lists were counted."""
    way = keys.get(name) if isinstance(keys, dict) else None
    return tuple(map(str, way)) if isinstance(way, tuple) and way else (name,)


def _info(path: Path, name: str, kind: _Object) -> TensorInfo | None:
    if kind.kind == f"{_MODULE}BytesStorageMetadata":
        return None
    dtype = kind.state["properties"].state["state"][0].name.removeprefix("torch.")
    if dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name[:80]!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": shown(dtype), "known": " ".join(ITEM_SIZE)},
        )
    return TensorInfo(dtype=dtype, shape=checked_shape(path, name[:80], kind.state["size"]))


def _parts(path: Path, name: str, kind: _Object, places: Mapping[Any, _Object]) -> list[Part]:
    chunks = kind.state.get("chunks", [])
    if len(chunks) > _MOST_PARTS:
        raise CorruptFile(
            f"{name[:80]!r} is in more parts than any run has processes.", evidence={"file": path}
        )
    found = []
    for chunk in chunks:
        begin = checked_shape(path, name[:80], chunk.state["offsets"])
        place = places[name, begin].state
        if place.get("transform_descriptors"):
            raise CorruptFile(
                f"{name[:80]!r} is compressed or encrypted, which is not read here.",
                evidence={"file": path, "by": shown(place["transform_descriptors"])},
            )
        part = Part(
            begin=begin,
            shape=checked_shape(path, name[:80], chunk.state["sizes"]),
            file=str(place["relative_path"]),
            offset=int(place["offset"]),
            length=int(place["length"]),
        )
        found.append(part)
    return found


def _numbers(value: Any) -> tuple[int, ...] | None:
    return value if value is None else tuple(map(int, value))


def _corrupt(path: Path, reason: str) -> CorruptFile:
    return CorruptFile(
        "The metadata of this distributed checkpoint cannot be read.",
        evidence={"file": path, "reason": reason[:160]},
        meaning="They are truncated or changed, or torch did not write them.",
        hint="copy the directory again.",
    )


def _unsafe(path: Path, error: StrangePickle) -> UnsafeFile:
    return UnsafeFile(
        "The metadata of this distributed checkpoint ask for what is not torch's own.",
        evidence={"file": path, "reason": str(error)[:200]},
        meaning="Unpickling them could run any code, so nothing was loaded.",
        hint="where you trust the directory, torch makes one file of it: python -m "
        "torch.distributed.checkpoint.format_utils dcp_to_torch DIRECTORY model.pth",
    )
