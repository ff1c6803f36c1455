"""Writes HDF5: first all headers, then the arrays, each where it can be mapped.

The file is of HDF5 1.8's format (superblock 2), which every reader of the last fifteen years
takes: groups whose members are messages in their headers, and arrays in one stretch.

Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import UsageError
from vitconvert.formats.container import TensorInfo
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.hdf5.checksum import checksum
from vitconvert.formats.hdf5.objects import (
    DATASPACE,
    DATATYPE,
    LAYOUT,
    LINK,
    LINK_INFO,
    LONGEST_NAME,
    SIGNATURE,
    UNDEFINED,
)
from vitconvert.whole import whole_file

if TYPE_CHECKING:
    import torch

_GROUP_INFO, _ATTRIBUTE = 0xA, 0xC
_ALIGNMENT = 64
_SUPERBLOCK = 48  # bytes

# Version 1 of a type, with its class; the order of bytes, the sign; the size; then offset and
# precision in bits, and of floats where exponent and mantissa lie, and the bias.
_DTYPES: Mapping[str, bytes] = {
    **{
        f"{'' if sign else 'u'}int{8 * size}": struct.pack(
            "<4BI2H", 0x10, 8 if sign else 0, 0, 0, size, 0, 8 * size
        )
        for size in (1, 2, 4, 8)
        for sign in (0, 1)
    },
    **{
        name: struct.pack(
            "<4BI2H4BI", 0x11, 0x20, 8 * size - 1, 0, size, 0, 8 * size, low, high, 0, low, bias
        )
        for name, size, low, high, bias in (
            ("float64", 8, 52, 11, 1023),
            ("float32", 4, 23, 8, 127),
            ("float16", 2, 10, 5, 15),
        )
    },
    # As ml_dtypes has h5py store it: two opaque bytes, without a tag.
    "bfloat16": struct.pack("<4BI", 0x15, 0, 0, 0, 2),
}


@dataclass
class _Group:
    """A group on its way into a file."""

    groups: dict[str, _Group] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)  # name here -> name of the tensor
    attributes: list[tuple[int, bytes]] = field(default_factory=list)


Attributes = Mapping[str, Mapping[str, str | Sequence[str]]]
"""Path of a group, of which "" is the outermost -> what it says by name: a text, or several."""


def write_hdf5(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    attributes: Attributes | None = None,
    read_soon: bool = True,
) -> str:
    """Write tensors as an HDF5 file, sorted by name; a slash in a name makes a group.

    Args:
        path, tensors, read_soon: As for `write_safetensors`.
        attributes: What groups of these tensors say besides.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name, a dtype or an attribute that is not written, or no place for the file.
    """
    contents = checked_contents(tensors, list(_DTYPES), "HDF5")
    root = _tree(contents)
    for group, said in (attributes or {}).items():
        _group_at(root, group).attributes += [_attribute(*item) for item in said.items()]
    infos = {name: contents[name].info for name in sorted(contents)}
    places = dict(_places(root, infos))
    header = _file_header(root, infos, places)
    with whole_file(path, read_soon=read_soon) as file:
        file.write(header)
        for name in infos:
            file.write(bytes(places[name] - file.tell()))
            for chunk in contents[name].chunks(file.room):
                file.write(chunk)
    return file.sha256


def _tree(names: Mapping[str, object]) -> _Group:
    root = _Group()
    for name in sorted(names):  # a name before those that begin with it
        *folders, last = name.split("/")
        fits = all(part and part != "." and "\0" not in part for part in (*folders, last))
        group = root
        for folder in folders:
            fits = fits and folder not in group.arrays
            group = group.groups.setdefault(folder, _Group())
        if not fits or len(name) > LONGEST_NAME:
            raise UsageError(
                "A tensor has a name that HDF5 cannot hold.", evidence={"name": ascii(name)[:80]}
            )
        group.arrays[last] = name
    return root


def _group_at(root: _Group, path: str) -> _Group:
    for name in path.split("/") if path else ():
        root = root.groups[name]
    return root


def _places(root: _Group, infos: Mapping[str, TensorInfo]) -> Iterator[tuple[str, int]]:
    """Where the numbers of each array begin."""
    position = len(_file_header(root, infos, dict.fromkeys(infos, 0)))
    for name, info in infos.items():
        position += -position % _ALIGNMENT
        yield name, position
        position += info.nbytes


def _file_header(root: _Group, infos: Mapping[str, TensorInfo], places: Mapping[str, int]) -> bytes:
    """All that stands before the numbers."""
    headers = bytearray()
    address = _add(root, headers, infos, places)
    end = max((places[n] + info.nbytes for n, info in infos.items()), default=0)
    end = max(end, _SUPERBLOCK + len(headers))
    start = SIGNATURE + struct.pack("<4B4Q", 2, 8, 8, 0, 0, UNDEFINED, end, address)
    return start + checksum(start) + headers


def _add(
    group: _Group, headers: bytearray, infos: Mapping[str, TensorInfo], places: Mapping[str, int]
) -> int:
    """Add the headers of all that is in a group, then its own; returns its address."""
    links = []
    for name, inner in group.groups.items():
        links.append(_link(name, _add(inner, headers, infos, places)))
    for name, tensor in group.arrays.items():
        links.append(_link(name, _put(headers, _array(infos[tensor], places[tensor]))))
    none = struct.pack("<BBQQ", 0, 0, UNDEFINED, UNDEFINED)  # neither a heap nor an index
    return _put(headers, [(LINK_INFO, none), (_GROUP_INFO, bytes(2)), *links, *group.attributes])


def _put(headers: bytearray, messages: list[tuple[int, bytes]]) -> int:
    """Add a header of these messages; returns its address."""
    address = _SUPERBLOCK + len(headers)
    body = b"".join(struct.pack("<BHB", kind, len(m), 0) + m for kind, m in messages)
    header = b"OHDR" + struct.pack("<BBI", 2, 2, len(body)) + body  # a length of four bytes
    headers += header + checksum(header)
    return address


def _link(name: str, address: int) -> tuple[int, bytes]:
    text = name.encode()
    # A hard link; the length of the name has four bytes, and the name is UTF-8.
    return LINK, struct.pack("<BBBI", 1, 0x12, 1, len(text)) + text + struct.pack("<Q", address)


def _array(info: TensorInfo, place: int) -> list[tuple[int, bytes]]:
    shape = struct.pack(
        f"<4B{len(info.shape)}Q", 2, len(info.shape), 0, bool(info.shape), *info.shape
    )
    layout = struct.pack("<BBQQ", 3, 1, place if info.nbytes else UNDEFINED, info.nbytes)
    messages = [(DATASPACE, shape), (DATATYPE, _DTYPES[info.dtype]), (LAYOUT, layout)]
    return [*messages, _KERAS_BFLOAT16] if info.dtype == "bfloat16" else messages


def _attribute(name: str, value: str | Sequence[str]) -> tuple[int, bytes]:
    texts = [text.encode() for text in ([value] if isinstance(value, str) else value)]
    size, key = max(map(len, texts)), name.encode() + b"\0"
    kind = struct.pack("<4BI", 0x13, 0x11, 0, 0, size)  # UTF-8 of this length, zeros after it
    scalar = isinstance(value, str)
    shape = bytes([2, 0, 0, 0]) if scalar else struct.pack("<4BQ", 2, 1, 0, 1, len(texts))
    lengths = struct.pack("<BBHHHB", 3, 0, len(key), len(kind), len(shape), 1)
    message = lengths + key + kind + shape + b"".join(text.ljust(size, b"\0") for text in texts)
    if len(message) >= 2**16:  # what an object's header can hold of one
        raise UsageError(f"HDF5 cannot hold {len(texts):,} texts as the attribute {name!r}.")
    return _ATTRIBUTE, message


_KERAS_BFLOAT16 = _attribute("dtype", "bfloat16")  # which Keras looks for
