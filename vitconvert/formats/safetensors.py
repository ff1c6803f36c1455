"""safetensors: eight bytes of header length, a JSON header, and the tensors without gaps.

Format: https://github.com/huggingface/safetensors (README, "Format"), version 0.8. The header
is validated here rather than by the library so that a message can name the tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.atomic_write import Check, atomic_file
from vitconvert.errors import UsageError
from vitconvert.file_formats import LONGEST_SAFETENSORS_HEADER as LONGEST_HEADER
from vitconvert.formats.container import ITEM_SIZE, Container, TensorInfo, mapped_container
from vitconvert.formats.content import Content, bytes_of, checked_contents
from vitconvert.formats.format_modules import Array, Surroundings
from vitconvert.formats.headers import (
    checked_dtype,
    checked_shape,
    corrupt,
    parse_strict_object,
    shown,
    truncated,
)

if TYPE_CHECKING:
    import torch

READER = "safetensors.torch.load_file"
EXAMPLE = """\
from safetensors.torch import load_file

state_dict = load_file("model.safetensors")"""

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
"""torch's name of each dtype that a header may name."""

_WORD = 8  # headers are padded so that data begin at a multiple of this


def open_file(path: Path, *_: object) -> Container:
    """Read the header of a safetensors file and map the rest.

    Raises:
        CorruptFile: The file is truncated, or its header contradicts itself or the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            fact = "The header is longer than a safetensors header may be."
            raise corrupt(path, fact, header=f"{length:,} bytes", limit=f"{LONGEST_HEADER:,}")
        if 8 + length > size:
            raise truncated(path, 8 + length, size, least="at least ")
        header = parse_strict_object(path, file.read(length), what="The header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise corrupt(path, "The __metadata__ of the header is not a mapping of text to text.")
    manifest, begins = _tensors(path, header, 8 + length, size)
    container = mapped_container(path, "safetensors", manifest, begins, size=size)
    return replace(container, metadata=metadata)


def _tensors(
    path: Path, header: Mapping[str, object], header_end: int, size: int
) -> tuple[dict[str, TensorInfo], dict[str, int]]:
    """The tensors and their first bytes; they follow one another to the end of the file."""
    manifest: dict[str, TensorInfo] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            fact = f"In the header, {name!r} does not have just dtype, shape and data_offsets."
            raise corrupt(path, fact)
        dtype = DTYPES[checked_dtype(path, name, entry["dtype"], DTYPES)]
        info = TensorInfo(dtype=dtype, shape=checked_shape(path, name, entry["shape"]))
        match entry["data_offsets"]:
            case [int(begin), int(end)] if end - begin == info.nbytes and type(begin) is int:
                manifest[name], ranges[name] = info, (begin, end)
            case offsets:
                raise corrupt(
                    path,
                    f"{name!r} does not fill the bytes that the header gives it.",
                    dtype=entry["dtype"],
                    shape=list(info.shape),
                    needs=f"{info.nbytes:,} bytes",
                    data_offsets=shown(offsets),
                )
    position = 0
    for name in sorted(ranges, key=lambda name: ranges[name]):
        begin, end = ranges[name]
        if begin != position:
            what = "leaves a hole before it" if begin > position else "overlaps another"
            raise corrupt(path, f"{name!r} {what}.", begins=begin, expected=position)
        position = end
    expected = header_end + position
    if size < expected:
        raise truncated(path, expected, size)
    if size > expected:
        fact = f"{size - expected:,} bytes follow the last tensor."
        raise corrupt(path, fact, expected=f"{expected:,} bytes", found=f"{size:,} bytes")
    return manifest, {name: header_end + begin for name, (begin, _) in ranges.items()}


def write_file(path: Path, contents: Mapping[str, Content], surroundings: Surroundings) -> str:
    """Write a file with metadata, as `write_safetensors` does."""
    return write_safetensors(path, contents, metadata=surroundings.metadata)


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the safetensors library."""
    from safetensors.torch import load_file

    for name, tensor in load_file(path).items():
        yield name, tuple(tensor.shape), bytes_of(tensor).tobytes()


def write_safetensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    metadata: Mapping[str, str] | None = None,
    check: Check | None = None,
) -> str:
    """Write tensors as safetensors, in the order and layout of the safetensors library.

    The bytes depend on the tensors and on the metadata alone, not on the order of either mapping.

    Args:
        path: The file.
        tensors: By name.
        metadata: Further text for the header.
        check: As for `atomic_file`.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that safetensors cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(DTYPES.values()), "safetensors")
    if "__metadata__" in contents:
        raise UsageError("safetensors cannot hold a tensor with the name '__metadata__'.")
    # Widest elements first, so that every tensor is aligned.
    order = sorted(contents, key=lambda name: (-ITEM_SIZE[contents[name].info.dtype], name))
    header = _header({name: contents[name].info for name in order}, metadata or {})
    with atomic_file(path, check=check) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in order:
            for chunk in contents[name].chunks():
                file.write(chunk)
    return file.sha256


def _header(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict[str, object] = {}
    if metadata:
        if not all(isinstance(text, str) for item in metadata.items() for text in item):
            raise UsageError("The metadata of safetensors must map text to text.")
        header["__metadata__"] = dict(sorted(metadata.items()))
    position = 0
    for name, info in infos.items():
        offsets = [position, position := position + info.nbytes]
        code = codes[info.dtype]
        header[name] = {"dtype": code, "shape": list(info.shape), "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > LONGEST_HEADER:
        raise UsageError(
            "The names and metadata do not fit a safetensors header.",
            evidence={"header": f"{len(text):,} bytes", "limit": f"{LONGEST_HEADER:,} bytes"},
        )
    return text + b" " * (-len(text) % _WORD)
