"""Where `embed` spends its time between the disk and Parquet, and how near it comes to the limit.

    python -m benchmarks.embedding

The limit is what decoding alone and the model alone, each by all processors, leave for both:
1 / (1 / decoding + 1 / model) images a second.
"""

import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from benchmarks.measuring import as_figures, instructions, origin, parser_of, spread, table
from benchmarks.predicting import LARGE, SMALL, make_photographs
from benchmarks.scale import PACKAGES, Watch, measure_machinery, write_model
from vitconvert.api import load_checkpoint, load_model
from vitconvert.embedding.embedder import Task
from vitconvert.embedding.options import RunOptions
from vitconvert.embedding.run import run
from vitconvert.embedding.sources import Sources
from vitconvert.preprocessing import Preprocessing

Item = TypeVar("Item")

ARCHITECTURES = ("vit_tiny_patch16_224", "vit_base_patch16_224")
BATCH = 32
SHARDS = 8


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Milliseconds of one thread for an image of a size.

    Attributes:
        decode: Reading the file and all of its pixels.
        scaled: The same by libjpeg-turbo's own scaled decoding, as small as the model allows.
        prepare: All of the preprocessing, decoding included.
        quicker: The same with `--fast-preprocessing`.
    """

    decode: float
    scaled: float
    prepare: float
    quicker: float


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Images a second, by all processors: each part alone, and `embed` from each kind of source."""

    decoding: float
    model: float
    embed: dict[str, list[float]]

    @property
    def limit(self) -> float:
        """Of both, where they share the processors."""
        return 1 / (1 / self.decoding + 1 / self.model)


def main() -> None:
    parser = parser_of("embedding", __doc__, 3)
    parser.add_argument("--images", type=int, default=256, help="of each size (default: 256)")
    options = parser.parse_args()
    if options.rounds < 1 or options.images < 8 * SHARDS:
        parser.error(f"at least 1 round and {8 * SHARDS} images")
    os.environ["HF_HUB_OFFLINE"] = "1"
    stages: dict[str, Stages] = {}
    found: dict[str, Rates] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {architecture: write_model(folder, architecture) for architecture in ARCHITECTURES}
        model_ms = {
            architecture: 1e3 * one_thread(_features(model), [_batch()], BATCH)
            for architecture, model in models.items()
        }
        for size in (SMALL, LARGE):
            title = "{}x{}".format(*size)
            photographs = folder / title / "photographs"
            photographs.mkdir(parents=True)
            make_photographs(photographs, size, options.images)
            preprocessing = _preprocessing(models[ARCHITECTURES[0]])
            stages[title] = measure_stages(photographs, preprocessing)
            for architecture, model in models.items():
                key = f"{architecture}, {title}"
                found[key] = measure_rates(model, photographs, folder / title, options.rounds)
        rows = folder / "rows"
        rows.mkdir()
        for number in range(4000):
            (rows / f"{number:06d}.jpg").touch()
        writing = 1e3 * measure_machinery(rows, folder / "null")
    if options.json:
        print(as_figures("embedding", PACKAGES, stages=stages, rates=found, writing_ms=writing))
    else:
        print(as_markdown(stages, found, model_ms, writing, options.rounds))


def _preprocessing(model: Path) -> Preprocessing:
    preprocessing = load_checkpoint(model).preprocessing
    assert preprocessing
    return preprocessing


def measure_stages(photographs: Path, preprocessing: Preprocessing) -> Stages:
    """One thread's milliseconds for each part of what comes before the model."""
    paths = sorted(photographs.iterdir())[:48]

    def decode(path: Path, scaled: bool = False) -> object:
        with Image.open(path) as image:
            if scaled:
                image.draft("RGB", preprocessing.image_size)
            return image.convert("RGB")

    return Stages(
        decode=1e3 * one_thread(decode, paths),
        scaled=1e3 * one_thread(partial(decode, scaled=True), paths),
        prepare=1e3 * one_thread(preprocessing, paths),
        quicker=1e3 * one_thread(partial(preprocessing, fast=True), paths),
    )


