"""GGUF: typed metadata, then tensors, as llama.cpp reads them (`mmproj-model-f16.gguf`).

Axes stand in the file fastest first; here, as everywhere, slowest first. A quantised tensor is
listed as the bytes of its blocks, under its name and `eight_bit_blocks` or `packed_blocks`.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vitconvert.formats.container import Container
from vitconvert.formats.content import Content
from vitconvert.formats.format_modules import Array, Surroundings
from vitconvert.formats.gguf.reading import read_header

READER = "gguf.GGUFReader"
EXAMPLE = """\
from gguf import GGUFReader

arrays = {tensor.name: tensor.data for tensor in GGUFReader("model.gguf").tensors}"""


def open_file(path: Path, *_: object) -> Container:
    """Read the header of a GGUF file and map the rest.

    Raises:
        CorruptFile: The file is truncated, or its header contradicts itself or the file.
    """
    return read_header(path)


def write_file(
    path: Path, contents: Mapping[str, Content], surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a file of version 3 with what the program says of the model.

    Raises:
        UsageError: A name or a dtype that GGUF cannot hold, or no place for the file.
    """
    from vitconvert.formats.gguf.writing import write_gguf

    origin = {key: text for key, text in surroundings.metadata.items() if "." in key}
    return write_gguf(path, contents, {**surroundings.config, **origin}, read_soon=read_soon)


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with the gguf package."""
    from gguf import GGUFReader

    for tensor in GGUFReader(path).tensors:
        shape = tuple(int(length) for length in reversed(tensor.shape.tolist()))
        yield tensor.name, shape, tensor.data.tobytes()
