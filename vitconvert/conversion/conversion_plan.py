"""What a conversion does: what is changed, where it goes, and by which steps.

`convert` carries a plan out, with numbers. `plan_conversion` makes it of headers alone, and
describes what would be written.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.weights import Text
from vitconvert.config import ViTConfig
from vitconvert.conversion.changes import changed, empty_tensors, with_steps, without_numbers
from vitconvert.conversion.families import family_note
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.other_sizes import OtherSizes, other_sizes
from vitconvert.conversion.output import check_source
from vitconvert.conversion.search import OWN_LAYOUT
from vitconvert.conversion.steps import Step
from vitconvert.conversion.stream import Move, moves
from vitconvert.conversion.target import choose_target, describe
from vitconvert.conversion.text_tower import small_files, with_text, with_tokenizer
from vitconvert.conversion.weights import index_name, weights_files
from vitconvert.documents import JsonDict
from vitconvert.facts.accounts import Ledger
from vitconvert.facts.plan import Assembly, Piece, Plan, compose
from vitconvert.facts.project_config import facts_from_config
from vitconvert.formats import ITEM_SIZE, TensorInfo
from vitconvert.programs.program import CompanionFiles, program_of
from vitconvert.programs.target import Target, TextTarget
from vitconvert.sources import Located
from vitconvert.tables.canonical import expected_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, repr=False)
class ConversionPlan:
    """What a conversion does, or would do.

    Attributes:
        before: The checkpoint as it was read.
        changed: After the changes that are asked for.
        source: After the steps of the target too, with its text encoder if that is carried.
        target: Where it goes.
        steps: The steps, in their order.
        passed_over: Other dialects of the target's library, and why they cannot hold it.
        options: What was asked for.
        other_sizes: How the target treats images of other sizes differently, or None.
    """

    before: Checkpoint
    changed: Checkpoint
    source: Checkpoint
    target: Target
    steps: tuple[Step, ...]
    passed_over: Mapping[str, str]
    options: WriteOptions
    other_sizes: OtherSizes | None = None

    @property
    def located(self) -> Located:
        """Where the source came from."""
        return self.source.located

    @property
    def source_dialect(self) -> str:
        """The name of the table that the source is read by."""
        return self.source.dialect

    @property
    def target_dialect(self) -> str:
        """The name of the table that the output is written by."""
        return self.target.table.name

    @property
    def config(self) -> ViTConfig:
        """Architecture and numerics, with the origin of each field."""
        return self.source.config

    @property
    def ledger(self) -> Ledger:
        """What becomes of each tensor of the source."""
        return self.source.ledger

    @property
    def changes(self) -> tuple[str, ...]:
        """What is changed between the source as it was read and the output."""
        return self.ledger.changed[len(self.before.ledger.changed) :]

    @property
    def other_outputs(self) -> bool:
        """Whether the output was asked to give other numbers than the source, or fewer."""
        options = self.options
        asked = (options.num_classes, options.classes, options.in_channels)
        rounded = options.dtype is not None and options.dtype.itemsize < 4
        narrowed = any(step.narrows for step in self.steps)
        return rounded or narrowed or any(change is not None for change in asked)

    def companions(self, infos: Mapping[str, TensorInfo]) -> CompanionFiles:
        """The small files beside weights of these dtypes."""
        dtypes = {info.dtype for info in infos.values()}
        program = program_of(self.target.table)
        return program.companions(self.target, self.source.preprocessing, dtypes)

    @property
    def tensors(self) -> "tuple[PlannedTensor, ...]":
        """Each tensor that would be written, once."""
        return self._written.tensors

    @property
    def guards(self) -> tuple[str, ...]:
        """What would be checked of the weights before they are written."""
        return self._written.guards

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that would be written."""
        return self._written.files

    @property
    def wrapper(self) -> str:
        """The key that would hold the tensors in a torch file; "" is none."""
        return self.target.table.wrapper

    @property
    def streamed(self) -> bool:
        """Whether bytes would go from file to file; if not, they go through memory."""
        return self._written.streamed

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

    @cached_property
    def _written(self) -> "_Written":
        return _written(self)

    def __repr__(self) -> str:
        return (
            f"<ConversionPlan {self.located.reference!r}: {self.source_dialect} to "
            f"{self.target_dialect}, {len(self.tensors)} tensors, {self.nbytes:,} bytes>"
        )

    def summary(self) -> JsonDict:
        """What a plan and its conversion have alike, for `--json`."""
        return {
            "source": self.located.reference,
            "source_dialect": self.source_dialect,
            "target_dialect": self.target_dialect,
            "config": self.config.to_dict(),
            "origins": dict(self.config.origins),
            "ledger": self.ledger.to_dict(),
            "passed_over": dict(self.passed_over),
            "other_sizes": self.other_sizes and self.other_sizes.to_dict(),
        }

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            **self.summary(),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "guards": list(self.guards),
            "files": list(self.files),
            "wrapper": self.wrapper,
            "streamed": self.streamed,
            "bytes": self.nbytes,
        }


def make_plan(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool) -> ConversionPlan:
    """Change a checkpoint, choose its target and take the steps to it.

    Args:
        checkpoint: As it was read.
        options: What is asked for.
        measured: Whether to compute what becomes of the numbers; otherwise none are read.

    Raises:
        NotRepresentable: No target that is meant computes this function.
        UsageError: There is no such target, or no such step.
    """
    before = _before(checkpoint, options, measured=measured)
    after = changed(before, options, measured=measured)
    described = _with_wanted_text(after, options)
    model = describe(described)
    fit = choose_target(options.to, model, options.allow)
    placed = with_text(described, fit.target)
    notes = (
        *_on_sums(fit.target),
        *_on_names(fit.target),
        *_on_the_problem(fit.target, after.config),
        family_note(placed, fit.target, model),
    )
    noted = replace(placed, ledger=placed.ledger.with_notes(notes))
    source = with_steps(noted, fit.steps, measured=measured)
    return ConversionPlan(
        before=before,
        changed=after,
        source=source,
        target=fit.target,
        steps=fit.steps,
        passed_over=fit.passed_over,
        options=options,
        other_sizes=other_sizes(before, source, fit.target),
    )


