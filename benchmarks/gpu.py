"""A GPU: images per second, share of its peak, memory and exactness, of vitconvert and of others.

    python -m benchmarks.gpu [--rounds 9] [--seconds 420] [--json]
    python -m benchmarks.gpu --embed        (features alone: by threads, by 1, 4, 8, 16 workers, and
                                             decoded on the GPU, which no GPU has run yet)
    python -m benchmarks.gpu --quick        (tiny sizes; on the processor where there is no GPU)

As `benchmarks.inference`, in each arithmetic that a GPU has; every answer is compared with that of
timm in float64 on the processor. Then the features of photographs from files by `embed`, with the
part of the copies to the GPU that happens while it computes, as torch's profiler sees it. The
cases come in the order of their worth, and none starts after so many seconds.
"""

import os
import sys
import tempfile
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import vitconvert
from benchmarks.embedding import one_thread
from benchmarks.inference import beside_weights, matrix_peak, operations, rounds_of
from benchmarks.measuring import as_figures, origin, parser_of, ratios, spread, table
from benchmarks.peers import (
    FLOAT8,
    OURS,
    PEERS,
    TIMM,
    Answer,
    Peer,
    Setting,
    config_of,
    timm_model,
    write_weights,
)
from benchmarks.predicting import SMALL, make_photographs
from vitconvert.errors import VitConvertError

COMPILED = "timm compiled"
PACKAGES = ("torch", "timm", "transformers", "torchao")
WORKERS = (1, 4, 8, 16)  # processes that prepare images
EXAMPLES = 4  # images whose logits are compared with those of float64
PEAK = 8192  # side of the square matrices whose product is the peak


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured together: one architecture, arithmetic, and batch size."""

    size: str
    arithmetic: str  # a dtype of torch's, or TF32
    batch: int

    @property
    def title(self) -> str:
        """As the tables name it."""
        return f"{self.size}, {self.batch}"

    @property
    def dtype(self) -> str:
        """A name of torch's: that of everything but the products."""
        return {"TF32": "float32", "float8": "bfloat16"}.get(self.arithmetic, self.arithmetic)


# In the order of their worth.
CASES = [
    *(Case(size="base", arithmetic="bfloat16", batch=batch) for batch in (256, 32, 1)),
    *(Case(size="base", arithmetic=name, batch=256) for name in ("TF32", "float16", "float32")),
    Case(size="base", arithmetic="float8", batch=256),
    *(Case(size="tiny", arithmetic="bfloat16", batch=batch) for batch in (256, 1)),
    Case(size="large", arithmetic="bfloat16", batch=256),
    *(Case(size="base", arithmetic=name, batch=32) for name in ("float16", "TF32", "float32")),
    *(Case(size="base", arithmetic=name, batch=1) for name in ("float16", "TF32", "float32")),
]
QUICK = [Case(size="tiny", arithmetic=name, batch=2) for name in ("float32", "bfloat16")]


@dataclass(kw_only=True)
class Figures:
    """Of one project in one case.

    Attributes:
        seconds: Of one batch, one for each round.
        first: Seconds from weights on the disk to the first answer, compilers included.
        memory: MiB that the GPU held beside weights and CUDA graphs, at most.
        difference: Of logits from those of float64, relative to the largest of them.
        operations: Floating point operations of one image.
    """

    first: float
    difference: float
    operations: float
    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0


Found = dict[str, Figures]  # by project


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """Features of photographs, from files.

    Attributes:
        dtype: That the model computes in.
        workers: Processes that prepare the images; 0: threads.
        decode: Where JPEG files are decoded and resized: "cpu" or "gpu".
        rate: Images a second, from the second batch on.
        first: Seconds until the first batch.
        cores: Images a second that the workers' cores prepare, by the time that one takes alone;
            None where the GPU decodes them.
        model: Images a second that the model reads, of images that are on the GPU.
        copying: Seconds of copies to the GPU.
        hidden: The part of them in which it computed too.
    """

    dtype: str
    workers: int
    decode: str
    rate: float
    first: float
    cores: float | None
    model: float
    copying: float
    hidden: float

    @property
    def reached(self) -> float:
        """The share of what the slower of cores and model allows."""
        return self.rate / min(self.cores or self.model, self.model)


def main() -> None:
    options = _options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(os.cpu_count() or 1)
    start = time.perf_counter()
    results: list[tuple[Case, Found]] = []
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = QUICK if options.quick else CASES
        for case in [] if options.embed else cases:
            if time.perf_counter() - start > options.seconds:
                break
            setting = _setting(folder, case, options.device)
            _round_products(case.arithmetic)
            if case.arithmetic not in peaks:
                peaks[case.arithmetic] = matrix_peak(setting, 256 if options.quick else PEAK)
            results.append((case, measure(case, setting, options.rounds)))
            if not options.json:
                print(_table(*results[-1], peaks[case.arithmetic]), flush=True)
        embedded = list(_embedded(folder, options))
    _print(results, peaks, embedded, options)


