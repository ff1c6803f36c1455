"""A checkpoint: its header, explained and verified, and its tensors, read when first used."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint.adapters.merging import Merge
from vitconvert.checkpoint.companions import Companions, what_is_read
from vitconvert.checkpoint.function_hash import function_hash, recorded_hash
from vitconvert.checkpoint.weights import Text, Weights
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import IntegrityError, printable
from vitconvert.facts.accounts import Ledger
from vitconvert.facts.fact import (
    ASKED,
    TENSORS,
    USER,
    first_origin,
    is_assumed,
    is_recorded,
    named_architecture,
)
from vitconvert.labels import Labels, assumed_labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.sources import Located
from vitconvert.sources.references import published
from vitconvert.tables.architectures import FILE
from vitconvert.tables.config_file import look_up
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.parts import Tower
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch

    from vitconvert.checkpoint.from_model import LoadedFrom

# Device, inode, bytes and time of the last change, in nanoseconds; None of what is not there.
State = tuple[int, int, int, int] | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Checkpoint:
    """A checkpoint under canonical names, with everything that decides its function.

    It is made only after the header has shown that every tensor of the file is used once, or
    ignored for a reason.

    Attributes:
        tensors: Canonical name to tensor, on the CPU, in the dtype of the file; views on the
            mapped file where the layouts are the same. All are read when the first is used.
        config: Architecture and numerics; `config.origins` says where each field comes from.
        preprocessing: How to turn an image into the model's input, or None if unknown.
        own_labels: Names that the checkpoint itself gives its classes, or None.
        ledger: What was used, ignored (why), assumed (from where), changed (how).
        weights: The file of weights that it was read from.
        companions: The JSON files beside it.
        opened: The state of each file when it was opened; see `unchanged`.
        merge: The adapter that was merged into the tensors of the file, or None.
        text: The text encoder of the same file, which a conversion carries over, or None.
        text_problem: Why the text encoder of the file cannot be carried; "" if it can, or has none.
        may_assume_labels: Whether 1000 classes without names may be ImageNet's: not those of a new
            head.
        loaded: Of a model in memory, what it was loaded from; None for files, or if it was made.
    """

    tensors: Mapping[str, "torch.Tensor"]
    config: ViTConfig
    preprocessing: Preprocessing | None
    own_labels: Labels | None
    ledger: Ledger
    weights: Weights
    companions: Companions
    opened: Mapping[Path, State]
    merge: Merge | None = None
    text: Text | None = None
    text_problem: str = ""
    may_assume_labels: bool = True
    loaded: "LoadedFrom | None" = None

    @property
    def as_read(self) -> bool:
        """Whether the tensors are still those of the file, with the adapter that was merged."""
        return self.tensors is self.weights.tensors

    @property
    def located(self) -> Located:
        """The files and where they came from."""
        return self.companions.located

    @property
    def table(self) -> Table:
        """The dialect's table."""
        return self.weights.table

    @property
    def dialect(self) -> str:
        """Name of the table."""
        return self.table.name

    @property
    def resampling_doubt(self) -> str:
        """Which projects resample such positions by which rule, where nobody names the project.

        It stays in doubt in what a conversion wrote: the record has the first origin of each fact.
        """
        origins = {name: first_origin(origin) for name, origin in self.config.origins.items()}
        default = origins.get("position_resampling", "")
        first = builtin_tables().get(Path(default).stem)  # of the source, if this was converted
        table = next((one for one in (self.table, first) if one and one.origin == default), None)
        if table is None or not table.resampling:
            return ""
        others = set(origins.values()) - {"", USER, TENSORS, ASKED, table.origin}
        named = any(FILE in origin or not is_assumed(origin) for origin in others)
        return "" if named else table.resampling

    @property
    def their_config(self) -> JsonObject:
        """The project's own `config.json`, empty if there is none."""
        return self.companions.config

    @property
    def tower(self) -> Tower | None:
        """Where in a larger model it stands; None for a checkpoint of a ViT alone."""
        tower = self.weights.tower
        return tower if tower.prefix else None

    @property
    def random(self) -> bool:
        """Whether the weights are random, or were converted from such by vitconvert."""
        before = self.companions.record.of_weights.get("source")
        return self.located.random or (isinstance(before, dict) and bool(before.get("random")))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why a `vitconvert.json` next to it is not believed, a sentence each."""
        return self.companions.record.doubts

    @property
    def read_by_larger(self) -> tuple[str, ...]:
        """A note on what a larger model reads of it, where that is not its output."""
        return what_is_read(self.companions, self.weights.tower)

    @property
    def first_source(self) -> JsonObject:
        """Where the weights came from before vitconvert wrote them; empty if it did not.

        Of a model in memory, where they came from first.
        """
        if self.loaded is not None:
            return self.loaded.first_source
        record = self.companions.record.of_weights
        first = record.get("converted_from") or record.get("source")
        return first if isinstance(first, dict) else {}

    @property
    def name(self) -> str | None:
        """The architecture, with its tag, that the reference named."""
        return self.loaded.name if self.loaded else self.located.name

    @property
    def called(self) -> tuple[str, ...]:
        """What it is called: what marks it in its project's own file, or else its names."""
        if self.loaded is not None:
            return self.loaded.called
        mapping = self.table.config_file
        marks = [look_up(self.their_config, key) for key in mapping.identify] if mapping else []
        if called := [str(mark) for mark in marks if mark]:
            return tuple(called)
        named = look_up(self.their_config, mapping.architecture) if mapping else None
        stated = (o for o in self.config.origins.values() if named_architecture(o))
        names = (named, self.located.name, *stated, self.dialect)
        return tuple(str(name) for name in names if name)

    def source_record(self, sha256: Mapping[str, str]) -> JsonDict:
        """Where it came from, as `vitconvert.json` says it; `sha256`: file -> hash."""
        located = self.located
        return {
            "reference": published(located.reference),
            "name": located.name and published(located.name),
            "repo": located.repo,
            "revision": located.revision,
            "url": located.url and published(located.url),
            "sha256": {printable(name): digest for name, digest in sha256.items()},
            "verified": list(located.verified),
            **({"fetched": str(located.fetched)} if located.fetched else {}),
            "dialect": self.dialect,
            "adapter": self.merge and printable(self.merge.adapter.name),
            "tower": self.tower and self.tower.to_dict(),
            "random": self.random,
        }

    def is_users(self, origin: str) -> bool:
        """Whether a fact is a user's word: a field, or an architecture that nothing else names."""
        name = named_architecture(origin)
        if name and not is_recorded(origin):
            return name not in (self.name, self.their_config.get("architecture"))
        return origin == USER or origin.startswith((f"{USER}, ", f"{USER}: "))

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Names of the classes, assumed if the checkpoint itself has none; None if unknown."""
        if self.own_labels or not self.may_assume_labels:
            return self.own_labels
        return assumed_labels(self.config.num_classes)

    @functools.cached_property
    def function_hash(self) -> str:
        """A name for the function of the ViT: the same for every file that holds it.

        It follows from all its numbers, as float32, and from the fields that decide the function.
        """
        return function_hash(self.config, self.tensors)

    @property
    def recorded_hash(self) -> str:
        """The same, as a `vitconvert.json` that is believed states it; "" if none does."""
        as_written = self.as_read and self.merge is None
        return recorded_hash(self.companions.own, self.config) if as_written else ""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read."""
        return (*self.weights.container.files, *self.located.companions)

    @property
    def sources(self) -> tuple[Path, ...]:
        """Everything that a conversion reads: the path that was given, the files, and the table."""
        place = self.located.weights
        return (*((place,) if place else ()), *self.files, Path(self.table.file))

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<Checkpoint {self.located.reference!r}: dialect {self.dialect}, {config.depth} "
            f"blocks of width {config.embed_dim}, {len(self.tensors)} tensors>"
        )


