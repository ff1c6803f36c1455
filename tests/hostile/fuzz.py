"""Changes files at random, thousands a second, and compares what is read with other readers.

    python -m tests.hostile.fuzz --minutes 10 --seed 1 --kind torch

For each changed file vitconvert must give the tensors that safetensors, numpy or torch give, or
one of its own errors. Where it reads what the other refuses, the tensors must be those of the file
before it was changed. Anything else is printed with what repeats it, and makes exit code 1:
`--repeat KIND:NUMBER` with the same seed writes that file and says what happens.

The cases run in a fork that is replaced when it dies, or takes longer than ten seconds for one.
"""

import argparse
import contextlib
import functools
import gc
import io
import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from tests.hostile.documents import DIGITS, make_checkpoint, use
from tests.hostile.harness import resident_anonymous
from tests.hostile.mutations import (
    Mutation,
    mutated_archive,
    mutated_bytes,
    mutated_json,
    mutated_pickle,
    mutated_safetensors,
)
from vitconvert.api import load_checkpoint
from vitconvert.containers import bytes_of, open_container
from vitconvert.containers.npz import write_npz
from vitconvert.errors import VitConvertError
from vitconvert.toml_files import tables_dir

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]
"""Dtype, shape and bytes of each tensor, by name."""

SLOWEST = 10.0  # seconds for one case
MEMORY = 2**30  # bytes that a worker may take beyond what it begins with


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


@dataclass(kw_only=True)
class Count:
    """What happened with the cases of a kind."""

    tried: int = 0
    refused: int = 0
    equal: int = 0
    bad: int = 0
    slowest: float = 0.0
    memory: float = 0.0  # MiB
    problems: list[str] = field(default_factory=list)


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


def _torch(**options: Any) -> list[tuple[str, bytes]]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    plain = {"model": _tensors(), "epoch": 3, "args": {"lr": 0.1, "names": ["x", None, (1, 2)]}}
    return [("x", _saved(value, **options)) for value in (_tensors(), plain, model.state_dict())]


def _index() -> list[tuple[str, bytes]]:
    shards = {"a.st": {"a": torch.randn(2)}, "b.st": {"b": torch.randn(3), "c": torch.ones(1)}}
    names = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = json.dumps({"metadata": {"total_size": 24}, "weight_map": names}).encode()
    return [("x", index), *((shard, safetensors.torch.save(t)) for shard, t in shards.items())]


def _member(content: bytes, random: Random) -> bytes:
    return (mutated_pickle if content[:1] == b"\x80" else mutated_bytes)(content, random)


@functools.cache
def kinds() -> dict[str, Kind]:
    """All kinds, with files that are made once."""
    of_torch = functools.partial(mutated_archive, inside=_member)
    return {
        "safetensors": Kind(
            bases=_safetensors(),
            mutated=mutated_safetensors,
            ours=read_ours,
            theirs=read_safetensors,
        ),
        "npz": Kind(
            bases=_npz(),
            mutated=functools.partial(mutated_archive, inside=mutated_bytes),
            ours=read_ours,
            theirs=read_npz,
        ),
        "torch": Kind(bases=_torch(), mutated=of_torch, ours=read_ours, theirs=read_torch),
        "legacy": Kind(
            bases=_torch(_use_new_zipfile_serialization=False),
            mutated=mutated_pickle,
            ours=read_ours,
            theirs=read_torch,
        ),
        "index": Kind(bases=_index()[:1], mutated=mutated_json, ours=read_ours, theirs=read_index),
        "json": Kind(bases=_documents(), mutated=mutated_json, ours=_read_document),
        "toml": Kind(bases=_tables(), mutated=mutated_toml, ours=_read_table),
    }


# Documents beside weights, and tables: nobody else reads them.


@functools.cache
def _checkpoints() -> Path:
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for kind in ("vit", "timm", "hf"):
        make_checkpoint(kind, place)
    return place


def _documents() -> list[tuple[str, bytes]]:
    return [
        (str(path.relative_to(_checkpoints())), path.read_bytes())
        for path in sorted(_checkpoints().glob("*/*.json"))
    ]


def _read_document(path: Path) -> None:
    use(path.parent)


def _tables() -> list[tuple[str, bytes]]:
    return [("x", (tables_dir() / f"{name}.toml").read_bytes()) for name in ("timm", "hf_vit")]


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


# Running.


def case(seed: int, name: str, number: int) -> tuple[str, bytes, bytes]:
    """The name of a file, its sound content and the changed one."""
    random = Random(f"{seed} {name} {number}")
    kind = kinds()[name]
    place, base = random.choice(kind.bases)
    return place, base, kind.mutated(base, random)


def judge(name: str, folder: Path, place: str, base: bytes, changed: bytes) -> str:
    """Try one case: "refused", "equal", or what went wrong."""
    kind, path = kinds()[name], folder / place
    write(path, changed)
    try:
        ours = kind.ours(path)
    except VitConvertError as error:
        str(error).encode(errors="backslashreplace")
        return "refused"
    except BaseException:
        return "".join(traceback.format_exc(limit=-4))
    if kind.theirs is None:
        return "equal"
    try:
        theirs = kind.theirs(path, ours)
    except Exception as error:
        write(path, base)
        sound = kind.ours(path)
        return "equal" if ours == sound else f"the other reader refuses: {error!r}"[:400]
    return "equal" if ours == theirs else "the other reader reads something else"


