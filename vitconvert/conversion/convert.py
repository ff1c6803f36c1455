"""Converts a checkpoint to a directory that other programs load, with the same function.

Read, choose a target, take its steps: up to there a plan (`conversion_plan.py`) goes the same way.
Then the files are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.checkpoint import unchanged
from vitconvert.config import ViTConfig
from vitconvert.conversion.card import write_card
from vitconvert.conversion.changes import (
    changed,
    with_effect_of_merge,
    with_steps,
    without_numbers,
)
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.output import check_source, whole_output
from vitconvert.conversion.record import (
    Proof,
    first_source_line,
    source_hashes,
    weights_metadata,
    write_record,
)
from vitconvert.conversion.steps import Step
from vitconvert.conversion.target import (
    OWN,
    choose_target,
    choose_without_steps,
    describe,
    family_note,
)
from vitconvert.conversion.text_tower import (
    copy_tokenizer,
    whole_configuration,
    with_text,
    with_tokenizer,
)
from vitconvert.conversion.weights import contents_for, frames_notes, write_weights
from vitconvert.documents import write_json
from vitconvert.facts.accounts import Ledger
from vitconvert.formats import TensorInfo
from vitconvert.programs import CompanionFiles, DescribedModel, program_of
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
    if measured:
        before = with_effect_of_merge(checkpoint)
    else:
        before = without_numbers(checkpoint) if options.changes else checkpoint
    after = changed(before, options, measured=measured)
    if options.image_only:
        source = replace(after, text=None, text_problem="as you asked" if after.text else "")
    else:
        source = with_tokenizer(after)
    model = describe(source)
    choice = choose_target(options.to, model, options.allow)
    source = with_text(source, choice.target)
    more = (*frames_notes(choice.target), family_note(source, choice.target, model))
    notes = (*source.ledger.notes, *filter(None, more))
    source = replace(source, ledger=replace(source.ledger, notes=notes))
    return Prepared(
        before=before,
        changed=after,
        source=with_steps(source, choice.steps, measured=measured),
        target=choice.target,
        steps=choice.steps,
        passed_over=choice.passed_over,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Conversion:
    """What a conversion did.

    Attributes:
        output: The directory that was written.
        located: Where the source came from.
        source_dialect, target_dialect: Names of the tables on both sides.
        config: Architecture and numerics, with the origin of each field.
        ledger: What became of each tensor of the source.
        passed_over: Dialects of the target's ecosystem that cannot hold the function, and why.
        parity: Comparison with the source's own implementation, or None if it was not asked for.
        opened: How other programs that loaded the output agree with vitconvert.
        departures: What they do differently with images than the checkpoint's own project.
        proof: What was found out, with what is of the source and what of the output.
        first_source: Where the source came from before vitconvert wrote it; "" if it did not.
        sha256: File of the output to hash.
    """

    output: Path
    located: Located
    source_dialect: str
    target_dialect: str
    config: ViTConfig
    ledger: Ledger
    passed_over: Mapping[str, str]
    parity: "ParityReport | None"
    opened: "tuple[Opened, ...]"
    departures: tuple[str, ...]
    sha256: Mapping[str, str]
    proof: Proof
    first_source: str = ""

    def __repr__(self) -> str:
        verdict = self.parity.verdict if self.parity else "not verified"
        return (
            f"<Conversion {self.located.reference!r}: {self.source_dialect} to "
            f"{self.target_dialect} in {str(self.output)!r}, {verdict}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "output": str(self.output),
            "source": self.located.reference,
            "source_dialect": self.source_dialect,
            "target_dialect": self.target_dialect,
            "config": self.config.to_dict(),
            "origins": dict(self.config.origins),
            "ledger": self.ledger.to_dict(),
            "passed_over": dict(self.passed_over),
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
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
) -> Conversion:
    """Write a checkpoint for another ecosystem; see `vitconvert.convert`."""
    check_source(output, checkpoint.sources)
    sha256_in = source_hashes(checkpoint)
    parity = _verified(checkpoint) if verify else None
    prepared = prepare(checkpoint, options, measured=True)
    source, target = prepared.source, prepared.target
    contents = contents_for(target, source, options.allow)
    with (
        whole_output(output, overwrite=overwrite) as directory,
        unchanged(checkpoint.opened),
    ):
        infos = {name: content.info for name, content in contents.items()}
        companions = prepared.companions(infos)
        sha256_out = write_weights(
            directory,
            target.table,
            contents,
            options.max_bytes,
            metadata=weights_metadata(source, target),
            config=companions.within,
            read_soon=verify,
        )
        config_file = target.table.config_file
        for name, companion in companions.files.items():
            of_both = config_file is not None and name == config_file.file
            whole = whole_configuration(source, target, companion) if of_both else companion
            write_json(directory / name, whole)
        copy_tokenizer(source, target, directory)
        proof = Proof(
            parity=parity,
            opened=_opened(directory, target, source) if verify else (),
            departures=companions.departures,
            sha256_in=sha256_in(),
            changed=source.ledger.changed[len(prepared.before.ledger.changed) :],
            read=_as_read(checkpoint),
        )
        write_card(directory, source, target, infos, proof)
        write_record(directory, source, target, proof, sha256_out=sha256_out, command=command)
    return Conversion(
        output=output,
        located=source.located,
        source_dialect=source.dialect,
        target_dialect=target.table.name,
        config=source.config,
        ledger=source.ledger,
        passed_over=prepared.passed_over,
        parity=parity,
        opened=proof.opened,
        departures=proof.departures,
        sha256=sha256_out,
        proof=proof,
        first_source=first_source_line(source),
    )


def respell(
    tensors: "Mapping[str, torch.Tensor]", config: ViTConfig, to: str | Table
) -> "dict[str, torch.Tensor]":
    """Canonical tensors under the names of another dialect; `vit` keeps ours.

    Raises:
        NotRepresentable: The target cannot compute this function.
    """
    from vitconvert.facts.materialise import materialise

    if to == OWN:
        return dict(tensors)
    target = choose_without_steps(to, DescribedModel(config=config)).target
    return materialise(target.plan, tensors.__getitem__)


def _verified(checkpoint: Checkpoint) -> "ParityReport":
    from vitconvert.parity.verification import verify_checkpoint

    report = verify_checkpoint(checkpoint, until_equal=True)
    report.raise_if_failed()
    return report


def _as_read(checkpoint: Checkpoint) -> str:
    if checkpoint.merge:
        return "with its adapter merged"
    return "as it was read" if checkpoint.ledger.changed else ""


def _opened(directory: Path, target: Target, source: Checkpoint) -> "tuple[Opened, ...]":
    from vitconvert.programs.opening import open_both_towers, open_output

    model = build_model(source)
    opened = open_output(directory, target.table, model)
    if source.text and target.text:
        opened = (*opened, *open_both_towers(directory, target.text.table, source, model))
    for consumer in opened:
        consumer.raise_if_failed()
    return opened
