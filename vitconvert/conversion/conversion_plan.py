"""What a conversion would do, from headers alone: no weights are read and nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.changes import NO_CHANGES, Changes, changed
from vitconvert.conversion.fitting import WriteOptions, companions_for, fit
from vitconvert.conversion.output import check_source
from vitconvert.conversion.stream import Move, moves
from vitconvert.conversion.text_tower import text_infos, tokenizer_files
from vitconvert.conversion.weights import parse_size, weights_files
from vitconvert.facts.accounts import Ledger
from vitconvert.facts.gauges import Gauge
from vitconvert.facts.plan import Assembly, Piece, Plan, compose
from vitconvert.facts.target import Target
from vitconvert.formats import ITEM_SIZE, TensorInfo
from vitconvert.sources import Located
from vitconvert.tables.axes import Axes
from vitconvert.tables.canonical import expected_shapes, expected_tensors

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
            left out if it is zero), "gauge" (a change that keeps the numbers), "lossy" (one that
            does not).
        in_ranges: Bytes that are contiguous in both files, or None if it goes through memory.
        rearranged: The other bytes, or None if it goes through memory.
    """

    assembly: Assembly
    info: TensorInfo
    steps: tuple[str, ...]
    in_ranges: int | None
    rearranged: int | None

    def to_dict(self) -> dict[str, Any]:
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
class ConversionPlan:
    """What a conversion would do.

    Attributes:
        located: Where the source comes from.
        source_dialect, target_dialect: Names of the tables on both sides.
        config: Architecture and numerics of what would be written.
        ledger: What would become of each tensor of the source.
        passed_over: Dialects of the target's ecosystem that cannot hold the function, and why.
        tensors: Each tensor that would be written, once.
        guards: What would be checked of the weights before they are written.
        files: Names of the files that would be written.
        wrapper: The key that would hold the tensors in a torch file; "" is none.
        streamed: Whether bytes would go from file to file; otherwise they go through memory.
    """

    located: Located
    source_dialect: str
    target_dialect: str
    config: ViTConfig
    ledger: Ledger
    passed_over: Mapping[str, str]
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

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "source": self.located.reference,
            "source_dialect": self.source_dialect,
            "target_dialect": self.target_dialect,
            "config": self.config.to_dict(),
            "origins": dict(self.config.origins),
            "ledger": self.ledger.to_dict(),
            "passed_over": dict(self.passed_over),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "guards": list(self.guards),
            "files": list(self.files),
            "wrapper": self.wrapper,
            "streamed": self.streamed,
            "bytes": self.nbytes,
        }


def plan_checkpoint(
    checkpoint: Checkpoint, options: WriteOptions, *, output: Path | None = None
) -> ConversionPlan:
    """Plan a conversion; see `vitconvert.plan_conversion`."""
    max_bytes = parse_size(options.max_shard_size)
    if output is not None:
        check_source(output, checkpoint.sources)
    source, altered = _after_changes(checkpoint, options.changes)
    fitted = fit(source, options)
    source, target = fitted.source, fitted.target
    for gauge in fitted.gauges:
        source, altered = _after_gauge(source, altered, gauge)
    plan = compose(_reading_plan(checkpoint.weights.plan, source.config), target.plan)
    moved = _moved(plan, source)
    infos = {n: m.info for n, m in moved.items()} if moved else _infos_in_memory(target, source)
    return ConversionPlan(
        located=source.located,
        source_dialect=source.dialect,
        target_dialect=target.table.name,
        config=source.config,
        ledger=source.ledger,
        passed_over=fitted.passed_over,
        tensors=(
            *(
                _planned(assembly, infos, moved, _steps(assembly, plan.zeros, kinds))
                for assembly, kinds in zip(plan.assemblies, _changes(target, altered), strict=True)
            ),
            *_planned_text(target, source),
        ),
        guards=tuple(_guards(fitted.gauges, plan)),
        files=_files(target, source, infos, max_bytes),
        wrapper=target.table.wrapper,
        streamed=moved is not None,
    )


