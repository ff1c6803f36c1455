"""Named tensors to files: whole or not at all, and the same bytes for the same tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, TensorInfo
from vitconvert.containers.content import Content, checked_contents
from vitconvert.containers.safetensors_file import DTYPES as SAFETENSORS_DTYPES
from vitconvert.containers.safetensors_file import LONGEST_HEADER
from vitconvert.containers.sharing import BLOCK
from vitconvert.containers.whole_file import whole_file
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch

_WORD = 8  # safetensors pads its headers so that data begin at a multiple of this


def write_safetensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    metadata: Mapping[str, str] | None = None,
    read_soon: bool = True,
) -> str:
    """Write tensors as safetensors, in the order and layout of the safetensors library.

    But tensors that fill a stretch of a file already, as after a conversion that only renames and
    splits, keep its order, and their distance to the blocks of the disk: where the file system
    can, both files share them. So the bytes depend on the tensors, on the metadata and on how the
    tensors lay, not on the order of either mapping nor on the file system.

    Args:
        path: The file.
        tensors: By name.
        metadata: What the header says besides.
        read_soon: Whether the file is read next; if not, it is written past the page cache.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that safetensors cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(SAFETENSORS_DTYPES.values()), "safetensors")
    if "__metadata__" in contents:
        raise UsageError("safetensors cannot hold a tensor with the name '__metadata__'.")
    order, begin = _as_they_lie(contents) or (_as_the_library(contents), None)
    infos = {name: contents[name].info for name in order}
    header = _safetensors_header(infos, metadata or {}, begin)
    with whole_file(path, read_soon=read_soon) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in order:
            for chunk in contents[name].chunks(file.room):
                file.write(chunk)
    return file.sha256


def _as_the_library(contents: Mapping[str, Content]) -> list[str]:
    """Widest elements first, so that every tensor is aligned."""
    return sorted(contents, key=lambda name: (-ITEM_SIZE[contents[name].info.dtype], name))


def _as_they_lie(contents: Mapping[str, Content]) -> tuple[list[str], int] | None:
    """The order of a file of which the tensors fill a stretch, and where that begins."""
    origins = {name: content.origin for name, content in contents.items() if content.origin}
    if len(origins) < len(contents) or len({path for path, _ in origins.values()}) != 1:
        return None
    order = sorted(contents, key=lambda name: (origins[name][1], name))
    infos = [contents[name].info for name in order]
    widths = [ITEM_SIZE[info.dtype] for info in infos]
    first, last = origins[order[0]][1], origins[order[-1]][1]
    # What is joined of several lies about where the first of them lay.
    fills = first + sum(info.nbytes for info in infos[:-1]) == last
    aligned = widths == sorted(widths, reverse=True) and first % _WORD == 0
    return (order, first) if fills and aligned else None


def _safetensors_header(
    infos: Mapping[str, TensorInfo], metadata: Mapping[str, str], begin: int | None
) -> bytes:
    """The header, padded with spaces until data begin as far into a block as at `begin`."""
    codes = {dtype: code for code, dtype in SAFETENSORS_DTYPES.items()}
    header: dict[str, object] = {}
    if metadata:
        if not all(isinstance(text, str) for item in metadata.items() for text in item):
            raise UsageError("The metadata of safetensors must map text to text.")
        header["__metadata__"] = dict(sorted(metadata.items()))
    position = 0
    for name, info in infos.items():
        offsets = [position, position := position + info.nbytes]
        header[name] = {
            "dtype": codes[info.dtype],
            "shape": list(info.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > LONGEST_HEADER:
        raise UsageError(
            "The names and metadata do not fit a safetensors header.",
            evidence={"header": f"{len(text):,} bytes", "limit": f"{LONGEST_HEADER:,} bytes"},
        )
    return text + b" " * (-len(text) % _WORD if begin is None else (begin - 8 - len(text)) % BLOCK)


def write_npz(
    path: Path, tensors: Mapping[str, torch.Tensor | Content], *, read_soon: bool = True
) -> str:
    """Write tensors as an uncompressed npz, each array aligned so that it can be mapped.

    bfloat16 becomes numpy's opaque two-byte type, as JAX stores it.

    Args:
        path, tensors, read_soon: As for `write_safetensors`.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that npz cannot hold, or no place for the file.
    """
    from vitconvert.containers.npz_writing import DTYPES, write_npz_archive  # late, as in opening

    contents = checked_contents(tensors, list(DTYPES.values()), "npz")
    with whole_file(path, read_soon=read_soon) as file:
        write_npz_archive(file, contents, file.room)
    return file.sha256


def write_torch(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    wrapper: str = "",
    beside: Mapping[str, int] | None = None,
    read_soon: bool = True,
) -> str:
    """Write tensors as torch.save writes a plain dict, in the order of the mapping.

    Args:
        path, tensors, read_soon: As for `write_safetensors`.
        wrapper, beside: As for `write_torch_zip`.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name that is not text, or no place for the file.
    """
    from vitconvert.containers.torch_writing import write_torch_zip  # late, as in opening

    contents = checked_contents(tensors, list(ITEM_SIZE), "torch")
    with whole_file(path, read_soon=read_soon) as file:
        write_torch_zip(file, contents, file.room, wrapper=wrapper, beside=beside)
    return file.sha256
