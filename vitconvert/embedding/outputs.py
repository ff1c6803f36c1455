"""An output: its record, which says what all its shards share, and its README.md."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from vitconvert.embedding.embedder import LoadedTask
from vitconvert.embedding.folders import SCRATCH, Folder, read_json, write_json
from vitconvert.embedding.sources import Layout, Sources
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    MissingFact,
    OutputExists,
    printable,
    some,
)
from vitconvert.sources.located import RECORD
from vitconvert.version import VERSION

FORMAT = 2  # of outputs; 1 had a plan
README, FINISHED = "README.md", "finished"
SHARD = re.compile(r"part-(\d{6,}|[0-9a-f]{32})(-\d+-of-\d+)?\.parquet")
# What comes of JSON and of Parquet that somebody changed.
UNREADABLE = (
    *(pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError),
    RecursionError,
)
_LONGEST = 60  # characters of what differs, as an error shows it


@dataclass(frozen=True)
class Output:
    """Where shards are written, and what all of them share. It pickles to little.

    Attributes:
        folder: Where.
        identity: What must be the same in all runs.
        layout: Of the rows.
        part: "" or, of the K-th of N parts, "-K-of-N": stands in the names of its shards.
        tries: How often failed images were computed again before.
    """

    folder: Folder
    identity: Mapping[str, Any]
    layout: Layout
    part: str = ""
    tries: int = 0

    @property
    def computed(self) -> str:
        """ "features", "tokens", "projected" or "classes"."""
        return str(self.identity["computed"]["what"])

    @property
    def data(self) -> str:
        """The folder of the shards."""
        return "predictions" if self.computed == "classes" else "features"

    def names(self) -> list[str]:
        """The shards that are there."""
        return [name for name in self.folder.names(self.data) if SHARD.fullmatch(name)]

    def next_name(self) -> str:
        """Of a shard that comes after those that are there."""
        own = (name for name in self.names() if name.endswith(f"{self.part}.parquet"))
        numbers = [found[1] for name in own if (found := SHARD.fullmatch(name))]
        last = max((int(n) for n in numbers if n.isdecimal() and len(n) < 32), default=-1)
        return f"part-{last + 1:06d}{self.part}.parquet"

    def finish(self, shards: Mapping[str, Sequence[int]]) -> None:
        """Write which shards a run left when it ended, for `check`."""
        mine = {name: c for name, c in shards.items() if name.endswith(f"{self.part}.parquet")}
        write_json(self.folder, f"{FINISHED}/{self._finished}", mine)

    def unfinish(self) -> None:
        """Say that a run is on: what runs left before is no longer all."""
        for name in self.folder.names(FINISHED):
            if not self.part or name in ("all.json", self._finished):
                self.folder.remove(f"{FINISHED}/{name}")

    @property
    def _finished(self) -> str:
        return f"part{self.part}.json" if self.part else "all.json"


def begin(
    folder: Folder, loaded: LoadedTask, sources: Sources, *, store: str, append: bool, part: str
) -> Output:
    """The output of a run: the one that is there, if it is of the same, or a new one.

    Raises:
        OutputExists: Something else is there.
        ConflictingFact: It holds other numbers, or is of another version.
        MissingFact: There is nothing to add to.
    """
    identity = {**loaded.identity, "output": {"store": store}}
    output = find_output(folder)
    if output and output.names():  # else nothing is lost if it begins anew
        source = sources.description(output.layout)
        if append:  # other sources, of the same columns
            names = ("keep", "image column")
            source = {**output.identity["source"], **{name: source[name] for name in names}}
        wanted = json.loads(json.dumps({**identity, "source": source}))
        before, now = dict(_leaves(output.identity)), dict(_leaves(wanted))
        differing = [n for n in {**before, **now} if before.get(n) != now.get(n)]
        if differing:
            shown = ([str(values.get(n))[:_LONGEST] for values in (before, now)] for n in differing)
            raise ConflictingFact(
                "The output has features of another model or preprocessing, which are not mixed.",
                evidence={
                    name: f"{old} there, {new} now"
                    for name, (old, new) in zip(differing, shown, strict=True)
                },
                hint="name another output with -o, or repeat the options that this one began with.",
            )
        return replace(output, part=part)
    if append:
        raise MissingFact(
            "There is no output to add to yet.",
            evidence={"output": folder},
            hint="leave out --append: the command then makes it.",
        )
    layout = Layout.of(sources)
    identity["source"] = sources.description(layout)
    output = Output(folder, json.loads(json.dumps(identity)), layout, part)
    write_records(output, {})
    return output


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name} {key}".strip())
    else:
        yield name, value


def find_output(folder: Folder) -> Output | None:
    """The output that a folder holds; None if there is nothing in it.

    Raises:
        OutputExists: There are files that no run of ours wrote.
        ConflictingFact: It is of another version.
        CorruptFile: Somebody changed its record.
    """
    entries = folder.names()
    if "plan" in entries and "plan.json" in folder.names("plan"):
        raise ConflictingFact(
            "An earlier version of vitconvert made this output, which had a plan.",
            evidence={"output": folder},
            hint="finish it with that version, 0.23 or earlier, or name a new output with -o.",
        )
    if RECORD not in entries:
        strange = [name for name in entries if name != SCRATCH]
        if not strange:
            return None
        raise OutputExists(
            "The output has files that vitconvert did not write.",
            evidence={"output": folder, "files": some(strange)},
            hint="name another output with -o.",
        )
    stated = read_json(folder, RECORD)
    if stated.get("format") != FORMAT:
        raise ConflictingFact(
            "Another version of vitconvert made this output.",
            evidence={"output": folder},
            hint="use that version, or a new output.",
        )
    try:
        layout = Layout(**stated["layout"])
        for kind in layout.columns.values():
            pa.type_for_alias(kind)
        output = Output(folder, stated["identity"], layout)
        sound = isinstance(output.identity["source"], dict) and output.computed.isalpha()
        named = set(layout.kept.values()) <= layout.columns.keys()
        if not sound or not named or not isinstance(layout.base, str | None):
            raise ValueError("columns, a base or an identity that make no sense")
    except UNREADABLE as error:
        raise CorruptFile(
            "The record of this output is damaged, or vitconvert did not write it.",
            evidence={"output": folder, "file": RECORD, "why": error},
            hint="name a new output with -o.",
        ) from None
    return output


def write_records(output: Output, shards: Mapping[str, Sequence[int]]) -> None:
    """Write what the output is, for programs and for people.

    A README.md that somebody else changed stays.
    """
    folder, entries = output.folder, output.folder.names()
    if output.part and RECORD in entries:
        return
    rows, failed = (sum(counts[n] for counts in shards.values()) for n in (0, 1))
    readme = _readme(output, rows, failed, len(shards)).encode()
    record = {
        "vitconvert": VERSION,
        "format": FORMAT,
        "identity": output.identity,
        "layout": asdict(output.layout),
        "rows": rows,
        "failed": failed,
        "shards": len(shards),
        "readme_sha256": hashlib.sha256(readme).hexdigest(),
    }
    ours = True
    if README in entries:
        with folder.open(README) as file:
            found = file.read()
        stated = read_json(folder, RECORD) if RECORD in entries else {}
        # As the record says that we wrote it last, or when we were killed after it.
        ours = found == readme or hashlib.sha256(found).hexdigest() == stated.get("readme_sha256")
    else:
        write_json(folder, RECORD, record)  # alone, a README.md would be somebody else's
    if ours:
        with folder.writing(README) as file:
            file.write(readme)
    write_json(folder, RECORD, record)


def _readme(output: Output, rows: int, failed: int, shards: int) -> str:
    data = output.data
    beside = [name for name in ("failed", "remarks") if output.folder.names(name)]
    others = "".join(f"- config_name: {n}\n  data_files: {n}/*.parquet\n" for n in beside)
    columns = (printable(name).replace("`", "'") for name in output.layout.columns)
    kept = "".join(f", `{name}`" for name in columns)
    what = "classes, with labels and scores" if data == "predictions" else "features"
    plural = "" if shards == 1 else "s"
    why = ' `load_dataset(".", "failed", split="train")` says why.' if failed else ""
    if "remarks" in beside:
        why += " `remarks/` names the images that were not read in full, and why."
    return f"""---
configs:
- config_name: {data}
  data_files: {data}/*.parquet
  default: true
{others}---

# The {what} of {rows:,} images

Made by vitconvert {VERSION}: {shards:,} shard{plural}, in Parquet files in `{data}/` with a row for
each image: `key`{kept} and what was computed. Images that gave no answer: {failed:,}.{why}
`vitconvert.json` says which model and preprocessing this is of.

```python
from datasets import load_dataset

dataset = load_dataset(".", "{data}", split="train")
```
"""