def states_of(paths: Iterable[Path]) -> dict[Path, State]:
    """The state of files, which differs once a file is changed or replaced."""
    states: dict[Path, State] = {}
    for path in paths:
        try:
            status = path.stat()
            states[path] = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        except OSError:
            states[path] = None
    return states


@contextmanager
def unchanged(states: Mapping[Path, State]) -> Iterator[None]:
    """Make sure, when the block ends, that files are as they were; whatever it did is void if not.

    A file is mapped or opened again while it is converted, and hashed on another core. Somebody who
    replaces it meanwhile would get the hash of one file with the tensors of another.

    Raises:
        IntegrityError: A file was changed, replaced or removed. This is raised in the place of any
            other error, because it explains it.
    """
    try:
        yield
    except Exception as error:
        _check(states, error)
        raise
    _check(states, None)


def _check(states: Mapping[Path, State], cause: Exception | None) -> None:
    now = states_of(states)
    changed = [path for path, state in states.items() if now[path] != state]
    if changed:
        gone = now[changed[0]] is None
        raise IntegrityError(
            f"{changed[0].name} was {'removed' if gone else 'changed'} since it was opened.",
            evidence={"file": changed[0]},
            meaning="The tensors may come from two versions of the file, so nothing was written.",
            hint="run again when no other program writes this file.",
        ) from cause
