"""The largest numbers of a model: what a dtype of fewer bits may be too small for."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vitconvert.comparison import largest


def unfit(peaks: Mapping[str, float], dtype: torch.dtype) -> tuple[str, ...]:
    """Of tensors and their largest magnitudes: those that are finite, but not in this dtype."""
    limit = torch.finfo(dtype).max
    return tuple(name for name, value in peaks.items() if limit < value < math.inf)


def peaks_of(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest magnitude of each tensor."""
    return {name: largest(tensor) for name, tensor in tensors.items()}


@dataclass
class Peak:
    """The largest magnitude of the outputs of a model's modules."""

    value: float = 0.0
    module: str = ""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Look at each output inside."""
        handles = [
            module.register_forward_hook(partial(self._look, name))
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _look(self, name: str, _: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor) and (value := largest(output)) > self.value:
            self.value, self.module = value, name or "the whole model"
