"""What a model holds, by name: of a module, or of one that another process loaded."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from torch import Tensor, nn

from vitconvert.auditing.content import plain


@dataclass(frozen=True, kw_only=True)
class LoadedTensors:
    """A model that is not here: what it saved.

    Attributes:
        title: The name of its class.
        tensors: Its state dict, tied weights under each of their names, and buffers that it does
            not save as far as they are on the meta device.
        parameters: Which of them are parameters, and not buffers.
    """

    title: str
    tensors: Mapping[str, Tensor]
    parameters: Set[str]


Model = nn.Module | LoadedTensors


def title_of(model: Model) -> str:
    """The name of a model's class."""
    return model.title if isinstance(model, LoadedTensors) else type(model).__name__


def parameters_of(model: Model) -> Set[str]:
    """Which of `held_by` are parameters, and not buffers."""
    if isinstance(model, LoadedTensors):
        return model.parameters
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


def held_by(model: Model) -> Iterator[tuple[str, Tensor]]:
    """What a model saves, by name; and what else of it is on the meta device, so is not there."""
    if isinstance(model, LoadedTensors):
        yield from model.tensors.items()
        return
    saved = model.state_dict()
    for name, value in saved.items():
        if isinstance(value, Tensor):
            yield name, value if value.is_meta else plain(value)
    for name, value in model.named_buffers(remove_duplicate=False):
        if name not in saved and value.is_meta:
            yield name, value