def write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # an earlier mapping may look at the old file
    path.write_bytes(data)


def _prepare(name: str, folder: Path) -> None:
    """The files beside those that are changed."""
    if name == "index":
        for place, data in _index():
            write(folder / place, data)
    if name == "json":
        for path in _checkpoints().glob("*/*"):
            if path.is_file():
                (folder / path.parent.name).mkdir(exist_ok=True)
                write(folder / path.parent.name / path.name, path.read_bytes())


_PROGRESS = struct.Struct("<4Q2d")  # next case, refused, equal, bad, begin of the case, slowest


def _work(name: str, seed: int, first: int, shared: mmap.mmap, pipe: int, end: float) -> NoReturn:
    """Try one case after another, until the time is over or something happens."""
    memory = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (memory + MEMORY, memory + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    refused = equal = bad = 0
    slowest, number = 0.0, first
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        _prepare(name, Path(folder))
        while (begin := time.monotonic()) < end:
            _PROGRESS.pack_into(shared, 0, number, refused, equal, bad, begin, slowest)
            place, base, changed = case(seed, name, number)
            verdict = judge(name, Path(folder), place, base, changed)
            if name in ("json", "index"):
                write(Path(folder) / place, base)
            slowest = max(slowest, time.monotonic() - begin)
            refused += verdict == "refused"
            equal += verdict == "equal"
            if verdict not in ("refused", "equal"):
                bad += 1
                os.write(pipe, f"{name}:{number} {verdict}\n\0".encode(errors="replace"))
            number += 1
        _PROGRESS.pack_into(shared, 0, number, refused, equal, bad, 0.0, slowest)
    os._exit(0)


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(name: str, seed: int, seconds: float) -> Count:
    """Try cases of one kind for some time."""
    kinds()[name]  # made before the fork
    count, first, end = Count(), 0, time.monotonic() + seconds
    resident = resident_anonymous()
    shared = mmap.mmap(-1, _PROGRESS.size)
    while time.monotonic() < end:
        _PROGRESS.pack_into(shared, 0, first, 0, 0, 0, time.monotonic(), 0.0)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.redirect_stderr(io.StringIO()):
                gc.freeze()
                warnings.simplefilter("ignore")
                try:
                    _work(name, seed, first, shared, writing, end)
                finally:
                    os._exit(3)
        os.close(writing)
        died = _watch(child, shared, reading, resident, count)
        number, refused, equal, bad, _, slowest = _PROGRESS.unpack_from(shared)
        count.refused += refused
        count.equal += equal
        count.bad += bad + bool(died)
        count.slowest = max(count.slowest, slowest)
        if died:
            count.problems.append(f"{name}:{number} {died}")
        count.tried += number - first + bool(died)
        first = number + 1
    return count


def _watch(child: int, shared: mmap.mmap, pipe: int, resident: int, count: Count) -> str:
    """Wait for a worker; what it died of, if it did."""
    said = b""
    slow = False
    with os.fdopen(pipe, "rb", buffering=0) as file:
        while True:
            if select.select([file], [], [], 0.5)[0]:
                part = file.read(2**16)
                if not part:
                    break
                said += part
            begin = _PROGRESS.unpack_from(shared)[4]
            if begin and time.monotonic() - begin > SLOWEST and not slow:
                slow = True
                os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    count.memory = max(count.memory, usage.ru_maxrss / 1024 - resident / 2**20)
    count.problems += [text.decode() for text in said.split(b"\0") if text]
    code = os.waitstatus_to_exitcode(status)
    if slow:
        count.slowest = max(count.slowest, SLOWEST)
        return f"more than {SLOWEST:.0f} seconds"
    return f"died with code {code}" if code else ""


def table(counts: Mapping[str, Count]) -> str:
    """What happened, a line for each kind."""
    head = f"{'kind':12} {'cases':>9} {'refused':>9} {'equal':>9} {'bad':>5} {'longest':>9}"
    lines = [f"{head} {'memory':>9}"]
    for name, count in counts.items():
        numbers = f"{count.tried:9,} {count.refused:9,} {count.equal:9,} {count.bad:5}"
        lines.append(f"{name:12} {numbers} {count.slowest:7.2f} s {count.memory:5.0f} MiB")
    return "\n".join(lines)


def run(names: list[str], seed: int, seconds: float) -> dict[str, Count]:
    """Try all kinds in turn, as long each."""
    torch.set_num_threads(1)
    return {name: fuzz(name, seed, seconds / len(names)) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(kinds()))
    parser.add_argument("--repeat", metavar="KIND:NUMBER")
    options = parser.parse_args()
    if options.repeat:
        return repeat(options.seed, *options.repeat.split(":"))
    counts = run(options.kind or list(kinds()), options.seed, options.minutes * 60)
    for count in counts.values():
        print(*count.problems[:5], sep="\n", end="\n" * bool(count.problems))
    print(table(counts))
    return int(any(count.bad for count in counts.values()))


def repeat(seed: int, name: str, number: str) -> int:
    """Show one case again."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    _prepare(name, folder)
    place, base, changed = case(seed, name, int(number))
    verdict = judge(name, folder, place, base, changed)
    write(folder / place, changed)
    write(folder / f"{place}.sound", base)
    print(folder / place, verdict, sep="\n")
    return int(verdict not in ("refused", "equal"))


if __name__ == "__main__":
    sys.exit(main())
