"""Of several runtimes and dtypes, the one that was measured to be the fastest here.

`auto` takes what is installed and was faster here, and of dtypes bfloat16 where that is faster; how
far it is from float32 is told of the first images. Speeds depend on the model, the machine, the
threads, the batch and on other load, so each such case is measured once: half a second for each
candidate, and with fewer threads too where others keep processors busy, because the threads of one
runtime wait for one another then.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import harmonic_mean
from typing import NamedTuple

import torch
from torch import Tensor

from vitconvert.atomic_write import atomic_file
from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.documents import read_object
from vitconvert.errors import VitConvertError
from vitconvert.machine import busy, processor
from vitconvert.model import ViT
from vitconvert.model.fast import FastLinear
from vitconvert.runtimes.check import Agreement
from vitconvert.runtimes.engines import (
    AUTO,
    FORMATS,
    TORCH,
    RuntimeEngine,
    Tell,
    check_runtime,
    engine_of,
    folder_of,
    runtime_of,
)
from vitconvert.runtimes.runtime import Run
from vitconvert.settings import torch_threads

_ROUNDS, _SECONDS = 5, 0.1  # in each of which each candidate computes, or once
_PAUSE = 0.02  # seconds, in which threads of the candidate before stop spinning
_WORTH = 1.1  # times as fast as float32 is what loses bits for it


class Way(NamedTuple):
    """A candidate: a runtime, "torch" or a key of FORMATS, all threads of it, and its dtype."""

    runtime: str
    threads: int
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The measurement of one candidate.

    Attributes:
        runtime, threads, dtype: As of a `Way`.
        opening: Seconds until it is ready.
        rate: Images per second.
    """

    runtime: str
    threads: int
    opening: float
    rate: float
    dtype: str = "float32"

    @property
    def way(self) -> Way:
        """The candidate."""
        return Way(self.runtime, self.threads, self.dtype)

    def seconds(self, images: int) -> float:
        """For so many images, from the start."""
        return self.opening + images / self.rate