def _moved(plan: Plan, source: Checkpoint) -> Mapping[str, Move] | None:
    """What would go from file to file, or None if tensors go through memory."""
    weights = source.weights
    return moves(plan, weights.container, weights.recognised.prefix) if source.as_read else None


def _guards(gauges: Sequence[Gauge], plan: Plan) -> Iterator[str]:
    yield from (f"{name} is zero" for gauge in gauges for name in gauge.zero)
    yield from (gauge.guard for gauge in gauges if gauge.guard)
    yield from (f"{piece.taken} is zero" for piece in plan.zeros)
    yield from (f"{name} is as in {constant.text}" for name, constant in plan.constants.items())


def _planned_text(target: Target, source: Checkpoint) -> Iterator[PlannedTensor]:
    """The tensors of the text tower, and the numbers beside it."""
    if source.text is None or target.text is None:
        return
    text, infos = source.text, text_infos(target.text, source.text)
    plan = compose(text.plan, target.text.plan)
    moved = None if text.dtype else moves(plan, text.container, text.prefix)
    kinds = ["lossy"] if text.dtype else []
    for assembly in plan.assemblies:
        yield _planned(assembly, infos, moved, _steps(assembly, plan.zeros, kinds))
    for name, number in target.text.numbers.items():
        yield PlannedTensor(
            assembly=Assembly(name, Axes(()), (), (number,)),
            info=infos[name],
            steps=("structure",),
            in_ranges=0,
            rearranged=0,
        )


def _reading_plan(reading: Plan, after: ViTConfig) -> Plan:
    """The reading plan; a tensor that a change creates is read as if it were in the source."""
    read = {assembly.target for assembly in reading.assemblies}
    made = (
        Assembly(name, axes, (Piece(name, axes),))
        for name, axes in expected_tensors(after).items()
        if name not in read
    )
    return replace(reading, assemblies=(*reading.assemblies, *made))


def _files(
    target: Target, source: Checkpoint, infos: Mapping[str, TensorInfo], max_bytes: int | None
) -> tuple[str, ...]:
    if source.text and target.text:
        infos = {**infos, **text_infos(target.text, source.text)}
    weights = list(weights_files(target.table, infos, max_bytes))
    index = ["model.safetensors.index.json"] if len(weights) > 1 else []
    companions = companions_for(target, source, infos)
    small = {**companions.files, **tokenizer_files(source, target)}
    return (*weights, *index, *small, "README.md", "vitconvert.json")


def _after_changes(
    checkpoint: Checkpoint, changes: Changes
) -> tuple[Checkpoint, Mapping[str, str]]:
    """The checkpoint as it would be after changes, and the kind of each tensor's change."""
    merged = dict.fromkeys(checkpoint.merge.touched if checkpoint.merge else (), "lossy")
    if changes == NO_CHANGES:
        return checkpoint, merged
    from vitconvert.facts.surgery import cast

    before = _on_meta(checkpoint)
    after = changed(before, replace(changes, dtype=None))
    if changes.dtype is not None:  # apart, because its effect on the logits needs numbers
        tensors, change = cast(after.tensors, changes.dtype)
        after = replace(after, tensors=tensors, ledger=after.ledger.with_changes([change]))
    altered = {
        name: "gauge" if _only_wider(before.tensors.get(name), tensor) else "lossy"
        for name, tensor in after.tensors.items()
        if tensor is not before.tensors.get(name)
    }
    return after, {**altered, **merged}


