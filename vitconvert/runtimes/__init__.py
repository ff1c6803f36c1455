"""Files that compute a model without this package, and the runtimes that they are for."""

from os import PathLike
from pathlib import Path

from vitconvert.runtimes.onnx import OnnxRuntime
from vitconvert.runtimes.openvino import OpenVino
from vitconvert.runtimes.runtime import Pt2, Runtime

# By the format's name, in the order of the documents.
RUNTIMES: dict[str, Runtime] = {"onnx": OnnxRuntime(), "pt2": Pt2(), "openvino": OpenVino()}


def is_exported(model: object) -> bool:
    """Whether a reference is a file whose name is that of a runtime's."""
    suffixes = [runtime.suffix for runtime in RUNTIMES.values()]
    path = Path(model) if isinstance(model, str | PathLike) else Path()
    return path.suffix in suffixes and path.is_file()
