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
import gc
import io
import math
import mmap
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

import torch

from tests.hostile.harness import resident_anonymous
from tests.hostile.kinds import KINDS, kind, prepare, write
from vitconvert.errors import VitConvertError

OTHER_REFUSES = "the other reader refuses"
SLOWEST = 10.0  # seconds for one case
MEMORY = 2**30  # bytes that a worker may take beyond what it begins with


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


def case(seed: int, name: str, number: int) -> tuple[str, bytes, bytes]:
    """The name of a file, its sound content and the changed one."""
    random = Random(f"{seed} {name} {number}")
    place, base = random.choice(kind(name).bases)
    return place, base, kind(name).mutated(base, random)


def judge(name: str, folder: Path, place: str, base: bytes, changed: bytes) -> str:
    """Try one case: "refused", "equal", or what went wrong."""
    reader, path = kind(name), folder / place
    write(path, changed)
    try:
        ours = reader.ours(path)
    except VitConvertError as error:
        str(error).encode(errors="backslashreplace")
        return "refused"
    except BaseException:
        return "".join(traceback.format_exc(limit=-4))
    if reader.theirs is None:
        return "equal"
    try:
        theirs = reader.theirs(path, ours)
    except Exception as error:
        write(path, base)
        sound = reader.ours(path)
        return "equal" if ours == sound else f"{OTHER_REFUSES}: {error!r}"[:400]
    return "equal" if ours == theirs else "the other reader reads something else"


_PROGRESS = struct.Struct("<4Q2d")  # next case, refused, equal, bad, begin of the case, slowest


def _work(
    name: str, seed: int, numbers: range, shared: mmap.mmap, pipe: int, end: float
) -> NoReturn:
    """Try one case after another, until they or the time are over or something happens."""
    memory = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (memory + MEMORY, memory + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    refused = equal = bad = 0
    slowest, number = 0.0, numbers.start
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        prepare(name, Path(folder))
        while number in numbers and (begin := time.monotonic()) < end:
            _PROGRESS.pack_into(shared, 0, number, refused, equal, bad, begin, slowest)
            place, base, changed = case(seed, name, number)
            verdict = judge(name, Path(folder), place, base, changed)
            if name in ("json", "parity", "index", "equinox"):
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


def fuzz(name: str, seed: int, *, seconds: float = math.inf, cases: int = sys.maxsize) -> Count:
    """Try cases of one kind, for some time or some number of them."""
    kind(name)  # made before the fork
    count, first, end = Count(), 0, time.monotonic() + seconds
    resident = resident_anonymous()
    shared = mmap.mmap(-1, _PROGRESS.size)
    while first < cases and time.monotonic() < end:
        _PROGRESS.pack_into(shared, 0, first, 0, 0, 0, time.monotonic(), 0.0)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.redirect_stderr(io.StringIO()):
                gc.freeze()
                warnings.simplefilter("ignore")
                try:
                    _work(name, seed, range(first, cases), shared, writing, end)
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
    """What happened, a line for each kind: clean is what was refused, or read as others read it."""
    names = ("kind", "cases", "clean", "refused", "bad", "longest", "memory")
    head = "{:12} {:>10} {:>10} {:>10} {:>5} {:>9} {:>9}".format(*names)
    lines = [head]
    for name, count in {**counts, "all": _sum(counts.values())}.items():
        clean = count.refused + count.equal
        numbers = f"{count.tried:10,} {clean:10,} {count.refused:10,} {count.bad:5}"
        lines.append(f"{name:12} {numbers} {count.slowest:7.2f} s {count.memory:5.0f} MiB")
    return "\n".join(lines)


def _sum(counts: Collection[Count]) -> Count:
    return Count(
        tried=sum(count.tried for count in counts),
        refused=sum(count.refused for count in counts),
        equal=sum(count.equal for count in counts),
        bad=sum(count.bad for count in counts),
        slowest=max(count.slowest for count in counts),
        memory=max(count.memory for count in counts),
    )


def run(names: list[str], seed: int, seconds: float) -> dict[str, Count]:
    """Try all kinds in turn, as long each."""
    torch.set_num_threads(1)
    return {name: fuzz(name, seed, seconds=seconds / len(names)) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--repeat", metavar="KIND:NUMBER")
    options = parser.parse_args()
    if options.repeat:
        return repeat(options.seed, *options.repeat.split(":"))
    counts = run(options.kind or list(KINDS), options.seed, options.minutes * 60)
    for count in counts.values():
        print(*count.problems[:5], sep="\n", end="\n" * bool(count.problems), flush=True)
    print(table(counts))
    return int(any(count.bad for count in counts.values()))


def repeat(seed: int, name: str, number: str) -> int:
    """Show one case again."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    prepare(name, folder)
    place, base, changed = case(seed, name, int(number))
    verdict = judge(name, folder, place, base, changed)
    write(folder / place, changed)
    write(folder / f"{place}.sound", base)
    print(folder / place, verdict, sep="\n")
    return int(verdict not in ("refused", "equal"))


if __name__ == "__main__":
    sys.exit(main())
