"""Tensors in memory, read like a file that has nothing beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.reading import explained
from vitconvert.config import ViTConfig
from vitconvert.formats import Container, TensorInfo
from vitconvert.sources import Located

if TYPE_CHECKING:
    import torch

_NAME = "a state dict"  # where messages name a file
_NOWHERE = Located(
    reference=_NAME,
    weights=None,
    config=None,
    preprocessor=None,
    own=None,
    name=None,
    repo=None,
    revision=None,
    url=None,
    sha256={},
    verified=(),
)


def read_state_dict(
    state_dict: "Mapping[str, torch.Tensor]", options: ReadOptions
) -> "tuple[dict[str, torch.Tensor], ViTConfig]":
    """The tensors of a state dict under canonical names, and their configuration.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    read = explained(_container(state_dict), _NOWHERE, options)
    return dict(read.weights.tensors), read.weights.config


def _container(state_dict: "Mapping[str, torch.Tensor]") -> Container:
    return Container(
        path=Path(_NAME),
        files=(),
        format="memory",
        manifest={
            name: TensorInfo(
                dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape)
            )
            for name, tensor in state_dict.items()
        },
        reader=state_dict.__getitem__,
        release=lambda: None,
    )
