"""What preparing images costs by threads and by processes, with a model that costs nothing.

    python -m benchmarks.preparing [--rounds 5] [--images 256]

The parts of the work are measured alone; what more processors would do is arithmetic of them. The
interpreter's share needs py-spy (`pip install py-spy`), and is left out without.
"""

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor

from benchmarks.embedding import one_thread
from benchmarks.measuring import ROOT, as_figures, origin, parser_of, spread, table
from benchmarks.predicting import SMALL, make_photographs
from vitconvert.config import ViTConfig
from vitconvert.inference.batches import Ready, run_in_batches
from vitconvert.inference.options import ComputeOptions
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing

BATCH = 128
PROCESSORS = (1, 2, 4, 8, 16)
PACKAGES = ("torch", "pillow", "numpy")
STEPS = Preprocessing.from_timm({"input_size": (3, 224, 224), "interpolation": "bicubic"})


@dataclass(frozen=True, kw_only=True)
class Run:
    """Images through a model that costs nothing, after the first batches.

    Attributes:
        rate: Images a second.
        program: Milliseconds of a processor that this process takes for an image.
        main: Those of its main thread alone.
        workers: Those of all workers.
        ready: The share of the time in which workers had a processor or waited for one: at 1, they
            wait for nothing else.
        first: Seconds until the first image.
    """

    rate: float
    program: float
    main: float
    workers: float
    ready: float
    first: float

    @property
    def processor(self) -> float:
        """Milliseconds of a processor for an image, whoever takes it."""
        return self.program + self.workers


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of the work for an image, in milliseconds.

    Attributes:
        prepare: All of a thread's, by one thread alone.
        interpreter: Its part that holds the interpreter's lock; None without py-spy.
        faults: Pages of new memory, by threads.
        gathered: Stacking a batch by one thread of torch's, and by all, while all processors
            prepare images.
        new: Stacking it into new memory, which is not used again.
    """

    prepare: float
    interpreter: float | None
    faults: float
    gathered: dict[str, list[float]]
    new: float


def main() -> None:
    parser = parser_of("preparing", __doc__, 5)
    parser.add_argument("--images", type=int, default=256, help="of 500x375 (default: 256)")
    parser.add_argument("--child", help="prepare the images of a folder for 10 s, for py-spy")
    options = parser.parse_args()
    if options.child:
        _prepare_for(10, sorted(Path(options.child).iterdir()))
        return
    if options.rounds < 1 or options.images < 2 * BATCH:
        parser.error(f"at least 1 round and {2 * BATCH} images")
    with tempfile.TemporaryDirectory() as name:
        paths = make_photographs(Path(name), SMALL, options.images)
        parts = measure_parts(paths)
        runs: dict[str, list[Run]] = {title: [] for title in _TITLES}
        apart: list[float] = []
        for _ in range(options.rounds):
            for title, workers in _TITLES.items():
                runs[title].append(measure_run(paths, workers))
            apart.append(2 * measure_apart(paths, 1) / measure_apart(paths, 2))
    if options.json:
        found = {title: [asdict(run) for run in each] for title, each in runs.items()}
        print(as_figures("preparing", PACKAGES, parts=asdict(parts), runs=found, apart=apart))
    else:
        print(as_markdown(parts, runs, apart, options))


_TITLES = {"threads": 0, "1 worker": 1, "2 workers": 2}


def _prepare_for(seconds: float, paths: Sequence[Path]) -> None:
    torch.set_num_threads(1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in paths:
            STEPS(path)


def measure_parts(paths: Sequence[Path]) -> Parts:
    """Each alone, in this process."""
    prepare = 1e3 * one_thread(STEPS, paths)
    images = [STEPS(path) for path in paths[:BATCH]]
    together = torch.empty(BATCH, *images[0].shape)
    gathered = {}
    with _decoding(paths):
        for title, threads in (("one thread", 1), ("all threads", os.cpu_count() or 1)):
            torch.set_num_threads(threads)
            gathered[title] = _times(lambda: torch.stack(images, out=together))
    torch.set_num_threads(1)
    new = median(_times(lambda: torch.stack(images)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seen = sum(1 for _ in _through(paths, 0))
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / seen
    share = _interpreters_share(paths[0].parent)
    return Parts(
        prepare=prepare,
        interpreter=None if share is None else share * prepare,
        faults=faults,
        gathered=gathered,
        new=new,
    )


def _times(function: Callable[[], Tensor]) -> list[float]:
    """Milliseconds for an image of a batch, of some calls after the first."""
    function()
    found = []
    for _ in range(9):
        start = time.perf_counter()
        function()
        found.append(1e3 * (time.perf_counter() - start) / BATCH)
    return found


@contextmanager
def _decoding(paths: Sequence[Path]) -> Iterator[None]:
    """All processors prepare images inside, by a thread each."""
    ended = threading.Event()

    def prepare() -> None:
        torch.set_num_threads(1)
        for path in cycle(paths):
            if ended.is_set():
                return
            STEPS(path)

    threads = [threading.Thread(target=prepare) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _interpreters_share(folder: Path) -> float | None:
    """Of the samples of one thread that prepares images, those in which it holds the lock."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return None
    counts = []
    for holding in ([], ["--gil"]):
        with tempfile.NamedTemporaryFile("r") as raw:
            command = [spy, "record", *holding, "-r", "400", "-f", "raw", "-o", raw.name, "--"]
            child = [sys.executable, "-m", "benchmarks.preparing", "--child", str(folder)]
            subprocess.run([*command, *child], cwd=ROOT, check=True, capture_output=True)
            lines = (line.rpartition(" ") for line in raw if "transformed" in line)
            counts.append(sum(int(count) for _, _, count in lines))
    return counts[1] / counts[0]


