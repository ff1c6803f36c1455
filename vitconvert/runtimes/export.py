"""A checkpoint as a file for another runtime, checked in that runtime before it appears."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitconvert.atomic_write import atomic_files, require_file, require_replaceable
from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.checkpoint import unchanged
from vitconvert.checkpoint.images import needed_preprocessing
from vitconvert.comparison import TOLERANCE, Comparison
from vitconvert.config import ViTConfig
from vitconvert.conversion.record import source_hashes
from vitconvert.errors import (
    ParityFailed,
    UsageError,
    VitConvertError,
    some,
    what_was_raised,
    without_secrets,
)
from vitconvert.formats import hash_file
from vitconvert.model import ViT
from vitconvert.parity.precision import LargestValue, too_large
from vitconvert.programs.isolation import isolated, silent
from vitconvert.runtimes.check import (
    Agreement,
    Expected,
    agreement,
    as_measured,
    compare_at_size,
    compare_exported,
    golden_of,
    other_sizes_to_check,
    worst,
)
from vitconvert.runtimes.check_onnx import GOLDEN
from vitconvert.runtimes.float16 import HalfGraph, InFloat32, kept_in_float32
from vitconvert.runtimes.graph import Graph, Shape, traced
from vitconvert.runtimes.images import Calibration, Picture
from vitconvert.runtimes.onnx import quantise, restate
from vitconvert.runtimes.options import ExportOptions
from vitconvert.runtimes.runtime import Run
from vitconvert.version import VERSION

RECORD = "vitconvert"  # the name of our record in a file's metadata


def check_export(path: Path, wanted: ExportOptions, *, overwrite: bool) -> None:
    """Make sure, before any work is done, that the packages are there and the file may be written.

    Raises:
        MissingPackage: The runtime is not installed.
        UsageError: The name is no such file's, or no file can be there.
        OutputExists: Something is there, and `overwrite` is false or vitconvert did not write it.
    """
    runtime = wanted.runtime
    if path.suffix != runtime.suffix:
        raise UsageError(
            f"The name of {wanted.to} files ends with {runtime.suffix}.",
            evidence={"output": path},
            hint=f"-o {path.with_suffix(runtime.suffix).name} is such a name.",
        )
    require_file(path)
    runtime.require(calibrating=wanted.calibrated)
    if wanted.opset is not None:
        runtime.check_opset(wanted.opset)

    def is_ours(path: Path) -> bool:
        try:
            return RECORD in runtime.metadata(path)
        except Exception:  # parsers of foreign files raise anything
            return False

    for file in (path, *runtime.companions(path)):
        require_replaceable(path, is_ours, overwrite=overwrite, lies_at=file)


_WORKERS = ("torch", "onnxscript", "onnx_ir", "root")  # what logs while a file is made
# Of the largest output. float16 has eleven bits; a model of forty blocks loses four of them.
# Eight bits are what was asked for, and the report says how far they are: only nonsense is refused.
_LIMITS = {"float32": TOLERANCE, "float16": 0.01, "int8": 1.0}


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported:
    """The files of an export, and how far they differ from vitconvert's own model.

    Attributes:
        output: The file.
        sha256: Of each file that was written, by name.
        runtime: Name and version of the program that computed it.
        record: What its metadata say of it.
        config: The model's configuration, with the source of each field.
        comparisons: In the runtime, one for each kind of images and batch size; empty if it was
            not verified.
        photographs: The same on the user's images, or None.
        held_out: The same on images of a calibration by which nothing was rounded, or None.
        notes: What was taken of the checkpoint, overflows or was left out, in sentences.
        remaining: Of an ONNX graph, what engines may get wrong or compute for each batch, and why.
    """

    output: Path
    sha256: Mapping[str, str]
    runtime: str
    record: Mapping[str, Any]
    config: ViTConfig
    comparisons: tuple[Comparison, ...]
    photographs: Agreement | None
    held_out: Agreement | None
    notes: tuple[str, ...]
    remaining: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = f"{worst(self.comparisons).relative:.1e}" if self.comparisons else "not verified"
        return f"<Exported {str(self.output)!r} for {self.runtime}: {found}>"

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "output": str(self.output),
            "sha256": dict(self.sha256),
            "runtime": self.runtime,
            "record": dict(self.record),
            "comparisons": [dict(vars(comparison)) for comparison in self.comparisons],
            "photographs": self.photographs and dict(vars(self.photographs)),
            "held_out": self.held_out and dict(vars(self.held_out)),
            "notes": list(self.notes),
            "remaining": list(self.remaining),
        }


def export_checkpoint(
    checkpoint: Checkpoint,
    path: Path,
    wanted: ExportOptions,
    *,
    images: "Iterable[Picture] | None" = None,
    calibrate: "Iterable[Picture]" = (),
    max_pixels: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
) -> Exported:
    """Write a file for another runtime; see `vitconvert.export_model`."""
    shape, sha256_in = wanted.shape(checkpoint), source_hashes(checkpoint)
    if images is not None or wanted.calibrated:
        checkpoint.config.require_images("An export that is checked or calibrated with images")
    if images is not None:
        needed_preprocessing(checkpoint)
    calibration = None
    if wanted.calibrated:
        calibration = Calibration.of(
            calibrate, needed_preprocessing(checkpoint), shape, max_pixels=max_pixels
        )
    trial = _Trial(
        checkpoint=checkpoint,
        wanted=wanted,
        shape=shape,
        calibration=calibration,
        max_pixels=max_pixels,
    )
    check = partial(check_export, wanted=wanted, overwrite=overwrite)
    with atomic_files(path, check) as draft, unchanged(checkpoint.opened), quiet():
        kept = _kept(trial, verify=verify) if wanted.dtype == "float16" else None
        record = _record(trial, sha256_in.result(), verify=verify, command=command, kept=kept)
        metadata = metadata_of(record)
        if wanted.to == "onnx":
            dtype = wanted.computed_in
            metadata[GOLDEN] = golden_of(_expected(trial), dtype=dtype, tolerance=_LIMITS[dtype])
        if wanted.int8:
            with tempfile.TemporaryDirectory() as folder:
                whole = Path(folder) / draft.name
                write_graph(checkpoint, whole, wanted, shape, metadata)
                if verify:  # what is wrong in float32 is no matter of 8 bits
                    _verified(trial, whole, "float32", None)
                if calibration:
                    head = shape.output == "logits"
                    wanted.runtime.calibrate(whole, draft, calibration.batches(), head=head)
                else:
                    quantise(whole, draft)
        else:
            write_graph(checkpoint, draft, wanted, shape, metadata, kept)
        found = _verified(trial, draft, wanted.computed_in, images) if verify else _Verified()
        if wanted.int8 and verify and GOLDEN in metadata:
            restate(draft, GOLDEN, as_measured(metadata[GOLDEN], draft))
        remaining = wanted.runtime.remaining(draft)
        sha256 = {file.name: hash_file(file) for file in sorted(draft.parent.iterdir())}
    return Exported(
        output=path,
        sha256=sha256,
        runtime=wanted.runtime.version,
        record=record,
        config=checkpoint.config,
        comparisons=found.comparisons,
        photographs=found.photographs,
        held_out=found.held_out,
        notes=(
            *checkpoint.ledger.notes,
            *checkpoint.ledger.changed,
            *(_size_notes(checkpoint) if wanted.dynamic_size else ()),
            *_unreadable(found.unreadable),
            *((*kept.notes(), *_overflows(trial)) if kept else ()),
        ),
        remaining=remaining,
    )


def _unreadable(images: Sequence[str]) -> Iterator[str]:
    if images:
        count = f"{len(images)} image{'s' * (len(images) != 1)} could not be read"
        yield f"{count}: {images[0]}"


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, nothing random, and no words of the exporters."""
    with ExitStack() as stack:
        stack.enter_context(isolated())
        for logger in _WORKERS:
            stack.enter_context(silent(logger))
        yield


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """The checkpoint that is exported, and how."""

    checkpoint: Checkpoint
    wanted: ExportOptions
    shape: Shape
    calibration: Calibration | None
    max_pixels: int | None


