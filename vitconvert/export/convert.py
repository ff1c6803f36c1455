"""Any ViT in, a directory out that other programs load and that computes the same function."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.config import ViTConfig
from vitconvert.containers import write_npz, write_safetensors, write_torch
from vitconvert.conversion.ledger import Ledger
from vitconvert.conversion.target import Target
from vitconvert.errors import NotRepresentable
from vitconvert.export.consumers import Opened, open_with_consumers
from vitconvert.export.provenance import provenance
from vitconvert.export.targets import OWN, Wish, choose_target
from vitconvert.export.whole_directory import check_output, whole_directory
from vitconvert.loading import (
    Checkpoint,
    Reading,
    Source,
    build_model,
    checkpoint_of,
    read_header,
)
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import torch

    from vitconvert.parity import ParityReport

_FILES = {"safetensors": "model.safetensors", "npz": "model.npz", "torch": "model.pt"}


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
    opened: tuple[Opened, ...]
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
        verify: Compare with the source's own implementation, and with the programs that the
            output is for.
        overwrite: Replace what is there.

    Raises:
        NotRepresentable: The target cannot compute this function.
        ParityFailed: The numbers disagree; nothing is written.
        OutputExists: The output is there, and `overwrite` is false.
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
        },
        dtype=dtype,
        image_size=image_size,
        patch_size=patch_size,
        verify=verify,
        overwrite=overwrite,
    )


def convert_located(
    located: Located,
    *,
    to: str,
    output: Path,
    reading_options: Mapping[str, Any],
    dtype: "torch.dtype | None" = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    verify: bool = True,
    overwrite: bool = False,
    command: str | None = None,
) -> Conversion:
    """`convert` of files that have been located."""
    reading = read_header(located, **reading_options)
    checkpoint = checkpoint_of(reading)
    parity = _verify(reading, checkpoint) if verify else None
    if parity is not None:
        parity.raise_if_failed()
    checkpoint = _morphed(checkpoint, image_size=image_size, patch_size=patch_size, dtype=dtype)
    target, passed_over = choose_target(to, _wish(checkpoint))
    with whole_directory(output, overwrite=overwrite) as directory:
        weights = _write_weights(directory, target, checkpoint)
        _write_companions(directory, target, checkpoint)
        opened = _opened(directory, target, checkpoint) if verify else ()
        record = provenance(
            checkpoint, target, weights, parity=parity, opened=opened, command=command
        )
        _write_json(directory / "vitconvert.json", record)
    return Conversion(
        output=output,
        located=located,
        source_dialect=checkpoint.dialect,
        target_dialect=target.table.name,
        config=checkpoint.config,
        ledger=checkpoint.ledger,
        passed_over=passed_over,
        parity=parity,
        opened=opened,
        sha256=record["sha256"],
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
    from vitconvert.loading import read_state_dict

    tensors, config = read_state_dict(state_dict, dialect=dialect, overrides=overrides)
    if to == OWN:
        return dict(tensors)
    target, _ = choose_target(to, Wish(config=config))
    return materialise(target.plan, tensors.__getitem__)


def _wish(checkpoint: Checkpoint) -> Wish:
    theirs = checkpoint.their_config
    record = theirs.get("pretrained_cfg")
    return Wish(
        config=checkpoint.config,
        preprocessing=checkpoint.preprocessing,
        labels=checkpoint.labels,
        dialect=checkpoint.dialect,
        architecture=checkpoint.located.name or theirs.get("architecture"),
        arguments=theirs.get("model_args") or {},
        pretrained_cfg=record if isinstance(record, dict) else None,
    )


def _verify(reading: Reading, checkpoint: Checkpoint) -> "ParityReport":
    from vitconvert.parity import verify_reading

    return verify_reading(reading, build_model(checkpoint), preprocessing=checkpoint.preprocessing)


def _morphed(
    checkpoint: Checkpoint,
    *,
    image_size: int | tuple[int, int] | None,
    patch_size: int | tuple[int, int] | None,
    dtype: "torch.dtype | None",
) -> Checkpoint:
    from vitconvert.conversion.morphs import cast, resize

    ledger = checkpoint.ledger
    tensors, config, changes = resize(
        checkpoint.tensors, checkpoint.config, image_size=image_size, patch_size=patch_size
    )
    for change in changes:
        ledger = ledger.with_change(change)
    if dtype is not None:
        tensors, change = cast(tensors, dtype)
        ledger = ledger.with_change(change)
    preprocessing = checkpoint.preprocessing
    if preprocessing is not None and image_size is not None:
        preprocessing = preprocessing.at_size(config.image_size)
    return replace(
        checkpoint, tensors=tensors, config=config, ledger=ledger, preprocessing=preprocessing
    )


def _write_weights(directory: Path, target: Target, checkpoint: Checkpoint) -> Path:
    from vitconvert.conversion.materialise import materialise

    tensors = materialise(target.plan, checkpoint.tensors.__getitem__)
    path = directory / _FILES[target.table.container]
    match target.table.container:
        case "safetensors":
            # transformers refuses files that do not say which framework they are for.
            write_safetensors(path, tensors, metadata={"format": "pt"})
        case "npz":
            write_npz(path, tensors)
        case "torch":
            write_torch(path, tensors)
    return path


def _write_companions(directory: Path, target: Target, checkpoint: Checkpoint) -> None:
    if not target.their_config:
        return
    dtypes = {str(t.dtype).removeprefix("torch.") for t in checkpoint.tensors.values()}
    companion = dict(target.their_config)
    if "dtype" in companion:
        companion["dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
    _write_json(directory / "config.json", companion)
    if checkpoint.preprocessing is None:
        return
    # Where transformers cannot say it, timm's config.json and vitconvert.json do all the same.
    with suppress(NotRepresentable):
        written = checkpoint.preprocessing.to_huggingface()
        _write_json(directory / "preprocessor_config.json", written)


def _opened(directory: Path, target: Target, checkpoint: Checkpoint) -> tuple[Opened, ...]:
    opened = open_with_consumers(directory, target.table.ecosystem, build_model(checkpoint))
    for consumer in opened:
        consumer.raise_if_failed()
    return opened


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
