"""GGUF: typed metadata, then tensors, as llama.cpp reads them (`mmproj-model-f16.gguf`).

Headers are read and written by the gguf package; tensors are used where they lie. Axes stand in the
file fastest first; here, as everywhere, slowest first. A quantised tensor is listed as the bytes of
its blocks, under its name and `eight_bit_blocks` or `packed_blocks`.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

from vitconvert.atomic_write import atomic_file
from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats.container import Container, TensorInfo, mapped_container
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Array, Surroundings, Untyped, imported
from vitconvert.formats.headers import AGAIN, checked_shape, corrupt

if TYPE_CHECKING:
    import torch

READER = "gguf.GGUFReader"
EXAMPLE = """\
from gguf import GGUFReader

arrays = {tensor.name: tensor.data for tensor in GGUFReader("model.gguf").tensors}"""

DTYPES: Mapping[str, str] = {
    "F32": "float32",
    "F16": "float16",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F64": "float64",
    "BF16": "bfloat16",
}
"""torch's name of each of the package's types that has a number for each element."""

PACKED: Mapping[str, str] = {"Q8_0": "eight_bit_blocks"}
"""What follows the name of a tensor that is quantised in a type whose weights are computed."""

OTHERWISE = "packed_blocks"
"""What follows the names of all others."""

_ALIGNMENT = 32  # of tensors, unless the metadata say otherwise
_MOST_AXES = 4  # GGML_MAX_DIMS
_LONGEST_NAME = 63  # bytes; GGML_MAX_NAME counts a zero at the end
_MOST_PARTS = 200_000  # of a header, each of which takes the package some hundred bytes
_MOST_BYTES = 2**63 - 1  # of a tensor; numpy counts them so, even where an axis is 0
_MOST_KEPT = 1000  # elements of an array of metadata; vocabularies are only named
_LONGEST_TEXT = 10_000  # bytes of a name, or of text that is kept


def open_file(path: Path, *_: object) -> Container:
    """Read the header of a GGUF file and map the rest.

    Raises:
        MissingPackage: gguf is not installed.
        CorruptFile: The file is truncated, or its header contradicts itself or the file.
    """
    gguf = imported("gguf", "GGUF", path)
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # offsets that wrap around are other offsets
            reader = _bounded_reader()(path)
        if reader.byte_order != "I":
            raise ValueError("its highest bytes come first")
        metadata = {
            name: _value(field, gguf.GGUFValueType)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")  # the package's own, of what comes before
        }
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        MemoryError,
        RuntimeError,
    ) as error:
        fact = "The header of this GGUF file cannot be read."
        raise corrupt(path, fact, problem=str(error).strip("'\"")[:300]) from error
    manifest: dict[str, TensorInfo] = {}
    begins: dict[str, int] = {}
    end, alignment = int(reader.data_offset), int(reader.alignment)
    for tensor in reader.tensors:
        name, kind, shape = tensor.name, tensor.tensor_type, tuple(tensor.shape.tolist()[::-1])
        if kind.name in DTYPES:
            info = TensorInfo(dtype=DTYPES[kind.name], shape=shape)
        else:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            name = f"{name}.{PACKED.get(kind.name, OTHERWISE)}"
            info = TensorInfo(dtype="uint8", shape=(*shape[:-1], shape[-1] // elements, size))
        if tensor.data_offset != end:
            fact = f"{name[:80]!r} does not begin where the tensor before it ends."
            raise corrupt(path, fact, begins=tensor.data_offset, expected=end)
        manifest[name], begins[name] = info, end
        end += -(-info.nbytes // alignment) * alignment
    size = path.stat().st_size
    if manifest and size != end:
        fact = "The file is truncated." if size < end else "Bytes follow the last tensor."
        found = {"expected": f"{end:,} bytes", "found": f"{size:,} bytes"}
        raise corrupt(path, fact, hint=AGAIN, **found)
    return replace(
        mapped_container(path, "gguf", manifest, begins, size=size),
        metadata={key: str(value) for key, value in metadata.items()},
        config=_nested(metadata),
    )


@cache
def _bounded_reader() -> Untyped:
    """The package's reader with bounds: it believes every count, also in a file that was cut."""
    import gguf

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        data: Untyped
        parts = 0

        def __init__(self, path: Path) -> None:
            self.path = path
            super().__init__(path)

        def _get(self, at: int, dtype: Untyped, count: int = 1, **more: object) -> Untyped:
            import numpy as np

            if not self.parts:
                self.data = np.asarray(self.data)  # views of a memmap take twice as long
            self.parts += 1
            if self.parts > _MOST_PARTS:
                raise self.corrupt("The header has more values than any image model's.", at)
            if at + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise self.corrupt("The file is truncated.", at)
            return super()._get(at, dtype, count, **more)

        def _get_tensor_info_field(self, offset: int) -> Untyped:
            field = super()._get_tensor_info_field(offset)
            name = field.name[:80]
            if len(field.name) > _LONGEST_TEXT:
                raise self.corrupt("The header has a name that is longer than any.", offset)
            if len(axes := field.parts[3]) > _MOST_AXES:
                fact = f"{name!r} has more axes than a tensor of GGUF may have."
                raise self.corrupt(fact, offset)
            # Before the package multiplies them in 64 bits.
            shape = checked_shape(self.path, name, axes.tolist())
            if 8 * prod(max(axis, 1) for axis in shape) > _MOST_BYTES:
                raise self.corrupt(f"{name!r} has a shape that no memory can hold.", offset)
            return field

        def corrupt(self, fact: str, offset: int) -> CorruptFile:
            return corrupt(self.path, fact, at=f"byte {int(offset):,}")

    return Reader