@dataclass(frozen=True, kw_only=True)
class _Verified:
    """The comparisons of a file; empty where there were none."""

    comparisons: tuple[Comparison, ...] = ()
    photographs: Agreement | None = None
    held_out: Agreement | None = None
    unreadable: tuple[str, ...] = ()


def write_graph(
    checkpoint: Checkpoint,
    path: Path,
    wanted: ExportOptions,
    shape: Shape,
    metadata: Mapping[str, str],
    kept: InFloat32 | None = None,
) -> None:
    """Write a checkpoint's graph, in float16 but for what is `kept`, or in float32.

    It is that of a fast model, whose last block computes no more tokens than the head reads.
    """
    model = _built(checkpoint, shape, fast=True)
    stops = wanted.runtime.stops_at_shapes
    graph = HalfGraph(model, shape, kept, stops=stops) if kept else Graph(model, shape, stops=stops)
    wanted.runtime.write(traced(graph), path, metadata, wanted.opset)


def _built(checkpoint: Checkpoint, shape: Shape, *, fast: bool = False) -> ViT:
    # Without its head, a fast model computes nothing but the features.
    num_classes = 0 if shape.output == "features" else None
    return build_model(
        checkpoint,
        num_classes=num_classes,
        dynamic_size=shape.dynamic_size,
        dtype=torch.float32,
        fast=fast,
    )


