"""Runs the command line, or a function, on a hostile file: in a process with limits.

torch and what else takes seconds to import is imported once, by whoever imports this module; each
run is a fork of that process. Whatever a file does to it, a crash, a loop or a gigabyte, the tests
go on and can say what happened.
"""

import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

import numpy  # noqa: F401 - so that no fork has to
import PIL.Image
import safetensors.torch  # noqa: F401
import torch

import vitconvert.api  # noqa: F401
from vitconvert.cli import VERBS, main
from vitconvert.errors import VitConvertError

for _place, _ in VERBS.values():
    import_module(f"vitconvert.cli.{_place.split(':')[0]}")
PIL.Image.init()  # imports the decoders of all formats

_MIB = 2**20


@dataclass(frozen=True)
class Answer:
    """What a run answered.

    Attributes:
        code: The exit code; of a run that died by a signal, minus its number.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
        seconds: Wall time.
        peak_mib: The most memory it had at a time, over what the fork began with.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak_mib: float


def run_limited(
    *arguments: object, cwd: Path | None = None, seconds: float = 10, mebibytes: int = 1024
) -> Answer:
    """Run the command line; after the time it is killed (code -9), memory beyond is refused."""
    return _forked(lambda: main([str(a) for a in arguments]), cwd, seconds, mebibytes)


def call_limited(
    function: Callable[..., object], *args: object, seconds: float = 10, mebibytes: int = 1024
) -> Answer:
    """Call a function; `out` has what it prints, and then what it returns, unless that is None.

    A VitConvertError becomes its message on stderr and its exit code, as on the command line.
    Any other error is a traceback on stderr, and code 1.
    """

    def call() -> None:
        try:
            result = function(*args)
        except VitConvertError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        if result is not None:
            print(result)

    return _forked(call, None, seconds, mebibytes)


def _forked(body: Callable[[], object], cwd: Path | None, seconds: float, mebibytes: int) -> Answer:
    import_module("timm")  # so that no fork has to
    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin, resident = time.perf_counter(), resident_anonymous()
        child = os.fork()
        if not child:
            _run(body, cwd, mebibytes, out, err)
        os.setpgid(child, child)  # here and there: whoever comes first
        _kill_after(child, seconds)
        _, status, usage = os.wait4(child, 0)
        taken = time.perf_counter() - begin
        return Answer(
            code=os.waitstatus_to_exitcode(status),
            out=_text(out),
            err=_text(err),
            seconds=taken,
            peak_mib=max(0.0, usage.ru_maxrss / 1024 - resident / _MIB),
        )


def resident_anonymous() -> int:
    """Bytes that a fork has at once; pages of files come when it uses them."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()


def _kill_after(child: int, seconds: float) -> None:
    descriptor = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(seconds * 1000):
            os.killpg(child, signal.SIGKILL)
    finally:
        os.close(descriptor)


def _run(
    body: Callable[[], object], cwd: Path | None, mebibytes: int, out: IO[bytes], err: IO[bytes]
) -> NoReturn:
    """Be the child."""
    code = 1
    try:
        os.setpgid(0, 0)  # what it starts dies with it
        faulthandler.disable()  # pytest's, which would tell of every crash
        for number, file in enumerate((out, err), start=1):
            os.dup2(file.fileno(), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        errors = ("strict", "strict", "backslashreplace")  # as Python opens them
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", errors=errors[number], closefd=False)
            for number, mode in enumerate("rww")
        )
        if cwd is not None:
            os.chdir(cwd)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()  # what imports made is not looked through for garbage
        _limit(mebibytes)
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _limit(mebibytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mebibytes * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="backslashreplace")
