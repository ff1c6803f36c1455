"""Bytes to named tensors and back, in the formats of `vitconvert/file_formats.py`."""

from vitconvert.formats.container import (
    FLOATS_OF_8_BITS,
    ITEM_SIZE,
    Container,
    Stretch,
    TensorInfo,
    row_major,
)
from vitconvert.formats.content import (
    Box,
    Content,
    bytes_of,
    chunks_of,
    content_of,
)
from vitconvert.formats.format_modules import Surroundings, written_module
from vitconvert.formats.hashing import hash_file
from vitconvert.formats.opening import (
    checkpoints_below,
    has_weights,
    open_container,
    weights_among,
    weights_in,
)
from vitconvert.formats.safetensors import write_safetensors
from vitconvert.formats.shards import read_index, split, write_index

__all__ = [
    "FLOATS_OF_8_BITS",
    "ITEM_SIZE",
    "Box",
    "Container",
    "Content",
    "Stretch",
    "Surroundings",
    "TensorInfo",
    "bytes_of",
    "checkpoints_below",
    "chunks_of",
    "content_of",
    "has_weights",
    "hash_file",
    "open_container",
    "read_index",
    "row_major",
    "split",
    "weights_among",
    "weights_in",
    "write_index",
    "write_safetensors",
    "written_module",
]
