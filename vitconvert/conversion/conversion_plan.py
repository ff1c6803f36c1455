"""What a conversion would do, from headers alone: no weights are read and nothing is written."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.weights import Text
from vitconvert.conversion.changes import empty_tensors, without_numbers
from vitconvert.conversion.convert import Outcome, Prepared, prepare
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.output import check_source
from vitconvert.conversion.stream import Move, moves
from vitconvert.conversion.text_tower import small_files
from vitconvert.conversion.weights import index_name, weights_files
from vitconvert.documents import JsonDict
from vitconvert.facts.plan import Assembly, Piece, Plan, compose
from vitconvert.formats import ITEM_SIZE, TensorInfo
from vitconvert.programs.target import TextTarget
from vitconvert.tables.canonical import expected_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor of the target.

    Attributes:
        assembly: How it is made up of the source's tensors.
        info: Its dtype and shape.
        steps: "rename", or what else is done: "layout" (axes are permuted or grouped differently),
            "structure" (tensors are joined or split), "guarded" (a part is filled with zeros, or
            left out if it is zero), "step" (a step that keeps the function, or a
            change that keeps the numbers), "lossy" (one that does not).
        in_ranges: Bytes that are contiguous in both files, or None if it goes through memory.
        rearranged: The other bytes, or None if it goes through memory.
    """

    assembly: Assembly
    info: TensorInfo
    steps: tuple[str, ...]
    in_ranges: int | None
    rearranged: int | None

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            "name": self.assembly.target,
            "dtype": self.info.dtype,
            "shape": list(self.info.shape),
            "expression": str(self.assembly),
            "steps": list(self.steps),
            "bytes": self.info.nbytes,
            "in_ranges": self.in_ranges,
            "rearranged": self.rearranged,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class ConversionPlan(Outcome):
    """What a conversion would do.

    Attributes:
        tensors: Each tensor that would be written, once.
        guards: What would be checked of the weights before they are written.
        files: Names of the files that would be written.
        wrapper: The key that would hold the tensors in a torch file; "" is none.
        streamed: Whether bytes would go from file to file; otherwise they go through memory.
    """

    tensors: tuple[PlannedTensor, ...]
    guards: tuple[str, ...]
    files: tuple[str, ...]
    wrapper: str
    streamed: bool

    def __repr__(self) -> str:
        return (
            f"<ConversionPlan {self.located.reference!r}: {self.source_dialect} to "
            f"{self.target_dialect}, {len(self.tensors)} tensors, {self.nbytes:,} bytes>"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.info.nbytes for tensor in self.tensors)

    @property
    def in_ranges(self) -> int:
        """Bytes that would be moved in contiguous ranges."""
        return sum(tensor.in_ranges or 0 for tensor in self.tensors)

    @property
    def rearranged(self) -> int:
        """Bytes that would be moved one element or a few at a time."""
        return sum(tensor.rearranged or 0 for tensor in self.tensors)

    @property
    def filled(self) -> int:
        """Bytes of constants, mostly zeros, that would be filled in from file to file."""
        return self.nbytes - self.in_ranges - self.rearranged if self.streamed else 0

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            **super().to_dict(),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "guards": list(self.guards),
            "files": list(self.files),
            "wrapper": self.wrapper,
            "streamed": self.streamed,
            "bytes": self.nbytes,
        }


def plan_checkpoint(
    checkpoint: Checkpoint, options: WriteOptions, *, output: Path | None
) -> ConversionPlan:
    """Plan a conversion; see `vitconvert.plan_conversion`."""
    if output is not None:
        check_source(output, checkpoint.sources)
    prepared = prepare(checkpoint, options, measured=False)
    source, target, reading = prepared.source, prepared.target, checkpoint.weights.plan
    weights = source.weights
    read = {assembly.target for assembly in reading.assemblies}
    created = (  # by a change, and read as if the source had it
        Assembly(name, axes, (Piece(name, axes),))
        for name, axes in expected_tensors(source.config).items()
        if name not in read
    )
    plan = compose(replace(reading, assemblies=(*reading.assemblies, *created)), target.plan)
    moved = moves(plan, weights.container, weights.prefix) if source.as_read else None
    infos = _infos(moved, target.plan, lambda: without_numbers(source).tensors)
    altered = _altered(prepared)
    tensors = []
    for assembly, written in zip(plan.assemblies, target.plan.assemblies, strict=True):
        kinds = {altered[p.source] for p in written.pieces if p.source in altered}
        tensors.append(_planned(assembly, infos, moved, plan, kinds))
    text = _text_tensors(target.text, source.text) if source.text and target.text else []
    infos |= {tensor.assembly.target: tensor.info for tensor in text}
    files = weights_files(target.table, infos, options.max_bytes)
    index = index_name(target.table, files)
    small = small_files(source, target, prepared.companions(infos))
    guards = (
        *(f"{name} is zero" for step in prepared.steps for name in step.zero),
        *(step.guard for step in prepared.steps if step.guard),
        *(f"{piece.taken} is zero" for piece in plan.zeros),
        *(f"{name} is as in {constant.text}" for name, constant in plan.constants.items()),
    )
    return ConversionPlan(
        **prepared.outcome(),
        tensors=(*tensors, *text),
        guards=guards,
        files=(*files, *([index] if index else []), *small, "README.md", "vitconvert.json"),
        wrapper=target.table.wrapper,
        streamed=moved is not None,
    )


