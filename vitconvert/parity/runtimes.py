"""Other programs that run a model of ours: they show its outputs, and none of its layers."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.model import ViT
from vitconvert.runtimes import RUNTIMES as FORMATS
from vitconvert.runtimes.graph import Graph, Shape, traced
from vitconvert.runtimes.runtime import Run

Prepare = Callable[[ViT, Tensor, Path], Run]  # a model, images like those to come, an empty folder

_FORMATS = {"onnxruntime": FORMATS["onnx"]}


def missing_packages(runtime: str) -> list[str]:
    """The packages that a runtime needs and that are not installed."""
    return _FORMATS[runtime].missing() if runtime in _FORMATS else []


def _compiled(model: ViT, _: Tensor, __: Path) -> Run:
    """torch's own compiler; in one piece, so that nothing is left uncompiled in silence."""
    compiled: Run = torch.compile(model, fullgraph=True, dynamic=False)
    return compiled


def _onnxruntime(model: ViT, images: Tensor, folder: Path) -> Run:
    """The model as torch exports it, on ONNX Runtime's CPU provider in one thread."""
    path = folder / "model.onnx"
    program = traced(Graph(model, Shape(batch=len(images))))
    FORMATS["onnx"].write(program, path, metadata={})
    return FORMATS["onnx"].open(path, threads=1)


RUNTIMES: dict[str, Prepare] = {"compiled": _compiled, "onnxruntime": _onnxruntime}
