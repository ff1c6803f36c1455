"""A checkpoint: what its header says, proved before any weights are read, and its tensors."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.beside import Beside, read_beside
from vitconvert.config import ViTConfig
from vitconvert.containers import Container, open_container, passed_over, weights_in
from vitconvert.conversion.accounts import check_accounts, check_dtypes, open_ledger
from vitconvert.conversion.derivation import Gathered, gather_facts
from vitconvert.conversion.ledger import Ledger
from vitconvert.conversion.plan import Plan, plan_reading
from vitconvert.errors import SourceError, UsageError
from vitconvert.inference.labels import Labels, assumed_labels
from vitconvert.inference.preprocessing import Preprocessing
from vitconvert.sources import Located
from vitconvert.tables.detection import Recognised, recognise
from vitconvert.tables.dialects import find_tables, read_table
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch

Source = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the header of a checkpoint says, before any of its weights are read."""

    container: Container
    beside: Beside
    recognised: Recognised
    config: ViTConfig
    ledger: Ledger

    @property
    def located(self) -> Located:
        """The files."""
        return self.beside.located

    @property
    def their_config(self) -> Mapping[str, Any]:
        """The project's own `config.json`."""
        return self.beside.config

    @property
    def table(self) -> Table:
        """The dialect."""
        return self.recognised.table

    @property
    def dialect(self) -> str:
        """Name of the table."""
        return self.table.name

    @functools.cached_property
    def plan(self) -> Plan:
        """From the tensors of the file to ours."""
        return plan_reading(self.recognised.binding, self.config)

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the dialect."""
        return self.container.read(self.recognised.prefix + key)

    @functools.cached_property
    def preprocessing(self) -> Preprocessing | None:
        """What turns a photograph into the model's input, or None if nothing says."""
        return self.beside.preprocessing(self.table, self.config)

    @functools.cached_property
    def own_labels(self) -> Labels | None:
        """Names that the checkpoint itself gives its classes, or None."""
        return self.beside.labels(self.config.num_classes)

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Names of the classes, assumed if the checkpoint itself has none; None if unknown."""
        return self.own_labels or assumed_labels(self.config.num_classes)

    @functools.cached_property
    def checkpoint(self) -> "Checkpoint":
        """What the header promises, materialised once."""
        from vitconvert.conversion.materialise import materialise

        return checkpoint_with(self, materialise(self.plan, self.read))

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read."""
        located = self.located
        companions = (located.config, located.preprocessor, located.own)
        return (*self.container.files, *(path for path in companions if path is not None))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint under canonical names, with everything that decides its function.

    Attributes:
        tensors: Canonical name to tensor, on the CPU, in the dtype of the file; views on the
            mapped file where the layouts are the same.
        config: Architecture and numerics; `config.origins` says where each field is from.
        preprocessing: What turns a photograph into the model's input, or None if nothing says.
        own_labels: Names that the checkpoint itself gives its classes, or None.
        dialect: Name of the table.
        ledger: What was used, ignored (why), assumed (from where), changed (how).
        located: The files and where they came from.
        their_config: The project's own `config.json`, as far as there is one.
        files: Every file that was read.
    """

    tensors: Mapping[str, "torch.Tensor"]
    config: ViTConfig
    preprocessing: Preprocessing | None
    own_labels: Labels | None
    dialect: str
    ledger: Ledger
    located: Located
    their_config: Mapping[str, Any]
    files: tuple[Path, ...]

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Names of the classes, assumed if the checkpoint itself has none; None if unknown."""
        return self.own_labels or assumed_labels(self.config.num_classes)


def checkpoint_with(reading: Reading, tensors: "Mapping[str, torch.Tensor]") -> Checkpoint:
    """What a header says, with these tensors under canonical names."""
    return Checkpoint(
        tensors=tensors,
        config=reading.config,
        preprocessing=reading.preprocessing,
        own_labels=reading.own_labels,
        dialect=reading.dialect,
        ledger=reading.ledger,
        located=reading.located,
        their_config=reading.their_config,
        files=reading.files,
    )


def materialised(source: Reading | Checkpoint) -> Checkpoint:
    """The tensors of either."""
    return source.checkpoint if isinstance(source, Reading) else source


def read_header(
    located: Located,
    *,
    dialect: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    table: Source | None = None,
    prefer: str | None = None,
) -> Reading:
    """Everything up to the proof that the accounts close, from headers alone.

    Args:
        located: The files.
        dialect, overrides, architecture, table, prefer: As for `load_model`.
    """
    container, beside = open_located(located, prefer)
    recognised = recognise_container(container, beside, dialect, table)
    stated = beside.stated_facts(recognised.table, overrides, architecture)
    gathered = gather_facts(recognised.binding, stated)
    config, ledger = prove(recognised, gathered, container, beside)
    return Reading(
        container=container, beside=beside, recognised=recognised, config=config, ledger=ledger
    )


def open_located(located: Located, prefer: str | None = None) -> tuple[Container, Beside]:
    """The weights, of which only the header is read, and what lies beside them.

    Raises:
        UsageError: The file has no weights under the key that is preferred.
    """
    container = open_container(_weights(located), prefer=(prefer,) if prefer else ())
    if prefer and prefer not in container.wrapper:
        raise UsageError(
            f"The checkpoint has no weights under {prefer!r}.",
            evidence={
                "file": container.path,
                "found": ".".join(container.wrapper) or "tensors at the top",
                "beside": ", ".join(container.extras) or "nothing",
            },
            hint="leave --prefer (in Python, prefer) out to take those that were found.",
        )
    return container, read_beside(located)


def recognise_container(
    container: Container, beside: Beside, dialect: str | None, table: Source | None
) -> Recognised:
    """The dialect of a container; what vitconvert wrote itself says which it is."""
    shapes = {name: info.shape for name, info in container.manifest.items()}
    written_as = beside.own.get("target")
    return recognise(shapes, candidate_tables(dialect or written_as, table), beside.config)


def prove(
    recognised: Recognised, gathered: Gathered, container: Container, beside: Beside
) -> tuple[ViTConfig, Ledger]:
    """Everything is known, and every tensor accounted for, from headers alone.

    Raises:
        MissingFact, ConflictingFact, TensorMismatch: It is not.
        NotRepresentable: The project's class makes another function of the tensors.
    """
    config = gathered.config()
    check_accounts(recognised.binding, config, str(container.path))
    manifest, prefix = container.manifest, recognised.prefix
    dtypes = {key: manifest[prefix + key].dtype for key in recognised.binding.shapes}
    check_dtypes(recognised.binding, dtypes, str(container.path))
    beside.check_class(recognised.table, config)
    notes = (*gathered.notes, *passed_over(container))
    return config, open_ledger(recognised.binding, config, notes, recognised.wrappers_own)


def candidate_tables(dialect: str | None, table: Source | None) -> list[Table] | None:
    """The tables that may explain a checkpoint; None for any of `weights_map/`."""
    if table is not None:
        return [read_table(Path(table))]
    if dialect:
        return find_tables(dialect)
    return None


def _weights(located: Located) -> Path:
    if located.weights is None:
        raise SourceError(f"{located.reference} has no weights.")
    return weights_in(located.weights) if located.weights.is_dir() else located.weights