def _altered(prepared: Prepared) -> dict[str, str]:
    """Our tensors whose values change, and how: "lossy" or "step"."""

    def only_wider(old: "torch.Tensor | None", new: "torch.Tensor") -> bool:
        import torch  # a plan without changes needs none

        if old is None or old.shape != new.shape:
            return False
        return torch.promote_types(old.dtype, new.dtype) == new.dtype

    source, before, after = prepared.source, prepared.before, prepared.changed
    found = dict.fromkeys(
        (
            template.replace("{i}", str(i))
            for step in prepared.steps
            for template in step.alters
            for i in range(source.config.depth)
        ),
        "step",
    )
    if after.tensors is not before.tensors:
        found |= {
            name: "step" if only_wider(before.tensors.get(name), tensor) else "lossy"
            for name, tensor in after.tensors.items()
            if tensor is not before.tensors.get(name)
        }
    return found | dict.fromkeys(before.merge.touched if before.merge else (), "lossy")


def _text_tensors(target: TextTarget, text: Text) -> list[PlannedTensor]:
    """The tensors of the text tower, and the numbers beside it."""

    def ours() -> "Mapping[str, torch.Tensor]":
        tensors = empty_tensors(text)
        return {n: t.to(text.dtype) for n, t in tensors.items()} if text.dtype else tensors

    plan = compose(text.plan, target.plan)
    moved = None if text.dtype else moves(plan, text.container, text.prefix)
    infos = _infos(moved, target.plan, ours)
    kinds = ["lossy"] if text.dtype else []
    return [_planned(a, infos, moved, plan, kinds if a.pieces else ()) for a in plan.assemblies]


def _infos(
    moved: Mapping[str, Move] | None,
    writing: Plan,
    ours: "Callable[[], Mapping[str, torch.Tensor]]",
) -> dict[str, TensorInfo]:
    """Dtype and shape of what is written: of moved bytes, or of our tensors without numbers."""
    if moved is not None:
        return {name: move.info for name, move in moved.items()}
    import torch

    from vitconvert.facts.materialise import materialise

    with torch.device("meta"):
        tensors = materialise(replace(writing, zeros=()), ours().__getitem__)
    return {
        name: TensorInfo(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in tensors.items()
    }


def _planned(
    assembly: Assembly,
    infos: Mapping[str, TensorInfo],
    moved: Mapping[str, Move] | None,
    plan: Plan,
    kinds: Collection[str],
) -> PlannedTensor:
    """How a tensor is made, beyond what changes its values (`kinds`)."""
    name, pieces = assembly.target, assembly.pieces
    sources = {piece.source for piece in pieces}
    found = {
        "layout": any(_relaid(piece, assembly) for piece in pieces),
        "structure": len(pieces) != 1 or any(piece.take or piece.put for piece in pieces),
        "guarded": None in sources or any(piece.source in sources for piece in plan.zeros),
    }
    in_ranges = rearranged = None
    if moved:
        boxes, size = moved[name].boxes, ITEM_SIZE[infos[name].dtype]
        in_ranges = size * sum(box.count for box in boxes if box.is_a_run and box.fills_a_run)
        rearranged = size * sum(box.count for box in boxes) - in_ranges
    taken = (step for step, is_taken in found.items() if is_taken)
    return PlannedTensor(
        assembly=assembly,
        info=infos[name],
        steps=(*taken, *sorted(kinds)) or ("rename",),
        in_ranges=in_ranges,
        rearranged=rearranged,
    )


def _relaid(piece: Piece, assembly: Assembly) -> bool:
    """Whether the axes that a piece fills are permuted, or grouped into other dimensions."""
    theirs, ours = piece.axes, assembly.axes
    for axis, _ in piece.take:
        theirs = theirs.without(axis)
    for axis, _ in piece.put:
        ours = ours.without(axis)
    return piece.source is not None and theirs != ours
