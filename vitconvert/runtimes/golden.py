"""What an ONNX file says that it computes: answers of vitconvert's own model, by another path."""

import base64
import json
from pathlib import Path

import torch

from vitconvert.runtimes.check import Expected
from vitconvert.runtimes.check_onnx import (
    differences,
    images,
    onnxruntime_engine,
    read_model,
    sampled,
)
from vitconvert.runtimes.graph import output_names
from vitconvert.version import VERSION


def golden_of(expected: Expected, *, dtype: str, tolerance: float) -> str:
    """The outputs of a graph, those of `probes` first, for the golden images."""
    config, shape = expected.model.config, expected.shape
    pixels = shape.pixels is not None
    both = torch.from_numpy(images(config.in_channels, *config.image_size, pixels=pixels))
    states = expected.states(both) if shape.probes else ()
    output, *probes = output_names(1 + len(states))
    answers = dict(zip((*probes, output), (*states, expected(both)), strict=True))
    kept = {
        name: {
            "shape": list(answer.shape[1:]),
            "float32": base64.b64encode(sampled(answer.numpy()).astype("<f4").tobytes()).decode(),
        }
        for name, answer in answers.items()
    }
    stated = {"version": 1, "dtype": dtype, "tolerance": tolerance, "producer": VERSION}
    return json.dumps({**stated, "outputs": kept})


def as_measured(golden: str, path: Path) -> str:
    """The same, which allows twice what ONNX Runtime itself departs by: for a file of 8 bits.

    Weights that were rounded give other answers than the model, and how far differs from model to
    model. Engines that round activations at other places are as far from ONNX Runtime at most.
    """
    model = read_model(path)
    found = differences(model, onnxruntime_engine(path, model, None))
    return json.dumps({**json.loads(golden), "tolerance": float(f"{2 * max(found.values()):.1e}")})
