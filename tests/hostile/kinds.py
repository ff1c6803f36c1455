"""The kinds of files that are fuzzed: sound ones, how they are changed, and who reads them."""

import functools
import io
import json
import os
import pickle
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h5py
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from tests.hostile import containers
from tests.hostile.documents import DIGITS, make_checkpoint, use
from tests.hostile.mutations import (
    Mutation,
    mutated_archive,
    mutated_bytes,
    mutated_json,
    mutated_pickle,
    mutated_safetensors,
)
from vitconvert.api import load_checkpoint, verify
from vitconvert.formats import bytes_of, open_container
from vitconvert.formats.hdf5 import write_hdf5
from vitconvert.formats.npz import write_file as write_npz
from vitconvert.toml_files import tables_dir

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]
"""Dtype, shape and bytes of each tensor, by name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file.

    Attributes:
        bases: Names, and contents that are sound.
        mutated: Changes a content.
        ours: What vitconvert reads of a file.
        theirs: What another reader reads, given what ours has; None where there is no other.
    """

    bases: list[tuple[str, bytes]]
    mutated: Mutation
    ours: Callable[[Path], Any]
    theirs: Callable[[Path, Any], Any] | None = None


# Readers.


def told(name: str, tensor: torch.Tensor) -> tuple[str, tuple[str, tuple[int, ...], bytes]]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return name, (dtype, tuple(tensor.shape), bytes_of(tensor.resolve_conj()).tobytes())


def read_ours(path: Path) -> tuple[tuple[str, ...], Tensors]:
    with open_container(path) as container:
        read = {name: container.read(name) for name in container.manifest}
        for name, info in container.manifest.items():
            assert info.shape == tuple(read[name].shape)
            assert f"torch.{info.dtype}" == str(read[name].dtype)
        return container.wrapper, dict(told(*item) for item in read.items())


def rescue_ours(path: Path) -> Tensors:
    with open_container(path, rescue=True) as container:
        return dict(told(name, container.read(name)) for name in container.manifest)


def read_safetensors(path: Path, _: object) -> tuple[tuple[str, ...], Tensors]:
    tensors = safetensors.torch.load(path.read_bytes())
    return (), dict(told(*item) for item in tensors.items())


def read_npz(path: Path, ours: tuple[object, Tensors]) -> tuple[tuple[str, ...], Tensors]:
    tensors = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            if name not in ours[1] and member_is_text(path, name):
                continue
            array = arrays[name]
            native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(
                array.shape
            )
            dtype = "bfloat16" if native.dtype.kind == "V" else str(native.dtype)
            tensors[name] = (dtype, native.shape, native.tobytes())
    return (), tensors


def member_is_text(path: Path, name: str) -> bool:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        return re.search(rb"'[<>|=]?[US]\d+'", file.read(200)) is not None


def read_torch(path: Path, ours: tuple[tuple[str, ...], Tensors]) -> tuple[object, Tensors]:
    level: Any = torch.load(path, "cpu", weights_only=True, mmap=False)
    for key in ours[0]:
        level = level[key]
    return ours[0], dict(told(*item) for item in _flat(level))


