"""safetensors: eight bytes of header length, a JSON header, and the tensors without gaps.

Format: https://github.com/huggingface/safetensors (README, "Format"), version 0.8. The header
is validated here rather than by the library so that a message can name the tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, UsageError
from vitconvert.file_formats import LONGEST_SAFETENSORS_HEADER as LONGEST_HEADER
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    Stretch,
    TensorInfo,
    row_major,
)
from vitconvert.formats.content import Content, bytes_of, checked_contents
from vitconvert.formats.format_modules import Array, Surroundings
from vitconvert.formats.headers import checked_shape, parse_object, shown, truncated
from vitconvert.whole import Check, whole_file

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


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One tensor of the header; `begin` and `end` count from the end of the header."""

    info: TensorInfo
    begin: int
    end: int


def open_file(path: Path, *_: object) -> Container:
    """Read the header of a safetensors file and map the rest.

    Raises:
        CorruptFile: The file is truncated, or its header contradicts itself or the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_end = 8 + _header_length(path, file.read(8), size)
        metadata, entries = _parse_header(path, file.read(header_end - 8))
    _check_layout(path, entries, header_end, size)
    mapped = MappedFile(path, size)
    return Container(
        path=path,
        files=(path,),
        format="safetensors",
        manifest={name: entry.info for name, entry in entries.items()},
        metadata=metadata,
        places={
            name: Stretch(
                path=path, offset=header_end + entry.begin, strides=row_major(entry.info.shape)
            )
            for name, entry in entries.items()
        },
        reader=lambda name: mapped.tensor(header_end + entries[name].begin, entries[name].info),
        release=mapped.close,
    )


def _header_length(path: Path, start: bytes, size: int) -> int:
    length = int.from_bytes(start, "little")
    if length > LONGEST_HEADER:
        raise CorruptFile(
            "The header is longer than a safetensors header may be.",
            evidence={"file": path, "header": f"{length:,} bytes", "limit": f"{LONGEST_HEADER:,}"},
        )
    if 8 + length > size:
        raise truncated(path, 8 + length, size, least="at least ")
    return length


def _parse_header(path: Path, text: bytes) -> tuple[dict[str, str], dict[str, _Entry]]:
    header = parse_object(path, text, what="The header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CorruptFile(
            "The __metadata__ of the header is not a mapping of text to text.",
            evidence={"file": path},
        )
    return metadata, {name: _parse_entry(path, name, entry) for name, entry in header.items()}


def _parse_entry(path: Path, name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptFile(
            f"In the header, {name!r} does not have just dtype, shape and data_offsets.",
            evidence={"file": path},
        )
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": shown(entry["dtype"]), "known": " ".join(DTYPES)},
        )
    info = TensorInfo(dtype=dtype, shape=checked_shape(path, name, entry["shape"]))
    match entry["data_offsets"]:
        case [int(begin), int(end)] if end - begin == info.nbytes and type(begin) is int:
            return _Entry(info=info, begin=begin, end=end)
    raise CorruptFile(
        f"{name!r} does not fill the bytes that the header gives it.",
        evidence={
            "file": path,
            "dtype": entry["dtype"],
            "shape": list(info.shape),
            "needs": f"{info.nbytes:,} bytes",
            "data_offsets": shown(entry["data_offsets"]),
        },
    )


def _check_layout(path: Path, entries: Mapping[str, _Entry], header_end: int, size: int) -> None:
    """Tensors must follow one another from the header to the end of the file."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            what = "leaves a hole before it" if entry.begin > position else "overlaps another"
            raise CorruptFile(
                f"{name!r} {what}.",
                evidence={"file": path, "begins": entry.begin, "expected": position},
            )
        position = entry.end
    expected = header_end + position
    if size < expected:
        raise truncated(path, expected, size)
    if size > expected:
        raise CorruptFile(
            f"{size - expected:,} bytes follow the last tensor.",
            evidence={"file": path, "expected": f"{expected:,} bytes", "found": f"{size:,} bytes"},
        )


def write_file(
    path: Path, contents: Mapping[str, Content], surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a file with metadata, as `write_safetensors` does."""
    return write_safetensors(path, contents, metadata=surroundings.metadata, read_soon=read_soon)


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
    read_soon: bool = True,
    check: Check | None = None,
) -> str:
    """Write tensors as safetensors, in the order and layout of the safetensors library.

    The bytes depend on the tensors and on the metadata alone, not on the order of either mapping.

    Args:
        path: The file.
        tensors: By name.
        metadata: Further text for the header.
        read_soon: Whether the file is read next; if not, it is written past the page cache.
        check: As for `whole_file`.

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
    with whole_file(path, read_soon=read_soon, check=check) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in order:
            for chunk in contents[name].chunks(file.room):
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
    return text + b" " * (-len(text) % _WORD)
