"""Any ViT in, a directory out that other programs load and that computes the same function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, Reading, Source, materialised, read_header
from vitconvert.config import ViTConfig
from vitconvert.containers import TensorInfo
from vitconvert.conversion.ledger import Ledger
from vitconvert.conversion.target import Target
from vitconvert.export.card import write_card
from vitconvert.export.changes import Changes, changed, gauged
from vitconvert.export.companions import companions_of, write_json
from vitconvert.export.provenance import provenance, source_hashes, weights_metadata
from vitconvert.export.targets import OWN, Wish, choose_gauged_target, choose_target
from vitconvert.export.weights import contents_for, parse_size, write_weights
from vitconvert.export.whole_directory import check_output, check_source, whole_directory
from vitconvert.export.written import RECORD
from vitconvert.loading import build_model, read_state_dict
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import torch

    from vitconvert.export.consumers import Opened
    from vitconvert.parity import ParityReport


@dataclass(frozen=True, kw_only=True)
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
        departures: What they do otherwise with photographs than the checkpoint's own project.
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
            "parity": self.parity.to_dict() if self.parity else None,
            "opened_by": [opened.to_dict() for opened in self.opened],
            "departures": list(self.departures),
            "sha256": dict(self.sha256),
        }


def convert(
    source: Source,
    *,
    to: str = OWN,
    output: str | PathLike[str],
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    dtype: "torch.dtype | None" = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    classes: Sequence[int | str] | None = None,
    allow: Sequence[str] = (),
    prefer: str | None = None,
    max_shard_size: int | str | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> Conversion:
    """Convert a checkpoint to another ecosystem, and prove that the function is the same.

    Args:
        source: A path or reference, as for `load_model`.
        to: An ecosystem, a dialect, or `vit`: a directory that vitconvert loads, and timm or
            transformers as far as they can compute the function.
        output: The directory to write. It appears whole or not at all.
        dialect, overrides, architecture, table: As for `load_model`.
        dtype: Cast the weights.
        image_size: Resample the positions to this size.
        patch_size: Resize the kernel of the patches as FlexiViT does, and resample the positions.
        in_channels: Read images of this many channels, as timm adapts a first convolution.
        num_classes: Put a new head of zeros in place of the old; 0 takes it off.
        classes: Keep these classes of the head, by index or name, in this order.
        allow: Names of steps that keep the function and change the bytes, where the target needs
            them; a refusal tells which would help.
        prefer: Which weights to take of a torch checkpoint that has several, such as "model"
            where averaged ones lie beside them.
        max_shard_size: Write safetensors in files of at most so many bytes ("5GB"), and an index.
        verify: Compare with the source's own implementation, in float64 too where any bit differs
            in float32, and with the programs that the output is for.
        overwrite: Replace an earlier output. What vitconvert did not write is never replaced.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The numbers disagree; nothing is written.
        OutputExists: The output is there, and `overwrite` is false, or holds other files.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    check_output(Path(output), overwrite=overwrite)
    return convert_located(
        locate(source),
        to=to,
        output=Path(output),
        reading_options={
            "dialect": dialect,
            "overrides": overrides,
            "architecture": architecture,
            "table": table,
            "prefer": prefer,
        },
        changes=Changes(
            image_size=image_size,
            patch_size=patch_size,
            in_channels=in_channels,
            num_classes=num_classes,
            classes=classes,
            dtype=dtype,
        ),
        allow=allow,
        max_shard_size=max_shard_size,
        verify=verify,
        overwrite=overwrite,
    )