def plan_checkpoint(
    checkpoint: Checkpoint, options: WriteOptions, *, output: Path | None
) -> ConversionPlan:
    """Plan a conversion from headers alone; see `vitconvert.plan_conversion`."""
    if output is not None:
        check_source(output, checkpoint.sources)
    plan = make_plan(checkpoint, options, measured=False)
    _ = plan.files  # what cannot be written is refused now
    return plan


def _before(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool) -> Checkpoint:
    """The checkpoint as it was read, with what merging an adapter did where that is measured."""
    if measured and checkpoint.merge:
        ledger = checkpoint.ledger.with_changes([checkpoint.merge.measured()])
        return replace(checkpoint, ledger=ledger)
    return checkpoint if measured or not options.changes else without_numbers(checkpoint)


def _with_wanted_text(source: Checkpoint, options: WriteOptions) -> Checkpoint:
    """The checkpoint with the text encoder that it has, unless images alone are asked for."""
    if not options.image_only:
        return with_tokenizer(source)
    return replace(source, text=None, text_problem="as you asked" if source.text else "")


def _on_names(target: Target) -> Iterator[str]:
    """A note on classes that transformers wants names of, and nobody names."""
    names = target.their_config.get("id2label", {})
    if names and all(name == f"LABEL_{index}" for index, name in names.items()):
        yield (
            f"labels: none, so config.json says LABEL_0 to LABEL_{len(names) - 1}; --labels FILE "
            "(in Python, labels=) names the classes"
        )


def _on_the_problem(target: Target, config: ViTConfig) -> Iterator[str]:
    """A note where the target's own files have no place for what the logits mean."""
    unusual = config.stated_problem and config.score_function != "softmax"
    stated = facts_from_config(target.table, target.their_config)
    if unusual and target.table.name != OWN_LAYOUT and "problem_type" not in stated:
        todo = "" if config.score_function == "none" else f": {config.score_function} of each logit"
        yield (
            f"problem_type = {config.problem_type}{todo}; {target.table.title} has no word for it, "
            "vitconvert.json keeps it"
        )


def _on_sums(target: Target) -> Iterator[str]:
    """Notes on tensors that read several frames of a video, or have a row for all others."""
    for assembly in target.plan.assemblies:
        if assembly.axes.shared:
            yield (
                f"the first row of {assembly.target}, which is added to all others, is zero: its "
                "earlier values are lost"
            )
        for _, count in assembly.axes.frames:
            yield (
                f"{assembly.target} reads {count} frames: each gets an equal part, and the sum has "
                f"every bit; those of {count} frames that it was the sum of before do not come back"
            )


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


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What would be written: see the properties of `ConversionPlan`."""

    tensors: tuple[PlannedTensor, ...]
    guards: tuple[str, ...]
    files: tuple[str, ...]
    streamed: bool


def _written(plan: ConversionPlan) -> _Written:
    """What a plan writes, from headers alone."""
    source, target, reading = plan.source, plan.target, plan.before.weights.plan
    weights = source.weights
    read = {assembly.target for assembly in reading.assemblies}
    created = (  # by a change, and read as if the source had it
        Assembly(name, axes, (Piece(name, axes),))
        for name, axes in expected_tensors(source.config).items()
        if name not in read
    )
    whole = compose(replace(reading, assemblies=(*reading.assemblies, *created)), target.plan)
    moved = moves(whole, weights.container, weights.prefix) if source.as_read else None
    infos = _infos(moved, target.plan, lambda: without_numbers(source).tensors)
    altered = _altered(plan)
    tensors = []
    for assembly, written in zip(whole.assemblies, target.plan.assemblies, strict=True):
        kinds = {altered[p.source] for p in written.pieces if p.source in altered}
        tensors.append(_planned(assembly, infos, moved, whole, kinds))
    text = _text_tensors(target.text, source.text) if source.text and target.text else []
    infos |= {tensor.assembly.target: tensor.info for tensor in text}
    files = weights_files(target.table, infos, plan.options.max_bytes)
    index = index_name(target.table, files)
    small = small_files(source, target, plan.companions(infos))
    guards = (
        *(f"{name} is zero" for step in plan.steps for name in step.zero),
        *(step.guard for step in plan.steps if step.guard),
        *(f"{piece.taken} is zero" for piece in whole.zeros),
        *(f"{name} is as in {constant.text}" for name, constant in whole.constants.items()),
    )
    return _Written(
        tensors=(*tensors, *text),
        guards=guards,
        files=(*files, *([index] if index else []), *small, "README.md", "vitconvert.json"),
        streamed=moved is not None,
    )


def _altered(plan: ConversionPlan) -> dict[str, str]:
    """Our tensors whose values change, and how: "lossy" or "step"."""

    def only_wider(old: "torch.Tensor | None", new: "torch.Tensor") -> bool:
        import torch  # a plan without changes needs none

        if old is None or old.shape != new.shape:
            return False
        return torch.promote_types(old.dtype, new.dtype) == new.dtype

    source, before, after = plan.source, plan.before, plan.changed
    found = dict.fromkeys(
        (
            template.replace("{i}", str(i))
            for step in plan.steps
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
    """The tensors of the text encoder, and the numbers beside it."""

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
