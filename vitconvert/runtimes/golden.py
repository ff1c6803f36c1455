"""What an ONNX file says that it computes: answers of vitconvert's own model, by another path."""

import base64
import json

import torch

from vitconvert.runtimes.check import Expected
from vitconvert.runtimes.check_onnx import images, sampled
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