def _kept(trial: _Trial, *, verify: bool) -> InFloat32:
    """What a file in float16 keeps in float32.

    Raises:
        ParityFailed: That is not enough.
    """
    tolerance = _LIMITS["float16"]
    build = partial(_built, trial.checkpoint, trial.shape)
    kept = kept_in_float32(build, trial.shape, tolerance=tolerance)
    if verify and not kept.difference <= tolerance:
        raise ParityFailed(
            "float16 is too coarse for this model, even with softmax, norms and the residual sum "
            "in float32, so nothing is written.",
            evidence={
                "difference": f"{kept.difference:.1e} of the largest output",
                "allowed": f"{tolerance:.0e} in float16",
                "numbers": "; ".join(_overflows(trial)),
            },
            hint="--dtype float32.",
        )
    return kept


def _expected(trial: _Trial) -> Expected:
    """vitconvert's own model in float32."""
    return Expected(build_model(trial.checkpoint, dtype=torch.float32), trial.shape)


def _verified(
    trial: _Trial, path: Path, dtype: str, images: "Iterable[Picture] | None"
) -> _Verified:
    """Compare a file in its runtime with vitconvert's own model in float32."""
    expected = _expected(trial)
    prepared = trial.checkpoint.preprocessing
    tolerance = _LIMITS[dtype]
    runtime = trial.wanted.runtime
    try:
        run = runtime.open(path, threads=1)
        comparisons = compare_exported(run, expected, prepared, tolerance=tolerance, dtype=dtype)
        if trial.shape.dynamic_size:
            comparisons += tuple(_at_other_sizes(trial, run, tolerance=tolerance, dtype=dtype))
    except VitConvertError:
        raise
    except Exception as error:  # a runtime raises anything
        raise ParityFailed(
            f"{runtime.version} cannot run the file, so nothing is written.",
            evidence={"raised": what_was_raised(error)},
        ) from error
    _require(comparisons, trial)
    agree = partial(
        agreement, run, expected, dtype=dtype, tolerance=tolerance, max_pixels=trial.max_pixels
    )
    seen, kept, unreadable = None, None, list[str]()
    if images is not None and prepared is not None:
        seen, unreadable = agree(prepared, images)
    if trial.calibration and dtype == "int8":
        of = trial.calibration
        kept, _ = agree(of.preprocessing, of.held_out, called="held out")
        unreadable += of.unreadable
    _require([found for found in (seen, kept) if found], trial)
    return _Verified(
        comparisons=comparisons, photographs=seen, held_out=kept, unreadable=tuple(unreadable)
    )


