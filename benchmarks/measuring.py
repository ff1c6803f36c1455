"""What the benchmarks share: the machine in words, medians with their spread, peaks of memory."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
_MIB = 2**20
_SAMPLING_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a process, in MiB.

    Attributes:
        resident: All pages in memory (VmRSS), with those of mapped files. The system can drop a
            mapped file's pages at any time and shares them between processes.
        anonymous: Pages that no file backs (RssAnon): what the process allocated for itself.
    """

    resident: float
    anonymous: float


def memory_of(pid: int) -> Memory | None:
    """Memory of a process now, from Linux's /proc; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    kib = {name: int(size) for name, size in re.findall(r"^(VmRSS|RssAnon):\s+(\d+)", status, re.M)}
    if not kib:  # It has ended, and nobody has asked how: there is a status without memory.
        return None
    return Memory(resident=kib["VmRSS"] / 1024, anonymous=kib["RssAnon"] / 1024)


def peak_until_exit(process: subprocess.Popen[str]) -> Memory:
    """The most memory that a process has from now until it ends.

    Sampled every 2 ms from outside, so that a thread which holds the interpreter hides nothing.
    """
    resident = anonymous = 0.0
    while process.poll() is None:
        if now := memory_of(process.pid):
            resident, anonymous = max(resident, now.resident), max(anonymous, now.anonymous)
        time.sleep(_SAMPLING_SECONDS)
    return Memory(resident=resident, anonymous=anonymous)


def timed(arguments: Sequence[str], *, given: str = "", **environment: str) -> tuple[float, str]:
    """Seconds of a whole process of Python, offline, given some input; and its output."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=offline,
        input=given,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"python {' '.join(arguments[:3])} ... failed:\n{done.stderr}")
    return seconds, done.stdout


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and largest value behind it: `0.21 (0.19..0.30)`."""
    return f"{_short(median(values))} ({_short(min(values))}..{_short(max(values))})"


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    """Ratios within each round, in which both met the same machine."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def machine(packages: Sequence[str]) -> str:
    """Processor, cores, system, and versions of Python and of packages."""
    installed = ", ".join(f"{name} {found}" for name in packages if (found := _version(name)))
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}; "
        f"Python {platform.python_version()}, {installed}"
    )


def instructions() -> str:
    """Which of those that products of few bits want the processor has, as Linux calls them."""
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    flags = re.findall(r"^flags\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    has = set(flags[0].split()) if flags else set()
    return ", ".join(f"{name}{'' if name in has else ' (no)'}" for name in wanted)


def command_line(benchmark: str) -> str:
    """What was typed to run a benchmark."""
    return " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]])


def origin(benchmark: str, packages: Sequence[str], more: str = "") -> list[str]:
    """Lines that say where figures are from, and how to get them again."""
    return [f"Machine: {machine(packages)}{more}.", f"Command: `{command_line(benchmark)}`"]


def as_figures(benchmark: str, packages: Sequence[str], **figures: object) -> str:
    """Every single figure as JSON, and where they are from."""
    where = {"machine": machine(packages), "command": command_line(benchmark)}
    return json.dumps({**figures, **where}, indent=2)


def parser_of(benchmark: str, description: str | None, rounds: int | None) -> ArgumentParser:
    """The options that all benchmarks have."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=description)
    default = "9; quick: 1" if rounds is None else rounds
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"times each runs (default: {default})"
    )
    parser.add_argument("--json", action="store_true", help="every single figure, as JSON")
    return parser


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its first column left and the others right."""
    marks = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


def mebibytes(path: Path) -> float:
    """Size of a file."""
    return path.stat().st_size / _MIB


def need_linux() -> None:
    """Memory is read from /proc, which only Linux has in this form."""
    if not sys.platform.startswith("linux"):
        raise SystemExit("This benchmark reads /proc/PID/status, which needs Linux.")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else platform.machine()