@dataclass(frozen=True, kw_only=True)
class Fastest:
    """As `inference.batches.Engine`: of several, the one that was measured to be the fastest.

    Attributes:
        checkpoint: What is computed.
        model: torch's candidate.
        answer: What it is asked: the model itself, or one of its methods.
        kind: One of `runtimes.graph.OUTPUTS`.
        tell: Called with what is done that takes seconds, and with what was chosen.
        runtimes: Those that are tried, the first of them if nothing is measured.
        dtypes: Likewise.
    """

    checkpoint: Checkpoint
    model: ViT
    answer: Run
    kind: str
    tell: Tell
    runtimes: tuple[str, ...] = (TORCH, *FORMATS)
    dtypes: tuple[str, ...] = ("float32",)

    def ready(self, *, images: int | None, batch: int, threads: int, streams: int) -> Run | None:
        """The fastest candidate, open; None if that is torch with all threads.

        For a single batch nothing is exported or measured: that takes longer than the batch.
        """
        found = [name for name in self.runtimes if name == TORCH or not runtime_of(name).missing()]
        if (found, len(self.dtypes)) == ([TORCH], 1):
            return None
        folder = folder_of(self.checkpoint, self.kind)
        case = _case(found, self.dtypes, batch=batch, threads=threads, streams=streams)
        speeds = _read(folder / "speed.json", case)
        if not speeds and images is not None:
            return self._open(folder, Way(found[0], threads), threads, streams)
        if not speeds:
            speeds = self._measured(folder, found, batch, threads, streams)
            known: Mapping[str, object] = {}
            with suppress(VitConvertError):  # there is none, or it is damaged
                known = read_object(folder / "speed.json")
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**known, case: [vars(speed) for speed in speeds]}, indent=2)
            with atomic_file(folder / "speed.json") as file:
                file.write(text.encode())
        count = images or 10**9
        best = {
            dtype: min((s for s in speeds if s.dtype == dtype), key=lambda s: s.seconds(count))
            for dtype in dict.fromkeys(speed.dtype for speed in speeds)
        }
        usual, half = best["float32"], best.get("bfloat16")
        if not half:
            return self._open(folder, usual.way, threads, streams)
        gain = usual.seconds(count) / half.seconds(count)
        told = f"in bfloat16, {half.runtime} is {gain:.2g} times as fast as {usual.runtime} in"
        self.tell(f"{told} float32: computing in {'bfloat16' if gain > _WORTH else 'float32'}")
        if gain <= _WORTH:
            return self._open(folder, usual.way, threads, streams)
        run = self._open(folder, half.way, threads, streams)
        return run and self._compared(run)

    def _compared(self, run: Run) -> Run:
        """What computes, and tells of the first images how far it is from float32."""
        lock, told = threading.Lock(), False

        def compute(images: Tensor) -> Tensor:
            nonlocal told
            found = run(images)
            with lock:
                first, told = not told, True
            if first:
                theirs = self.answer(images)
                seen = Agreement.of(found, theirs, images="first", dtype="bfloat16")
                self.tell(f"on the first {len(images)} images, from float32: {seen.in_words}")
            return found

        return compute

    def _measured(
        self, folder: Path, found: list[str], batch: int, threads: int, streams: int
    ) -> list[Speed]:
        """Each candidate in turn, round after round: others may begin to compute meanwhile."""
        config = self.model.config
        images = torch.zeros(batch, *config.input_shape, dtype=torch.float32)
        ready = {
            way: candidate
            for name in found
            for dtype in self.dtypes
            if name == TORCH or dtype in runtime_of(name).dtypes
            for count in _counts(name, threads, streams)
            if (candidate := self._candidate(folder, way := Way(name, count, dtype), streams))
        }
        rates: dict[Way, list[float]] = {way: [] for way in ready}
        for _ in range(_ROUNDS):
            for way, (run, _) in ready.items():
                time.sleep(_PAUSE)
                rates[way].append(batch * calls_per_second(run, images, streams))
        return [
            Speed(**way._asdict(), opening=opening, rate=harmonic_mean(rates[way]))
            for way, (_, opening) in ready.items()
        ]

    def _candidate(self, folder: Path, way: Way, streams: int) -> tuple[Run, float] | None:
        """One of them, open, and the seconds that this took; None if it cannot compute this."""
        try:
            if way.runtime != TORCH:
                self._engine(folder, way)
            start = time.perf_counter()
            run = self._open(folder, way, 0, streams)
        except VitConvertError as error:
            if len(self.runtimes) == 1:
                raise
            self.tell(f"{way.runtime} is left out: {error.fact}")
            return None
        assert run is not None
        return run, time.perf_counter() - start

    def _open(self, folder: Path, way: Way, threads: int, streams: int) -> Run | None:
        """A candidate, ready; None if that is the model with all `threads`."""
        if way == Way(TORCH, threads):
            return None
        if way.runtime != TORCH:
            engine = self._engine(folder, way)
            return engine.ready(images=None, batch=1, threads=way.threads, streams=streams)
        answer = self.answer if way.dtype == "float32" else self._in_bfloat16()
        return _with_threads(answer, max(1, way.threads // streams))

    def _engine(self, folder: Path, way: Way) -> RuntimeEngine:
        engine = engine_of(
            self.checkpoint, way.runtime, kind=self.kind, tell=self.tell, folder=folder
        )
        return replace(engine, dtype=way.dtype)

    def _in_bfloat16(self) -> Run:
        """What torch answers with, by weights that are rounded."""
        headless = None if self.model.config.num_classes else 0
        model = build_model(self.checkpoint, num_classes=headless, dtype=torch.bfloat16, fast=True)
        answer = answer_of(packed(model), self.kind)
        return lambda images: answer(images.bfloat16()).float()


def _counts(name: str, threads: int, streams: int) -> list[int]:
    """How many threads to try: fewer too, where others compute and all work on one batch.

    torch's are not tried all then, unless they sleep while they wait: spinning, they may answer as
    quickly as ever for a while, and then ten times as slowly (see `OMP_WAIT_POLICY` in `cli`).
    """
    fewer = max(1, threads - busy()) if streams == 1 else threads
    asleep = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return [fewer] if name == TORCH and not asleep else sorted({fewer, threads})


def calls_per_second(run: Run, images: Tensor, streams: int) -> float:
    """How often a function answers while so many threads call it without a pause."""

    def call(until: float) -> int:
        count = 0
        while not count or time.perf_counter() < until:
            run(images)
            count += 1
        return count

    with torch.inference_mode(), ThreadPoolExecutor(streams) as pool:
        list(pool.map(call, [0.0] * streams))  # memory and threads that first calls want
        start = time.perf_counter()
        calls = sum(pool.map(call, [start + _SECONDS] * streams))
        return calls / (time.perf_counter() - start)


def _with_threads(answer: Run, threads: int) -> Run:
    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        with torch_threads(threads):
            return answer(images)

    return run


def packed(model: ViT) -> ViT:
    """A fast model whose weights have oneDNN's own order from the first call on."""
    for module in model.modules():
        if isinstance(module, FastLinear):
            module.packs_after = 0
    return model


def _case(
    found: list[str], dtypes: tuple[str, ...], *, batch: int, threads: int, streams: int
) -> str:
    """The words that a measurement holds for."""
    others = min(busy(), os.cpu_count() or 1)
    versions = " ".join(runtime_of(name).version for name in found if name != TORCH)
    if len(dtypes) > 1:
        versions += f"; {' '.join(found)} in {' '.join(dtypes)}"
    return (
        f"{processor()}, {os.cpu_count()} processors, {others} busy; torch {torch.__version__} "
        f"{versions}; batch {batch}, threads {threads}, streams {streams}"
    )


def _read(path: Path, case: str) -> list[Speed]:
    """The measurements that are kept; none where the file is damaged."""
    try:
        return [Speed(**speed) for speed in read_object(path).get(case, [])]
    except (VitConvertError, TypeError):
        return []


def engines(
    name: str,
    *,
    fast: bool,
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    tell: Tell | None = None,
) -> Callable[..., RuntimeEngine | Fastest]:
    """`chosen` of a name, which can be sent to other processes; before any work is done.

    Raises:
        UsageError, MissingPackage: As `engines.check_runtime`.
    """
    check_runtime(name, fast=fast, dtype=dtype, device=device)
    return partial(chosen, name=name, tell=tell or _discard, measured=dtype == AUTO)


def _discard(_: str) -> None:
    """Discards a message; a named function can be sent to other processes."""


def chosen(
    checkpoint: Checkpoint,
    model: ViT,
    *,
    name: str,
    kind: str,
    tell: Tell,
    measured: bool = False,
) -> RuntimeEngine | Fastest:
    """The engine that computes in the place of a torch model.

    Args:
        checkpoint: What is computed.
        model: A fast model: a candidate of `auto`.
        name: One of `engines.NAMES`.
        kind: One of `runtimes.graph.OUTPUTS`.
        tell: Called with what is done that takes seconds.
        measured: Whether bfloat16 is a candidate.

    Raises:
        MissingPackage, NotRepresentable, ParityFailed: As `engines.engine_of`.
    """
    if name != AUTO and not measured:
        return engine_of(checkpoint, name, kind=kind, tell=tell)
    return Fastest(
        checkpoint=checkpoint,
        model=packed(model),
        answer=answer_of(model, kind),
        kind=kind,
        tell=tell,
        runtimes=(TORCH, *FORMATS) if name == AUTO else (name,),
        dtypes=("float32", "bfloat16") if measured else ("float32",),
    )


def answer_of(model: ViT, kind: str) -> Run:
    """What of a model gives an output."""
    answer: Run = model.forward_features if kind == "tokens" else model
    return answer
