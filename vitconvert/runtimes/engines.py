"""Images computed by another runtime: a file exported once, checked, and kept in the cache.

    CACHE/runtimes/HASH/onnxruntime-1.32.0-torch-2.15.0-0.1.0.onnx    versions that made and run it
    CACHE/runtimes/HASH/speed.json                                    what was measured, for `auto`

HASH is of the weights, the configuration and the output; the preprocessing is no part of the file.
`auto` takes what is installed and was faster here. Speeds depend on the model, the machine, the
threads, the batch and on other load, so each such case is measured once: half a second for each
runtime, and with fewer threads too where others keep processors busy, because the threads of one
runtime wait for one another then.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import harmonic_mean

import torch
from torch import Tensor

from vitconvert.checkpoint import Checkpoint
from vitconvert.documents import read_object
from vitconvert.errors import UsageError, VitConvertError, nearest
from vitconvert.machine import busy, processor
from vitconvert.model import ViT
from vitconvert.model.fast import FastLinear
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.export import export_checkpoint
from vitconvert.runtimes.options import ExportOptions
from vitconvert.runtimes.runtime import Run, Runtime
from vitconvert.sources.web import default_cache
from vitconvert.version import VERSION
from vitconvert.whole import whole_file

TORCH, AUTO = "torch", "auto"
FORMATS = {"onnxruntime": "onnx", "openvino": "openvino"}
NAMES = (TORCH, *FORMATS, AUTO)
Tell = Callable[[str], None]


def check_runtime(
    name: str, *, fast: bool, dtype: torch.dtype | None, device: torch.device | str
) -> None:
    """Refuse, before any work is done, what another runtime does not compute.

    Raises:
        UsageError: There is no such runtime, or it is asked for what torch alone does.
        MissingPackage: It is not installed.
    """
    if name not in NAMES:
        near = nearest(name, NAMES)
        raise UsageError(
            f"There is no runtime {name!r}.",
            evidence={"runtimes": ", ".join(NAMES)},
            hint=f"did you mean {near[0]}?" if near else None,
        )
    if name == TORCH:
        return
    if not fast or dtype not in (None, torch.float32) or str(device).split(":")[0] != "cpu":
        raise UsageError(
            f"--runtime {name} computes in float32 on the CPU, equal to torch within rounding.",
            hint="leave out --no-fast, --dtype and --device, or --runtime.",
        )
    if name != AUTO:
        _runtime(name).require()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One runtime, and the file that it computes.

    Attributes:
        name: "onnxruntime" or "openvino".
        path: The file in the cache.
    """

    name: str
    path: Path

    def ready(self, *, images: int | None, batch: int, threads: int, streams: int) -> Run:
        """The runtime with the file open; as `inference.batches.Engine`."""
        return _runtime(self.name).open(self.path, threads=threads, streams=streams)