def one_thread(function: Callable[[Item], object], items: Sequence[Item], images: int = 1) -> float:
    """A thread's seconds for an image, of which each item has some."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    function(items[0])
    start = time.thread_time()
    for item in items:
        function(item)
    seconds = time.thread_time() - start
    torch.set_num_threads(threads)
    return seconds / len(items) / images


def all_processors(function: Callable[[Item], object], items: Sequence[Item], images: int) -> float:
    """Images a second of a function whose calls all processors share."""
    count = os.cpu_count() or 1
    with ThreadPoolExecutor(count, initializer=partial(torch.set_num_threads, 1)) as pool:
        list(pool.map(function, items[: 2 * count]))
        start = time.perf_counter()
        list(pool.map(function, items))
        return len(items) * images / (time.perf_counter() - start)


def _batch() -> Tensor:
    return torch.randn(BATCH, 3, 224, 224)


def _features(model: Path) -> Callable[[Tensor], Tensor]:
    """What `embed` computes with."""
    fast = load_model(model, fast=True, num_classes=0)

    def compute(images: Tensor) -> Tensor:
        with torch.inference_mode():
            features: Tensor = fast(images)
            return features

    for _ in range(20):  # until weights are in their own order
        compute(_batch()[:1])
    return compute


def measure_rates(model: Path, photographs: Path, folder: Path, rounds: int) -> Rates:
    """Each part alone, and `embed` from each kind of source, in turn.

    Of eight shards, from the end of the first to that of the sixth: images of the last two are
    decoded before that, as those of two more were before the first ended.
    """
    paths = sorted(photographs.iterdir())
    kinds = {"folder": photographs, "tar": _tar(paths, folder), "Parquet": _parquet(paths, folder)}
    preprocessing, features = _preprocessing(model), _features(model)
    batches = [_batch()] * (24 if "tiny" in model.name else 4)
    decoding, computing = [], []
    embed: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        decoding.append(all_processors(preprocessing, paths, 1))
        computing.append(all_processors(features, batches, BATCH))
        for kind, source in kinds.items():
            watch, output = Watch(), folder / f"{model.name}-{kind}-{number}"
            options = RunOptions(shard_rows=-(-len(paths) // SHARDS))
            run(Task(model=str(model)), Sources(given=[str(source)]), str(output), options, watch)
            embed[kind].append(sum(watch.images[1:-2]) / (watch.shards[-3] - watch.shards[0]))
    return Rates(decoding=median(decoding), model=median(computing), embed=embed)


def _tar(paths: Sequence[Path], folder: Path) -> Path:
    place = folder / "photographs.tar"
    with tarfile.open(place, "w") as archive:
        for path in paths:
            archive.add(path, path.name)
    return place


def _parquet(paths: Sequence[Path], folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = folder / "photographs.parquet"
    rows = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    pq.write_table(pa.table({"image": rows}), place, row_group_size=64)
    return place


def as_markdown(
    stages: dict[str, Stages],
    found: dict[str, Rates],
    model_ms: dict[str, float],
    writing: float,
    rounds: int,
) -> str:
    """What README.md shows."""
    return "\n".join(
        [
            "Milliseconds of one thread for an image (JPEG).",
            "",
            table(
                ["", *stages],
                (
                    [about, *(f"{getattr(stage, name):.2f}" for stage in stages.values())]
                    for about, name in (
                        ("decoding", "decode"),
                        ("decoding and resizing, as in the model's library", "prepare"),
                        ("the same with `--fast-preprocessing`", "quicker"),
                        ("libjpeg-turbo's scaled decoding alone", "scaled"),
                    )
                ),
            ),
            "",
            "The model, 32 at once: "
            + ", ".join(f"{name} {value:.1f}" for name, value in model_ms.items())
            + f". Planning, reading names and writing: {writing:.2f}.",
            "",
            f"Images a second by all processors. Median (smallest..largest) of {rounds}.",
            "",
            table(
                ["", "decoding", "model", "limit", *_kinds(found)],
                (
                    [title, *(f"{rate:.4g}" for rate in (r.decoding, r.model, r.limit))]
                    + [
                        f"{spread(rates)}, {median(rates) / r.limit:.0%}"
                        for rates in r.embed.values()
                    ]
                    for title, r in found.items()
                ),
            ),
            "",
            *origin("embedding", PACKAGES, f"; {instructions()}"),
        ]
    )


def _kinds(found: dict[str, Rates]) -> Iterator[str]:
    for kind in next(iter(found.values())).embed:
        yield f"embed from a {kind}, of the limit"


if __name__ == "__main__":
    main()
