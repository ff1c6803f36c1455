"""The header of a GGUF file: metadata, and where tensors lie."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    Stretch,
    TensorInfo,
    row_major,
)
from vitconvert.formats.gguf.layout import (
    ALIGNMENT,
    ARRAY,
    BLOCKS,
    DTYPES,
    FLOAT32,
    MAGIC,
    MOST_AXES,
    NUMBERS,
    OTHERWISE,
    PACKED,
    STRING,
    VERSIONS,
)
from vitconvert.formats.headers import SequentialReader, checked_shape

_MOST_VALUES = 2_000_000  # of metadata: the largest vocabularies have a quarter of it
_MOST_BYTES = 2**63 - 1  # of a tensor; numpy counts them so, even where an axis is 0
_MOST_KEPT = 1000  # elements of an array of metadata; vocabularies are only named
_LONGEST_TEXT = 10_000  # bytes of a name, or of text that is kept


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A tensor; `offset` counts from where tensors begin."""

    info: TensorInfo
    offset: int


def read_header(path: Path) -> Container:
    """Read what stands before the tensors.

    Raises:
        CorruptFile: The file is truncated or contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = _Reader(path, file, size)
        count, metadata = reader.metadata()
        entries = reader.tensors(count)
        alignment = _alignment(path, metadata)
        begin = -(-file.tell() // alignment) * alignment
    _check_layout(path, entries, alignment, size - begin)
    mapped = MappedFile(path, size)
    return Container(
        path=path,
        files=(path,),
        format="gguf",
        manifest={name: entry.info for name, entry in entries.items()},
        metadata={key: str(value) for key, value in metadata.items()},
        config=_nested(metadata),
        places={
            name: Stretch(
                path=path, offset=begin + entry.offset, strides=row_major(entry.info.shape)
            )
            for name, entry in entries.items()
        },
        reader=lambda name: mapped.tensor(begin + entries[name].offset, entries[name].info),
        release=mapped.close,
    )


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 2**16 or alignment & (alignment - 1):
        raise CorruptFile(
            "The alignment that the metadata state is no power of two.",
            evidence={"file": path, "general.alignment": str(alignment)[:40]},
        )
    return alignment


def _check_layout(path: Path, entries: Mapping[str, _Entry], alignment: int, size: int) -> None:
    """Tensors must follow one another, each filled up to a multiple of the alignment."""
    if not entries:  # a vocabulary: its file ends with the header
        return
    end = 0
    for name, entry in entries.items():
        if entry.offset != end:
            raise CorruptFile(
                f"{name[:80]!r} does not begin where the tensor before it ends.",
                evidence={"file": path, "begins": entry.offset, "expected": end},
            )
        end += -(-entry.info.nbytes // alignment) * alignment
    if size < end:
        raise CorruptFile(
            "The file is truncated.",
            evidence={"file": path, "tensors": f"{end:,} bytes", "found": f"{max(size, 0):,}"},
            hint="download it again.",
        )
    if size > end:
        raise CorruptFile(f"{size - end:,} bytes follow the last tensor.", evidence={"file": path})


def _nested(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with dots as sections, the way a JSON file would have them.

    A key that is a section of others too, `a` beside `a.b`, is told as a section alone.
    """
    nested: dict[str, Any] = {}
    for key in sorted(metadata, key=lambda key: -key.count(".")):
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            inner = place.setdefault(section, {})
            place = inner if isinstance(inner, dict) else {}
        place.setdefault(last, metadata[key])
    return nested


