"""How far lower precision, faster arithmetic and other runtimes take a model from float64.

Nothing outside is needed: float64 of vitconvert's own model is the reference, on the same images.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.comparison import largest
from vitconvert.errors import UsageError
from vitconvert.model import ViT
from vitconvert.parity.audit_report import AuditReport, LayerAudit, OutputAudit
from vitconvert.parity.implementations import of_vit
from vitconvert.parity.peaks import Peak, peaks_of, unfit
from vitconvert.preprocessing.sample_images import sampled_images
from vitconvert.programs.isolation import isolated, silent
from vitconvert.programs.taps import OUTPUT
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.graph import Graph, Shape, traced
from vitconvert.runtimes.runtime import Run

Batches = Sequence[tuple[str, Tensor]]  # kind of images, (B, C, H, W) in float64

# A model of ours that computes with the checkpoint's weights in this dtype; whether a fast one.
_LAYERED = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
    "fast": (torch.float32, True),
}
# Bytes of the largest activation: a fast model computes more in parts, and hooks see the last one.
_AT_ONCE = 16 * 2**20


def audit_checkpoint(
    checkpoint: Checkpoint, *, seed: int = 0, batch: int = 8, without: Sequence[str] = ()
) -> AuditReport:
    """Measure each arithmetic on noise and photographs, layer by layer where it shows its layers.

    Two models are in memory at a time: the one in float64 and one other.

    Args:
        checkpoint: What is computed.
        seed, batch, without: As for `vitconvert.audit`.

    Raises:
        UsageError: `batch` is below 1, or there is no such arithmetic.
    """
    _check(batch, without)
    with isolated():
        images = _batches(checkpoint, seed=seed, batch=batch)
        audit = _Audit(checkpoint, images, skipped=dict.fromkeys(without, "not asked for"))
        audit.measure_layers()
        for name in _OPAQUE:
            if name not in audit.skipped:
                audit.measure_outputs(name)
        return audit.report(batch)


def _check(batch: int, without: Sequence[str]) -> None:
    if batch < 1:
        raise UsageError(f"batch must be at least 1, not {batch}.")
    if unknown := sorted(set(without) - set(ARITHMETICS)):
        raise UsageError(
            f"There is no arithmetic {unknown[0]!r} to leave out.",
            evidence={"arithmetics": ", ".join(ARITHMETICS)},
        )
    if "float32" in without:
        raise UsageError("float32 is what the others are seen against; it cannot be left out.")


@dataclass
class _Audit:
    """What is measured so far.

    Attributes:
        checkpoint: What is computed.
        images: Of which.
        skipped: Arithmetics that are not measured, and why.
        tallies: Those that are.
        exact: float64's outputs, for each batch.
        peak: The largest value in float64.
    """

    checkpoint: Checkpoint
    images: Batches
    skipped: dict[str, str]
    tallies: "dict[str, _Tally]" = field(default_factory=dict)
    exact: list[Tensor] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)

    def measure_layers(self) -> None:
        """Run float64 and each arithmetic of our own model."""
        model = build_model(self.checkpoint, dtype=torch.float64)
        for kind, x in self.images:
            with self.peak.watching(model):
                theirs = _layers(model, x)
            self.exact.append(theirs[OUTPUT])
            for name in _LAYERED:
                if name in self.skipped:
                    continue
                try:
                    ours = _in_arithmetic(self.checkpoint, name, x)
                except RuntimeError as error:  # "not implemented for 'Half'"
                    if name == "float32":
                        raise
                    self.skipped[name] = _reason(error)
                    self.tallies.pop(name, None)
                    continue
                tally = self.tallies.setdefault(name, _Tally(head=model.config.num_classes > 0))
                tally.add(kind, ours, theirs)

    def measure_outputs(self, name: str) -> None:
        """Measure an arithmetic that shows no layers, or say why it cannot be measured."""
        if missing := RUNTIMES["onnx"].missing() if name == "onnxruntime" else []:
            self.skipped[name] = f"not installed: {', '.join(missing)}"
            return
        model = build_model(self.checkpoint, dtype=torch.float32)
        tally = _Tally(head=model.config.num_classes > 0)
        with tempfile.TemporaryDirectory() as folder, silent("torch"), silent("onnxscript"):
            try:
                run = _OPAQUE[name](model, self.images[0][1].float(), Path(folder))
                for (kind, x), theirs in zip(self.images, self.exact, strict=True):
                    tally.add(kind, {OUTPUT: run(x.float())}, {OUTPUT: theirs})
            except Exception as error:  # compilers and exporters raise anything
                self.skipped[name] = _reason(error)
                return
        self.tallies[name] = tally

    def report(self, batch: int) -> AuditReport:
        """All of it, in the order of `ARITHMETICS`."""
        tallies = {name: self.tallies[name] for name in ARITHMETICS if name in self.tallies}
        return AuditReport(
            source=self.checkpoint.located.reference,
            images=batch,
            outputs=tuple(o for name, tally in tallies.items() for o in tally.outputs(name)),
            layers=tuple(layer for name, tally in tallies.items() for layer in tally.layers(name)),
            limits={name: torch.finfo(_dtype(name)).max for name in tallies},
            peak=self.peak.value,
            peak_module=self.peak.module,
            unfit=_unfit(self.checkpoint, tallies),
            skipped={name: self.skipped[name] for name in ARITHMETICS if name in self.skipped},
        )


def _in_arithmetic(checkpoint: Checkpoint, name: str, images: Tensor) -> Mapping[str, Tensor]:
    dtype, fast = _LAYERED[name]
    return _layers(build_model(checkpoint, dtype=dtype, fast=fast), images.to(dtype))


def _layers(model: ViT, images: Tensor) -> Mapping[str, Tensor]:
    return of_vit(model, name="vitconvert").prepare(images.dtype)(images).layers


def _compiled(model: ViT, _: Tensor, __: Path) -> Run:
    """torch's own compiler; in one piece, so that nothing is left uncompiled in silence."""
    compiled: Run = torch.compile(model, fullgraph=True, dynamic=False)
    return compiled


