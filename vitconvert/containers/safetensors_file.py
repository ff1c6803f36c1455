"""safetensors: eight bytes of header length, a JSON header, and the tensors without gaps.

Format: https://github.com/huggingface/safetensors (README, "Format"), version 0.8. The header
is validated here rather than by the library so that a message can name the tensor.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitconvert.containers.container import Container, Stretch, TensorInfo, row_major
from vitconvert.containers.mapped_file import MappedFile, checked_shape
from vitconvert.errors import CorruptFile

LONGEST_HEADER = 100_000_000  # bytes; the limit that the safetensors library sets

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


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One tensor of the header; `begin` and `end` count from the end of the header."""

    info: TensorInfo
    begin: int
    end: int


def open_safetensors(path: Path) -> Container:
    """Read the header of a safetensors file and map the rest.

    Raises:
        CorruptFile: The file is cut short or its header contradicts itself or the file.
    """
    mapped = MappedFile(path)
    header_end = 8 + _header_length(path, mapped)
    metadata, entries = _parse_header(path, mapped.bytes_at(8, header_end - 8))
    _check_layout(path, entries, header_end, len(mapped))
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


def _header_length(path: Path, mapped: MappedFile) -> int:
    length = int.from_bytes(mapped.bytes_at(0, 8), "little")
    if length > LONGEST_HEADER:
        raise CorruptFile(
            "The header is longer than a safetensors header may be.",
            evidence={"file": path, "header": f"{length:,} bytes", "limit": f"{LONGEST_HEADER:,}"},
        )
    if 8 + length > len(mapped):
        raise _cut_short(path, expected=8 + length, found=len(mapped), at_least="at least ")
    return length


def _cut_short(path: Path, *, expected: int, found: int, at_least: str = "") -> CorruptFile:
    return CorruptFile(
        "The file is cut short.",
        evidence={
            "file": path,
            "expected": f"{at_least}{expected:,} bytes",
            "found": f"{found:,} bytes",
        },
        hint="download it again.",
    )


def _parse_header(path: Path, text: bytes) -> tuple[dict[str, str], dict[str, _Entry]]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(
            "The header is not valid JSON.", evidence={"file": path, "reason": error}
        ) from error
    if not isinstance(header, dict):
        raise CorruptFile("The header is not a JSON object.", evidence={"file": path})
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CorruptFile(
            "The __metadata__ of the header is not a mapping of text to text.",
            evidence={"file": path},
        )
    return metadata, {name: _parse_entry(path, name, entry) for name, entry in header.items()}


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # json keeps the last of two equal keys in silence, so one of two tensors would vanish.
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} appears twice")
        key.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
        found[key] = value
    return found


def _parse_entry(path: Path, name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptFile(
            f"{name!r} has no dtype, shape and data_offsets in the header.",
            evidence={"file": path},
        )
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": entry["dtype"], "known": " ".join(DTYPES)},
        )
    info = TensorInfo(dtype=dtype, shape=checked_shape(path, name, entry["shape"]))
    match entry["data_offsets"]:
        case [int(begin), int(end)] if end - begin == info.nbytes:
            return _Entry(info=info, begin=begin, end=end)
    raise CorruptFile(
        f"{name!r} does not fill the bytes that the header gives it.",
        evidence={
            "file": path,
            "dtype": entry["dtype"],
            "shape": list(info.shape),
            "needs": f"{info.nbytes:,} bytes",
            "data_offsets": entry["data_offsets"],
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
        raise _cut_short(path, expected=expected, found=size)
    if size > expected:
        raise CorruptFile(
            f"{size - expected:,} bytes follow the last tensor.",
            evidence={"file": path, "expected": f"{expected:,} bytes", "found": f"{size:,} bytes"},
        )
