"""Converts a checkpoint to a directory that other programs load, with the same function.

Change, choose a target, take its steps (`prepare`): up to there a plan (`conversion_plan.py`) goes
the same way. Then the files are written.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.checkpoint import unchanged
from vitconvert.config import ViTConfig
from vitconvert.conversion.card import write_card
from vitconvert.conversion.changes import changed, with_steps, without_numbers
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.output import check_source, whole_output
from vitconvert.conversion.record import (
    Proof,
    beside,
    first_source_line,
    source_hashes,
    weights_metadata,
    write_record,
)
from vitconvert.conversion.steps import Step
from vitconvert.conversion.target import (
    OWN_LAYOUT,
    choose_target,
    choose_without_steps,
    describe,
    family_note,
)
from vitconvert.conversion.text_tower import (
    small_files,
    with_text,
    with_tokenizer,
    write_small_files,
)
from vitconvert.conversion.weights import contents_for, write_weights
from vitconvert.documents import JsonDict
from vitconvert.errors import NotRepresentable, ParityFailed
from vitconvert.facts.accounts import Ledger
from vitconvert.facts.project_config import facts_from_config
from vitconvert.formats import TensorInfo
from vitconvert.programs.lean import import_all
from vitconvert.programs.program import CompanionFiles, DescribedModel, program_of
from vitconvert.programs.target import Target
from vitconvert.sources import Located
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch

    from vitconvert.parity.report import ParityReport
    from vitconvert.programs.opening import Opened


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checkpoint that is ready to be written, or to be described.

    Attributes:
        before: As it was read.
        changed: After the changes that are asked for.
        source: After the steps of the target too, with its text tower if that is carried.
        target: Where it goes.
        steps: The steps, in their order.
        passed_over: Other dialects of the target's ecosystem, and why they cannot hold it.
    """

    before: Checkpoint
    changed: Checkpoint
    source: Checkpoint
    target: Target
    steps: tuple[Step, ...]
    passed_over: Mapping[str, str]

    def companions(self, infos: Mapping[str, TensorInfo]) -> CompanionFiles:
        """The small files beside weights of these dtypes."""
        dtypes = {info.dtype for info in infos.values()}
        program = program_of(self.target.table)
        return program.companions(self.target, self.source.preprocessing, dtypes)

    def outcome(self) -> "OutcomeFields":
        """What a conversion and its plan tell alike."""
        return {
            "located": self.source.located,
            "source_dialect": self.source.dialect,
            "target_dialect": self.target.table.name,
            "config": self.source.config,
            "ledger": self.source.ledger,
            "passed_over": self.passed_over,
        }


def prepare(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool) -> Prepared:
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
    choice = choose_target(options.to, model, options.allow)
    placed = with_text(described, choice.target)
    notes = (
        *_on_sums(choice.target),
        *_on_the_problem(choice.target, after.config),
        family_note(placed, choice.target, model),
    )
    noted = replace(placed, ledger=placed.ledger.with_notes(notes))
    return Prepared(
        before=before,
        changed=after,
        source=with_steps(noted, choice.steps, measured=measured),
        target=choice.target,
        steps=choice.steps,
        passed_over=choice.passed_over,
    )


def _before(checkpoint: Checkpoint, options: WriteOptions, *, measured: bool) -> Checkpoint:
    """The checkpoint as it was read, with what merging an adapter did where that is measured."""
    if measured and checkpoint.merge:
        ledger = checkpoint.ledger.with_changes([checkpoint.merge.measured()])
        return replace(checkpoint, ledger=ledger)
    return checkpoint if measured or not options.changes else without_numbers(checkpoint)


def _with_wanted_text(source: Checkpoint, options: WriteOptions) -> Checkpoint:
    """The checkpoint with the text tower that it has, unless images alone are asked for."""
    if not options.image_only:
        return with_tokenizer(source)
    return replace(source, text=None, text_problem="as you asked" if source.text else "")


def _on_sums(target: Target) -> Iterator[str]:
    """Notes on tensors that read several frames of a video, or have a row for all others."""
    for assembly in target.plan.assemblies:
        if assembly.axes.shared:
            yield (
                f"the first row of {assembly.target}, which is added to all others, is zero: what "
                "it was before does not come back"
            )
        for _, count in assembly.axes.frames:
            yield (
                f"{assembly.target} reads {count} frames: each gets an equal part, and the sum has "
                f"every bit; those of {count} frames that it was the sum of before do not come back"
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


class OutcomeFields(TypedDict):
    """The fields of `Outcome`."""

    located: Located
    source_dialect: str
    target_dialect: str
    config: ViTConfig
    ledger: Ledger
    passed_over: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome:
    """What a conversion and its plan tell alike.

    Attributes:
        located: Where the source came from.
        source_dialect, target_dialect: Names of the tables on both sides.
        config: Architecture and numerics, with the origin of each field.
        ledger: What became of each tensor of the source.
        passed_over: Dialects of the target's ecosystem that cannot hold the function, and why.
    """

    located: Located
    source_dialect: str
    target_dialect: str
    config: ViTConfig
    ledger: Ledger
    passed_over: Mapping[str, str]

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            "source": self.located.reference,
            "source_dialect": self.source_dialect,
            "target_dialect": self.target_dialect,
            "config": self.config.to_dict(),
            "origins": dict(self.config.origins),
            "ledger": self.ledger.to_dict(),
            "passed_over": dict(self.passed_over),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Conversion(Outcome):
    """What a conversion did.

    Attributes:
        output: The directory that was written.
        proof: What was found out, with what is of the source and what of the output.
        first_source: Where the source came from before vitconvert wrote it; "" if it did not.
        sha256: File of the output to hash.
    """

    output: Path
    sha256: Mapping[str, str]
    proof: Proof
    first_source: str = ""

    @property
    def parity(self) -> "ParityReport | None":
        """Comparison with the source's own implementation, or None if it was not asked for."""
        return self.proof.parity

    @property
    def opened(self) -> "tuple[Opened, ...]":
        """How other programs that loaded the output agree with vitconvert."""
        return self.proof.opened

    @property
    def departures(self) -> tuple[str, ...]:
        """What they do differently with images than the checkpoint's own project."""
        return self.proof.departures

    def __repr__(self) -> str:
        verdict = self.parity.verdict if self.parity else "not verified"
        return (
            f"<Conversion {self.located.reference!r}: {self.source_dialect} to "
            f"{self.target_dialect} in {str(self.output)!r}, {verdict}>"
        )

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            "output": str(self.output),
            **super().to_dict(),
            **self.proof.to_dict(),
            "first_source": self.first_source,
            "departures": list(self.departures),
            "sha256": dict(self.sha256),
        }


