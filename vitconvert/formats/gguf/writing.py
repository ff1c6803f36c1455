"""Writing GGUF, version 3."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitconvert.errors import UsageError
from vitconvert.formats.container import TensorInfo
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.gguf.layout import (
    ALIGNMENT,
    ARRAY,
    BOOL,
    DTYPES,
    FLOAT32,
    LONGEST_NAME,
    MAGIC,
    MOST_AXES,
    NUMBERS,
    STRING,
    UINT32,
)
from vitconvert.whole import whole_file

_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


def write_gguf(
    path: Path,
    tensors: Mapping[str, Content],
    metadata: Mapping[str, Any],
    *,
    read_soon: bool = True,
) -> str:
    """Write tensors in the order of their names, and return the sha256 of the file.

    Args:
        path, read_soon: As for `write_safetensors`.
        tensors: By name.
        metadata: Text, truth values, whole numbers (of 32 bits), others (float32) and lists of
            one of these, in sections that become keys with dots.

    Raises:
        UsageError: A name or a dtype that GGUF cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(_KINDS), "gguf")
    for name, content in contents.items():
        _check(name, content.info)
    entries = list(_flat(metadata))
    header = MAGIC + struct.pack("<IQQ", 3, len(contents), len(entries))
    header += b"".join(_text(key) + _value(value) for key, value in entries)
    position = 0
    for name in sorted(contents):
        header += _tensor(name, contents[name].info, position)
        position = _aligned(position + contents[name].info.nbytes)
    with whole_file(path, read_soon=read_soon) as file:
        file.write(header.ljust(_aligned(len(header)), b"\0"))
        for name in sorted(contents):
            for chunk in contents[name].chunks(file.room):
                file.write(chunk)
            file.write(bytes(_aligned(file.tell()) - file.tell()))
    return file.sha256


def _check(name: str, info: TensorInfo) -> None:
    number = info.dtype == "bfloat16" and not info.shape  # which the gguf package cannot read
    if len(name.encode()) > LONGEST_NAME or len(info.shape) > MOST_AXES or number:
        raise UsageError(
            "A tensor has a name or a shape that GGUF cannot hold.",
            evidence={
                "name": ascii(name)[:80],
                "dtype": info.dtype,
                "shape": list(info.shape),
            },
        )


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _tensor(name: str, info: TensorInfo, offset: int) -> bytes:
    axes = len(info.shape)
    lengths = struct.pack(f"<I{axes}Q", axes, *info.shape[::-1])
    return _text(name) + lengths + struct.pack("<IQ", _KINDS[info.dtype], offset)


def _flat(metadata: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{begin}{key}.")
        else:
            yield begin + key, value


def _value(value: Any) -> bytes:
    kind = _kind(value)
    if kind != ARRAY:
        return struct.pack("<I", kind) + _element(kind, value)
    inner = _kind(value[0]) if value else STRING
    head = struct.pack("<IIQ", ARRAY, inner, len(value))
    return head + b"".join(_element(inner, element) for element in value)


def _kind(value: Any) -> int:
    match value:
        case bool():
            return BOOL
        case int():
            return UINT32
        case float():
            return FLOAT32
        case str():
            return STRING
    return ARRAY


def _element(kind: int, value: Any) -> bytes:
    return _text(value) if kind == STRING else struct.pack(NUMBERS[kind], value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
