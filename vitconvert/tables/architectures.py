"""Architectures that have a name: what a project means by `vit_base_patch16_224`."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from vitconvert.config.field_values import parse_field
from vitconvert.errors import NotRepresentable, nearest
from vitconvert.toml_files import read_tables

FILE = "weights_map/architectures.toml"
_CARDS = "model_cards"  # the section of models that code of their cards builds
_BY_THEIR_FILES = ("mae", "moco_v3", "msn")  # models that nothing names but the names of files

Fields = Mapping[str, Any]  # of ViTConfig


class Architectures(Mapping[str, Fields]):
    """Fields of ViTConfig by name. There are hundreds: each gets its types when it is asked for."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Fields:
        return {field: parse_field(field, value) for field, value in self.rows[name].items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def stating(self, field: str) -> "Architectures":
        """The architectures that state a field."""
        return Architectures({name: row for name, row in self.rows.items() if field in row})


@functools.cache
def architectures() -> Mapping[str, Architectures]:
    """Named architectures by the dialect of their tensors."""
    return {dialect: Architectures(rows) for dialect, rows in read_tables("architectures").items()}


@functools.cache
def named(ecosystem: str) -> Architectures:
    """Every architecture of a library."""
    own = (rows for dialect, rows in architectures().items() if dialect.split("_")[0] == ecosystem)
    return Architectures({name: row for one in own for name, row in one.rows.items()})


def published(ecosystem: str, name: str) -> Architectures:
    """The architectures among which a name is looked up in a library.

    A name that begins as another project's do is that project's: the files of `dino_vits16` have
    timm's names of tensors, and those of `dinov2_vits14` are read in other layouts, too. So is one
    that begins with the name of a published file.
    """
    own, theirs = named(ecosystem), architectures().get(name.partition("_")[0])
    called = {
        row: text
        for section in _BY_THEIR_FILES
        for row, text in architectures()[section].rows.items()
        if name.startswith(row)
    }
    return Architectures({**(theirs.rows if theirs else {}), **called, **own.rows})


def cards() -> Architectures:
    """Models of timm by their repositories, whose cards say as code what config.json does not."""
    return architectures()[_CARDS]


def find_architecture(ecosystem: str, name: str) -> Fields:
    """The fields of a named architecture, or of a card; a tag after a dot does not count.

    Raises:
        NotRepresentable: The name is none of those that vitconvert's ViT computes.
    """
    rows = published(ecosystem, name)
    bare = name.split(".")[0]
    if bare in rows:
        return rows[bare]
    if bare in cards():
        return cards()[bare]
    near = [n for n in cards() if n.endswith(f"/{bare}")] or nearest(bare, rows, 2)
    raise NotRepresentable(
        f"{bare!r} is not an architecture that vitconvert knows.",
        evidence={"ecosystem": ecosystem, "listed in": FILE},
        meaning="Its tensors may look like a plain ViT's and still mean another function, so they "
        "are not read as one.",
        hint=f"did you mean {' or '.join(near)}?" if near else "`vitconvert list '*'` shows them.",
    )


def architecture_in(ecosystem: str, stem: str) -> str | None:
    """The longest architecture name that a file's name begins with."""
    rows = published(ecosystem, stem)
    fitting = (n for n in rows if stem == n or stem.startswith((f"{n}-", f"{n}.", f"{n}_")))
    return max(fitting, key=len, default=None)


def preparation_of(ecosystem: str, name: str) -> Mapping[str, object] | None:
    """Returns how a project prepares images for an architecture, or for one of its tags.

    Returns:
        Fields of timm's `pretrained_cfg`, or None: nothing is known of the name.
    """
    bare = name.split(".")[0]
    by_name = preparations().get(ecosystem, {})
    return by_name.get(name) or by_name.get(bare)


@functools.cache
def preparations() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    """Names to what is said of them, by ecosystem: `weights_map/preprocessing.toml`."""
    return {
        ecosystem: {
            name: {field: value for field, value in said.items() if field != "names"}
            for said in groups.values()
            for name in said["names"]
        }
        for ecosystem, groups in read_tables("preprocessing").items()
    }