def _at_other_sizes(
    trial: _Trial, run: Run, *, tolerance: float, dtype: str
) -> Iterator[Comparison]:
    """Compare a file of free image size with a model that is built for each size."""
    checkpoint = trial.checkpoint
    cuts = left_over(checkpoint) == "left out"
    for number, sized in enumerate(other_sizes_to_check(checkpoint.config)):
        model = build_model(checkpoint, image_size=sized.image_size, dtype=torch.float32)
        rest = (number, sized.patch_size[1] // 2) if cuts and number else (0, 0)
        yield from compare_at_size(
            run,
            Expected(model, trial.shape),
            checkpoint.preprocessing,
            rest=rest,
            tolerance=tolerance,
            dtype=dtype,
        )


def left_over(checkpoint: Checkpoint) -> str:
    """What becomes of pixels that are no whole patch: "left out" or "refused"."""
    cut = checkpoint.table.program == "transformers" or checkpoint.config.patch_stride
    return "left out" if cut else "refused"


def _size_notes(checkpoint: Checkpoint) -> Iterator[str]:
    """By which rule a model of free image size fits its positions, and where that comes from."""
    config, assumed = checkpoint.config, "assumed: vitconvert's default"
    if config.learned_positions or config.own_grid:
        origin = config.origins.get("position_resampling", assumed)
        yield f"positions at other sizes: {config.position_resampling} ({origin})"
    if config.block_relative_positions or config.shared_relative_positions:
        origin = config.origins.get("relative_resampling", assumed)
        yield f"relative positions at other sizes: {config.relative_resampling} ({origin})"
    yield f"pixels beyond the last whole patch: {left_over(checkpoint)}"


def _require(comparisons: Sequence[Comparison], trial: _Trial) -> None:
    if failed := [comparison for comparison in comparisons if not comparison.ok]:
        most = worst(failed)
        half = most.dtype == "float16"
        raise ParityFailed(
            f"{trial.wanted.runtime.version} computes something else than vitconvert, so nothing "
            "is written.",
            evidence={
                "images": most.images,
                "difference": f"{most.relative:.1e} of the largest output",
                "allowed": f"{most.tolerance:.0e} in {most.dtype}",
                **({"numbers": "; ".join(_overflows(trial))} if half else {}),
            },
            hint="float16 is too small or too coarse for this model: --dtype float32."
            if half
            else "another version of the runtime or of torch may be right; --no-verify writes the "
            "file as it is.",
        )


def _overflows(trial: _Trial) -> Iterator[str]:
    """The weights and activations that float16 cannot hold, and how near the rest is."""
    limit = torch.finfo(torch.float16).max
    lost = too_large(trial.checkpoint.tensors, torch.float16)
    if lost:
        yield f"weights beyond {limit:.0f}: {some(lost)}"
    expected = _expected(trial)
    most = LargestValue()
    with isolated(), most.watching(expected.model):
        for images in expected.images(trial.checkpoint.preprocessing, batch=1).values():
            expected(images)
    beyond = "beyond" if most.value > limit else "within"
    yield f"largest activation {most.value:.3g}, in {most.module}: {beyond} float16's {limit:.0f}"


def _record(
    trial: _Trial,
    sha256: Mapping[str, str],
    *,
    verify: bool,
    command: str | None,
    kept: InFloat32 | None,
) -> dict[str, Any]:
    """What a file says of itself, as `vitconvert.json` says it of a directory.

    It is written before the check, which is of these very bytes; a file that fails is not kept.
    """
    checkpoint, wanted, shape = trial.checkpoint, trial.wanted, trial.shape
    config, own = checkpoint.config, checkpoint.companions.own
    pixels, channels = shape.pixels is not None, config.in_channels
    free = ["height", "width"] if shape.dynamic_size else [*config.input_shape[1:]]
    sides = [*free, channels] if pixels else [channels, *free]
    return {
        "vitconvert": VERSION,
        "command": command and without_secrets(command),
        "source": checkpoint.source_record(sha256),
        "converted_from": own.get("source"),
        "input": {
            "name": "images",
            "dtype": "uint8" if pixels else "float32",
            "shape": [shape.batch or "batch", *sides],
            "normalised": "inside" if pixels else "before",
            **({"left_over": left_over(checkpoint)} if shape.dynamic_size else {}),
        },
        "output": {"name": "output", "kind": shape.output, "scores": shape.scores},
        "dtype": wanted.computed_in,
        **({"float16": kept.record()} if kept else {}),
        **({"calibration": trial.calibration.record()} if trial.calibration else {}),
        "config": config.to_dict(),
        "origins": dict(config.origins),
        "preprocessing": checkpoint.preprocessing and checkpoint.preprocessing.to_dict(),
        "labels": checkpoint.labels and list(checkpoint.labels),
        "labels_origin": checkpoint.labels and checkpoint.labels.origin,
        "labels_assumed": bool(checkpoint.labels and checkpoint.labels.doubtful),
        "ledger": checkpoint.ledger.to_dict(),
        "verified": wanted.runtime.version if verify else None,
        "torch": torch.__version__,
    }


def metadata_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The record, and by themselves the parts that a program wants first; all are JSON."""
    parts = {"labels": record["labels"], "preprocessing": record["preprocessing"]}
    parts |= {"sha256": record["source"]["sha256"]}
    stated = {name: part for name, part in parts.items() if part}
    return {name: json.dumps(part) for name, part in (stated | {RECORD: record}).items()}