def _flat(level: object, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(level, dict):
        for key, value in level.items():
            yield from _flat(value, (*keys, str(key)))
    elif isinstance(level, torch.Tensor):
        yield ".".join(keys), level


def read_index(path: Path, _: object) -> tuple[tuple[str, ...], Tensors]:
    names = json.loads(path.read_bytes())["weight_map"]
    shards = {shard: safetensors.torch.load_file(path.parent / shard) for shard in names.values()}
    return (), dict(told(name, shards[shard][name]) for name, shard in names.items())


class _Module:
    """Whatever class of a program."""


class _Described(pickle._Unpickler):  # type: ignore[name-defined]
    """The pickle of a program by Python's own unpickler: modules, and where tensors lie.

    By the one in Python: that in C makes room for as many values as the largest number of one.
    """

    def find_class(self, module: str, name: str) -> Any:
        match module:
            case "torch.jit._pickle":
                return lambda value, *_: value
            case "torch._utils" if name == "_rebuild_tensor_v2":
                return lambda *arguments: _Lying(*arguments)
            case "collections" if name == "OrderedDict":
                return dict
            case "torch" if name in _STORAGES:
                return name
            case _ if module.partition(".")[0] == "__torch__":
                return _Module
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return pid


class _Lying(NamedTuple):
    storage: tuple[str, str, str, str, int]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    trained: bool
    hooks: object

    def read(self, archive: zipfile.ZipFile, folder: str) -> torch.Tensor:
        _, kind, key, _, count = self.storage
        dtype = getattr(torch, _STORAGES[kind])
        data = _record(archive, f"{folder}data/{key}")
        assert len(data) == count * dtype.itemsize
        if not data:
            return torch.empty(self.shape, dtype=dtype)
        flat = torch.frombuffer(data, dtype=dtype)
        return flat.as_strided(self.shape, self.strides, self.offset)


def _record(archive: zipfile.ZipFile, name: str) -> bytearray:
    """A member; where it is stored without a look at its checksum, as torch reads it."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED:
        return bytearray(archive.read(name))
    assert archive.fp is not None
    archive.fp.seek(entry.header_offset + 26)
    lengths = struct.unpack("<HH", archive.fp.read(4))
    archive.fp.seek(sum(lengths), os.SEEK_CUR)
    return bytearray(archive.fp.read(entry.file_size))


_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


def read_program(path: Path, _: object) -> tuple[tuple[str, ...], Tensors]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        module = _Described(io.BytesIO(archive.read(name))).load()
        found = dict(_attributes(module))
        folder = name.removesuffix("data.pkl")
        return (), dict(told(key, t.read(archive, folder)) for key, t in found.items())


def _attributes(level: object, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, _Lying]]:
    if isinstance(level, _Module | dict):
        inside = level if isinstance(level, dict) else vars(level)
        for key, value in inside.items():
            yield from _attributes(value, (*keys, str(key)))
    elif isinstance(level, _Lying):
        yield ".".join(keys), level


# Sound files.


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shared = torch.randn(3, 4)
    return {
        "a": shared,
        "b.weight": shared.t(),
        "b.bias": torch.randn(5).to(torch.bfloat16),
        "c": torch.arange(7),
        "d": torch.randn(()),
        "e": torch.randn(2, 0),
    }


def _saved(value: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def _safetensors() -> list[tuple[str, bytes]]:
    tensors = {name: tensor.contiguous().clone() for name, tensor in _tensors().items()}
    return [("x", safetensors.torch.save(tensors, {"format": "pt"}))]


def _npz() -> list[tuple[str, bytes]]:
    arrays = {
        "a": np.arange(12.0, dtype="f4").reshape(3, 4),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "c": np.arange(5, dtype=">f8"),
        "d": np.array("text"),
        "e": np.array(1.5),
    }
    found = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)
        found.append(("x", buffer.getvalue()))
    with tempfile.TemporaryDirectory() as directory:
        write_npz(Path(directory) / "x", _tensors())
        found.append(("x", (Path(directory) / "x").read_bytes()))
    return found


def _hdf5() -> list[tuple[str, bytes]]:
    """As h5py writes it, one with more members than a header holds, in chunks; and as we do."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x"
        for oldest, count in (("earliest", 3), ("v108", 3), ("v108", 20)):
            with h5py.File(path, "w", libver=(oldest, "latest")) as file:
                for number in range(count):
                    file[f"layers/block_{number}/vars/0"] = np.arange(6.0, dtype="f4") + number
                file["layers/scalar"] = np.arange(3)
                file["half"] = np.ones((2, 0), "f2")
            found.append(("x", path.read_bytes()))
        for oldest in ("earliest", "v110"):
            with h5py.File(path, "w", libver=(oldest, "latest")) as file:
                options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
                file.create_dataset("some", data=np.arange(15.0), chunks=(4,), **options)
                file.create_dataset("one", data=np.arange(15.0), chunks=(15,), **options)
            found.append(("x", path.read_bytes()))
        write_hdf5(path, _tensors())
        found.append(("x", path.read_bytes()))
    return found


def _torch(**options: Any) -> list[tuple[str, bytes]]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    plain = {"model": _tensors(), "epoch": 3, "args": {"lr": 0.1, "names": ["x", None, (1, 2)]}}
    return [("x", _saved(value, **options)) for value in (_tensors(), plain, model.state_dict())]


def _modules(**options: Any) -> list[tuple[str, bytes]]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    plain = {"model": model, "epoch": 3, "when": re.compile("x")}
    return [("x", _saved(value, **options)) for value in (model, plain)]


def _program() -> list[tuple[str, bytes]]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        torch.jit.save(torch.jit.trace(model, torch.randn(4, 3)), buffer)
    return [("x", buffer.getvalue())]


def _leaves_or_arguments(content: bytes, random: Random) -> bytes:
    return (mutated_json if content[:1] == b"{" else mutated_bytes)(content, random)


def _read_leaves(path: Path) -> tuple[tuple[str, ...], Tensors]:
    """The leaves beside their arguments, whichever of the two was changed."""
    return read_ours(path.with_name("weights.eqx"))


def _index() -> list[tuple[str, bytes]]:
    shards = {"a.st": {"a": torch.randn(2)}, "b.st": {"b": torch.randn(3), "c": torch.ones(1)}}
    names = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = json.dumps({"metadata": {"total_size": 24}, "weight_map": names}).encode()
    return [("x", index), *((shard, safetensors.torch.save(t)) for shard, t in shards.items())]


def _member(content: bytes, random: Random) -> bytes:
    return (mutated_pickle if content[:1] == b"\x80" else mutated_bytes)(content, random)


def _pickles() -> list[tuple[str, bytes]]:
    arrays = {name: t.numpy() for name, t in _tensors().items() if t.dtype != torch.bfloat16}
    value = {"model": arrays, "epoch": 3}
    return [(f"protocol {number}", pickle.dumps(value, number)) for number in (3, 4, 5)]


_of_torch = functools.partial(mutated_archive, inside=_member)
_OLD = {"_use_new_zipfile_serialization": False}
KINDS: dict[str, Callable[[], Kind]] = {
    "safetensors": lambda: Kind(
        bases=_safetensors(), mutated=mutated_safetensors, ours=read_ours, theirs=read_safetensors
    ),
    "npz": lambda: Kind(
        bases=_npz(),
        mutated=functools.partial(mutated_archive, inside=mutated_bytes),
        ours=read_ours,
        theirs=read_npz,
    ),
    # h5py would be compared with itself, and reads beyond chunks that are too short.
    "hdf5": lambda: Kind(bases=_hdf5(), mutated=mutated_bytes, ours=read_ours),
    "torch": lambda: Kind(bases=_torch(), mutated=_of_torch, ours=read_ours, theirs=read_torch),
    "legacy": lambda: Kind(
        bases=_torch(**_OLD), mutated=mutated_pickle, ours=read_ours, theirs=read_torch
    ),
    # Nor is NumPy, which ends the process for some of these.
    "pickle": lambda: Kind(bases=_pickles(), mutated=mutated_pickle, ours=read_ours),
    "rescued": lambda: Kind(bases=_modules(), mutated=_of_torch, ours=rescue_ours),
    "rescued-legacy": lambda: Kind(
        bases=_modules(**_OLD), mutated=mutated_pickle, ours=rescue_ours
    ),
    "torchscript": lambda: Kind(
        bases=_program(), mutated=_of_torch, ours=read_ours, theirs=read_program
    ),
    "msgpack": lambda: Kind(
        bases=containers.msgpack_files(_tensors()),
        mutated=mutated_bytes,
        ours=read_ours,
        theirs=containers.read_msgpack,
    ),
    "gguf": lambda: Kind(
        bases=containers.gguf_files(_tensors()),
        mutated=mutated_bytes,
        ours=read_ours,
        theirs=containers.read_gguf,
    ),
    "equinox": lambda: Kind(
        bases=containers.equinox_files(),
        mutated=_leaves_or_arguments,
        ours=_read_leaves,
        theirs=containers.read_equinox,
    ),
    "index": lambda: Kind(
        bases=_index()[:1], mutated=mutated_json, ours=read_ours, theirs=read_index
    ),
    "parity": lambda: Kind(bases=_configs(), mutated=mutated_json, ours=_verify),
    "json": lambda: Kind(bases=_documents(_READ), mutated=mutated_json, ours=_read_document),
    "toml": lambda: Kind(bases=_tables(), mutated=mutated_toml, ours=_read_table),
}


@functools.cache
def kind(name: str) -> Kind:
    """A kind, with files that are made once."""
    return KINDS[name]()


# Documents beside weights, and tables: nobody else reads them.


@functools.cache
def _checkpoints() -> Path:
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for kind in ("vit", *_COMPARED):
        make_checkpoint(kind, place)
    return place


def _documents(several: tuple[str, ...]) -> list[tuple[str, bytes]]:
    return [
        (str(path.relative_to(_checkpoints())), path.read_bytes())
        for kind in several
        for path in sorted(_checkpoints().glob(f"{kind}/*.json"))
    ]


_READ = ("vit", "timm", "hf", "beit", "dinov2", "siglip")
_COMPARED = ("timm", "hf", "beit", "dinov2", "siglip", "openclip")


def _configs() -> list[tuple[str, bytes]]:
    for package in ("timm", "open_clip", "transformers"):  # so that no fork has to
        import_module(package)
    return [(name, data) for name, data in _documents(_COMPARED) if name.endswith("config.json")]


def _verify(path: Path) -> None:
    """Whatever a configuration says, its own project computes with it, or does not take it."""
    verify(path.parent, dtypes=("float32",), batch=1)


def _read_document(path: Path) -> None:
    use(path.parent)


_TABLES = ("timm", "hf_vit", "big_vision")


def _tables() -> list[tuple[str, bytes]]:
    return [("x", (tables_dir() / f"{name}.toml").read_bytes()) for name in _TABLES]


def _read_table(path: Path) -> None:
    load_checkpoint(DIGITS, table=path)


_TOML = (
    "{",
    "}",
    "[",
    "]",
    '"',
    "=",
    ",",
    ".",
    "|",
    "{block}",
    "{i}",
    "9" * 30,
    "1e999",
    "\\u0000",
)


def mutated_toml(data: bytes, random: Random) -> bytes:
    """Lines that are moved, values of other lines, words of the language, or other bytes."""
    if random.random() < 0.4:
        return mutated_bytes(data, random)
    lines = data.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        one, two = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(4):
            case 0:
                lines[one] = lines[two]
            case 1:
                del lines[one]
            case 2:
                mine, theirs = lines[one].partition("="), lines[two].partition("=")
                lines[one] = f"{mine[0]}={theirs[2]}"
            case 3:
                at = random.randrange(len(lines[one]) + 1)
                lines[one] = lines[one][:at] + random.choice(_TOML) + lines[one][at:]
    return "\n".join(lines).encode()


# What a Hub says of a repository.


def write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # an earlier mapping may look at the old file
    path.write_bytes(data)


def prepare(name: str, folder: Path) -> None:
    """The files beside those that are changed."""
    if name == "index":
        for place, data in _index():
            write(folder / place, data)
    if name == "equinox":
        for place, data in kind(name).bases:
            write(folder / place, data)
    if name in ("json", "parity"):
        for path in _checkpoints().glob("*/*"):
            if path.is_file():
                (folder / path.parent.name).mkdir(exist_ok=True)
                write(folder / path.parent.name / path.name, path.read_bytes())