def _through(paths: Sequence[Path], workers: int) -> Iterator[object]:
    config = ViTConfig(
        image_size=(224, 224),
        patch_size=(16, 16),
        in_channels=3,
        embed_dim=8,
        depth=1,
        num_heads=1,
        head_dim=8,
        mlp_dim=8,
        activation="gelu",
        norm_eps=1e-6,
        num_classes=0,
        pooling="token",
    )
    options = ComputeOptions(workers=workers, batch_size=BATCH)
    running = Ready(model=ViT(config), preprocessing=STEPS, options=options)
    return run_in_batches(running, lambda images: images[:, 0, 0, :4], paths)


def measure_apart(paths: Sequence[Path], count: int) -> float:
    """Milliseconds for an image of so many processes that have nothing to do with each other."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        list(pool.map(one_thread, [STEPS] * count, [paths[:8]] * count))  # which starts them
        return 1e3 * mean(pool.map(one_thread, [STEPS] * count, [[*paths] * 2] * count))


def measure_run(paths: Sequence[Path], workers: int) -> Run:
    """All images, four times over; of the second batch to the last but one, what it took."""
    torch.set_num_threads(os.cpu_count() or 1)
    paths = [*paths] * 4
    start = time.perf_counter()
    outputs = _through(paths, workers)
    next(outputs)
    first = time.perf_counter() - start
    for _ in range(2 * BATCH - 1):
        next(outputs)
    before = _now()
    count = len(paths) - 4 * BATCH
    for _ in range(count):
        next(outputs)
    wall, program, main, worked, waited = (b - a for a, b in zip(before, _now(), strict=True))
    outputs.close()  # type: ignore[attr-defined]
    return Run(
        rate=count / wall,
        program=1e3 * program / count,
        main=1e3 * main / count,
        workers=1e3 * worked / count,
        ready=(worked + waited) / wall / workers if workers else 1.0,
        first=first,
    )


def _now() -> tuple[float, float, float, float, float]:
    """Seconds: of the clock, of this process, of its main thread; workers' work, and waiting."""
    worked = waited = 0.0
    for process in multiprocessing.active_children():
        work, wait, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
        worked, waited = worked + int(work) / 1e9, waited + int(wait) / 1e9
    return time.perf_counter(), time.process_time(), time.thread_time(), worked, waited


def as_markdown(
    parts: Parts, runs: dict[str, list[Run]], apart: list[float], options: Namespace
) -> str:
    """What README.md shows."""
    held = "not measured" if parts.interpreter is None else f"{parts.interpreter:.2f}"
    profile = [
        ["preparing, by one thread alone", f"{parts.prepare:.2f}"],
        ["of it, holding the interpreter's lock", held],
        ["stacking a batch, by one thread of torch's", spread(parts.gathered["one thread"])],
        ["the same by as many as there are processors", spread(parts.gathered["all threads"])],
        ["the same by one thread, into new memory", f"{parts.new:.2f}"],
    ]
    rows = (
        [
            title,
            spread([run.rate for run in each]),
            spread([run.processor for run in each]),
            spread([run.main for run in each]),
            "" if title == "threads" else spread([run.ready for run in each]),
            spread([run.first for run in each]),
        ]
        for title, each in runs.items()
    )
    one, two = runs["1 worker"], runs["2 workers"]
    ratio = [b.rate / a.rate for a, b in zip(one, two, strict=True)]
    work = [2 * a.workers / b.workers for a, b in zip(one, two, strict=True)]
    return "\n".join(
        [
            f"{options.images} JPEGs of 500x375, {BATCH} at once. Milliseconds for an image; "
            "stacking while all processors prepare images.",
            "",
            table(["part", "ms"], profile),
            "",
            f"Threads take {parts.faults:.0f} pages of new memory for an image, workers none.",
            "",
            "Through a model that costs nothing. Median (smallest..largest) of "
            f"{options.rounds} rounds in turn.",
            "",
            table(
                [
                    "",
                    "images a second",
                    "processor's ms",
                    "main thread's ms",
                    "workers work or wait for a processor",
                    "s to the first image",
                ],
                rows,
            ),
            "",
            f"2 workers against 1: {spread(ratio)} by the clock, while other programs run; "
            f"{spread(work)} by the processors' time, if each worker has a processor. Two "
            f"independent processes against one, measured in the same way: {spread(apart)}.",
            "",
            "Calculated from these parts, not measured: images per second if each worker has its "
            "own processor, up to the limit of the main thread; and the most that threads can "
            "reach, because one thread holds the lock at a time and the main thread stacks.",
            "",
            table(["processors", *map(str, PROCESSORS)], _arithmetic(parts, runs)),
            "",
            *origin("preparing", PACKAGES, f"; load {os.getloadavg()[0]:.0f}"),
        ]
    )


def _arithmetic(parts: Parts, runs: dict[str, list[Run]]) -> Iterator[list[str]]:
    def of(title: str, name: str) -> float:
        return median(getattr(run, name) for run in runs[title])

    def rates(each: float, together: float) -> list[str]:
        return [f"{min(1e3 * count / each, 1e3 / together):,.0f}" for count in PROCESSORS]

    yield ["workers", *rates(of("2 workers", "workers"), of("2 workers", "main"))]
    serial = of("threads", "main") + (parts.interpreter or 0)
    yield ["threads, at most", *rates(of("threads", "processor"), serial)]


if __name__ == "__main__":
    main()
