"""What a checkpoint is, from its header alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.checkpoint import Source, open_located, prove, recognise_container
from vitconvert.containers import TensorInfo, passed_over
from vitconvert.conversion.derivation import gather_facts
from vitconvert.conversion.project_config import Facts
from vitconvert.errors import VitConvertError
from vitconvert.sources import Located, locate
from vitconvert.tables.detection import Recognised


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A checkpoint's header, explained as far as it goes.

    Attributes:
        located: The files and where they came from.
        format: "safetensors", "torch" or "npz".
        wrapper: Keys that were unwrapped to reach the tensors.
        tensors: Name, dtype and shape of each tensor, in the order of the file.
        dialect: Name of the table that explains it, or None.
        prefix: What was taken off every key.
        facts: Fields of ViTConfig that are known: value and origin.
        missing: Fields that nothing tells, and why.
        ignored: Tensors that play no part, and why.
        notes: What the tensors overruled, and which other weights the file holds.
        problem: Why the checkpoint cannot be loaded as it stands, or None.
    """

    located: Located
    format: str
    wrapper: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    dialect: str | None
    prefix: str
    facts: Facts
    missing: Mapping[str, str]
    ignored: Mapping[str, str]
    notes: tuple[str, ...]
    problem: VitConvertError | None

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(info.shape) for info in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "source": self.located.reference,
            "format": self.format,
            "wrapper": list(self.wrapper),
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "dialect": self.dialect,
            "prefix": self.prefix,
            "config": {k: {"value": v, "origin": o} for k, (v, o) in self.facts.items()},
            "missing": dict(self.missing),
            "ignored": dict(self.ignored),
            "notes": list(self.notes),
            "problem": self.problem.to_dict() if self.problem else None,
            "tensors": {
                name: {"dtype": info.dtype, "shape": list(info.shape)}
                for name, info in self.tensors.items()
            },
        }


def inspect(
    source: Source,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Inspection:
    """Say what a checkpoint is, reading no weights.

    What keeps a checkpoint from being loaded (an unknown dialect, a missing fact, tensors that do
    not add up) is not raised but told, in `problem`.

    Args:
        source, dialect, overrides, architecture, table, prefer: As for `load_model`.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The header cannot be read, or not safely.
    """
    located = locate(source)
    return inspect_located(
        located,
        dialect=dialect,
        overrides=overrides,
        architecture=architecture,
        table=table,
        prefer=prefer,
    )


def inspect_located(
    located: Located,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Inspection:
    """`inspect` of files that have been located."""
    container, beside = open_located(located, prefer)
    recognised: Recognised | None = None
    facts: Facts = {}
    missing: Mapping[str, str] = {}
    notes = passed_over(container)
    problem: VitConvertError | None = None
    try:
        recognised = recognise_container(container, beside, dialect, table)
        stated = beside.stated_facts(recognised.table, overrides, architecture)
        gathered = gather_facts(recognised.binding, stated)
        facts, missing = gathered.facts, gathered.asked
        notes = (*gathered.notes, *notes)
        prove(recognised, gathered, container, beside)
    except VitConvertError as error:
        problem = error
    return Inspection(
        located=located,
        format=container.format,
        wrapper=container.wrapper,
        tensors=container.manifest,
        dialect=recognised.table.name if recognised else None,
        prefix=recognised.prefix if recognised else "",
        facts=facts,
        missing=missing,
        ignored={**recognised.binding.ignored, **recognised.wrappers_own} if recognised else {},
        notes=notes,
        problem=problem,
    )
