"""`predict --runtime`: torch, ONNX Runtime, OpenVINO and `auto`, on the same random weights.

    python -m benchmarks.runtimes [--rounds 9] [--busy 1] [--quick] [--json]
    python -m benchmarks.runtimes --dtypes [--trained DIR --images 'PHOTOS/*/*.jpg']

All answer in turn in one process, round after round. A ratio compares with the fastest of the
others in the same round. `auto` is measured as `predict` has it: it was exported, measured and kept
before. `--busy` lets so many other processes compute meanwhile. Runtimes that are absent are named.

With `--dtypes`, each computes in float32 and in the fewer bits that it has, which are compared with
its own float32. How far they are from float32 random weights cannot say: `--trained` is a model
that `python -m vitconvert.demo.train` wrote, and `--images` are in folders that are named after its
classes; every twentieth is of the calibration, and every fifth of the others is compared on.
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
from benchmarks.measuring import (
    as_figures,
    instructions,
    mebibytes,
    origin,
    parser_of,
    ratios,
    spread,
    table,
    timed,
)
from benchmarks.peers import Answer, Setting, write_weights
from benchmarks.predicting import SMALL, make_photographs
from vitconvert.api import export_model, load_checkpoint, load_model
from vitconvert.preprocessing.finding import find_images
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.check import Agreement
from vitconvert.runtimes.engines import FORMATS, TORCH, engine_of
from vitconvert.runtimes.fastest import chosen, packed
from vitconvert.runtimes.images import LEAST

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
    if options.dtypes:
        print(of_dtypes(options, sizes, batches))
        return
    with tempfile.TemporaryDirectory() as name, busy(options.busy):
        os.environ["XDG_CACHE_HOME"] = name
        cases, starts = [], []
        for size in sizes:
            setting = random_weights(Path(name), size, options.threads)
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
    parser.add_argument("--dtypes", action="store_true", help="float32, bfloat16 and int8")
    parser.add_argument("--trained", help="a model that learned from images")
    parser.add_argument("--images", help="a pattern of images of its classes")
    options = parser.parse_args()
    if (options.trained is None) != (options.images is None):
        parser.error("--trained and --images belong together")
    if options.rounds is None:
        options.rounds = 1 if options.quick else 9
    return options


def random_weights(folder: Path, size: str, threads: int) -> Setting:
    """A model of a size in float32 for the processor, written in a folder of its own."""
    setting = Setting(
        folder=folder / size,
        architecture=f"vit_{size}_patch16_224",
        device="cpu",
        dtype="float32",
        threads=threads,
    )
    write_weights(setting)
    return setting


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
        "Seconds to export (once for each model), and of a process that classifies one image.",
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


@dataclass(frozen=True, kw_only=True)
class Way:
    """A runtime, and how many bits it computes with."""

    runtime: str
    dtype: str = "float32"
    calibrated: bool = False

    @property
    def title(self) -> str:
        """As the tables name it."""
        how = ("" if self.calibrated else ", dynamic") if self.dtype == "int8" else ""
        return f"{self.runtime} {self.dtype}{how}"


def ways() -> list[Way]:
    """All that is installed, float32 of each runtime first."""
    found = [Way(runtime=TORCH), Way(runtime=TORCH, dtype="bfloat16")]
    for name in installed():
        runtime = RUNTIMES[FORMATS[name]]
        found += [Way(runtime=name, dtype=dtype) for dtype in runtime.dtypes]
        found += [Way(runtime=name, dtype="int8")] * (name == "onnxruntime")
        if not runtime.missing(*(runtime.calibrated_by or ())):
            found.append(Way(runtime=name, dtype="int8", calibrated=True))
    return found


def opened(
    way: Way, source: Path, folder: Path, calibrate: Sequence[Path], threads: int
) -> tuple[Answer, float]:
    """A model computed so, and the MiB of its weights."""
    if way.runtime == TORCH:
        dtype: torch.dtype = getattr(torch, way.dtype)
        model = packed(load_model(source, fast=True, dtype=dtype))
        size = sum(x.numel() * x.element_size() for x in model.parameters())
        return lambda images: model(images.to(dtype)).float(), size / 2**20
    to, int8 = FORMATS[way.runtime], way.dtype == "int8"
    output = folder / f"{way.title}{RUNTIMES[to].suffix}"
    chosen = calibrate if way.calibrated else None
    written = export_model(
        source, output, to=to, int8=int8, calibrate=chosen, verify=False, overwrite=True
    )
    run = RUNTIMES[to].open(output, threads=threads, dtype="float32" if int8 else way.dtype)
    return run, sum(mebibytes(output.with_name(name)) for name in written.sha256)


def of_dtypes(options: Namespace, sizes: Sequence[str], batches: Sequence[int]) -> str:
    """The tables of float32, bfloat16 and int8."""
    cases: list[Case] = []
    weights: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            setting = random_weights(Path(name), size, options.threads)
            answers, weights[size] = _answers(
                setting.folder / "timm",
                setting.folder,
                make_photographs(setting.folder, SMALL, LEAST),
                options.threads,
            )
            print(f"measuring {size}", file=sys.stderr)
            for batch in batches:
                images = torch.rand(batch, 3, 224, 224)
                with torch.inference_mode():
                    for answer in answers.values():
                        answer(images)
                    seconds = rounds_of(answers, images, options.rounds)
                cases.append(Case(title=f"{size}, {batch}", batch=batch, seconds=seconds))
        seen = []
        if options.trained:
            seen = agreements(Path(name), options.trained, options.images, options.threads)
    if options.json:
        found = [asdict(case) for case in cases]
        return as_figures("runtimes", PACKAGES, cases=found, mebibytes=weights, agreement=seen)
    return "\n".join(dtypes_in_words(cases, weights, seen))


def _answers(
    source: Path, folder: Path, calibrate: Sequence[Path], threads: int
) -> tuple[dict[str, Answer], dict[str, float]]:
    found = {way.title: opened(way, source, folder, calibrate, threads) for way in ways()}
    answers = {title: answer for title, (answer, _) in found.items()}
    return answers, {title: size for title, (_, size) in found.items()}


def agreements(folder: Path, trained: str, pattern: str, threads: int) -> list[list[str]]:
    """Rows of a table: how far each is from the usual arithmetic in float32, by trained weights."""
    checkpoint = load_checkpoint(trained)
    preprocessing, names = checkpoint.preprocessing, list(checkpoint.labels or ())
    assert preprocessing is not None
    every = [path for path in find_images(pattern) if isinstance(path, Path)]
    compared = every[1::5]
    images = torch.stack([preprocessing(path) for path in compared])
    classes = torch.tensor([names.index(path.parent.name) for path in compared])
    answers, _ = _answers(Path(trained), folder, every[::20], threads)
    batches = torch.split(images, 8)
    usual, rows = load_model(trained), []
    with torch.inference_mode():
        expected = torch.cat([usual(some) for some in batches])
        for title, answer in answers.items():
            found = torch.cat([answer(some) for some in batches])
            seen = Agreement.of(found, expected, images="held out", dtype=title)
            right = (found.argmax(1) == classes).double().mean()
            same = f"{seen.agreed} of {seen.rows} ({seen.agreed / seen.rows:.2%})"
            cosine = torch.cosine_similarity(found, expected).mean()
            near = [f"{cosine:.5f}", f"{seen.cosine:.4f}", f"{seen.relative:.1e}"]
            rows.append([title, same, f"{right:.2%}", *near])
    return rows


def dtypes_in_words(
    cases: Sequence[Case], weights: dict[str, dict[str, float]], seen: list[list[str]]
) -> list[str]:
    """The tables."""
    titles = list(cases[0].seconds)
    usual = {title: f"{title.split()[0]} float32" for title in titles}

    def rates(title: str) -> list[str]:
        return [f"{case.batch / median(case.seconds[title]):.3g}" for case in cases]

    def gains(title: str) -> list[str]:
        pairs = ((case.seconds[usual[title]], case.seconds[title]) for case in cases)
        return [spread(ratios(*pair)) for pair in pairs]

    header = ["ViT, images at once", *(case.title for case in cases)]
    sizes = [f"MiB of {size}" for size in weights]
    rows = [
        [title, *rates(title), *(f"{found[title]:.1f}" for found in weights.values())]
        for title in titles
    ]
    fewer = [[title, *gains(title)] for title in titles if usual[title] != title]
    lines = [
        f"Images per second, {torch.get_num_threads()} threads, and the size of the weights.",
        "",
        table([*header, *sizes], rows),
        "",
        "Speed relative to float32 in the same runtime: median (smallest..largest) of the rounds.",
        "",
        table(header, fewer),
        "",
    ]
    if seen:
        about = ["same class", "right", "mean cosine", "smallest cosine", "largest difference"]
        lines += ["Trained weights, against the usual arithmetic in float32.", ""]
        lines += [table(["", *about], seen), ""]
    else:
        lines += ["Left out: agreement, without --trained and --images.", ""]
    return [*lines, *origin("runtimes", (*PACKAGES, "nncf"), f"; {instructions()}")]


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