class _Reader(SequentialReader):
    """Reads a header from its beginning on."""

    too_short = "The file ends within its header."

    def metadata(self) -> tuple[int, dict[str, Any]]:
        """How many tensors there are, and what is said besides; long arrays are only named."""
        magic, version = self.bytes(4), self._number("<I")
        if magic != MAGIC or version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise CorruptFile(
                f"This is no GGUF file of version {known} with its lowest bytes first.",
                evidence={"file": self.path, "version": version},
            )
        tensors, entries = self._number("<Q"), self._number("<Q")
        found: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            if key in found:
                raise self.corrupt(f"The metadata have {key[:80]!r} more than once.")
            found[key] = self._value(self._number("<I"))
        return tensors, found

    def tensors(self, count: int) -> dict[str, _Entry]:
        """What the header says of each tensor."""
        found: dict[str, _Entry] = {}
        for _ in range(count):
            name, entry = self._tensor()
            if name in found:
                raise self.corrupt(f"{name[:80]!r} stands in the header more than once.")
            found[name] = entry
        return found

    def _tensor(self) -> tuple[str, _Entry]:
        name, axes = self._text(), self._number("<I")
        if axes > MOST_AXES:
            raise self.corrupt(f"{name[:80]!r} has more axes than a tensor of GGUF may have.")
        lengths = [self._number("<Q") for _ in range(axes)]
        shape = checked_shape(self.path, name[:80], lengths[::-1])
        kind, offset = self._number("<I"), self._number("<Q")
        if kind in DTYPES:
            info = TensorInfo(dtype=DTYPES[kind], shape=shape)
            if info.dtype == "bfloat16" and not shape:
                raise self.corrupt(f"{name[:80]!r} has no axes, as no tensor of bfloat16 has.")
            if prod(max(axis, 1) for axis in shape) * ITEM_SIZE[info.dtype] > _MOST_BYTES:
                raise self.corrupt(f"{name[:80]!r} has a shape that no memory can hold.")
            return name, _Entry(info=info, offset=offset)
        if kind not in BLOCKS:
            raise CorruptFile(
                f"{name[:80]!r} has a type that is not read here.",
                evidence={"file": self.path, "type": kind, "known": ", ".join(_known())},
            )
        title, elements, size = BLOCKS[kind]
        if not shape or shape[-1] % elements:
            raise self.corrupt(f"The rows of {name[:80]!r} are no whole blocks of {elements}.")
        packed = (*shape[:-1], shape[-1] // elements, size)
        info = TensorInfo(dtype="uint8", shape=packed)
        return f"{name}.{PACKED.get(title, OTHERWISE)}", _Entry(info=info, offset=offset)

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._long_text()
        if kind != ARRAY:
            return self._single(kind)
        kind, count = self._number("<I"), self._number("<Q")
        if kind in NUMBERS and count > _MOST_KEPT:
            self.skip(count * struct.calcsize(NUMBERS[kind]))
            return f"{count:,} numbers"
        values = []
        for index in range(count):
            value = self._long_text() if kind == STRING else self._single(kind)
            if index < _MOST_KEPT:
                values.append(value)
        return values if count <= _MOST_KEPT else f"{count:,} texts"

    def _single(self, kind: int) -> Any:
        if kind not in NUMBERS:
            raise self.corrupt("The metadata have a value of no known type.")
        value = self._number(NUMBERS[kind])
        return _shortest(value) if kind == FLOAT32 else value

    def _number(self, form: str) -> Any:
        self.values += 1
        if self.values > _MOST_VALUES:
            raise self.corrupt("The header has more values than any checkpoint's.")
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def _text(self) -> str:
        length = self._number("<Q")
        if length > _LONGEST_TEXT:
            raise self.corrupt("The header has a name that is longer than any.")
        try:
            return self.bytes(length).decode()
        except UnicodeDecodeError:
            raise self.corrupt("The header has a name that is not valid Unicode.") from None

    def _long_text(self) -> str:
        """Text of the metadata; what is long is only named, what is no Unicode is told so."""
        length = self._number("<Q")
        if length > _LONGEST_TEXT:
            self.skip(length)
            return f"text of {length:,} bytes"
        return self.bytes(length).decode(errors="backslashreplace")


def _known() -> list[str]:
    return [*DTYPES.values(), *(title for title, *_ in BLOCKS.values())]


def _shortest(value: float) -> float:
    """The shortest decimal number that is the same float32: 1e-05, not 9.99999974738e-06."""
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
