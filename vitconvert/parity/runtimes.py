"""Other programs that run a model of ours: they show its outputs, and none of its layers."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.model import ViT

Run = Callable[[Tensor], Tensor]
Prepare = Callable[[ViT, Tensor, Path], Run]  # a model, images like those to come, an empty folder

_PACKAGES = {"onnxruntime": ("onnxruntime", "onnx", "onnxscript")}


def missing_packages(runtime: str) -> list[str]:
    """The packages that a runtime needs and that are not installed."""
    wanted = _PACKAGES.get(runtime, ())
    return [package for package in wanted if importlib.util.find_spec(package) is None]


def _compiled(model: ViT, _: Tensor, __: Path) -> Run:
    """torch's own compiler; in one piece, so that nothing is left uncompiled in silence."""
    compiled: Run = torch.compile(model, fullgraph=True, dynamic=False)
    return compiled


def _onnxruntime(model: ViT, images: Tensor, folder: Path) -> Run:
    """The model as torch exports it, on ONNX Runtime's CPU provider in one thread."""
    import onnxruntime

    path = folder / "model.onnx"
    torch.onnx.export(model, (images,), str(path), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


RUNTIMES: dict[str, Prepare] = {"compiled": _compiled, "onnxruntime": _onnxruntime}
