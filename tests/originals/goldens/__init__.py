"""Tiny models of projects that are no packages: tensors, images, and what the project computed.

Each file has the names that the project's own class saved, every number random, and says in its
metadata of which revision that class is.
"""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parent
IMAGES, OUTPUT = "golden.images", "golden.output"


def golden(name: str) -> dict[str, Tensor]:
    """The tensors that the project saved."""
    tensors = load_file(FOLDER / f"{name}.safetensors")
    return {key: tensors[key] for key in tensors.keys() - {IMAGES, OUTPUT}}


def images_and_output(name: str) -> tuple[Tensor, Tensor]:
    """Images, and what the project computed of them."""
    tensors = load_file(FOLDER / f"{name}.safetensors")
    return tensors[IMAGES], tensors[OUTPUT]
