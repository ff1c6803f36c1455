"""What users do with a model that is read: export it, and embed images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitconvert
from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS


def in_onnx_runtime(folder: Path, images: Tensor, place: Path, **reading: Any) -> Tensor:
    """What ONNX Runtime computes with a model that is exported to a file in `place`."""
    runtime = pytest.importorskip("onnxruntime")
    vitconvert.export_model(folder, place / "model.onnx", to="onnx", **reading)
    session = runtime.InferenceSession(place / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    return torch.from_numpy(found)


def embedded(folder: Path, place: Path, *options: str) -> np.ndarray:
    """What `vitconvert embed` writes of a digit, into a file in `place`."""
    image, output = DIGITS / "samples" / "0.png", place / "features.npz"
    with pytest.raises(SystemExit) as exit_:
        main(["embed", str(folder), str(image), "-o", str(output), *options, "-q"])
    assert exit_.value.code in (0, None)
    with np.load(output) as written:
        return written["features"]
