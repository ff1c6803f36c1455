"""Architectures that have a name: what a project means by `vit_base_patch16_224`."""

import functools
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from vitconvert.errors import NotRepresentable
from vitconvert.fields import parse_field
from vitconvert.tables.directory import tables_dir

FILE = "weights_map/architectures.toml"


@functools.cache
def architectures() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Dialect of an architecture's tensors -> its name -> fields of ViTConfig."""
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    return {
        ecosystem: {
            name: {field: parse_field(field, value) for field, value in row.items()}
            for name, row in rows.items()
        }
        for ecosystem, rows in tomllib.loads(text).items()
    }


@functools.cache
def named(ecosystem: str) -> Mapping[str, Mapping[str, Any]]:
    """Every architecture of an ecosystem: name -> fields of ViTConfig."""
    own = (rows for dialect, rows in architectures().items() if dialect.split("_")[0] == ecosystem)
    return {name: row for rows in own for name, row in rows.items()}


def find_architecture(ecosystem: str, name: str) -> Mapping[str, Any]:
    """The fields of a named architecture; a tag after a dot does not count.

    Raises:
        NotRepresentable: The name is none of those that vitconvert's ViT computes.
    """
    rows = named(ecosystem)
    bare = name.split(".")[0]
    if bare in rows:
        return rows[bare]
    near = get_close_matches(bare, rows, n=2)
    raise NotRepresentable(
        f"{bare!r} is no architecture that vitconvert knows.",
        evidence={"ecosystem": ecosystem, "listed in": FILE},
        meaning="Its tensors may look like a plain ViT's and still mean another function, so they "
        "are not read as one.",
        hint=f"Did you mean {' or '.join(near)}?" if near else "`vitconvert list` shows the names.",
    )


def architecture_in(ecosystem: str, stem: str) -> str | None:
    """The longest architecture name that a file's name begins with."""
    rows = named(ecosystem)
    fitting = (n for n in rows if stem == n or stem.startswith((f"{n}-", f"{n}.", f"{n}_")))
    return max(fitting, key=len, default=None)
