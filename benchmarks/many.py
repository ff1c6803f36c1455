"""What names that are known cost a run that goes on, memory over many rows, and workers of Ray.

    python -m benchmarks.many

No model takes part but for the workers of Ray: names are made up, and listing them is set apart.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import (
    ROOT,
    as_figures,
    instructions,
    origin,
    parser_of,
    peak_until_exit,
    spread,
    table,
)
from benchmarks.predicting import SMALL, make_photographs
from benchmarks.scale import ARCHITECTURE, PACKAGES, NullTask, Watch, write_model
from vitconvert.embedding.embedder import LoadedTask, Task
from vitconvert.embedding.options import RunOptions
from vitconvert.embedding.run import run
from vitconvert.embedding.shards import check
from vitconvert.embedding.sources import Found, Sources
from vitconvert.inference.options import ComputeOptions

SHARD = 65536


@dataclass(frozen=True, kw_only=True)
class MadeUp(Sources):
    """Files that are not there.

    Attributes:
        count: How many.
    """

    count: int

    def found(self) -> Iterator[Found]:
        """Each, as a listing gives it: 1,000 in a folder."""
        for number in range(self.count):
            yield Found(f"photographs/{number // 1000:06d}/{number:09d}.jpg", None)


@dataclass(frozen=True, kw_only=True)
class Process:
    """A run in a process of its own.

    Attributes:
        wall, processor: Its seconds, of the run alone.
        listing: Seconds of these for making up the names, measured alone.
        computed, known: Images.
        resident, anonymous: MiB at the peak of the process: with mapped files, such as the code of
            torch, and without.
    """

    wall: float
    processor: float
    listing: float
    computed: int
    known: int
    resident: float
    anonymous: float


@dataclass(frozen=True, kw_only=True)
class CountedTask(Task):
    """A task that notes who loads its model.

    Attributes:
        seen: A folder that gets a file for each process.
    """

    seen: Path

    def load(self) -> LoadedTask:
        """The model."""
        (self.seen / str(os.getpid())).touch()
        return super().load()


def main() -> None:
    parser = parser_of("many", __doc__, 3)
    parser.add_argument("--part", choices=tuple(PARTS), help="measure one part alone")
    parser.add_argument("--names", type=int, default=10_000_000, help="known (default: 10 million)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="at most (default: a million)")
    parser.add_argument("--images", type=int, default=600, help="of 500x375 (default: 600)")
    parser.add_argument("--child", nargs=2, help="a run of N names into a folder, for this program")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(Path(options.child[0]), int(options.child[1]))))
        return
    if min(options.rounds, options.names, options.rows // 100) < 1 or options.images < 100:
        parser.error("at least 1 round, 1 name, 100 rows and 100 images")
    figures: dict[str, object] = {}
    for part in [options.part] if options.part else PARTS:
        with tempfile.TemporaryDirectory() as name:
            measure, show = PARTS[part]
            figures[part] = found = measure(Path(name), options)
        if not options.json:
            print(show(found, options), end="\n\n")
    if options.json:
        print(as_figures("many", PACKAGES, **json.loads(json.dumps(figures, default=vars))))
    else:
        print("\n".join(origin("many", PACKAGES, f"; {instructions()}")))


def measure_resuming(folder: Path, options: Namespace) -> dict[int, list[Process]]:
    """Runs that go on where all is known."""
    found = {}
    for count in (1, options.names):
        output = folder / f"known-{count}"
        write_known(output, count)
        found[count] = [process(output, count) for _ in range(options.rounds)]
    return found


def measure_rows(folder: Path, options: Namespace) -> dict[int, Process]:
    """Runs without a model where nothing is known."""
    counts = (options.rows // 100, options.rows // 10, options.rows)
    return {count: process(folder / f"rows-{count}", count) for count in counts}


def write_known(output: Path, count: int) -> None:
    """An output whose shards hold made-up names: the first by a run, the others like it."""
    begin = MadeUp(given=["-"], count=1)
    run(NullTask(model="nothing"), begin, str(output), RunOptions(), lambda _event: None)
    first = output / "features" / "part-000000.parquet"
    footer = json.loads(pq.ParquetFile(first).metadata.metadata[b"vitconvert"])
    names = (found.name for found in MadeUp(given=["-"], count=count).found())
    for number in range(-(-count // SHARD)):
        keys = pa.array(list(islice(names, SHARD)))
        shard = f"part-{number:06d}.parquet"
        stated = json.dumps({**footer, "name": shard, "rows": len(keys)})
        place, schema = output / "features" / shard, pa.schema([pa.field("key", pa.string())])
        with pq.ParquetWriter(
            place, schema, compression="zstd", write_page_checksum=True, use_dictionary=False
        ) as writer:
            writer.write_table(pa.table([keys], schema), row_group_size=4096)
            writer.add_key_value_metadata({b"vitconvert": stated})


def process(output: Path, count: int) -> Process:
    """A run over made-up names in a process of its own, which takes from them what it lacks."""
    command = [sys.executable, "-m", "benchmarks.many", "--child", str(output), str(count)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    memory = peak_until_exit(child)
    assert child.stdout and child.returncode == 0
    return Process(**json.loads(child.stdout.read()), **vars(memory))


def _child(output: Path, count: int) -> dict[str, float]:
    sources = MadeUp(given=["-"], count=count)
    start = time.process_time()
    for _ in sources.found():
        pass
    listing = time.process_time() - start
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    done = run(NullTask(model="nothing"), sources, str(output), RunOptions(), lambda _event: None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall": time.perf_counter() - wall,
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "listing": listing,
        "computed": done.images,
        "known": done.known,
    }


def measure_workers(folder: Path, options: Namespace) -> dict[int, dict[str, float]]:
    """Images a second by workers of Ray, and how many processes had a model."""
    photographs = folder / "photographs"
    photographs.mkdir()
    make_photographs(photographs, SMALL, options.images)
    model, found = write_model(folder, ARCHITECTURE), {}
    for workers in (1, 2, 4):
        watch, output, seen = Watch(), folder / f"workers-{workers}", folder / f"seen-{workers}"
        seen.mkdir()
        computing = ComputeOptions(threads=1, workers=workers)
        task = CountedTask(model=str(model), computing=computing, seen=seen)
        how = RunOptions(shard_rows=20, engine="ray")
        run(task, Sources(given=[str(photographs)]), str(output), how, watch)
        keys = pq.read_table(output / "features", columns=["key"])["key"].to_pylist()
        assert check(str(output)).whole and len(keys) == len(set(keys)) == options.images
        loaded = len(list(seen.iterdir())) - 1  # but for this one
        found[workers] = {"loaded": loaded, "rate": watch.rate, "start_s": watch.shards[0]}
    return found


def show_resuming(found: dict[int, list[Process]], options: Namespace) -> str:
    """The table of README.md."""
    rows = (
        [
            f"{count:,}",
            spread([one.wall - one.listing for one in runs]),
            spread([one.processor - one.listing for one in runs]),
            f"{max(one.resident for one in runs):.0f}",
            f"{max(one.anonymous for one in runs):.0f}",
        ]
        for count, runs in found.items()
    )
    return (
        "A continued run in which all images are done, in its own process, without the time for "
        "listing. Names are invented, and shards hold only keys. Median (smallest..largest) of "
        f"{options.rounds}.\n\n"
        + table(["names", "s", "processor's s", "MiB at the peak", "without mapped files"], rows)
    )


def show_rows(found: dict[int, Process], _options: Namespace) -> str:
    """The table of README.md."""
    rows = (
        [f"{count:,}", f"{one.wall:.0f}", f"{one.resident:.0f}", f"{one.anonymous:.0f}"]
        for count, one in found.items()
    )
    return "Rows of 768 float32 without a model. No image was done before.\n\n" + table(
        ["rows", "s", "MiB at the peak", "without mapped files"], rows
    )


def show_workers(found: dict[int, dict[str, float]], options: Namespace) -> str:
    """The table of README.md."""
    rows = (
        [f"{asked}", f"{one['loaded']:.0f}", f"{one['rate']:.0f}", f"{one['start_s']:.1f}"]
        for asked, one in found.items()
    )
    return (
        f"{options.images:,} JPEGs of 500x375 through {ARCHITECTURE}, with workers of Ray. Each "
        f"has one of the {os.cpu_count()} processors. Each image is one row.\n\n"
        + table(
            ["workers asked for", "that computed", "images a second", "s to the first shard"], rows
        )
    )


PARTS: dict[str, tuple[Callable[..., object], Callable[..., str]]] = {
    "resuming": (measure_resuming, show_resuming),
    "rows": (measure_rows, show_rows),
    "workers": (measure_workers, show_workers),
}


if __name__ == "__main__":
    main()