def _onnxruntime(model: ViT, images: Tensor, folder: Path) -> Run:
    """The model as torch exports it, on ONNX Runtime's CPU provider in one thread."""
    path = folder / "model.onnx"
    program = traced(Graph(model, Shape(batch=len(images))))
    RUNTIMES["onnx"].write(program, path, metadata={})
    return RUNTIMES["onnx"].open(path, threads=1)


# What shows a model's outputs, and none of its layers; it is given images like those to come, and
# an empty folder.
_OPAQUE: dict[str, Callable[[ViT, Tensor, Path], Run]] = {
    "compiled": _compiled,
    "onnxruntime": _onnxruntime,
}
ARITHMETICS = (*_LAYERED, *_OPAQUE)


def _dtype(name: str) -> torch.dtype:
    return _LAYERED[name][0] if name in _LAYERED else torch.float32


def _reason(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0].strip()
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _unfit(checkpoint: Checkpoint, measured: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The weights that are finite, but not in an arithmetic's dtype."""
    peaks = peaks_of(checkpoint.tensors)
    found = {name: unfit(peaks, _dtype(name)) for name in measured}
    return {arithmetic: names for arithmetic, names in found.items() if names}


@dataclass
class _Gap:
    """How far one tensor is from float64, over several batches."""

    absolute: float = 0.0
    scale: float = 0.0
    infinite: int = 0
    nan: int = 0
    flips: int = 0
    rows: int = 0

    def add(self, ours: Tensor, theirs: Tensor) -> None:
        if ours.ndim == 3:  # A fast model's last block computes only the tokens that are read.
            theirs = theirs[:, : ours.shape[1]]
        ours = ours.double()
        self.absolute = max(self.absolute, largest(ours - theirs))
        self.scale = max(self.scale, largest(theirs))
        self.infinite += int(ours.isinf().sum())
        self.nan += int(ours.isnan().sum())
        flipped = (ours.argmax(-1) != theirs.argmax(-1)) | ~ours.isfinite().all(-1)
        self.flips += int(flipped.sum())
        self.rows += flipped.numel()

    @property
    def relative(self) -> float:
        if self.absolute == 0:
            return 0.0
        return self.absolute / self.scale if 0 < self.scale < math.inf else math.inf


@dataclass
class _Tally:
    """What is known of one arithmetic so far."""

    head: bool
    by_kind: dict[str, _Gap] = field(default_factory=dict)
    by_layer: dict[str, _Gap] = field(default_factory=dict)

    def add(self, kind: str, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
        """Compare what passed the taps for one batch; both are in the order of computation."""
        self.by_kind.setdefault(kind, _Gap()).add(ours[OUTPUT], theirs[OUTPUT])
        for layer, exact in theirs.items():
            if layer in ours:
                self.by_layer.setdefault(layer, _Gap()).add(ours[layer], exact)

    def outputs(self, name: str) -> Iterator[OutputAudit]:
        for kind, gap in self.by_kind.items():
            yield OutputAudit(
                arithmetic=name,
                images=kind,
                absolute=gap.absolute,
                relative=gap.relative,
                flips=gap.flips if self.head else None,
                rows=gap.rows,
            )

    def layers(self, name: str) -> Iterator[LayerAudit]:
        for layer, gap in self.by_layer.items():
            yield LayerAudit(
                arithmetic=name,
                layer=layer,
                relative=gap.relative,
                largest=gap.scale,
                infinite=gap.infinite,
                nan=gap.nan,
            )


def _batches(checkpoint: Checkpoint, *, seed: int, batch: int) -> Batches:
    """Images of each kind, as many at a time as an activation may be large."""
    config = checkpoint.config
    widest = max(config.mlp_dim, 3 * config.num_heads * config.head_dim)
    one = 4 * widest * (config.num_patches + config.num_prefix_tokens)
    # Parts of one size: a compiler would start again for another.
    at_once = next(
        n for n in range(batch, 0, -1) if batch % n == 0 and (n == 1 or n * one <= _AT_ONCE)
    )
    images = sampled_images(
        config.image_size, config.in_channels, checkpoint.preprocessing, seed=seed, batch=batch
    )
    return [(kind, part) for kind, x in images.items() for part in torch.split(x, at_once)]
