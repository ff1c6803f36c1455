"""Directories of Orbax: `_METADATA`, and arrays in Zarr, mostly in a database of files (OCDBT).

What Orbax says of its tree is read here. The database and its compressed arrays are read by
tensorstore, Google's library for them, which runs nothing of what it reads.

Source: orbax-checkpoint 0.12, `_src/metadata/tree.py` and `_src/serialization/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers.container import ITEM_SIZE, Container, TensorInfo
from vitconvert.containers.flax_trees import branch_of_weights
from vitconvert.containers.json_object import parse_object
from vitconvert.containers.mapped_file import checked_shape
from vitconvert.containers.zip_archive import FREE_INFLATION, MOST_INFLATION
from vitconvert.errors import CorruptFile, MissingPackage, UnsafeFile

if TYPE_CHECKING:
    import torch

_LONGEST = 100_000_000  # bytes of `_METADATA`
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_MOST_ARRAYS = 100_000


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """An array that tensorstore has opened."""

    info: TensorInfo
    array: Any


def open_file(path: Path, _members: object, prefer: tuple[str, ...]) -> Container:
    """Read the tree, and open its arrays.

    Args:
        path: `_METADATA`; the arrays lie beside it.
        prefer: Keys of branches to try before "params".

    Raises:
        CorruptFile: The metadata make no sense, or an array is missing or damaged.
        UnsafeFile: The arrays are far larger than the files.
        MissingPackage: tensorstore is not installed.
    """
    tree, others, spec = _read_metadata(path)
    stored = {name: _opened(path, spec, name, key) for name, key in tree.items()}
    files = sorted(file for file in path.parent.rglob("*") if file.is_file())
    _check_size(path, files, stored)
    container = Container(
        path=path,
        files=(path, *(file for file in files if file != path)),
        format="orbax",
        manifest={name: one.info for name, one in stored.items()},
        extras=others,
        reader=lambda name: _read(path, name, stored[name]),
        release=stored.clear,
    )
    return branch_of_weights(container, prefer)


def _read_metadata(path: Path) -> tuple[dict[str, str], dict[str, object], dict[str, Any]]:
    """Name -> key of each array, what else there is, and how arrays are stored."""
    if (size := path.stat().st_size) > _LONGEST:
        raise CorruptFile(
            "The metadata of this Orbax checkpoint are longer than any checkpoint's.",
            evidence={"file": path, "found": f"{size:,} bytes"},
        )
    said = parse_object(path, path.read_bytes(), what="_METADATA")
    entries = said.get("tree_metadata")
    if not isinstance(entries, dict) or len(entries) > _MOST_ARRAYS:
        raise CorruptFile("_METADATA has no tree.", evidence={"file": path})
    tree, others = {}, {}
    for entry in entries.values():
        keys, kind = _entry(path, entry)
        name = "/".join(keys)
        if name in tree or name in others:
            raise CorruptFile(f"{name[:80]!r} stands in the tree twice.", evidence={"file": path})
        if kind in _ARRAYS:
            tree[name] = ".".join(keys)
        else:
            others[name] = kind
    driver = "zarr3" if said.get("use_zarr3") else "zarr"
    return tree, dict(others), {"driver": driver, "ocdbt": said.get("use_ocdbt", True)}


def _entry(path: Path, entry: object) -> tuple[list[str], str]:
    match entry:
        case {"key_metadata": list(keys), "value_metadata": {"value_type": str(kind), **rest}}:
            names = [key.get("key") if isinstance(key, dict) else None for key in keys]
            if names and all(isinstance(name, str | int) for name in names):
                kind = "nothing" if rest.get("skip_deserialize") else kind
                texts = [str(name) for name in names]
                if not any(text in ("", ".", "..") or "\\" in text for text in texts):
                    return texts, kind[:80]
    raise CorruptFile("_METADATA has an entry that describes no value.", evidence={"file": path})


def _opened(path: Path, spec: Mapping[str, Any], name: str, key: str) -> _Stored:
    try:
        import tensorstore
    except ModuleNotFoundError:
        raise MissingPackage(
            "tensorstore, which reads the arrays of Orbax, is not installed.",
            hint="pip install 'vitconvert[orbax]'",
        ) from None
    base = path.parent.resolve()
    if spec["ocdbt"]:
        place = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{base}/"}, "path": key}
    else:
        place = {"driver": "file", "path": f"{base / key}/"}
        if "/" in key:
            raise CorruptFile(f"{name[:80]!r} is no name of a folder.", evidence={"file": path})
    try:
        array = tensorstore.open(
            {"driver": spec["driver"], "kvstore": place}, open=True, read=True
        ).result()
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, name, error) from error
    dtype = str(array.dtype.name)
    if dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name[:80]!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": dtype[:40], "known": " ".join(ITEM_SIZE)},
        )
    info = TensorInfo(dtype=dtype, shape=checked_shape(path, name[:80], list(array.shape)))
    return _Stored(info=info, array=array)


def _check_size(path: Path, files: list[Path], stored: Mapping[str, _Stored]) -> None:
    """Chunks are inflated whole: they count as much as the arrays that are made of them."""
    limit = FREE_INFLATION + MOST_INFLATION * sum(file.stat().st_size for file in files)
    largest = 0
    for one in stored.values():
        chunk = one.array.chunk_layout.read_chunk.shape or ()
        largest = max(largest, prod(chunk) * ITEM_SIZE[one.info.dtype])
    asked = sum(one.info.nbytes for one in stored.values()) + largest
    if asked > limit:
        raise UnsafeFile(
            "The arrays are far larger than the files in which they lie.",
            evidence={"file": path, "arrays": f"{asked:,} bytes", "limit": f"{limit:,} bytes"},
            meaning="A checkpoint like this is made to exhaust memory.",
        )


def _read(path: Path, name: str, stored: _Stored) -> torch.Tensor:
    import numpy as np
    import torch

    try:
        array = np.ascontiguousarray(stored.array.read().result())
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, name, error) from error
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
    return flat.view(getattr(torch, stored.info.dtype)).view(stored.info.shape)


def _damaged(path: Path, name: str, error: Exception) -> CorruptFile:
    return CorruptFile(
        f"{name[:80]!r} cannot be read from this Orbax checkpoint.",
        evidence={"file": path, "reason": str(error)[:200]},
        hint="copy the whole directory again.",
    )
