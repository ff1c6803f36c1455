"""Inference on other machines, as far as one machine can be another: `auto` beside every runtime.

    python -m benchmarks.anywhere [--rounds 5] [--quick] [--json]

The same figures as `python -m benchmarks.runtimes` has, in a process of their own for each setting:
without AVX-512 in oneDNN, with one thread, beside a process that never waits.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchmarks import runtimes
from benchmarks.measuring import as_figures, origin, parser_of, spread, table, timed

ONE = "--one"  # that is measured in this process, for the one that asks


@dataclass(frozen=True, kw_only=True)
class Place:
    """A machine to be: variables of its processes, threads, and others that compute."""

    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = os.cpu_count() or 1
    busy: int = 0


PLACES = [
    Place(title="as it is"),
    Place(title="`ONEDNN_MAX_CPU_ISA=AVX2`", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Place(title="1 thread", threads=1),
    # As `predict` sets it where others want the processors.
    Place(title="1 busy neighbour", environment={"OMP_WAIT_POLICY": "passive"}, busy=1),
]


def main() -> None:
    parser = parser_of("anywhere", __doc__, 5)
    parser.add_argument("--quick", action="store_true", help="tiny alone")
    parser.add_argument(ONE, type=int, help="threads, in this process alone")
    options = parser.parse_args()
    sizes = ("tiny",) if options.quick else ("tiny", "base")
    if options.one:
        print(json.dumps(measured(sizes, options.one, options.rounds)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as cache:  # of exports, which all places share
        for place in PLACES:
            typed = ["-m", "benchmarks.anywhere", ONE, str(place.threads)]
            typed += ["--rounds", str(options.rounds), *["--quick"] * options.quick]
            for speeds in Path(cache).rglob("speed.json"):  # which were measured elsewhere
                speeds.unlink()
            with runtimes.busy(place.busy):
                _, printed = timed(typed, XDG_CACHE_HOME=cache, **place.environment)
            found[place.title] = json.loads(printed.splitlines()[-1])
    show = as_figures("anywhere", runtimes.PACKAGES, found=found) if options.json else tables(found)
    print(show)


Measured = dict[str, dict[str, list[float]]]
"""Case -> runtime -> its speed relative to the fastest of the others, one for each round."""


def measured(sizes: tuple[str, ...], threads: int, rounds: int) -> Measured:
    """Every runtime in every case, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)  # the same weights, of which there is an export
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            setting = runtimes.random_weights(Path(name), size, threads)
            for case in runtimes.measure(size, setting, (1, 8), rounds):
                found[case.title] = {
                    runtime: runtimes.to_best(case, runtime) for runtime in case.seconds
                }
    return found


def tables(found: Mapping[str, Measured]) -> str:
    """One table: a row for each place and case."""
    header = ["", "ViT, images at once", *next(iter(next(iter(found.values())).values()))]
    rows = (
        [place, case, *(spread(shares) for shares in by_runtime.values())]
        for place, cases in found.items()
        for case, by_runtime in cases.items()
    )
    worst = min(
        (median(by_runtime[runtimes.AUTO]), f"{case}, {place}")
        for place, cases in found.items()
        for case, by_runtime in cases.items()
    )
    return "\n".join(
        [
            "Speed relative to the fastest of the others: median (smallest..largest).",
            "",
            table(header, rows),
            "",
            f"The least of `auto` is {worst[0]:.3g} ({worst[1]}).",
            "",
            *origin("anywhere", runtimes.PACKAGES),
        ]
    )


if __name__ == "__main__":
    main()
