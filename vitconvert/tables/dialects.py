"""Finding dialects: by name, by library, or by the keys of a file.

Parsing every table would take longer than everything else that happens before weights are read.
Searching what is known of each is fast, and most lack a word of the file's keys.
"""

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypedDict

from vitconvert.config import TextConfig, ViTConfig
from vitconvert.errors import TableError, UsageError, nearest, printable
from vitconvert.tables.inheritance import read_sections, stem_of
from vitconvert.tables.names import Names
from vitconvert.tables.rows import letters_of
from vitconvert.tables.table import Table
from vitconvert.tables.templates import skeleton_of
from vitconvert.toml_files import TEXT, WORD, builtin_label, read_tables, summaries, tables_dir

# What people call a library, and its name here; in small letters, words joined by "_".
_CALLED = {
    "transformers": "hf",
    "huggingface": "hf",
    "hugging_face": "hf",
    "huggingface_transformers": "hf",
    "flax": "hf_flax",
    "tensorflow": "hf_tf",
    "tf": "hf_tf",
    "keras": "keras_hub",
    "keras_nlp": "keras_hub",
    "keras_cv": "keras_hub",
    "google": "jax",
    "google_vit": "jax",
    "vision_transformer": "jax",
    "pytorch": "vit",
    "torch": "vit",
    "pytorch_image_models": "timm",
    "pytorchimagemodels": "timm",
    "vit_pytorch": "lucidrains",
    "tv": "torchvision",
    "open_clip": "openclip",
    "open_clip_torch": "openclip",
    "openai": "openai_clip",
    "clip": "openai_clip",
    "segment_anything": "sam",
    "mmcls": "mmpretrain",
    "mmsegmentation": "mmseg",
    "detectron2": "vitdet",
    "mlx": "mlx_image",
    "gguf": "llama_cpp",
    "ggml": "llama_cpp",
}
# Words of what tables spell {p}: weight, bias, running_mean, running_var, num_batches_tracked.
_KINDS = {"weight", "bias", "running", "mean", "var", "num", "batches", "tracked"}


def likely_dialects(keys: Collection[str]) -> list[str]:
    """Names of the dialects that have the words of every key, and perhaps of some that do not.

    No dialect that explains all keys is left out.
    """
    words = sorted(set(WORD.findall("\n".join(keys))) - _KINDS, key=len, reverse=True)

    def may_spell(text: str, any_rest: Sequence[str]) -> bool:
        if not any_rest:  # the longest words are the rarest
            return all(word in text for word in words)
        foreign = (
            key for key in keys if any(w not in text for w in WORD.findall(key) if w not in _KINDS)
        )
        # What begins so, or after a prefix, may have any words; keys may come with any numbers.
        rests = [skeleton_of(rest) for rest in any_rest]
        return all(
            any(key.startswith(s) or any(f"{mark}{s}" in key for mark in "./_") for s in rests)
            for key in map(skeleton_of, foreign)
        )

    return [n for n, said in summaries().items() if may_spell(said["words"], said["any_rest"])]


def may_find_required(name: str, names: Names) -> bool:
    """Whether these names may be all that a dialect requires."""
    return all(
        any(names.may_have(letters_of(spelling, {})) for spelling in group)
        for group in summaries()[name]["required"]
    )


def ecosystem_of(name: str) -> str:
    """The library of a dialect."""
    return summaries()[name]["ecosystem"]


def family_of(name: str) -> str:
    """The dialect that one extends in the end; those of one family are spellings of one model."""
    return summaries()[name]["family"]


class _Meant(TypedDict):
    """Arguments of an error on a name."""

    evidence: Mapping[str, object]
    hint: str