def _value(field: Untyped, kinds: Untyped) -> object:
    """A field of the metadata; long arrays and texts are only named."""
    first, *inner = field.types
    if first != kinds.ARRAY:
        return _single(field.parts[field.data[0]], first, kinds)
    if kinds.ARRAY in inner:
        raise ValueError("it has arrays in arrays")
    if len(field.data) > _MOST_KEPT:
        return f"{len(field.data):,} {'texts' if kinds.STRING in inner else 'numbers'}"
    return [_single(field.parts[index], inner[0], kinds) for index in field.data]


def _single(part: Untyped, kind: object, kinds: Untyped) -> object:
    if kind == kinds.STRING:
        if len(part) > _LONGEST_TEXT:
            return f"text of {len(part):,} bytes"
        return bytes(part).decode(errors="backslashreplace")
    # The shortest decimal number that is the same float32: 1e-05, not 9.99999974738e-06.
    return float(str(part[0])) if kind == kinds.FLOAT32 else part[0].item()


def _nested(metadata: Mapping[str, object]) -> dict[str, object]:
    """Keys with dots as sections, the way a JSON file would have them.

    A key that is a section of others too, `a` beside `a.b`, is a section alone.
    """
    nested: dict[str, object] = {}
    for key in sorted(metadata, key=lambda key: -key.count(".")):
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            inner = place.setdefault(section, {})
            place = inner if isinstance(inner, dict) else {}
        place.setdefault(last, metadata[key])
    return nested


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    surroundings: Surroundings = ALONE,
) -> str:
    """Write a file of version 3 with the metadata of the program, in the order of names.

    The configuration of the surroundings is text, truth values, whole numbers (of 32 bits), others
    (float32) and lists of one of these, in sections that become keys with dots.

    Returns:
        The sha256 of the file.

    Raises:
        MissingPackage: gguf is not installed.
        UsageError: A name or a dtype that GGUF cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(DTYPES.values()), "gguf")
    infos = {name: contents[name].info for name in sorted(contents)}
    for name, info in infos.items():
        number = info.dtype == "bfloat16" and not info.shape  # which the package cannot read
        if len(name.encode()) > _LONGEST_NAME or len(info.shape) > _MOST_AXES or number:
            evidence = {"name": ascii(name)[:80], "dtype": info.dtype, "shape": list(info.shape)}
            fact = "A tensor has a name or a shape that GGUF cannot hold."
            raise UsageError(fact, evidence=evidence)
    origin = {key: text for key, text in surroundings.metadata.items() if "." in key}
    header = _header(imported("gguf", "GGUF", path), infos, {**surroundings.config, **origin})
    with atomic_file(path) as file:
        file.write(header)
        for name in infos:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            for chunk in contents[name].chunks():
                file.write(chunk)
        file.write(bytes(-file.tell() % _ALIGNMENT))
    return file.sha256


def _header(
    gguf: ModuleType, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, object]
) -> bytes:
    """All that stands before the tensors, as the package writes it."""
    import numpy as np

    kinds = {dtype: gguf.GGMLQuantizationType[kind] for kind, dtype in DTYPES.items()}
    with TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / "header", "")
        writer.kv_data[0].clear()  # an architecture, which is one of the metadata
        for key, value in _flat(metadata):
            if not isinstance(value, list | tuple):
                writer.add_key_value(key, value, _kind(value, gguf))
            elif value:  # the package writes no empty ones
                inner = _kind(value[0], gguf)
                writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, inner)
        for name, info in tensors.items():
            kind = kinds[info.dtype]
            writer.add_tensor_info(name, info.shape, np.dtype("f4"), info.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        return (Path(folder) / "header").read_bytes()


def _flat(metadata: Mapping[str, object], begin: str = "") -> Iterator[tuple[str, object]]:
    for key, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{begin}{key}.")
        else:
            yield begin + key, value


def _kind(value: object, gguf: ModuleType) -> object:
    kinds = gguf.GGUFValueType
    if isinstance(value, int):
        return kinds.BOOL if isinstance(value, bool) else kinds.UINT32
    return kinds.FLOAT32 if isinstance(value, float) else kinds.STRING


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the gguf package."""
    gguf = imported("gguf", "GGUF", path)
    for tensor in gguf.GGUFReader(path).tensors:
        yield tensor.name, tuple(tensor.shape.tolist()[::-1]), tensor.data.tobytes()
