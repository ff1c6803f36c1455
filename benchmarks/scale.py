"""What features of many images cost beside the model's arithmetic, and what more machines would do.

The figures of one machine are measured; those of nodes are arithmetic, with what it assumes.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import instructions, origin, parser_of, ratios, spread, table
from benchmarks.predicting import make_photographs
from vitconvert.embedding.embedder import Task
from vitconvert.embedding.options import Event, RunOptions
from vitconvert.embedding.run import run
from vitconvert.embedding.sources import Sources
from vitconvert.inference.embed import Embedding
from vitconvert.inference.options import ComputeOptions

ROOT = Path(__file__).parent.parent
ARCHITECTURE = "vit_tiny_patch16_224"
PACKAGES = ("torch", "pyarrow", "ray")
NPZ, ONE_SHARD, MANY_SHARDS = "`embed -o x.npz`", "`embed -o x/`", "in 8 shards"
WIDTH = 768  # numbers of a row without a model: as many as of a ViT-B


class NullModel:
    """Stands for a loaded task: it opens no image, and gives each random numbers."""

    doubts = ()

    def __init__(self, task: Task) -> None:
        self.task = task
        self.identity = {"computed": {"what": "features"}}
        self.labels, self.shape, self.features = None, (WIDTH,), None
        self._rows = torch.from_numpy(np.random.default_rng(0).random((1024, WIDTH), np.float32))

    def answers(self, pictures: Any) -> Iterator[Embedding]:
        """A row for each."""
        for path, row in zip(pictures, cycle(self._rows)):
            yield Embedding(path=path, features=row)


class NullTask(Task):
    """A task that computes nothing."""

    def load(self) -> Any:
        """Nothing to load."""
        return NullModel(self)


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A process from start to end: seconds, and processors' seconds."""

    wall: float
    processor: float


@dataclass
class Watch:
    """When what happened in a run."""

    begun: float = field(default_factory=time.perf_counter)
    shards: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  # this process's seconds until then
    images: list[int] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Note it."""
        if event.what == "shard":
            self.shards.append(time.perf_counter() - self.begun)
            self.processor.append(time.process_time())
            self.images.append(event.images)

    @property
    def seconds_a_shard(self) -> float:
        """Between the first shard and the last, one after the other."""
        return (self.shards[-1] - self.shards[0]) / (len(self.shards) - 1)

    @property
    def processor_a_shard(self) -> float:
        """Of this process, likewise."""
        return (self.processor[-1] - self.processor[0]) / (len(self.processor) - 1)

    @property
    def rate(self) -> float:
        """Images a second, after the first shard."""
        return sum(self.images[1:]) / (self.shards[-1] - self.shards[0])


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photographs, rows = folder / "photographs", folder / "rows"
        for place in (photographs, rows):
            place.mkdir()
        make_photographs(photographs, (500, 375), options.images)
        for number in range(options.rows):
            (rows / f"{number:06d}.jpg").touch()
        model = write_model(folder, ARCHITECTURE)
        found = {
            "whole": measure_whole(model, photographs, folder, options.rounds),
            "machinery": [measure_machinery(rows, folder / f"null-{n}") for n in range(3)],
            "decode_s": measure_decoding(model, photographs),
        }
        found |= measure_ray(rows, folder)
        found["workers"] = measure_workers(model, photographs, folder)
    print(json.dumps(found, default=vars) if options.json else as_markdown(found, options))


def _options() -> Namespace:
    parser = parser_of("scale", __doc__, 3)
    parser.add_argument("--images", type=int, default=1000, help="photographs (default: 1000)")
    parser.add_argument("--rows", type=int, default=8000, help="without a model (default: 8000)")
    options = parser.parse_args()
    if options.rounds < 1 or options.images < 100 or options.rows < 800:
        parser.error("at least 1 round, 100 images and 800 rows")
    return options


def write_model(folder: Path, architecture: str) -> Path:
    """A directory of timm's with random weights."""
    import timm
    from timm.models import save_for_hf

    save_for_hf(timm.create_model(architecture), folder / architecture, safe_serialization=True)
    return folder / architecture


