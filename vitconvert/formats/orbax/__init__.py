"""Directories that Orbax writes: trees of arrays of JAX, in one key-value store (OCDBT) or a folder
of zarr for each array. Only read.

`_METADATA` is JSON with the keys that lead to each leaf; names of tensors are these keys, joined by
"/". An array is a header (of zarr 2, or of zarr 3 as the newest interface writes) and chunks, which
tensorstore finds and inflates when the array is asked for; their sizes are looked at before.

Format: orbax-checkpoint 0.12, `metadata/tree.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, MissingPackage, UnsafeFile
from vitconvert.formats.container import Container
from vitconvert.formats.orbax.tree import Leaf, Tree, read_tree
from vitconvert.formats.zip_archive import FREE_INFLATION, MOST_INFLATION

if TYPE_CHECKING:
    from vitconvert.formats.orbax.headers import ZarrArray

_MOST_FILES = 100_000
_DEEPEST = 4  # wrappers in one another
_WRAPPERS = ("params", "target")  # of Flax's training states, today and before Linen

_VARIABLE = "/value"


def open_file(path: Path, _members: object, prefer: tuple[str, ...], *_: object) -> Container:
    """Read the tree of an Orbax directory, and the header of each array.

    Args:
        path: Of `_METADATA`.
        prefer: Wrapper keys to try before the usual ones.

    Raises:
        MissingPackage: tensorstore is not installed.
        CorruptFile: The tree or a header is damaged, or arrays are missing.
        UnsafeFile: The arrays are far larger than the directory.
    """
    if find_spec("tensorstore") is None:
        raise MissingPackage(
            "tensorstore, which reads the arrays of Orbax, is not installed.",
            evidence={"file": path},
            hint="pip install tensorstore",
        )
    from vitconvert.formats.orbax.arrays import Store

    tree = read_tree(path)
    files = _files(path)
    wrapper, found, beside = _unwrapped(tree, prefer)
    leaves, notes = _without_variables(found)
    store = Store(path.parent, tree)
    arrays = store.open(leaves)
    _check_size(path, files, arrays)
    return Container(
        path=path,
        files=tuple(files),
        format="orbax",
        manifest={name: array.info for name, array in arrays.items()},
        wrapper=wrapper,
        extras=beside,
        notes=notes,
        reader=lambda name: store.read(name, arrays[name]),
        release=store.close,
    )


def _files(path: Path) -> dict[Path, int]:
    """All files of the directory, with their sizes."""
    inside = (file for file in path.parent.rglob("*") if file.is_file())
    found = {file: file.stat().st_size for file in islice(inside, _MOST_FILES + 1)}
    if len(found) > _MOST_FILES:
        raise CorruptFile(
            "The directory has more files than any checkpoint.",
            evidence={"directory": path.parent, "limit": f"{_MOST_FILES:,}"},
        )
    return {path: found.pop(path), **dict(sorted(found.items()))}


def _unwrapped(
    tree: Tree, prefer: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, Leaf], dict[str, object]]:
    """The keys around the weights, the arrays by name, and what lies beside them."""
    level, wrapper = dict(tree.leaves), list[str]()
    beside: dict[str, object] = {}
    while len(wrapper) < _DEEPEST:
        inner = {keys[0] for keys in level if len(keys) > 1}
        key = next((key for key in (*prefer, *_WRAPPERS) if key in inner), None)
        if key is None:
            break
        others = [keys[0] for keys in level if keys[0] != key]
        around = "/".join([*wrapper, ""])
        beside |= {around + other: _told(others.count(other)) for other in dict.fromkeys(others)}
        level = {keys[1:]: leaf for keys, leaf in level.items() if keys[0] == key and len(keys) > 1}
        wrapper.append(key)
    scalars = [keys for keys, leaf in level.items() if not leaf.is_array]
    beside |= {"/".join([*wrapper, *keys]): level.pop(keys).kind for keys in scalars}
    return tuple(wrapper), {"/".join(keys): leaf for keys, leaf in level.items()}, beside


def _without_variables(leaves: Mapping[str, Leaf]) -> tuple[Mapping[str, Leaf], tuple[str, ...]]:
    """The names of weights alone, where a state of Flax's NNX put its variables around each."""
    if not all(name.endswith(_VARIABLE) for name in leaves):
        return leaves, ()
    shorter = {name.removesuffix(_VARIABLE): leaf for name, leaf in leaves.items()}
    return shorter, (f"behind the names of tensors, the file has {_VARIABLE}",)


def _told(count: int) -> str:
    return f"{count:,} value{'s' * (count != 1)}"


def _check_size(path: Path, files: Mapping[Path, int], arrays: Mapping[str, ZarrArray]) -> None:
    size, asked = sum(files.values()), _total(arrays.values())
    if asked > (limit := FREE_INFLATION + MOST_INFLATION * size):
        raise UnsafeFile(
            "The arrays would inflate to far more than the size of the directory.",
            evidence={
                "directory": path.parent,
                "on disk": f"{size:,} bytes",
                "arrays": f"{asked:,} bytes",
                "limit": f"{limit:,} bytes",
            },
            meaning="Weights hardly compress; a directory like this is made to exhaust memory.",
        )


def _total(arrays: Iterable[ZarrArray]) -> int:
    return sum(array.info.nbytes for array in arrays)
