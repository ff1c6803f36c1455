"""A small checkpoint of a dialect, with every number random."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.small_models import randomise_calmly

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
USER = {"num_heads": 3}
GRID = {"image_size": (32, 24)}  # 4 patches down, 3 across: nothing shows that but a statement
PLAIN = {
    "embed_dim": 30,
    "depth": 11,
    "num_heads": 3,
    "head_dim": 10,
    "mlp_dim": 50,
    "image_size": (24, 24),
    "patch_size": (8, 8),
    "in_channels": 3,
    "num_classes": 7,
}
STEM = {"stem": True, "stem_width": 32, "depth": 2, "patch_size": (1, 1)}


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """A checkpoint, what a user must say about it and what must be found out."""

    dialect: str
    make: Callable[[], nn.Module | Shapes]
    stated: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str  # a name as it is in the file
    written: str = ""  # the dialect that writes it back, if another
    rewritten: Callable[[str], str] = str  # a name of the file as writing spells it
    squeezed: bool = False  # whether writing drops dimensions of 1
    outputs: Callable[[Any], Tensor] = lambda found: found

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        return randomise_calmly(self.make())

    def tensors(self) -> Tensors:
        torch.manual_seed(5)
        made = self.make()
        state = randomise_calmly(made).state_dict() if isinstance(made, nn.Module) else fill(made)
        return {self.rename(name): tensor for name, tensor in state.items()}


def fill(shapes: Shapes) -> Tensors:
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def linear(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
