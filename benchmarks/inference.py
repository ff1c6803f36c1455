"""Inference: images per second of vitconvert and of other projects, on the same random weights.

    python -m benchmarks.inference [--rounds 9] [--threads N] [--quick] [--json]
    python -m benchmarks.inference --device cuda --dtype bfloat16

All models of one architecture are built in one process and answer in turn, round after round; a
ratio compares with timm in the same round. Every answer but vit-pytorch's, which has weights of
its own, is compared with timm's. Shares of the peak count the floating point operations that a
configuration needs, against the fastest multiplication of two large matrices in this process.
Nothing is installed or downloaded: projects that are absent are named.
"""

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks import predicting
from benchmarks.measuring import as_figures, origin, parser_of, ratios, spread, table
from benchmarks.peers import (
    OURS,
    PEERS,
    TIMM,
    Answer,
    Setting,
    config_of,
    export_weights,
    write_weights,
)
from benchmarks.predicting import LARGE, SMALL, Job, Photographs
from vitconvert import ViTConfig
from vitconvert.model.fast import FastLinear

SIZES = ("tiny", "small", "base")
BATCHES = (1, 8, 32)
LEAST_ROUNDS, PROCESS_ROUNDS = 2, 3
SECONDS = 11.0  # after which a batch size gets no further round than these
MATRIX = {"cpu": 2048, "cuda": 8192}  # side of those whose product is the peak; milliseconds
TURN = 0.1  # seconds that a project answers without a pause, or once
PACKAGES = (
    "torch",
    "timm",
    "transformers",
    "torchvision",
    "vit-pytorch",
    "onnxruntime",
    "openvino",
)


@dataclass(kw_only=True)
class Case:
    """One architecture and batch size.

    Attributes:
        seconds: Of one batch, by project, one for each round.
        difference: The largest from timm's logits, relative to the largest of them, by project.
        memory: The most that a GPU held beside weights, in MiB, by project.
        operations: Floating point operations of one image, by project.
    """

    size: str
    batch: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    operations: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """As the tables name it."""
        return f"{self.size}, {self.batch}"


def main() -> None:
    options = _options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(options.threads)
    sizes, batches = (("tiny",), (1, 2)) if options.quick else (SIZES, BATCHES)
    with tempfile.TemporaryDirectory() as name:
        settings = {size: _setting(Path(name), size, options) for size in sizes}
        cases = [
            case
            for size, setting in settings.items()
            for case in measure(size, setting, batches, options.rounds)
        ]
        peak = matrix_peak(settings["tiny"], 512 if options.quick else MATRIX[options.device])
        photographs = _photographs(Path(name), settings, options)
    show = as_json if options.json else as_markdown
    print(show(cases, peak, photographs, settings["tiny"]))


