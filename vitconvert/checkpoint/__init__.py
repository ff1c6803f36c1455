"""A checkpoint: local files in, a proved header and lazy tensors out, and a model of them."""

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.model import build_model
from vitconvert.checkpoint.options import ReadArguments, ReadOptions
from vitconvert.checkpoint.reading import read_checkpoint

__all__ = ["Checkpoint", "ReadArguments", "ReadOptions", "build_model", "read_checkpoint"]
