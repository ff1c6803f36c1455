"""`predict --runtime`: torch, ONNX Runtime, OpenVINO and `auto`, on the same random weights.

    python -m benchmarks.runtimes [--rounds 9] [--busy 1] [--quick] [--json]

All answer in turn in one process, round after round. A ratio compares with the fastest of the
others in the same round. `auto` is measured as `predict` has it: it was exported, measured and kept
before. `--busy` lets so many other processes compute meanwhile. Runtimes that are absent are named.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.inference import rounds_of
from benchmarks.measuring import as_figures, origin, parser_of, ratios, spread, table, timed
from benchmarks.peers import Answer, Setting, write_weights
from benchmarks.predicting import SMALL, make_photographs
from vitconvert.api import load_checkpoint, load_model
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.engines import FORMATS, TORCH, engine_of
from vitconvert.runtimes.fastest import chosen, packed

AUTO = "auto"
SIZES, BATCHES = ("tiny", "small", "base"), (1, 8)
PACKAGES = ("torch", "onnxruntime", "openvino")


@dataclass(kw_only=True)
class Case:
    """One architecture and batch size: seconds of a batch by runtime, one for each round."""

    title: str
    batch: int
    seconds: dict[str, list[float]]


@dataclass(kw_only=True)
class Start:
    """One architecture: seconds to export, and of a process that classifies one image."""

    title: str
    export: dict[str, float]
    process: dict[str, list[float]]


def main() -> None:
    options = _options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(options.threads)
    sizes, batches = (("tiny",), (2,)) if options.quick else (SIZES, BATCHES)
    with tempfile.TemporaryDirectory() as name, busy(options.busy):
        os.environ["XDG_CACHE_HOME"] = name
        cases, starts = [], []
        for size in sizes:
            setting = Setting(
                folder=Path(name) / size,
                architecture=f"vit_{size}_patch16_224",
                device="cpu",
                dtype="float32",
                threads=options.threads,
            )
            write_weights(setting)
            export = _export(setting)
            cases += list(measure(size, setting, batches, options.rounds))
            process = _processes(setting, min(3, options.rounds))
            starts.append(Start(title=size, export=export, process=process))
    print((as_json if options.json else as_markdown)(cases, starts, options.busy))


def _options() -> Namespace:
    parser = parser_of("runtimes", __doc__, None)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all cores)")
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute")
    parser.add_argument("--quick", action="store_true", help="tiny alone")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 9
    return options


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never wait."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def installed() -> list[str]:
    """The runtimes beside torch."""
    return [name for name, to in FORMATS.items() if not RUNTIMES[to].missing()]


def _export(setting: Setting) -> dict[str, float]:
    seconds = {}
    for name in installed():
        start = time.perf_counter()
        engine_of(load_checkpoint(setting.folder / "timm"), name, kind="logits", tell=_nobody)
        seconds[name] = time.perf_counter() - start
    return seconds


def _nobody(_: str) -> None:
    """Nobody is told."""


def measure(size: str, setting: Setting, batches: Sequence[int], rounds: int) -> Iterator[Case]:
    """One case for each batch size, of all runtimes that are installed."""
    source = setting.folder / "timm"
    checkpoint, model = load_checkpoint(source), packed(load_model(source, fast=True))
    how = {"threads": setting.threads, "streams": 1}
    for batch in batches:
        answers: dict[str, Answer] = {TORCH: model}
        for name in installed():
            engine = engine_of(checkpoint, name, kind="logits", tell=_nobody)
            answers[name] = engine.ready(images=None, batch=batch, **how)
        auto = chosen(checkpoint, model, name=AUTO, kind="logits", tell=_nobody)
        answers[AUTO] = auto.ready(images=None, batch=batch, **how) or model
        config = model.config
        images = torch.rand(batch, config.in_channels, *config.image_size)
        with torch.inference_mode():
            for answer in answers.values():
                answer(images)
            seconds = rounds_of(answers, images, rounds)
        yield Case(title=f"{size}, {batch}", batch=batch, seconds=seconds)


def _processes(setting: Setting, rounds: int) -> dict[str, list[float]]:
    (photograph,) = make_photographs(setting.folder, SMALL, 1)
    seconds: dict[str, list[float]] = {name: [] for name in (TORCH, *installed(), AUTO)}
    for _ in range(rounds):
        for name, found in seconds.items():
            words = ("predict", setting.folder / "timm", photograph, "-q", "--runtime", name)
            found.append(timed(["-m", "vitconvert", *map(str, words)])[0])
    return seconds


def as_markdown(cases: Sequence[Case], starts: Sequence[Start], busy: int) -> str:
    """The tables."""
    names = list(cases[0].seconds)
    rates = ([c.title, *(f"{c.batch / median(c.seconds[n]):.3g}" for n in names)] for c in cases)
    shares = ([c.title, *(spread(to_best(c, n)) for n in names)] for c in cases)
    processes = [
        [s.title, *(f"{s.export[n]:.1f}" for n in s.export), *map(spread, s.process.values())]
        for s in starts
    ]
    header = [
        *(f"export for {n}" for n in starts[0].export),
        *(f"one image, {n}" for n in names),
    ]
    lines = [
        f"Images per second, float32, {torch.get_num_threads()} threads, {busy} other processes.",
        "",
        table(["ViT, images at once", *names], rates),
        "",
        "Speed relative to the fastest of the others: median (smallest..largest) of the rounds.",
        "",
        table(["ViT, images at once", *names], shares),
        "",
        "Seconds, once for each model, and of a whole process that classifies one image.",
        "",
        table(["ViT", *header], processes),
        "",
        *origin("runtimes", PACKAGES),
        *(f"Left out: {name}, which is not installed." for name in FORMATS if name not in names),
    ]
    return "\n".join(lines)


def to_best(case: Case, name: str) -> list[float]:
    others = [case.seconds[n] for n in case.seconds if n not in (name, AUTO)]
    best = [min(found) for found in zip(*others, strict=True)]
    return ratios(best, case.seconds[name])


def as_json(cases: Sequence[Case], starts: Sequence[Start], busy: int) -> str:
    """Every single figure."""
    return as_figures(
        "runtimes",
        PACKAGES,
        cases=[asdict(case) for case in cases],
        starts=[asdict(start) for start in starts],
        busy=busy,
    )


if __name__ == "__main__":
    main()
