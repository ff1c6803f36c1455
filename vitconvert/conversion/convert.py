"""Converts a checkpoint to a directory that other programs load, with the same function."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.checkpoint import unchanged
from vitconvert.config import ViTConfig
from vitconvert.conversion.card import write_card
from vitconvert.conversion.conversion_plan import ConversionPlan, make_plan
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.other_sizes import Measurement, OtherSizes
from vitconvert.conversion.output import atomic_output, check_source
from vitconvert.conversion.record import (
    Proof,
    first_source_line,
    in_background,
    source_hashes,
    weights_metadata,
    write_record,
)
from vitconvert.conversion.search import OWN_LAYOUT
from vitconvert.conversion.target import choose_without_steps
from vitconvert.conversion.text_tower import small_files, write_small_files
from vitconvert.conversion.weights import contents_for, write_weights
from vitconvert.documents import JsonDict
from vitconvert.errors import NotRepresentable, ParityFailed
from vitconvert.facts.accounts import Ledger
from vitconvert.programs.isolation import import_all
from vitconvert.programs.program import DescribedModel, program_of
from vitconvert.programs.target import Target
from vitconvert.sources import Located
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch

    from vitconvert.parity.report import ParityReport
    from vitconvert.programs.opening import Opened


@dataclass(frozen=True, kw_only=True, repr=False)
class Conversion:
    """What a conversion did.

    Attributes:
        plan: What was changed, where it went, and by which steps.
        output: The directory that was written.
        proof: What was verified, with what is of the source and what of the output.
        sha256: File of the output -> its hash.
    """

    plan: ConversionPlan
    output: Path
    sha256: Mapping[str, str]
    proof: Proof

    @property
    def located(self) -> Located:
        """Where the source came from."""
        return self.plan.located

    @property
    def source_dialect(self) -> str:
        """The name of the table that the source was read by."""
        return self.plan.source_dialect

    @property
    def target_dialect(self) -> str:
        """The name of the table that the output was written by."""
        return self.plan.target_dialect

    @property
    def config(self) -> ViTConfig:
        """Architecture and numerics, with the origin of each field."""
        return self.plan.config

    @property
    def ledger(self) -> Ledger:
        """What became of each tensor of the source."""
        return self.plan.ledger

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Dialects of the target's library that cannot hold the function, and why."""
        return self.plan.passed_over

    @property
    def first_source(self) -> str:
        """Where the source came from before vitconvert wrote it; "" if it did not."""
        return first_source_line(self.plan.source)

    @property
    def parity(self) -> "ParityReport | None":
        """Comparison with the source's own implementation, or None if it was not asked for."""
        return self.proof.parity

    @property
    def opened(self) -> "tuple[Opened, ...]":
        """How other programs that loaded the output agree with vitconvert."""
        return self.proof.opened

    @property
    def other_sizes(self) -> OtherSizes | None:
        """How the target treats images of other sizes differently; None: it does not.

        Also None where the target's program takes one size alone, or `image_size` was given.
        """
        return self.proof.other_sizes

    @property
    def departures(self) -> tuple[str, ...]:
        """What they do differently with images than the checkpoint's own project."""
        return self.proof.departures

    def __repr__(self) -> str:
        verdict = self.parity.verdict if self.parity else "not verified"
        if not (self.parity and self.parity.verified) and self.opened:
            verdict = "; ".join(opened.summary() for opened in self.opened)
        return (
            f"<Conversion {self.located.reference!r}: {self.source_dialect} to "
            f"{self.target_dialect} in {str(self.output)!r}, {verdict}>"
        )

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            "output": str(self.output),
            **self.plan.summary(),
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
    """Write a checkpoint for another library; see `vitconvert.convert`."""
    check_source(output, checkpoint.sources)
    # Hashing takes as long as moving bytes: it goes on beside what follows.
    sha256_in = source_hashes(checkpoint)
    try:
        plan = make_plan(checkpoint, options, measured=True)
    except NotRepresentable as error:
        if verify and error.steps:
            error.evidence = _effects(checkpoint, options, error.steps) | error.evidence
        raise
    source, target = plan.source, plan.target

    parity, function_hash = None, None
    elsewhere = None
    if verify and plan.other_sizes:
        elsewhere = Measurement(plan.other_sizes, checkpoint, changed=plan.other_outputs)
    openers_are_imported: Future[None] | None = None
    if verify:
        from vitconvert.parity.verification import verify_checkpoint

        def import_openers() -> None:
            """What opens the output is imported while the source computes and bytes move."""
            nonlocal openers_are_imported
            openers = program_of(target.table).openers(source.config)
            openers_are_imported = in_background(partial(import_all, openers))

        # Of the source as it was read: what is changed after it is measured by itself.
        parity = verify_checkpoint(
            checkpoint,
            briefly=True,
            once_built=import_openers,
            once_compared=elsewhere.of_source if elsewhere else lambda _: None,
        )
        parity.raise_if_failed()
        # Of numbers that were compared, and so are in memory.
        function_hash = in_background(lambda: source.function_hash)

    contents = contents_for(target, source, options.allow)
    infos = {name: content.info for name, content in contents.items()}
    companions = plan.companions(infos)
    with atomic_output(output, overwrite=overwrite) as directory, unchanged(checkpoint.opened):
        sha256_out = write_weights(
            directory,
            target.table,
            contents,
            options.max_bytes,
            metadata=weights_metadata(source, target),
            config=companions.within,
        )
        write_small_files(directory, small_files(source, target, companions))
        if openers_are_imported:
            openers_are_imported.result()
        read = "as it was read" if checkpoint.ledger.changed else ""
        read = read if checkpoint.located.weights else "as it was in memory"
        proof = Proof(
            parity=parity,
            opened=_opened(directory, target, source, elsewhere) if verify else (),
            departures=companions.departures,
            sha256_in=sha256_in.result(),
            function_hash=function_hash.result() if function_hash else "",
            changed=plan.changes,
            read="with its adapter merged" if checkpoint.merge else read,
            other_sizes=plan.other_sizes,
        )
        if elsewhere and parity:
            reasons = parity.skipped, *(consumer.why_not for consumer in proof.opened)
            proof = replace(proof, other_sizes=elsewhere.result(*reasons))
        write_card(directory, source, target, infos, proof)
        write_record(directory, source, target, proof, sha256_out=sha256_out, command=command)
    return Conversion(plan=plan, output=output, sha256=sha256_out, proof=proof)


def _effects(
    checkpoint: Checkpoint, options: WriteOptions, steps: tuple[str, ...]
) -> dict[str, str]:
    """What steps that a refusal names would do to these weights, for its evidence."""
    allowed = replace(options, allow=(*options.allow, *steps))
    try:
        changes = make_plan(checkpoint, allowed, measured=True).changes
    except ParityFailed:  # they would be refused as well
        return {}
    return {"effect": "\n".join(changes)} if changes else {}


def _opened(
    directory: Path, target: Target, source: Checkpoint, elsewhere: Measurement | None
) -> "tuple[Opened, ...]":
    """How each program that the output is for computes it, at another size too if that differs.

    Raises:
        ParityFailed: One computes otherwise.
    """
    from vitconvert.programs.opening import open_both_towers, open_output

    model = build_model(source)
    once_opened = elsewhere.of_target if elsewhere else lambda *_: None
    opened = open_output(directory, target.table, model, once_opened=once_opened)
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
