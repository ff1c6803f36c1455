"""Bytes to named tensors and back: safetensors (sharded too), torch checkpoints and npz."""

from vitconvert.containers.container import Container, TensorInfo
from vitconvert.containers.directory import weights_in
from vitconvert.containers.opening import open_container
from vitconvert.containers.writing import write_npz, write_safetensors, write_torch

__all__ = [
    "Container",
    "TensorInfo",
    "open_container",
    "weights_in",
    "write_npz",
    "write_safetensors",
    "write_torch",
]