class _BuiltinTables(Mapping[str, Table]):
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for."""

    def __getitem__(self, name: str) -> Table:
        return _builtin_table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(summaries())

    def __len__(self) -> int:
        return len(summaries())

    def __contains__(self, name: object) -> bool:
        return name in summaries()


@functools.cache
def _builtin_table(name: str) -> Table:
    return Table(name, builtin_label(name), read_tables(name))


def builtin_tables() -> Mapping[str, Table]:
    """Every dialect of `weights_map/`, by name, sorted, each parsed when it is first asked for.

    Raises:
        TableError: When a table that does not parse is asked for.
    """
    return _BuiltinTables()


@functools.cache
def text_table(name: str) -> Table:
    """The table of a kind of text encoder, of `weights_map/text/`.

    Raises:
        TableError: There is none of this name, or it does not parse.
    """
    label = builtin_label(TEXT + name)
    if name not in summaries(TEXT):
        known = ", ".join(summaries(TEXT))
        raise TableError("There is no such table.", evidence={"file": label, "there are": known})
    return Table(name, label, read_tables(TEXT + name), TextConfig)


def text_tables_beside(table: Table, config: ViTConfig) -> list[Table]:
    """The tables of text encoders that a dialect may hold beside this vision encoder."""
    return [text_table(t.name) for t in table.text_towers if t.holds_for(config)]


def likely_tables(names: Names) -> list[Table]:
    """The dialects that may explain these names and find what they require, in order of name.

    The others do not, and were not parsed to know it.
    """
    likely = (n for n in likely_dialects(names.alike.keys()) if may_find_required(n, names))
    tables = [_builtin_table(dialect) for dialect in likely]
    return [table for table in tables if _finds_required(table, names)]


def _finds_required(table: Table, names: Names) -> bool:
    """Whether all parts of a row of each group of `requires` are there."""
    found = {
        name
        for name in set(itertools.chain(*table.requires)) & table.row_of.keys()
        if any(
            all(any(names.spelled_by(part.key)) for part in alternative.parts)
            for alternative in table.row_of[name].alternatives
        )
    }
    return all(found.union(table.section("ignore")) & set(group) for group in table.requires)


def tables_of(ecosystem: str) -> list[Table]:
    """All dialects of a library; none where only a table of the user's own is of it."""
    names = (name for name in summaries() if ecosystem_of(name) == ecosystem)
    return [_builtin_table(name) for name in names]


def is_builtin(name: str) -> bool:
    """Whether this is the name of a dialect or of a library, and of no table of the user's own."""
    return name in summaries() or bool(tables_of(name))


def find_tables(name: str, own: str | PathLike[str] | None = None) -> list[Table]:
    """All dialects of the library of this name, or the dialect of this name.

    Args:
        name: Of either.
        own: A table of the user's, of whose name this is not, and may be meant to be.

    Raises:
        UsageError: There is none; names the nearest three, or every library.
    """
    if found := tables_of(name) or [_builtin_table(d) for d in summaries() if d == name]:
        return found
    mine = printable(stem_of(Path(own))) if own else ""
    known = [*summaries(), *ecosystems(), *([mine] if mine else [])]
    error = UsageError(f"There is no dialect {name!r}.", **what_was_meant(name, known))
    if mine and nearest(name, [mine]):
        error.hint = f"did you mean {mine}, the name of your table?"
    elif Path(f"{name}.toml").is_file():
        error.hint = f"--table {name}.toml names that table."
    raise error


def ecosystems() -> list[str]:
    """Every library, sorted."""
    return sorted({ecosystem_of(name) for name in summaries()})


def what_was_meant(name: str, known: Iterable[str]) -> _Meant:
    """What an error says of a name that there is not: three that may be meant, or where all are."""
    called = _CALLED.get(re.sub("[- ]", "_", name.lower()))
    likely = [] if called else nearest(name.lower(), dict.fromkeys(known), 3)
    if near := [called] if called else likely or [_CALLED[n] for n in nearest(name, _CALLED)]:
        return {"evidence": {}, "hint": f"did you mean {' or '.join(near)}?"}
    return {
        "evidence": {"ecosystems": ", ".join(ecosystems())},
        "hint": "`vitconvert list` describes all of them.",
    }


def is_of(name: str, file: str | PathLike[str] | None) -> bool:
    """Whether a file has the dialect of this name: it is called so, but for its suffix."""
    return file is not None and printable(stem_of(Path(file))) == name


def read_table(file: Path) -> Table:
    """Parse a dialect from a TOML file.

    Raises:
        TableError: With the place in the file and what is wrong there.
    """
    builtin = file.parent == tables_dir()
    label = builtin_label(stem_of(file)) if builtin else str(file)
    name = printable(stem_of(file))  # it is published with what is read by the table
    try:
        table = Table(name, label, read_sections(file, label))
        table.check()
    except RecursionError:
        raise TableError(
            "The table nests words, brackets or conditions too deep.", evidence={"file": label}
        ) from None
    return table
