"""The plan: what there is to compute, as an ordered list of units that never changes.

plan/units-000.jsonl        a line for each unit; units-001.jsonl of the first --append, ...
plan/files-000003.parquet   the files of unit 3, where images are files of their own
plan/plan.json              the rest; written last: without it there is no plan
"""

import dataclasses
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from vitconvert.errors import ConflictingFact, CorruptFile, SourceError, UsageError, some
from vitconvert.inference.images import SUFFIXES
from vitconvert.scale import files, parquet, tars
from vitconvert.scale.folders import Folder, read_json, write_json
from vitconvert.scale.known import KnownKeys
from vitconvert.scale.places import PARQUETS, TARS, Found, absolute, find, lowered
from vitconvert.scale.units import Item, Unit, encoded, text

PLAN = "plan/plan.json"
LISTED = "-"  # stands for names on stdin
_VERSION = 1
_LISTS = re.compile(r"units-\d{3,}\.jsonl|files-\d{6,}\.parquet")
_PARTS = re.compile(r"part-\d{6,}-of-\d{6,}\.parquet")
_TAKEN = ("key", "features", "indices", "scores", "labels")  # columns of our own
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
                state.update(_line(name))
            listed = state.hexdigest()
        places = [f"{LISTED} {listed}" if name == LISTED else absolute(name) for name in self.given]
        if len(places) > _MOST_PLACES:
            names = hashlib.sha256(b"".join(map(_line, places))).hexdigest()
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
    if stated.pop("version", None) != _VERSION:
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
    for number in range(lists):
        with folder.open(_list_name(number)) as lines:
            yield from (_unit(json.loads(line)) for line in lines.read().splitlines())


def _require_ours(plan: Plan) -> None:
    """What a plan says becomes names of files: whoever changed it must not choose others."""
    for number, unit in enumerate(plan.units):
        ours = unit.number == number and _PARTS.fullmatch(unit.part) and unit.rows > 0
        if unit.kind == "files":
            ours = ours and unit.file == f"plan/files-{number:06d}.parquet"
        ours = ours and unit.begin >= 0 and isinstance(unit.file, str)
        if not ours or unit.kind not in ("files", "tar", "parquet"):
            raise ValueError(f"unit {number} makes no sense")
    for kind in plan.columns.values():
        pa.type_for_alias(kind)
    if not set(plan.kept.values()) <= plan.columns.keys():
        raise ValueError("columns make no sense")
    if not isinstance(plan.identity["computed"]["what"], str):
        raise ValueError("nothing is computed")


def make_plan(
    folder: Folder,
    sources: Sources,
    *,
    identity: Mapping[str, Any],
    shard_rows: int,
    before: Plan | None = None,
) -> Plan:
    """Write which images there are, and return it.

    Memory holds the names of one unit, and of one directory; with `before`, 16 bytes for each image
    that is known.

    Args:
        folder: Of the output.
        sources: Where the images are.
        identity: What must be the same when a run goes on; "source" is added.
        shard_rows: Of a shard at most; only files of their own are put together to make as many.
        before: A plan that is kept; only images that it does not have are added.

    Raises:
        SourceError: There are no images.
        UsageError, CorruptFile: An archive cannot be read, or not without a word more.
    """
    if before is None:
        for name in filter(is_of_a_plan, folder.names("plan")):  # of one that was not finished
            folder.remove(f"plan/{name}")
    making = _Making(folder, sources, shard_rows, before)
    units = list(making.units())
    if not units and before:
        return before
    if not units:
        raise SourceError("There are no images.", evidence={"sources": some(sources.given)})
    old = list(before.units) if before else []
    total = len(old) + len(units)
    named = [
        dataclasses.replace(unit, part=f"part-{unit.number:06d}-of-{total:06d}.parquet")
        for unit in units
    ]
    lists = before.lists if before else 0
    with folder.writing(_list_name(lists)) as file:
        for unit in named:
            file.write(json.dumps(dataclasses.asdict(unit)).encode() + b"\n")
    plan = Plan(
        identity=before.identity
        if before
        else {**identity, "source": sources.description(making.listed_hash)},
        columns=before.columns if before else making.columns(),
        kept=making.kept,
        image_column=making.image_column,
        lists=lists + 1,
        units=[*old, *named],
    )
    stated = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    del stated["units"]
    write_json(folder, PLAN, {"version": _VERSION, **stated})
    return plan