def _after_gauge(
    source: Checkpoint, altered: Mapping[str, str], gauge: Gauge
) -> tuple[Checkpoint, Mapping[str, str]]:
    """The same after a step that keeps the function; its numbers are not computed."""
    import torch

    before = _on_meta(source)
    config = gauge.config(before.config)
    assert config is not None
    dtype = next(iter(before.tensors.values())).dtype
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        if name not in before.tensors or before.tensors[name].shape != shape
        else before.tensors[name]
        for name, shape in expected_shapes(config).items()
    }
    names = (
        template.replace("{i}", str(i)) for template in gauge.alters for i in range(config.depth)
    )
    ledger = before.ledger.with_changes([f"{gauge.name}: {gauge.change}"])
    after = replace(before, tensors=tensors, config=config, ledger=ledger)
    return after, {**dict.fromkeys(names, "gauge"), **altered}


def _on_meta(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with tensors that have a dtype and a shape, but no numbers."""
    import torch

    from vitconvert.facts.materialise import materialise

    if not checkpoint.as_read:
        return checkpoint  # changed here, and so on the meta device already
    weights = checkpoint.weights
    manifest, prefix = weights.container.manifest, weights.recognised.prefix

    def read(name: str) -> torch.Tensor:
        info = manifest[prefix + name]
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype))

    with torch.device("meta"):
        tensors = materialise(replace(weights.plan, constants={}), read)
    return replace(checkpoint, tensors=tensors)


def _only_wider(before: "torch.Tensor | None", after: "torch.Tensor") -> bool:
    import torch

    return (
        before is not None
        and before.shape == after.shape
        and torch.promote_types(before.dtype, after.dtype) == after.dtype
    )


def _infos_in_memory(target: Target, source: Checkpoint) -> dict[str, TensorInfo]:
    import torch

    from vitconvert.facts.materialise import materialise

    checkpoint = _on_meta(source)
    with torch.device("meta"):
        tensors = materialise(replace(target.plan, zeros=()), checkpoint.tensors.__getitem__)
    return {
        name: TensorInfo(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in tensors.items()
    }


def _planned(
    assembly: Assembly,
    infos: Mapping[str, TensorInfo],
    moved: Mapping[str, Move] | None,
    steps: tuple[str, ...],
) -> PlannedTensor:
    name = assembly.target
    return PlannedTensor(
        assembly=assembly,
        info=infos[name],
        steps=steps,
        in_ranges=_in_ranges(moved[name]) if moved else None,
        rearranged=_rearranged(moved[name]) if moved else None,
    )


def _changes(target: Target, altered: Mapping[str, str]) -> Iterator[list[str]]:
    """For each tensor of the target, the kinds of changes to the tensors it is written from."""
    for assembly in target.plan.assemblies:
        yield sorted(
            {altered[p.source] for p in assembly.pieces if p.source and p.source in altered}
        )


def _steps(assembly: Assembly, zeros: tuple[Piece, ...], changes: list[str]) -> tuple[str, ...]:
    pieces = assembly.pieces
    sources = {piece.source for piece in pieces}
    found = {
        "layout": any(_relaid(piece, assembly) for piece in pieces),
        "structure": len(pieces) != 1 or any(piece.take or piece.put for piece in pieces),
        "guarded": None in sources or any(piece.source in sources for piece in zeros),
    }
    return (*(step for step, taken in found.items() if taken), *changes) or ("rename",)


def _relaid(piece: Piece, assembly: Assembly) -> bool:
    """Whether the axes that a piece fills are permuted, or grouped into other dimensions."""
    theirs, ours = piece.axes, assembly.axes
    for axis, _ in piece.take:
        theirs = theirs.without(axis)
    for axis, _ in piece.put:
        ours = ours.without(axis)
    return piece.source is not None and theirs != ours


def _in_ranges(move: Move) -> int:
    runs = (box.count for box in move.boxes if box.is_a_run and box.fills_a_run)
    return sum(runs) * ITEM_SIZE[move.info.dtype]


def _rearranged(move: Move) -> int:
    return sum(box.count for box in move.boxes) * ITEM_SIZE[move.info.dtype] - _in_ranges(move)
