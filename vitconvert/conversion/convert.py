"""Converts a checkpoint to a directory that other programs load, with the same function."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.checkpoint.unchanged import unchanged
from vitconvert.config import ViTConfig
from vitconvert.conversion.card import write_card
from vitconvert.conversion.changes import changed, gauged, with_effect_of_merge
from vitconvert.conversion.fitting import WriteOptions, companions_for, fit
from vitconvert.conversion.output import check_source, whole_output
from vitconvert.conversion.provenance import (
    Proof,
    first_source_line,
    source_hashes,
    weights_metadata,
    write_record,
)
from vitconvert.conversion.targets import OWN, choose_target
from vitconvert.conversion.text_tower import copy_tokenizer, whole_configuration
from vitconvert.conversion.weights import contents_for, parse_size, write_weights
from vitconvert.documents import write_json
from vitconvert.facts.accounts import Ledger
from vitconvert.facts.target import Target
from vitconvert.programs import DescribedModel
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
        output: The directory that was written.
        located: Where the source came from.
        source_dialect, target_dialect: Names of the tables on both sides.
        config: Architecture and numerics, with the origin of each field.
        ledger: What became of each tensor of the source.
        passed_over: Dialects of the target's ecosystem that cannot hold the function, and why.
        parity: Comparison with the source's own implementation, or None if it was not asked for.
        opened: How other programs that loaded the output agree with vitconvert.
        departures: What they do differently with photographs than the checkpoint's own project.
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
    max_bytes = parse_size(options.max_shard_size)
    sha256_in = source_hashes(checkpoint)
    parity = _verified(checkpoint) if verify else None
    before = with_effect_of_merge(checkpoint)
    fitted = fit(changed(before, options.changes), options)
    source, target = gauged(fitted.source, fitted.gauges), fitted.target
    contents = contents_for(target, source, options.allow)
    with (
        whole_output(output, overwrite=overwrite) as directory,
        unchanged(checkpoint.opened),
    ):
        infos = {name: content.info for name, content in contents.items()}
        companions = companions_for(target, source, infos)
        sha256_out = write_weights(
            directory,
            target.table,
            contents,
            max_bytes,
            metadata=weights_metadata(source, target),
            config=companions.within,
            read_soon=verify,
        )
        _write_companions(directory, target, source, companions.files)
        proof = Proof(
            parity=parity,
            opened=_opened(directory, target, source) if verify else (),
            departures=companions.departures,
            sha256_in=sha256_in(),
            changed=source.ledger.changed[len(before.ledger.changed) :],
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
        passed_over=fitted.passed_over,
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
    target, _ = choose_target(to, DescribedModel(config=config))
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


def _write_companions(
    directory: Path, target: Target, source: Checkpoint, files: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the small files, and those of a tokenizer."""
    for name, companion in files.items():
        is_config = target.table.config_file and name == target.table.config_file.file
        whole = whole_configuration(source, target, companion) if is_config else companion
        write_json(directory / name, whole)
    copy_tokenizer(source, target, directory)


def _opened(directory: Path, target: Target, source: Checkpoint) -> "tuple[Opened, ...]":
    from vitconvert.programs.opening import open_output
    from vitconvert.programs.text_opening import open_both_towers

    model = build_model(source)
    opened = open_output(directory, target.table, model)
    if source.text and target.text:
        opened = (*opened, *open_both_towers(directory, target.text.table, source, model))
    for consumer in opened:
        consumer.raise_if_failed()
    return opened
