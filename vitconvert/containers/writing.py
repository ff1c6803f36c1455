"""Named tensors to files: whole or not at all, and the same bytes for the same tensors."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, TensorInfo
from vitconvert.containers.content import Content, checked_contents
from vitconvert.containers.npz_file import DTYPES as NPZ_DTYPES
from vitconvert.containers.safetensors_file import DTYPES as SAFETENSORS_DTYPES
from vitconvert.containers.safetensors_file import LONGEST_HEADER
from vitconvert.containers.torch_writing import write_torch_zip
from vitconvert.containers.whole_file import whole_file
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can tell
_NPY_ALIGNMENT = 64  # numpy pads its headers so that data begin at a multiple of this
_ALIGNMENT_FIELD = 0xD935  # the extra field that Android's zipalign pads with


def write_safetensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write tensors as safetensors, in the order and layout of the safetensors library.

    The bytes depend on the tensors and the metadata alone, not on the order of either mapping.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that safetensors cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(SAFETENSORS_DTYPES.values()), "safetensors")
    if "__metadata__" in contents:
        raise UsageError("safetensors cannot hold a tensor with the name '__metadata__'.")
    # Widest elements first, as the library does, so that every tensor is aligned.
    order = sorted(contents, key=lambda name: (-ITEM_SIZE[contents[name].info.dtype], name))
    header = _safetensors_header({name: contents[name].info for name in order}, metadata or {})
    with whole_file(path) as whole:
        whole.file.write(len(header).to_bytes(8, "little"))
        whole.file.write(header)
        for name in order:
            _write_chunks(whole.file, contents[name])
            whole.settled()
    return whole.sha256


def _write_chunks(file: IO[bytes], content: Content) -> None:
    for chunk in content.chunks():
        file.write(chunk)


def _safetensors_header(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
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
    return text + b" " * (-len(text) % 8)


def write_npz(path: Path, tensors: Mapping[str, torch.Tensor | Content]) -> str:
    """Write tensors as an uncompressed npz, each array aligned so that it can be mapped.

    bfloat16 becomes numpy's opaque two-byte type, as JAX stores it.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name or a dtype that npz cannot hold, or no place for the file.
    """
    contents = checked_contents(tensors, list(NPZ_DTYPES.values()), "npz")
    with (
        whole_file(path) as whole,
        zipfile.ZipFile(whole.file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name in sorted(contents):
            entry = _aligned_entry(f"{name}.npy", whole.file.tell())
            with archive.open(entry, "w", force_zip64=True) as member:
                _write_npy_header(member, contents[name].info)
                _write_chunks(member, contents[name])
    return whole.sha256


def _aligned_entry(name: str, position: int) -> zipfile.ZipInfo:
    """An entry whose data begin at a multiple of the alignment when it is written at `position`."""
    entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
    entry.create_system = 3  # Unix on every system, for the same bytes everywhere
    # A local header is 30 bytes, the name, and the extra fields: ours, and 20 bytes of zip64.
    begin = position + 30 + len(name.encode()) + 20 + struct.calcsize("<HHH")
    padding = -begin % _NPY_ALIGNMENT
    entry.extra = struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + padding, _NPY_ALIGNMENT) + bytes(
        padding
    )
    return entry


def _write_npy_header(file: IO[bytes], info: TensorInfo) -> None:
    from numpy.lib.format import write_array_header_1_0

    codes = {dtype: code for code, dtype in NPZ_DTYPES.items()}
    code = codes[info.dtype]
    sign = "|" if code[0] in "Vb" or code[1] == "1" else "<"
    write_array_header_1_0(
        file, {"descr": sign + code, "fortran_order": False, "shape": info.shape}
    )


def write_torch(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    wrapper: str = "",
    beside: Mapping[str, int] | None = None,
) -> str:
    """Write tensors as torch.save writes a plain dict, in the order of the mapping.

    A `wrapper` is the key of an outer dict under which theirs stands, with what is `beside` it.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name that is not text, or no place for the file.
    """
    contents = checked_contents(tensors, list(ITEM_SIZE), "torch")
    with whole_file(path) as whole:
        write_torch_zip(whole.file, contents, wrapper=wrapper, beside=beside)
    return whole.sha256
