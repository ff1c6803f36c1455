"""Files that compute a model without this package, and the runtimes that they are for."""

from vitconvert.runtimes.onnx import OnnxRuntime
from vitconvert.runtimes.openvino import OpenVino
from vitconvert.runtimes.runtime import Pt2, Runtime

# By the format's name, in the order of the documents.
RUNTIMES: dict[str, Runtime] = {"onnx": OnnxRuntime(), "pt2": Pt2(), "openvino": OpenVino()}
