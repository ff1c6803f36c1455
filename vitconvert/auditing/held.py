"""What a model holds, by name: of a module, or of one that another process loaded.

Large models fit no second time into memory, so tensors stay where they are, and one at a time is
read as the numbers that it stands for.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from vitconvert.auditing.content import in_threads, is_quantised, parts_of, plain
from vitconvert.checkpoint.quantised import dequantised
from vitconvert.checkpoint.reading import in_memory
from vitconvert.errors import VitConvertError


@dataclass(frozen=True, kw_only=True)
class LoadedTensors:
    """What a model holds, by name: of a module, or of a model that another process loaded.

    Attributes:
        title: The name of its class.
        tensors: Its state dict, on any device, of a class of torchao's, of DTensor; and buffers
            that it does not save as far as they are on the meta device. Two names of one memory
            are tied.
        parameters: Which of them are parameters, and not buffers.
        quantised: Those that stand for other numbers than they were made of.
        offloaded: What reads those on the meta device that are kept elsewhere.
    """

    title: str
    tensors: Mapping[str, Tensor]
    parameters: Set[str]
    quantised: Set[str] = frozenset()
    offloaded: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)

    def is_absent(self, name: str) -> bool:
        """Whether there are no numbers: on the meta device, and nowhere else."""
        return self.tensors[name].is_meta and name not in self.offloaded

    def read(self, name: str) -> Tensor:
        """The numbers that a tensor stands for, dense and on the CPU; as it is if it can be.

        Of a DTensor it is gathered from all processes, each of which has to ask for it.
        """
        tensor = self.offloaded[name]() if name in self.offloaded else self.tensors[name]
        return plain(tensor)

    def tied(self) -> Mapping[str, str]:
        """Name -> the first name of the same memory, of those that have several."""
        first: dict[tuple[object, ...], str] = {}
        found = {}
        for name, tensor in self.tensors.items():
            place = _place(tensor)
            if place is not None and (other := first.setdefault(place, name)) != name:
                found[name] = other
        return found

    def digest(self, name: str) -> str:
        """A hash of the numbers of one, by which one that was not changed is known."""
        return "" if self.is_absent(name) else _digest(self.read(name))

    def digests(self) -> dict[str, str]:
        """That of each."""
        there = [name for name in self.tensors if not self.is_absent(name)]
        hashed = in_threads(partial(_digest, self.read(name)) for name in there)
        return dict.fromkeys(self.tensors, "") | dict(zip(there, hashed, strict=True))


def dequantised_by_us(held: LoadedTensors) -> LoadedTensors:
    """A model with the weights that quantised ones in its state dict stand for, if it has such."""
    container = in_memory({n: t for n, t in held.tensors.items() if not is_quantised(t)})
    with suppress(VitConvertError):
        computed, weights = dequantised(container, "float32")
        if weights:
            absent = {n: t for n, t in held.tensors.items() if is_quantised(t)}
            read = {name: partial(computed.read, name) for name in weights}
            tensors = {
                name: torch.empty(info.shape, dtype=torch.float32, device="meta")
                if name in weights
                else held.tensors[name]
                for name, info in computed.manifest.items()
            }
            return replace(
                held,
                tensors=tensors | absent,
                quantised={*held.quantised, *weights},
                offloaded={**held.offloaded, **read},
            )
    return held


Model = nn.Module | LoadedTensors


def title_of(model: Model) -> str:
    """The name of a model's class."""
    return model.title if isinstance(model, LoadedTensors) else type(model).__name__


def held_by(model: Model) -> LoadedTensors:
    """What a model saves; and what else of it is on the meta device, so is not there."""
    if isinstance(model, LoadedTensors):
        return model
    saved = {n: value for n, value in model.state_dict().items() if isinstance(value, Tensor)}
    buffers = dict(model.named_buffers(remove_duplicate=False))
    absent = {n: value for n, value in buffers.items() if n not in saved and value.is_meta}
    return LoadedTensors(
        title=title_of(model),
        tensors=saved | absent,
        parameters=saved.keys() - buffers.keys(),
        quantised={name for name, value in saved.items() if is_quantised(value)},
        offloaded=dict(_offloaded(model, saved)),
    )


def _offloaded(
    model: nn.Module, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """What accelerate keeps in memory or on disk until a module computes (`device_map`)."""
    accelerate = sys.modules.get("accelerate")  # which who has such a model has imported
    if accelerate is None or not any(tensor.is_meta for tensor in tensors.values()):
        return
    from accelerate.utils import align_module_device, has_offloaded_params

    def reader(module: nn.Module, name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            with align_module_device(module, torch.device("cpu")):
                value: Tensor = getattr(module, name).detach()
                return value

        return read

    for prefix, module in model.named_modules():
        if has_offloaded_params(module):
            own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            for name, _ in own:
                whole = f"{prefix}.{name}" if prefix else name
                if whole in tensors and tensors[whole].is_meta:
                    yield whole, reader(module, name)


def _place(tensor: Tensor) -> tuple[object, ...] | None:
    """Where the numbers of a tensor lie; None if it does not say."""
    if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter) or not tensor.numel():
        return None
    if tensor.layout != torch.strided:
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(repr((tensor.dtype, tuple(tensor.shape))).encode())
    for part in parts_of(tensor):
        digest.update(part.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