class _Making:
    """A plan while it is made."""

    def __init__(
        self, folder: Folder, sources: Sources, shard_rows: int, before: Plan | None
    ) -> None:
        self.folder = folder
        self.sources = sources
        self.shard_rows = shard_rows
        self.before = before
        self.number = len(before.units) if before else 0
        self.image_column = before.image_column if before else sources.image_column
        self.grouped = False
        self._types: dict[str, str] = {}  # of columns of the source
        if before:
            self._types = {name: before.columns[kept] for name, kept in before.kept.items()}
        self._hash = hashlib.sha256()
        self._known = KnownKeys(folder, before) if before else None

    @property
    def listed_hash(self) -> str:
        """Of the names on stdin."""
        return self._hash.hexdigest()

    @property
    def kept(self) -> Mapping[str, str]:
        """What columns of the source are called here; names that are taken are changed."""
        if self.before:
            return self.before.kept
        kept: dict[str, str] = {}
        for name in self.sources.keep:
            column = text(name)
            while column in (*_TAKEN, "class" if self.grouped else "", *kept.values()):
                column = f"source_{column}"
            kept.setdefault(name, column)
        return kept

    def columns(self) -> dict[str, str]:
        """What goes along with each row."""
        kept = {column: self._types.get(name, "string") for name, column in self.kept.items()}
        return {**({"class": "string"} if self.grouped else {}), **kept}

    def units(self) -> Iterator[Unit]:
        """Units, in the order of the sources; files that stand alone are gathered."""
        waiting: list[Found] = []
        for found in self._found():
            name = lowered(found.name)
            if name.endswith(TARS):
                yield from self._tar(found)
            elif name.endswith(PARQUETS):
                yield from self._parquet(found)
            else:
                self.grouped |= found.group is not None
                waiting.append(found)
                if len(waiting) == self.shard_rows:
                    yield self._files(waiting)
                    waiting = []
        if waiting:
            yield self._files(waiting)

    def _found(self) -> Iterator[Found]:
        found = (found for name in self.sources.given for found in self._at(name))
        return self._known.new(found) if self._known else found

    def _at(self, source: str) -> Iterator[Found]:
        recursive = self.sources.recursive
        if source == LISTED:
            yield from find(self._listed(), recursive=recursive)
            return
        for found in find([source], recursive=recursive):
            _require_somewhere(source, found)
            yield found

    def _listed(self) -> Iterator[str]:
        for name in self.sources.listed:
            self._hash.update(_line(name))
            yield name

    def _files(self, found: list[Found]) -> Unit:
        if self.sources.keep:
            raise UsageError(
                "Files of their own have no columns that could go along.",
                evidence={"keep": ", ".join(self.sources.keep), "file": found[0].name},
                hint="leave out --keep; with --recursive, sub-folders become the column class.",
            )
        name = f"plan/files-{self.number:06d}.parquet"
        files.write_list(self.folder, name, found)
        return self._next(rows=len(found), kind="files", file=name, base=os.getcwd())  # noqa: PTH109

    def _tar(self, found: Found) -> Iterator[Unit]:
        for begin, rows, ends_early in tars.split(found.name, self.shard_rows):
            yield self._next(
                rows=rows,
                kind="tar",
                file=absolute(found.name),
                state=found.state,
                begin=begin,
                ends_early=ends_early,
            )

    def _parquet(self, found: Found) -> Iterator[Unit]:
        column = parquet.image_column(found.name, self.image_column)
        self.image_column = column
        kept = parquet.kept_types(found.name, self.sources.keep)
        self._check_types(found.name, kept)
        for begin, rows in parquet.split(found.name, self.shard_rows):
            yield self._next(
                rows=rows,
                kind="parquet",
                file=absolute(found.name),
                state=found.state,
                begin=begin,
            )

    def _check_types(self, file: str, kept: dict[str, str]) -> None:
        for name, kind in kept.items():
            if self._types.setdefault(name, kind) != kind:
                raise UsageError(
                    f"The column {name!r} has another type in another file.",
                    evidence={"file": file, "type": kind, "before": self._types[name]},
                )

    def _next(self, **fields: Any) -> Unit:
        unit = Unit(number=self.number, part="", **fields)
        self.number += 1
        return unit


def _require_somewhere(source: str, found: Found) -> None:
    """A source that leads nowhere is a mistake to be mended before there is a plan."""
    nowhere = found.state is None or (found.name == str(Path(source)) and Path(source).is_dir())
    names_an_image = lowered(source).endswith(SUFFIXES) and not glob.has_magic(source)
    if nowhere and not names_an_image:
        raise SourceError(
            "There are no images here.",
            evidence={"source": source},
            hint="--recursive (in Python, recursive=True) looks into sub-folders too.",
        )


def is_of_a_plan(name: str) -> bool:
    """Whether a file in the folder plan/ may be ours."""
    return name == "plan.json" or bool(_LISTS.fullmatch(name))


def what_goes_along(source: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same of sources that are added."""
    return {name: source.get(name) for name in ("keep", "image column")}


def _line(name: str) -> bytes:
    return encoded(name) + b"\0"


def _list_name(number: int) -> str:
    return f"plan/units-{number:03d}.jsonl"


def _unit(stated: dict[str, Any]) -> Unit:
    state = stated.pop("state")
    return Unit(**stated, state=tuple(state) if state else None)