def _options() -> Namespace:
    parser = parser_of("inference", __doc__, None)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny alone, and small batches")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 9
    if min(options.rounds, options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no such device")
    return options


def _setting(folder: Path, size: str, options: Namespace) -> Setting:
    setting = Setting(
        folder=folder / size,
        architecture=f"vit_{size}_patch16_224",
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
    )
    write_weights(setting)
    export_weights(setting)
    return setting


def measure(size: str, setting: Setting, batches: Sequence[int], rounds: int) -> Iterator[Case]:
    """One case for each batch size, of all projects that are installed."""
    # Graphs of all models of a class count towards one limit, beyond which none is compiled.
    torch.compiler.reset()
    peers = [peer for peer in PEERS if peer.suits(setting) and not peer.missing]
    answers = {peer.title: peer.build(setting) for peer in peers}
    comparable = [peer.title for peer in peers if peer.same_weights and peer.title != TIMM]
    config = config_of(setting)
    for batch in batches:
        images = torch.rand(batch, config.in_channels, *config.image_size)
        images = images.to(setting.device, setting.torch_dtype)
        with torch.inference_mode():
            yield Case(
                size=size,
                batch=batch,
                difference=_differences(_warm(answers, images), comparable),
                seconds=rounds_of(answers, images, rounds),
                memory=beside_weights(answers, images) if setting.device == "cuda" else {},
                operations={
                    title: operations(config, wanted=1 if title == OURS else None)
                    for title in answers
                },
            )


def _warm(answers: Mapping[str, Answer], images: Tensor) -> dict[str, Tensor]:
    """The logits, once everybody is ready: compilers and CUDA graphs want several calls."""
    logits = {}
    for title, answer in answers.items():
        for _ in range(3 if images.is_cuda else 1):
            logits[title] = answer(images).to("cpu", torch.float32, copy=True)
    return logits


def _differences(logits: Mapping[str, Tensor], titles: Sequence[str]) -> dict[str, float]:
    wanted = logits[TIMM]
    largest = wanted.abs().max()
    return {title: ((logits[title] - wanted).abs().max() / largest).item() for title in titles}


def rounds_of(answers: Mapping[str, Answer], images: Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds of everybody's turns, round after round."""
    seconds: dict[str, list[float]] = {title: [] for title in answers}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - start > SECONDS:
            break
        for title, answer in answers.items():
            time.sleep(0.01)  # threads of the project before it go to sleep
            seconds[title].append(turn(answer, images))
    return seconds


def turn(answer: Answer, images: Tensor) -> float:
    """Seconds of a batch while one follows another: the median of as many as fit in a turn.

    A single small batch would mostly tell how long threads take to wake up, and whose weights the
    caches still hold.
    """
    seconds: list[float] = []
    while not seconds or sum(seconds) < TURN:
        seconds.append(_time(lambda: answer(images), images.is_cuda))
    return median(seconds)


def _time(work: Callable[[], object], cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def beside_weights(answers: Mapping[str, Answer], images: Tensor) -> dict[str, float]:
    """MiB that a GPU holds beside weights and CUDA graphs while each answers, at most."""
    found = {}
    for title, answer in answers.items():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        answer(images)
        torch.cuda.synchronize()
        found[title] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def operations(config: ViTConfig, *, wanted: int | None = None) -> float:
    """Floating point operations of the matrix products for one image, two for each product.

    Args:
        wanted: Tokens whose last block is computed; None: all.
    """
    width, inner = config.embed_dim, config.num_heads * config.head_dim
    tokens = config.num_patches + config.num_prefix_tokens
    pixels = config.in_channels * config.patch_size[0] * config.patch_size[1]
    products = config.num_patches * pixels * width + width * config.num_classes
    for layer in range(config.depth):
        queries = tokens if wanted is None or layer < config.depth - 1 else wanted
        products += tokens * width * 3 * inner
        products += queries * (2 * tokens * inner + inner * width + 2 * width * config.mlp_dim)
    return 2.0 * products


def matrix_peak(setting: Setting, size: int) -> float:
    """Operations per second of a large square product, the best of ten: by oneDNN on a CPU."""
    place = {"device": setting.device, "dtype": setting.torch_dtype}
    linear = FastLinear(size, size, bias=False, **place).requires_grad_(False)
    linear.packs_after = 0
    x = torch.rand(size, size, **place)
    with torch.inference_mode():
        linear(x)
        best = min(_time(lambda: linear(x), x.is_cuda) for _ in range(10))
    return 2.0 * size**3 / best


def _photographs(
    folder: Path, settings: Mapping[str, Setting], options: Namespace
) -> Photographs | None:
    if options.device != "cpu" or options.dtype != "float32":
        return None
    counts = (2, 1) if options.quick else (160, 80)
    small, large = (
        predicting.make_photographs(folder, pixels, count)
        for pixels, count in zip((SMALL, LARGE), counts, strict=True)
    )
    tiny = settings["tiny"].architecture
    single = [
        Job(title=f"{size}, 1", architecture=each.architecture, photographs=small[:1])
        for size, each in settings.items()
        if size != "small"
    ]
    folders = [
        Job(title=f"tiny, {len(paths)} of {width}x{height}", architecture=tiny, photographs=paths)
        for (width, height), paths in ((SMALL, small), (LARGE, large))
    ]
    weights = {each.architecture: each.folder / "timm" for each in settings.values()}
    rounds, jobs = min(options.rounds, PROCESS_ROUNDS), [*single, *folders]
    return Photographs(
        processes=jobs,
        process_seconds=predicting.measure_processes(weights, jobs, rounds, options.threads),
        folders=folders,
        seconds=predicting.measure_after_start(weights, folders, rounds),
    )


def as_markdown(
    cases: Sequence[Case],
    peak: float,
    photographs: Photographs | None,
    setting: Setting,
) -> str:
    """The tables, and what a reader needs to judge them."""
    titles = list(cases[0].seconds)
    header = ["ViT, images at once", *titles]
    lines = [
        f"Images per second, {setting.dtype}, {_place(setting)}."
        f" Medians; rounds: {_counts(cases)}.",
        "",
        table(header, ([c.title, *(f"{_rate(c, t):.3g}" for t in titles)] for c in cases)),
        "",
        "Speed relative to timm's: median (smallest..largest) of the ratios within each round.",
        "",
        table(header, ([c.title, *(_speed(c, t) for t in titles)] for c in cases)),
        "",
        f"Share of the matrix-multiply peak, measured as {peak / 1e9:.0f} GFLOP/s.",
        "",
        table(header, ([c.title, *(_share(c, t, peak) for t in titles)] for c in cases)),
        "",
        f"Largest difference from timm's logits, relative to the largest: {_worst(cases)}.",
    ]
    if cases[0].memory:
        memory = ([c.title, *(f"{c.memory[t]:.0f}" for t in titles)] for c in cases)
        lines += ["", "Memory beside the weights and CUDA graphs, MiB.", "", table(header, memory)]
    if photographs:
        lines += ["", *photographs.tables()]
    lines += ["", *origin("inference", PACKAGES)]
    lines += [f"Left out: {reason}." for reason in _left_out(setting)]
    return "\n".join(lines)


def _rate(case: Case, title: str) -> float:
    return case.batch / median(case.seconds[title])


def _speed(case: Case, title: str) -> str:
    return spread(ratios(case.seconds[TIMM], case.seconds[title]))


def _share(case: Case, title: str, peak: float) -> str:
    return f"{_rate(case, title) * case.operations[title] / peak:.0%}"


def _counts(cases: Sequence[Case]) -> str:
    counts = sorted({len(case.seconds[TIMM]) for case in cases})
    return "..".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))


def _worst(cases: Sequence[Case]) -> str:
    worst = {t: max(case.difference[t] for case in cases) for t in cases[0].difference}
    return ", ".join(f"{title} {difference:.1e}" for title, difference in worst.items())


def _place(setting: Setting) -> str:
    if setting.device == "cpu":
        return f"{setting.threads} thread{'s' * (setting.threads > 1)}"
    products = "off" if torch.get_float32_matmul_precision() == "highest" else "on"
    convolutions = "on" if torch.backends.cudnn.allow_tf32 else "off"
    tf32 = f"TF32 {products} in matrix products and {convolutions} in convolutions"
    return f"{torch.cuda.get_device_name()}, {tf32}"


def _left_out(setting: Setting) -> Iterator[str]:
    for peer in PEERS:
        if peer.suits(setting) and peer.missing:
            yield f"{peer.title}, without {' and '.join(peer.missing)}"


def as_json(
    cases: Sequence[Case],
    peak: float,
    photographs: Photographs | None,
    setting: Setting,
) -> str:
    """Every single figure."""
    return as_figures(
        "inference",
        PACKAGES,
        cases=[asdict(case) for case in cases],
        peak_flops=peak,
        photographs=None if photographs is None else photographs.figures(),
        device=_place(setting),
        dtype=setting.dtype,
        left_out=list(_left_out(setting)),
    )


if __name__ == "__main__":
    main()
