"""The plan: what there is to compute, as an ordered list of units that never changes.

plan/units-000.jsonl        a line for each unit; units-001.jsonl of the first --append, ...
plan/files-000003.parquet   the files of unit 3, where images are files of their own
plan/plan.json              the rest; written last: without it there is no plan
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from vitconvert.embedding import files, parquet, tars
from vitconvert.embedding.folders import Folder, read_json
from vitconvert.embedding.places import absolute
from vitconvert.embedding.units import Item, Unit, encoded
from vitconvert.errors import ConflictingFact, CorruptFile

PLAN = "plan/plan.json"
LISTED = "-"  # stands for names on stdin
VERSION = 1
_LISTS = re.compile(r"units-\d{3,}\.jsonl|files-\d{6,}\.parquet")
_PARTS = re.compile(r"part-\d{6,}-of-\d{6,}\.parquet")
_KINDS = {
    **dict.fromkeys(("part", "kind", "file", "base"), str),
    **dict.fromkeys(("number", "rows", "begin"), int),
    "ends_early": bool,
}
_MOST_PLACES = 20  # that are listed in each shard; of more, a hash is


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the images are.

    Attributes:
        given: Files, folders, patterns, tars, Parquet files, URLs; "-" for the names of `listed`.
        listed: Names of files, one after the other, as from stdin.
        recursive: Whether folders are searched with their sub-folders.
        keep: Columns of Parquet files, or the files of a WebDataset sample, that go along.
        image_column: The one that holds the images, where that is not clear.
    """

    given: Sequence[str]
    listed: Iterable[str] = ()
    recursive: bool = False
    keep: Sequence[str] = ()
    image_column: str | None = None

    def description(self, listed: str | None = None) -> dict[str, Any]:
        """What is compared when a run goes on.

        Args:
            listed: Hash of the names that were listed; by default, they are read for it.
        """
        if listed is None and LISTED in self.given:
            state = hashlib.sha256()
            for name in self.listed:
                state.update(line_of(name))
            listed = state.hexdigest()
        places = [f"{LISTED} {listed}" if name == LISTED else absolute(name) for name in self.given]
        if len(places) > _MOST_PLACES:
            names = hashlib.sha256(b"".join(map(line_of, places))).hexdigest()
            places = [f"{len(places)} places {names}"]
        return {
            "sources": places,
            "recursive": self.recursive,
            "keep": list(self.keep),
            "image column": self.image_column or "the only one",
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What there is to compute.

    Attributes:
        identity: What must be the same when a run goes on.
        columns: What goes along with each row: name -> the type, as Arrow writes it.
        kept: What a column that goes along is called in the source -> its name in `columns`.
        image_column: The column of images of Parquet files.
        lists: How many lists of units there are: 1, and 1 for each --append.
        units: In order.
    """

    identity: Mapping[str, Any]
    columns: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    image_column: str | None = None
    lists: int = 1
    units: Sequence[Unit] = ()

    @property
    def rows(self) -> int:
        """How many images there are."""
        return sum(unit.rows for unit in self.units)

    def items(self, folder: Folder, unit: Unit) -> Iterator[Item]:
        """The images of a unit, in order.

        Raises:
            SourceError, CorruptFile: Its archive is gone, or another.
        """
        match unit.kind:
            case "tar":
                return tars.read(unit, self.kept)
            case "parquet":
                return parquet.read(unit, str(self.image_column), self.kept)
            case _:
                return files.read(folder, unit)


def read_plan(folder: Folder) -> Plan | None:
    """The plan of an output; None if there is none, or an unfinished one.

    Raises:
        ConflictingFact: Another version of vitconvert made it.
        CorruptFile: Nobody did, or somebody changed it.
    """
    if "plan.json" not in folder.names("plan"):
        return None
    stated = read_json(folder, PLAN)
    if stated.pop("version", None) != VERSION:
        raise ConflictingFact(
            "Another version of vitconvert made this output.",
            evidence={"output": folder},
            hint="use that version, or a new output.",
        )
    try:
        plan = Plan(**stated, units=list(_listed_units(folder, stated["lists"])))
        _require_ours(plan)
    except (ValueError, TypeError, LookupError, AttributeError, OSError, RecursionError) as error:
        raise CorruptFile(
            "The plan of this output is damaged, or is none of ours.",
            evidence={"output": folder, "why": f"{type(error).__name__}: {error}"},
            hint="name a new output with -o.",
        ) from None
    return plan


def _listed_units(folder: Folder, lists: int) -> Iterator[Unit]:
    if lists < 1:
        raise ValueError(f"{lists} lists of units")
    for number in range(lists):
        with folder.open(list_name(number)) as lines:
            yield from (_unit(json.loads(line)) for line in lines.read().splitlines())


def _require_ours(plan: Plan) -> None:
    """What a plan says becomes names of files: whoever changed it must not choose others."""
    if len({unit.part for unit in plan.units}) != len(plan.units) or not plan.units:
        raise ValueError("there are no units, or two of one name")
    for number, unit in enumerate(plan.units):
        if any(type(getattr(unit, name)) is not kind for name, kind in _KINDS.items()):
            raise ValueError(f"unit {number} makes no sense")
        ours = unit.number == number and _PARTS.fullmatch(unit.part) and unit.rows > 0
        if unit.kind == "files":
            ours = ours and unit.file == f"plan/files-{number:06d}.parquet"
        ours = ours and unit.begin >= 0
        if not ours or unit.kind not in ("files", "tar", "parquet"):
            raise ValueError(f"unit {number} makes no sense")
    for kind in plan.columns.values():
        pa.type_for_alias(kind)
    if not set(plan.kept.values()) <= plan.columns.keys():
        raise ValueError("columns make no sense")
    if not isinstance(plan.identity["computed"]["what"], str):
        raise ValueError("nothing is computed")
    if not isinstance(plan.identity["source"], dict):
        raise ValueError("there is no source")


def is_of_a_plan(name: str) -> bool:
    """Whether a file in the folder plan/ may be ours."""
    return name == "plan.json" or bool(_LISTS.fullmatch(name))


def what_goes_along(source: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same of sources that are added."""
    return {name: source.get(name) for name in ("keep", "image column")}


def line_of(name: str) -> bytes:
    """A name in a list of which the hash is taken."""
    return encoded(name) + b"\0"


def list_name(number: int) -> str:
    """Where a list of units lies."""
    return f"plan/units-{number:03d}.jsonl"


def _unit(stated: dict[str, Any]) -> Unit:
    state = stated.pop("state")
    return Unit(**stated, state=tuple(state) if state else None)
