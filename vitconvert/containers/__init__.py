"""Bytes to named tensors and back: safetensors (sharded too), torch checkpoints and npz."""

from vitconvert.containers.boxes import Box, chunks_of, one_buffer
from vitconvert.containers.container import ITEM_SIZE, Container, Stretch, TensorInfo, row_major
from vitconvert.containers.content import Content, content_of
from vitconvert.containers.directory import weights_in
from vitconvert.containers.hashing import hash_file
from vitconvert.containers.opening import open_container
from vitconvert.containers.shards import split, write_shards
from vitconvert.containers.whole_file import sync_names
from vitconvert.containers.writing import write_npz, write_safetensors, write_torch

__all__ = [
    "ITEM_SIZE",
    "Box",
    "Container",
    "Content",
    "Stretch",
    "TensorInfo",
    "chunks_of",
    "content_of",
    "hash_file",
    "one_buffer",
    "open_container",
    "row_major",
    "split",
    "sync_names",
    "weights_in",
    "write_npz",
    "write_safetensors",
    "write_shards",
    "write_torch",
]
