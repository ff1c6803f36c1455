"""The `_METADATA` of an Orbax directory: which leaves the tree has, and how they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats.headers import parse_object, shown

_LONGEST = 2**26  # bytes; a leaf takes 300
_DEEPEST = 64
_ARRAYS = ("jax.Array", "np.ndarray")
_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf: its name among the arrays, and what it was in Python."""

    place: str
    kind: str

    @property
    def is_array(self) -> bool:
        """Whether it is an array and no number or text."""
        return self.kind in _ARRAYS


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The leaves by their keys.

    Attributes:
        in_one_store: Whether the arrays lie in one OCDBT store, and not in folders.
        has_zeros: Whether chunks of zeros were written, too.
        third: Whether they are kept as zarr 3, and not as zarr 2.
        leaves: All that are not empty.
    """

    in_one_store: bool
    has_zeros: bool
    third: bool
    leaves: Mapping[tuple[str, ...], Leaf]


def read_tree(path: Path) -> Tree:
    """Read `_METADATA`.

    Raises:
        CorruptFile: It is damaged, or of a kind that is not read.
        UnsafeFile: A key leads out of the directory.
    """
    if (size := path.stat().st_size) > _LONGEST:
        raise CorruptFile(
            "The tree of this Orbax directory is too long.",
            evidence={"file": path, "found": f"{size:,} bytes", "limit": f"{_LONGEST:,}"},
        )
    content = parse_object(path, path.read_bytes(), what="The tree of this Orbax directory")
    listed = content.get("tree_metadata")
    if not isinstance(listed, dict):
        raise _strange(path, "it lists no leaves")
    leaves: dict[tuple[str, ...], Leaf] = {}
    for name, entry in listed.items():
        keys, kind = _keys(path, name, entry), _kind(path, name, entry)
        if keys in leaves:
            raise _strange(path, f"{name[:80]!r} stands there twice")
        if kind not in _EMPTY:
            leaves[keys] = Leaf(place=".".join(keys), kind=kind)
    places = {leaf.place for leaf in leaves.values()}
    if len(places) < len(leaves):
        raise _strange(path, "two leaves are kept under one name")
    return Tree(
        # Absent in what older releases wrote, which tells by its files.
        in_one_store=bool(content.get("use_ocdbt", (path.parent / "manifest.ocdbt").exists())),
        has_zeros=content.get("store_array_data_equal_to_fill_value") is True,
        third=content.get("use_zarr3") is True,
        leaves=leaves,
    )


def _keys(path: Path, name: str, entry: object) -> tuple[str, ...]:
    listed = entry.get("key_metadata") if isinstance(entry, dict) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= _DEEPEST:
        raise _strange(path, f"{name[:80]!r} has no keys")
    found = [step.get("key") if isinstance(step, dict) else None for step in listed]
    keys = tuple(key for key in found if isinstance(key, str) and key)
    if len(keys) < len(found):
        raise _strange(path, f"{name[:80]!r} has a key that is no text")
    if out := [key for key in keys if _leads_elsewhere(key)]:
        raise UnsafeFile(
            "A key of this Orbax directory leads to another place.",
            evidence={"file": path, "key": shown(out[0])},
        )
    return keys


def _leads_elsewhere(key: str) -> bool:
    """Whether a key, as a part of the name of a folder, would be more than that."""
    return any(letter in key for letter in '/\\\0:|"') or key in (".", "..")


def _kind(path: Path, name: str, entry: object) -> str:
    value = entry.get("value_metadata") if isinstance(entry, dict) else None
    kind = value.get("value_type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise _strange(path, f"{name[:80]!r} has no type")
    return kind[:80]


def _strange(path: Path, reason: str) -> CorruptFile:
    return CorruptFile(
        "The tree of this Orbax directory cannot be read.",
        evidence={"file": path, "reason": reason},
    )