def measure_whole(
    model: Path, photographs: Path, folder: Path, rounds: int
) -> dict[str, list[Whole]]:
    """Whole processes, in turn: one file that is written at the end, and shards."""
    rows = len(list(photographs.iterdir()))
    outputs = {NPZ: ["x.npz"], ONE_SHARD: ["x/"]}
    outputs[MANY_SHARDS] = ["y/", "--shard-rows", str(-(-rows // 8))]
    found: dict[str, list[Whole]] = {title: [] for title in outputs}
    for number in range(rounds):
        place = folder / f"round-{number}"
        place.mkdir()
        for title, output in outputs.items():
            arguments = ["embed", str(model), str(photographs), "-q", "-o", *output]
            start, before = time.perf_counter(), _of_children()
            command = [sys.executable, "-m", "vitconvert", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
            subprocess.run(command, cwd=place, env=environment, check=True)
            wall = time.perf_counter() - start
            found[title].append(Whole(wall=wall, processor=_of_children() - before))
    return found


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_machinery(rows: Path, output: Path) -> float:
    """Processor's seconds for each row, without a model: planning, reading names, writing."""
    watch, before = Watch(), time.process_time()
    run(NullTask(model="nothing"), Sources(given=[str(rows)]), str(output), RunOptions(), watch)
    return (time.process_time() - before) / sum(watch.images)


def measure_decoding(model: Path, photographs: Path) -> float:
    """A thread's seconds for each photograph: decoding and preprocessing."""
    from vitconvert.api import load_checkpoint

    preprocessing = load_checkpoint(model).preprocessing
    assert preprocessing
    paths = sorted(photographs.iterdir())[:100]
    start = time.thread_time()
    for path in paths:
        preprocessing(path)
    return (time.thread_time() - start) / len(paths)


def measure_ray(rows: Path, folder: Path) -> dict[str, float]:
    """Shards of 100 rows without a model, one after the other, here and by one worker."""
    sources, count = Sources(given=[str(rows)]), 100
    here = Watch()
    run(NullTask(model="nothing"), sources, str(folder / "a"), RunOptions(shard_rows=count), here)
    there = Watch()
    by_ray = RunOptions(shard_rows=count, engine="ray")
    one = NullTask(model="nothing", computing=ComputeOptions(workers=1))
    run(one, sources, str(folder / "b"), by_ray, there)
    return {
        "local_shard_s": here.seconds_a_shard,
        "ray_shard_s": there.seconds_a_shard,
        "ray_start_s": there.shards[0] - here.shards[0],
        "driver_shard_s": there.processor_a_shard,
    }


def measure_workers(model: Path, photographs: Path, folder: Path) -> dict[str, float]:
    """Images a second with a model, after the first shard."""
    found = {}
    shards = max(10, len(list(photographs.iterdir())) // 20)
    for title, computing, engine in (
        ("this process, 1 thread", ComputeOptions(threads=1), "local"),
        ("this process, 2 threads", ComputeOptions(threads=2), "local"),
        ("Ray, 1 worker", ComputeOptions(threads=1, workers=1), "ray"),
        ("Ray, 2 workers", ComputeOptions(threads=1, workers=2), "ray"),
    ):
        watch, output = Watch(), folder / f"workers-{len(found)}"
        task = Task(model=str(model), computing=computing)
        options = RunOptions(shard_rows=shards, engine=engine)
        run(task, Sources(given=[str(photographs)]), str(output), options, watch)
        found[title] = watch.rate
    return found


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes, and what is assumed of them.

    Attributes:
        nodes: How many.
        decode_s: A core's seconds for a photograph of 500x375.
        driver_s: The driver's seconds for a shard.
        gpus, cores: Of a node.
        flop: Of an image: 35 GFLOP, a ViT-B with patches of 16 at 224.
        flops: Of a GPU: 989 TFLOP/s in bfloat16, of which 20 to 35 % are reached.
        read, write: Bytes of an image: a JPEG, and a row of 768 float32.
    """

    nodes: int
    decode_s: float
    driver_s: float
    gpus: int = 8
    cores: int = 96
    flop: float = 35e9
    flops: tuple[float, float] = (0.2 * 989e12, 0.35 * 989e12)
    read: float = 60e3
    write: float = 2599

    @property
    def decoding(self) -> float:
        """Images a second that the cores can decode."""
        return self.nodes * self.cores / self.decode_s

    @property
    def computing(self) -> tuple[float, float]:
        """Images a second that the GPUs can compute."""
        slow, fast = (self.nodes * self.gpus * flops / self.flop for flops in self.flops)
        return slow, fast

    @property
    def rate(self) -> float:
        """Images a second of the whole."""
        return min(self.decoding, self.computing[0])

    @property
    def driver(self) -> float:
        """The share of a processor that telling and counting shards of 65,536 takes."""
        return self.rate / 65536 * self.driver_s

    def row(self) -> list[str]:
        """Of the table."""
        slow, fast = self.computing
        limit = "decoding" if self.decoding < slow else "GPUs"
        return [
            f"{self.nodes}",
            f"{self.decoding:,.0f}",
            f"{slow:,.0f} to {fast:,.0f}",
            limit,
            f"{1e9 / self.rate / 3600:.2g}",
            f"{self.rate * self.read / 1e9:.2g}",
            f"{self.rate * self.write / 1e9:.2g}",
            f"{self.driver:.1%}",
        ]


def as_markdown(found: dict[str, Any], options: Namespace) -> str:
    """What README.md shows."""
    whole, load = found["whole"], f"{os.getloadavg()[1]:.1f}"
    lines = [
        f"{options.images:,} JPEGs of 500x375 through {ARCHITECTURE}, whole processes in turn. "
        f"Median (smallest..largest) of {options.rounds}; ratios are taken within each round.",
        "",
        table(
            ["output", "s", "against npz", "processors' s", "against npz"],
            ([title, *_against(runs, whole[NPZ])] for title, runs in whole.items()),
        ),
        "",
        f"Without a model, {options.rows:,} rows of {WIDTH} float32: "
        f"{spread([1e3 * s for s in found['machinery']])} ms of processor time an image, for "
        f"planning, reading names and writing. Shards of 100 rows, one after the other: "
        f"{found['local_shard_s']:.3f} s each in this process, {found['ray_shard_s']:.3f} s by a "
        f"worker of Ray, so Ray costs {found['ray_shard_s'] - found['local_shard_s']:.3f} s a "
        f"shard, and {found['ray_start_s']:.1f} s to start. The driver takes "
        f"{1e3 * found['driver_shard_s']:.1f} ms of a processor for each.",
        "",
        table(
            ["with the model, after the first shard", "images a second"],
            ([title, f"{rate:.0f}"] for title, rate in found["workers"].items()),
        ),
        "",
        *_arithmetic(found),
        "",
        *origin("scale", PACKAGES, f"; {instructions()}. Others used it too: its load was {load}"),
    ]
    return "\n".join(lines)


def _against(runs: list[Whole], npz: list[Whole]) -> Iterator[str]:
    for name in ("wall", "processor"):
        ours, theirs = ([getattr(run, name) for run in some] for some in (runs, npz))
        yield spread(ours)
        yield spread(ratios(ours, theirs))


def _arithmetic(found: dict[str, Any]) -> Sequence[str]:
    one = Cluster(nodes=1, decode_s=found["decode_s"], driver_s=found["driver_shard_s"])
    clusters = (
        Cluster(nodes=nodes, decode_s=one.decode_s, driver_s=one.driver_s) for nodes in (1, 8, 100)
    )
    slow, fast = (rate * one.decode_s / one.gpus for rate in one.computing)
    return [
        f"Arithmetic, not measured: nodes of {one.gpus} GPUs and {one.cores} cores; a ViT-B takes "
        f"{one.flop / 1e9:.0f} GFLOP an image, of 989 TFLOP/s a GPU reaches 20 to 35 %; a core "
        f"decodes and prepares a photograph of 500x375 in {1e3 * one.decode_s:.1f} ms (as here), "
        f"so that a GPU wants {slow:.0f} to {fast:.0f} cores; {one.read / 1e3:.0f} kB are read and "
        f"{one.write:,.0f} bytes written an image, and storage and network keep up; shards of "
        "65,536 rows.",
        "",
        table(
            [
                *("nodes", "decoded a second", "GPUs could", "limit", "1 B images, hours"),
                *("read, GB/s", "written, GB/s", "driver's processor"),
            ],
            (cluster.row() for cluster in clusters),
        ),
    ]


if __name__ == "__main__":
    main()
