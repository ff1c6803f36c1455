"""Images computed by another runtime: a file exported once, checked, and kept in the cache.

    CACHE/runtimes/HASH/onnxruntime-1.32.0-torch-2.15.0-0.1.0.onnx    versions that made and run it
    CACHE/runtimes/HASH/speed.json                                    what `fastest` measured

HASH is of the weights, the configuration and the output; the preprocessing is no part of the file.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import UsageError, nearest
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.export import export_checkpoint
from vitconvert.runtimes.options import ExportOptions
from vitconvert.runtimes.runtime import Run, Runtime
from vitconvert.sources.web import default_cache
from vitconvert.version import VERSION

TORCH, AUTO = "torch", "auto"
FORMATS = {"onnxruntime": "onnx", "openvino": "openvino"}
NAMES = (TORCH, *FORMATS, AUTO)
Tell = Callable[[str], None]


def check_runtime(
    name: str, *, fast: bool, dtype: torch.dtype | str | None, device: torch.device | str
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
            hint=f"did you mean {near[0]}?"
            if near
            else "an exported file is given as the model: `vitconvert predict vit.onnx photos/`.",
        )
    elsewhere = not fast or str(device).split(":")[0] != "cpu"
    if dtype == AUTO and elsewhere:
        raise UsageError(
            "--dtype auto measures fast arithmetic on the CPU.",
            hint="leave out --no-fast and --device, or name a dtype.",
        )
    if name == TORCH:
        return
    if elsewhere or dtype not in (None, torch.float32, AUTO):
        raise UsageError(
            f"--runtime {name} computes in float32 on the CPU, equal to torch within rounding.",
            hint="leave out --no-fast, --dtype and --device, or --runtime.",
        )
    if name != AUTO:
        runtime_of(name).require()


@dataclass(frozen=True, kw_only=True)
class RuntimeEngine:
    """One runtime, and the file that it computes.

    Attributes:
        name: "onnxruntime" or "openvino".
        path: The file in the cache.
        dtype: What it computes in.
    """

    name: str
    path: Path
    dtype: str = "float32"

    def ready(self, *, images: int | None, batch: int, threads: int, streams: int) -> Run:
        """The runtime with the file open; as `inference.batches.Engine`."""
        how = {"threads": threads, "streams": streams}
        return runtime_of(self.name).open(self.path, dtype=self.dtype, **how)


def engine_of(
    checkpoint: Checkpoint, name: str, *, kind: str, tell: Tell, folder: Path | None = None
) -> RuntimeEngine:
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

    runtime = runtime_of(name)
    folder = folder or folder_of(checkpoint, kind)
    versions = f"{version(runtime.packages[0])}-torch-{torch.__version__}-{VERSION}"
    path = folder / f"{name}-{versions}{runtime.suffix}"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / "lock"):  # of several processes, one makes the file
            if not path.is_file():
                tell(f"the model is exported once for {runtime.version}, and kept in {folder}")
                export_checkpoint(checkpoint, path, ExportOptions(to=FORMATS[name], output=kind))
    return RuntimeEngine(name=name, path=path)


def folder_of(checkpoint: Checkpoint, kind: str) -> Path:
    """Where the files of a checkpoint are kept, by what decides what they compute."""
    digest = hashlib.sha256()
    stated = {"config": checkpoint.config.function(), "kind": kind}
    digest.update(json.dumps(stated, sort_keys=True, default=str).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return default_cache() / "runtimes" / digest.hexdigest()


def runtime_of(name: str) -> Runtime:
    """The runtime of a key of FORMATS."""
    return RUNTIMES[FORMATS[name]]