def _options() -> Namespace:
    parser = parser_of("gpu", __doc__, None)
    parser.add_argument("--seconds", type=float, default=420, help="(default: 420)")
    parser.add_argument("--quick", action="store_true", help="tiny alone, and small batches")
    parser.add_argument("--embed", action="store_true", help="features from files alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="(default: a GPU, if any is)")
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.device == "cpu" and not options.quick:
        parser.error("torch sees no GPU. Without one, --quick shows that this works.")
    options.rounds = options.rounds or (1 if options.quick else 9)
    return options


def _setting(folder: Path, case: Case, device: str) -> Setting:
    setting = Setting(
        folder=folder / case.size,
        architecture=f"vit_{case.size}_patch16_224",
        device=device,
        dtype=case.dtype,
        threads=torch.get_num_threads(),
    )
    if not setting.folder.exists():
        write_weights(setting)
    return setting


def _round_products(arithmetic: str) -> None:
    """TF32 in matrix products and convolutions, or in neither."""
    torch.set_float32_matmul_precision("high" if arithmetic == "TF32" else "highest")
    torch.backends.cudnn.allow_tf32 = arithmetic == "TF32"


def measure(case: Case, setting: Setting, rounds: int) -> Found:
    """Every project that computes it, side by side."""
    config = config_of(setting)
    images = torch.rand(case.batch, config.in_channels, *config.image_size)
    exact = _exact(setting, images[:EXAMPLES])
    images = images.to(setting.device, setting.torch_dtype)
    # Graphs of all models of a class count towards one limit, beyond which none is compiled.
    torch.compiler.reset()
    answers: dict[str, Answer] = {}
    found: Found = {}
    for peer in _peers(case, setting):
        start = time.perf_counter()
        try:
            answer = peer.build(setting)
            with torch.inference_mode():
                logits = answer(images)[:EXAMPLES].double().cpu()
        except Exception as error:  # of whatever kind another project's are
            print(f"{peer.title} fails: {error}", file=sys.stderr)
            continue
        answers[peer.title] = answer
        found[peer.title] = Figures(
            first=time.perf_counter() - start,
            difference=((logits - exact).abs().max() / exact.abs().max()).item(),
            operations=operations(config, wanted=1 if peer.title.startswith(OURS) else None),
        )
    with torch.inference_mode():
        for answer in answers.values():
            for _ in range(2):  # CUDA graphs are recorded at the second call
                answer(images)
        for title, seconds in rounds_of(answers, images, rounds).items():
            found[title].seconds = seconds
        if images.is_cuda:
            for title, memory in beside_weights(answers, images).items():
                found[title].memory = memory
    return found


def _peers(case: Case, setting: Setting) -> list[Peer]:
    fit = [p for p in PEERS if "cuda" in p.devices and p.suits(setting) and not p.missing]
    if case.arithmetic == "float8":
        return [peer for peer in fit if peer.title in (FLOAT8, TIMM, COMPILED)]
    return [peer for peer in fit if peer.title != FLOAT8]


def _exact(setting: Setting, images: Tensor) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = timm_model(setting).double().eval()(images.double())
    return logits


def _table(case: Case, found: Found, peak: float) -> str:
    reference = COMPILED if COMPILED in found else TIMM
    header = [
        f"{case.title}, {case.arithmetic}",
        "images a second",
        f"against {reference}",
        "share of the peak",
        "first answer, s",
        "memory, MiB",
        "from float64",
    ]
    rows = (
        [
            title,
            f"{case.batch / median(figures.seconds):.4g}",
            spread(ratios(found[reference].seconds, figures.seconds)),
            f"{case.batch / median(figures.seconds) * figures.operations / peak:.0%}",
            f"{figures.first:.3g}",
            f"{figures.memory:.0f}",
            f"{figures.difference:.1e}",
        ]
        for title, figures in found.items()
    )
    return table(header, rows) + "\n"


def _embedded(folder: Path, options: Namespace) -> Iterator[Embedded]:
    """By the base (quick: the tiny), after a first run that pays for all that is made once."""
    count, times, batch, size = (6, 4, 2, "tiny") if options.quick else (256, 32, 256, "base")
    photographs = times * make_photographs(folder, SMALL, count)
    cores = os.cpu_count() or 1
    for dtype in ("bfloat16",) if options.embed else ("float32", "bfloat16"):
        case = Case(size=size, arithmetic=dtype, batch=batch)
        setting = _setting(folder, case, options.device)
        _round_products(dtype)
        checkpoint = vitconvert.load_checkpoint(setting.folder / "timm")
        assert checkpoint.preprocessing
        alone = one_thread(checkpoint.preprocessing, photographs[:count])
        model = _models_rate(setting, batch)
        ways = [(workers, "cpu") for workers in ((0, *WORKERS) if options.embed else (cores,))]
        if options.device == "cuda":
            ways.append((0, "gpu"))
        for workers, decode in ways:
            how = {"device": setting.device, "dtype": setting.torch_dtype, "batch_size": batch}
            run = partial(vitconvert.embed, checkpoint, workers=workers, decode=decode, **how)
            try:
                deque(run(photographs[:batch]), maxlen=0)
            except VitConvertError as error:  # decoding there needs more than a GPU
                print(f"{dtype}, decoded on {decode}: {error}", file=sys.stderr)
                continue
            images = photographs if workers else photographs[: len(photographs) // 4]
            start = time.perf_counter()
            found = run(images)
            deque(islice(found, batch), maxlen=0)
            began = time.perf_counter()
            deque(found, maxlen=0)
            rate = (len(images) - batch) / (time.perf_counter() - began)
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                deque(run(photographs[: 8 * batch]), maxlen=0)
            copying, hidden = _copies(seen)
            yield Embedded(
                dtype=dtype,
                workers=workers,
                decode=decode,
                rate=rate,
                first=began - start,
                cores=min(workers or cores, cores) / alone if decode == "cpu" else None,
                model=model,
                copying=copying,
                hidden=hidden,
            )


def _models_rate(setting: Setting, batch: int) -> float:
    """Images a second of the model that `embed` has, which are there already."""
    model = vitconvert.load_model(
        setting.folder / "timm",
        fast=True,
        num_classes=0,
        device=setting.device,
        dtype=setting.torch_dtype,
    )
    shape = (batch, model.config.in_channels, *model.config.image_size)
    images = torch.rand(shape).to(setting.device, setting.torch_dtype)
    with torch.inference_mode():
        for _ in range(3):  # CUDA graphs are recorded at the second call
            model(images)
        seconds = rounds_of({"model": model}, images, 5)["model"]
    return batch / median(seconds)


def _copies(seen: profile) -> tuple[float, float]:
    """Seconds of copies to the GPU, and of those in which it computed too."""
    copies, kernels = [], []
    for event in seen.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            span = event.time_range.start, event.time_range.end
            if "Memcpy HtoD" in event.name:
                copies.append(span)
            elif "Mem" not in event.name:
                kernels.append(span)
    both = sum(
        max(0.0, min(end, kernel_end) - max(start, kernel_start))
        for start, end in copies
        for kernel_start, kernel_end in kernels
    )
    return sum(end - start for start, end in copies) / 1e6, both / 1e6


def _preparing(e: Embedded) -> str:
    if e.decode == "gpu":
        return "decoded on the GPU"
    return f"{e.workers} workers" if e.workers else "threads"


def _print(
    results: Sequence[tuple[Case, Found]],
    peaks: dict[str, float],
    embedded: Iterable[Embedded],
    options: Namespace,
) -> None:
    device = torch.cuda.get_device_name() if options.device == "cuda" else "no GPU"
    if options.json:
        cases = [
            {**asdict(case), "found": {t: asdict(f) for t, f in found.items()}}
            for case, found in results
        ]
        features = [asdict(each) for each in embedded]
        figures = {"cases": cases, "peak_flops": peaks, "embed": features, "device": device}
        print(as_figures("gpu", PACKAGES, **figures))
        return
    rows = (
        [
            f"{e.dtype}, {_preparing(e)}",
            *(f"{rate:.4g}" if rate else "" for rate in (e.rate, e.cores, e.model)),
            f"{e.reached:.0%}",
            f"{e.first:.3g}",
            f"{e.copying:.3g}",
            f"{e.hidden / (e.copying or 1):.0%}",
        ]
        for e in embedded
    )
    header = [
        "embed, from JPEG",
        "images a second",
        "cores could prepare",
        "the model could read",
        "reached of the smaller",
        "first batch, s",
        "copying, s",
        "while it computes",
    ]
    print(table(header, rows))
    if options.embed:
        print("\n" + "\n".join(origin("gpu", PACKAGES, f"; {device}")))
        return
    measured = ", ".join(f"{name} {peak / 1e12:.4g}" for name, peak in peaks.items())
    print(f"\nPeak, as measured, TFLOP/s: {measured}.")
    done = [case for case, _ in results]
    left = [f"{c.title} in {c.arithmetic}" for c in CASES if c not in done and not options.quick]
    print(f"Not reached in {options.seconds:.0f} s: {', '.join(left) or 'none'}.")
    print("\n".join(origin("gpu", PACKAGES, f"; {device}")))


if __name__ == "__main__":
    main()
