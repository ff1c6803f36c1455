"""Reads local files into a Checkpoint (header proved, tensors lazy), and builds its model."""

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.model import build_model
from vitconvert.checkpoint.options import ReadArguments, ReadOptions
from vitconvert.checkpoint.reading import read_checkpoint

__all__ = ["Checkpoint", "ReadArguments", "ReadOptions", "build_model", "read_checkpoint"]