def engine_of(
    checkpoint: Checkpoint, name: str, *, kind: str, tell: Tell, folder: Path | None = None
) -> Engine:
    """A runtime's file for a checkpoint, from the cache or exported now.

    Args:
        checkpoint: What it computes.
        name: A key of FORMATS.
        kind: One of `runtimes.graph.OUTPUTS`.
        tell: Called with a sentence before a file is made, which takes seconds.
        folder: Where it is kept; by default, in the cache.

    Raises:
        MissingPackage: The runtime is not installed.
        NotRepresentable, ParityFailed: It cannot compute this model.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    runtime = _runtime(name)
    folder = folder or folder_of(checkpoint, kind)
    versions = f"{version(runtime.packages[0])}-torch-{torch.__version__}-{VERSION}"
    path = folder / f"{name}-{versions}{runtime.suffix}"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / "lock"):  # of several processes, one makes the file
            if not path.is_file():
                tell(f"the model is exported once for {runtime.version}, and kept in {folder}")
                export_checkpoint(checkpoint, path, ExportOptions(to=FORMATS[name], output=kind))
    return Engine(name=name, path=path)


def folder_of(checkpoint: Checkpoint, kind: str) -> Path:
    """Where the files of a checkpoint are kept, by what decides what they compute."""
    digest = hashlib.sha256()
    stated = {"config": checkpoint.config.function(), "kind": kind}
    digest.update(json.dumps(stated, sort_keys=True, default=str).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return default_cache() / "runtimes" / digest.hexdigest()


def _runtime(name: str) -> Runtime:
    return RUNTIMES[FORMATS[name]]


_ROUNDS, _SECONDS = 5, 0.1  # in each of which each candidate computes, or once
_PAUSE = 0.02  # seconds, in which threads of the candidate before stop spinning


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The measurement of one candidate.

    Attributes:
        runtime: "torch", or a key of `engines.FORMATS`.
        threads: Of all streams together.
        opening: Seconds until it is ready.
        rate: Images per second.
    """

    runtime: str
    threads: int
    opening: float
    rate: float

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
        tell: Called with what is done that takes seconds.
    """

    checkpoint: Checkpoint
    model: ViT
    answer: Run
    kind: str
    tell: Tell

    def ready(self, *, images: int | None, batch: int, threads: int, streams: int) -> Run | None:
        """The fastest candidate, open; None if that is torch with all threads.

        For a single batch nothing is exported or measured: that takes longer than the batch.
        """
        if not (found := [name for name in FORMATS if not _runtime(name).missing()]):
            return None
        folder = folder_of(self.checkpoint, self.kind)
        case = _case(found, batch=batch, threads=threads, streams=streams)
        speeds = _read(folder / "speed.json", case)
        if not speeds and images is not None:
            return None
        if not speeds:
            speeds = self._measured(folder, found, batch, threads, streams)
            known: Mapping[str, object] = {}
            with suppress(VitConvertError):  # there is none, or it is damaged
                known = read_object(folder / "speed.json")
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**known, case: [vars(speed) for speed in speeds]}, indent=2)
            with whole_file(folder / "speed.json") as file:
                file.write(text.encode())
        best = min(speeds, key=lambda speed: speed.seconds(images or 10**9))
        if (best.runtime, best.threads) == (TORCH, threads):
            return None
        return self._open(folder, best.runtime, best.threads, streams)

    def _measured(
        self, folder: Path, found: list[str], batch: int, threads: int, streams: int
    ) -> list[Speed]:
        """Each candidate in turn, round after round: others may begin to compute meanwhile."""
        config = self.model.config
        images = torch.zeros(batch, config.in_channels, *config.image_size)
        ready = {
            (name, count): candidate
            for name in (TORCH, *found)
            for count in _counts(name, threads, streams)
            if (candidate := self._candidate(folder, name, count, streams))
        }
        rates: dict[tuple[str, int], list[float]] = {case: [] for case in ready}
        for _ in range(_ROUNDS):
            for case, (run, _) in ready.items():
                time.sleep(_PAUSE)
                rates[case].append(batch * calls_per_second(run, images, streams))
        return [
            Speed(
                runtime=name, threads=count, opening=opening, rate=harmonic_mean(rates[name, count])
            )
            for (name, count), (_, opening) in ready.items()
        ]

    def _candidate(
        self, folder: Path, name: str, threads: int, streams: int
    ) -> tuple[Run, float] | None:
        """One of them, open, and the seconds that this took; None if it cannot compute this."""
        try:
            if name != TORCH:
                engine_of(self.checkpoint, name, kind=self.kind, tell=self.tell, folder=folder)
            start = time.perf_counter()
            run = self._open(folder, name, threads, streams)
        except VitConvertError as error:
            self.tell(f"{name} is left out: {error.fact}")
            return None
        return run, time.perf_counter() - start

    def _open(self, folder: Path, name: str, threads: int, streams: int) -> Run:
        if name == TORCH:
            return _with_threads(self.answer, max(1, threads // streams))
        engine = engine_of(self.checkpoint, name, kind=self.kind, tell=self.tell, folder=folder)
        return engine.ready(images=None, batch=1, threads=threads, streams=streams)


def _counts(name: str, threads: int, streams: int) -> list[int]:
    """How many threads to try: fewer too, where others compute and all work on one batch.

    torch's are not tried all then, unless they sleep while they wait: spinning, they may answer as
    quickly as ever for a while, and then ten times as slowly (see `cli._wait_asleep`).
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
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return answer(images)
        finally:
            torch.set_num_threads(before)

    return run


def packed(model: ViT) -> ViT:
    """A fast model whose weights have oneDNN's own order from the first call on."""
    for module in model.modules():
        if isinstance(module, FastLinear):
            module.packs_after = 0
    return model


def _case(found: list[str], *, batch: int, threads: int, streams: int) -> str:
    """The words that a measurement holds for."""
    others = min(busy(), os.cpu_count() or 1)
    versions = " ".join(_runtime(name).version for name in found)
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
    dtype: torch.dtype | None,
    device: torch.device | str,
    tell: Tell | None = None,
) -> Callable[..., Engine | Fastest]:
    """`chosen` of a name, which can be sent to other processes; before any work is done.

    Raises:
        UsageError, MissingPackage: As `engines.check_runtime`.
    """
    check_runtime(name, fast=fast, dtype=dtype, device=device)
    return partial(chosen, name=name, tell=tell or _discard)


def _discard(_: str) -> None:
    """Discards a message; a named function can be sent to other processes."""


def chosen(
    checkpoint: Checkpoint, model: ViT, *, name: str, kind: str, tell: Tell
) -> Engine | Fastest:
    """The engine that computes in the place of a torch model.

    Args:
        checkpoint: What is computed.
        model: A fast model: a candidate of `auto`.
        name: One of `engines.NAMES`, but for "torch".
        kind: One of `runtimes.graph.OUTPUTS`.
        tell: Called with what is done that takes seconds.

    Raises:
        MissingPackage, NotRepresentable, ParityFailed: As `engines.engine_of`.
    """
    if name != AUTO:
        return engine_of(checkpoint, name, kind=kind, tell=tell)
    answer: Run = model.forward_features if kind == "tokens" else model
    return Fastest(checkpoint=checkpoint, model=packed(model), answer=answer, kind=kind, tell=tell)