def convert_checkpoint(
    checkpoint: Checkpoint,
    options: WriteOptions,
    *,
    output: Path,
    verify: bool,
    overwrite: bool = False,
    command: str | None = None,
) -> Conversion:
    """Write a checkpoint for another ecosystem; see `vitconvert.convert`."""
    check_source(output, checkpoint.sources)
    # Hashing takes as long as moving bytes: it goes on beside what follows.
    sha256_in = source_hashes(checkpoint)
    try:
        prepared = prepare(checkpoint, options, measured=True)
    except NotRepresentable as error:
        if verify and error.steps:
            error.evidence |= _effects(checkpoint, options, error.steps)
        raise
    source, target = prepared.source, prepared.target
    parity, waiting = None, ExitStack()
    if verify:
        from vitconvert.parity.verification import verify_checkpoint

        # What opens the output is imported while this is computed and while bytes move.
        imports = partial(import_all, program_of(target.table).openers(source.config))
        # Of the source as it was read: what is changed after it is measured by itself.
        parity = verify_checkpoint(
            checkpoint, briefly=True, once_built=lambda: waiting.callback(beside(imports))
        )
        parity.raise_if_failed()
    contents = contents_for(target, source, options.allow)
    # Of numbers that were compared, and so are in memory.
    function_hash = beside(lambda: source.function_hash) if verify else None
    with (
        whole_output(output, overwrite=overwrite) as directory,
        unchanged(checkpoint.opened),
    ):
        infos = {name: content.info for name, content in contents.items()}
        companions = prepared.companions(infos)
        with waiting:
            sha256_out = write_weights(
                directory,
                target.table,
                contents,
                options.max_bytes,
                metadata=weights_metadata(source, target),
                config=companions.within,
                read_soon=verify,
            )
        write_small_files(directory, small_files(source, target, companions))
        read = "as it was read" if checkpoint.ledger.changed else ""
        proof = Proof(
            parity=parity,
            opened=_opened(directory, target, source) if verify else (),
            departures=companions.departures,
            sha256_in=sha256_in(),
            function_hash=function_hash() if function_hash else "",
            changed=source.ledger.changed[len(prepared.before.ledger.changed) :],
            read="with its adapter merged" if checkpoint.merge else read,
        )
        write_card(directory, source, target, infos, proof)
        write_record(directory, source, target, proof, sha256_out=sha256_out, command=command)
    return Conversion(
        **prepared.outcome(),
        output=output,
        sha256=sha256_out,
        proof=proof,
        first_source=first_source_line(source),
    )


def _effects(
    checkpoint: Checkpoint, options: WriteOptions, steps: tuple[str, ...]
) -> dict[str, str]:
    """What steps that a refusal names would do to these weights, for its evidence."""
    allowed = replace(options, allow=(*options.allow, *steps))
    try:
        taken = prepare(checkpoint, allowed, measured=True)
    except ParityFailed:  # they would be refused as well
        return {}
    changed = taken.source.ledger.changed[len(taken.before.ledger.changed) :]
    return {"effect": "\n".join(changed)} if changed else {}


def _opened(directory: Path, target: Target, source: Checkpoint) -> "tuple[Opened, ...]":
    """How each program that the output is for computes it.

    Raises:
        ParityFailed: One computes otherwise.
    """
    from vitconvert.programs.opening import open_both_towers, open_output

    model = build_model(source)
    opened = open_output(directory, target.table, model)
    if source.text and target.text:
        opened = (*opened, *open_both_towers(directory, target.text.table, source, model))
    for consumer in opened:
        consumer.raise_if_failed()
    return opened


def respell(
    tensors: "Mapping[str, torch.Tensor]", config: ViTConfig, to: str | Table
) -> "dict[str, torch.Tensor]":
    """Canonical tensors under the names of another dialect; `vit` keeps ours.

    Raises:
        NotRepresentable: The target cannot compute this function.
    """
    from vitconvert.facts.materialise import materialise

    if to == OWN_LAYOUT:
        return dict(tensors)
    target = choose_without_steps(to, DescribedModel(config=config)).target
    return materialise(target.plan, tensors.__getitem__)
