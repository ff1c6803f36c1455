"""Makes a plan: sources are walked once, and what they have is divided into units."""

import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitconvert.embedding import files, parquet, tars
from vitconvert.embedding.folders import Folder, write_json
from vitconvert.embedding.known import KnownKeys
from vitconvert.embedding.places import PARQUETS, TARS, Found, find, is_url, lowered
from vitconvert.embedding.plan import (
    LISTED,
    PLAN,
    VERSION,
    Plan,
    Sources,
    is_of_a_plan,
    line_of,
    list_name,
)
from vitconvert.embedding.units import Unit, text
from vitconvert.errors import SourceError, UsageError, some
from vitconvert.preprocessing.finding import SUFFIXES

_TAKEN = ("key", "features", "indices", "scores", "labels")  # columns of our own


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
    old, lists = (before.units, before.lists) if before else ((), 0)
    named = _named(units, of=len(old) + len(units))
    with folder.writing(list_name(lists)) as file:
        for unit in named:
            file.write(json.dumps(dataclasses.asdict(unit)).encode() + b"\n")
    plan = before or Plan(
        identity={**identity, "source": sources.description(making.listed_hash)},
        columns=making.columns(),
        kept=making.kept,
    )
    plan = dataclasses.replace(
        plan, image_column=making.image_column, lists=lists + 1, units=[*old, *named]
    )
    _write_plan(folder, plan)
    return plan


def _named(units: Iterable[Unit], of: int) -> list[Unit]:
    """Units with the names of their shards, which say how many there are."""
    return [
        dataclasses.replace(unit, part=f"part-{unit.number:06d}-of-{of:06d}.parquet")
        for unit in units
    ]


def _write_plan(folder: Folder, plan: Plan) -> None:
    """Write all but the units, which lists of their own have; what is here is a plan from now."""
    stated = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    del stated["units"]
    write_json(folder, PLAN, {"version": VERSION, **stated})


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
        self.has_columns = False
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
        if self.sources.image_column and not (self.before or self.has_columns):
            raise UsageError(
                "image_column names a column of Parquet files, and there are none.",
                hint="leave out --image-column.",
            )

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
            self._hash.update(line_of(name))
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
        return self._next(rows=len(found), kind="files", file=name)

    def _tar(self, found: Found) -> Iterator[Unit]:
        for begin, rows, ends_early in tars.split(found.name, self.shard_rows):
            yield self._next(
                rows=rows,
                kind="tar",
                file=found.name,
                state=found.state,
                begin=begin,
                ends_early=ends_early,
            )

    def _parquet(self, found: Found) -> Iterator[Unit]:
        column = parquet.image_column(found.name, self.image_column)
        self.image_column, self.has_columns = column, True
        kept = parquet.kept_types(found.name, self.sources.keep)
        self._check_types(found.name, kept)
        for begin, rows in parquet.split(found.name, self.shard_rows):
            yield self._next(
                rows=rows,
                kind="parquet",
                file=found.name,
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
        base = os.getcwd()  # noqa: PTH109
        unit = Unit(number=self.number, part="", base=base, **fields)
        self.number += 1
        return unit


def _require_somewhere(source: str, found: Found) -> None:
    """A source that leads nowhere is a mistake to be mended before there is a plan."""
    itself = is_url(source) or found.name == str(Path(source))  # not a broken link in a folder
    nowhere = itself and (found.state is None or Path(source).is_dir())
    names_an_image = lowered(source).endswith(SUFFIXES) and not glob.has_magic(source)
    if nowhere and not names_an_image:
        raise SourceError(
            "There are no images here.",
            evidence={"source": source},
            hint="--recursive (in Python, recursive=True) looks into sub-folders too.",
        )