def convert_located(
    located: Located,
    *,
    to: str,
    output: Path,
    reading_options: Mapping[str, Any],
    changes: Changes | None = None,
    allow: Sequence[str] = (),
    max_shard_size: int | str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
) -> Conversion:
    """`convert` of files that have been located."""
    most = parse_size(max_shard_size)
    reading = read_header(located, **reading_options)
    check_source(output, sources_of(reading, reading_options))
    sha256_in = source_hashes(reading)
    parity = _verified(reading) if verify else None
    source = changed(reading.checkpoint, changes) if changes else reading
    target, gauges, passed_over = choose_gauged_target(to, wish_of(source), allow)
    if gauges:
        source = gauged(materialised(source), gauges)
    contents = contents_for(target, source, allow)
    with whole_directory(output, overwrite=overwrite) as directory:
        metadata = weights_metadata(source, target)
        sha256 = write_weights(
            directory, target.table, contents, most, metadata=metadata, read_soon=verify
        )
        infos = {name: content.info for name, content in contents.items()}
        departures = _write_companions(directory, target, source, infos)
        opened = _opened(directory, target, source) if verify else ()
        told: dict[str, Any] = {
            "sha256_in": sha256_in(),
            "parity": parity,
            "opened": opened,
            "departures": departures,
        }
        write_card(directory, source, target, infos, **told)
        files = [*(file.name for file in directory.iterdir()), RECORD]
        told |= {"sha256_out": sha256, "files": files, "command": command}
        write_json(directory / RECORD, provenance(source, target, **told))
    return Conversion(
        output=output,
        located=located,
        source_dialect=source.dialect,
        target_dialect=target.table.name,
        config=source.config,
        ledger=source.ledger,
        passed_over=passed_over,
        parity=parity,
        opened=opened,
        departures=departures,
        sha256=sha256,
    )


def convert_state_dict(
    state_dict: "Mapping[str, torch.Tensor]",
    *,
    to: str,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> "dict[str, torch.Tensor]":
    """Re-spell a state dict in memory.

    Args:
        state_dict: Tensors by name. They are not changed; the result may share their memory.
        to: An ecosystem or dialect; `vit` gives vitconvert's own names.
        dialect: Of the state dict; by default, the one table that explains every key.
        overrides: Fields of ViTConfig that the tensors cannot tell.

    Raises:
        NotRepresentable: The target cannot compute this function.
        VitConvertError: One of the errors of `load_checkpoint`.
    """
    from vitconvert.conversion.materialise import materialise

    tensors, config = read_state_dict(state_dict, dialect=dialect, overrides=overrides)
    if to == OWN:
        return dict(tensors)
    target, _ = choose_target(to, Wish(config=config))
    return materialise(target.plan, tensors.__getitem__)


def sources_of(reading: Reading, reading_options: Mapping[str, Any]) -> list[Path]:
    """All that a conversion reads: files, where they were looked for, a table of one's own."""
    named = (reading.located.weights, reading_options.get("table"))
    return [*(Path(path) for path in named if path is not None), *reading.files]


def wish_of(source: Reading | Checkpoint) -> Wish:
    """What a target has to hold."""
    theirs = source.their_config
    record = theirs.get("pretrained_cfg")
    return Wish(
        config=source.config,
        preprocessing=source.preprocessing,
        labels=source.labels,
        dialect=source.dialect,
        architecture=source.located.name or theirs.get("architecture"),
        arguments=theirs.get("model_args") or {},
        pretrained_cfg=record if isinstance(record, dict) else None,
    )


def _verified(reading: Reading) -> "ParityReport":
    from vitconvert.parity import verify_reading

    model = build_model(reading.checkpoint)
    report = verify_reading(reading, model, preprocessing=reading.preprocessing, until_equal=True)
    report.raise_if_failed()
    return report


def _write_companions(
    directory: Path, target: Target, source: Reading | Checkpoint, infos: Mapping[str, TensorInfo]
) -> tuple[str, ...]:
    """Write the small files; what they cannot say of photographs."""
    dtypes = {info.dtype for info in infos.values()}
    companions = companions_of(target, source.preprocessing, dtypes)
    for name, companion in companions.files.items():
        write_json(directory / name, companion)
    return companions.departures


def _opened(directory: Path, target: Target, source: Reading | Checkpoint) -> "tuple[Opened, ...]":
    from vitconvert.export.consumers import open_with_consumers

    opened = open_with_consumers(directory, target.table, build_model(materialised(source)))
    for consumer in opened:
        consumer.raise_if_failed()
    return opened
