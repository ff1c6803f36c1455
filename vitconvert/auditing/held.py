"""The tensors that a model holds: of a live module, or of a state dict that came from elsewhere.

Large models fit no second time into memory, so tensors stay where they are, and one at a time is
read as the numbers that it stands for.
"""

import hashlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitconvert.auditing.content import parts_of, plain


@dataclass(frozen=True, kw_only=True)
class Held:
    """Named tensors, as a model holds them.

    Attributes:
        title: What holds them, as reports call it: the class of a model.
        tensors: By name, as `state_dict` gives them: on any device, of a class of torchao's, of
            DTensor, on the meta device. Two names of one memory are tied.
        buffers: Names of those that are no parameters.
        offloaded: Names of those on the meta device that are kept elsewhere -> what reads them.
    """

    title: str
    tensors: Mapping[str, Tensor]
    buffers: Collection[str] = ()
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

    def digests(self) -> dict[str, str]:
        """A hash of the numbers of each, by which one that was not changed is known."""
        with ThreadPoolExecutor(2) as pool:
            hashed: dict[str, Future[str]] = {}
            pending: list[Future[str]] = []
            for name in self.tensors:
                if self.is_absent(name):
                    continue
                if len(pending) > 1:  # so that few copies of what was elsewhere are in memory
                    pending.pop(0).result()
                hashed[name] = pool.submit(_digest, self.read(name))
                pending.append(hashed[name])
            return {name: future.result() for name, future in hashed.items()}


def held_by(model: nn.Module | Mapping[str, Tensor], title: str = "a state dict") -> Held:
    """What a model saves, or a state dict has: the title is then as given."""
    if not isinstance(model, nn.Module):
        return Held(title=title, tensors=model)
    tensors = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)}
    return Held(
        title=type(model).__name__,
        tensors=tensors,
        buffers=frozenset(name for name, _ in model.named_buffers(remove_duplicate=False)),
        offloaded=dict(_offloaded(model, tensors)),
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
        digest.update(memoryview(part.contiguous().view(torch.uint8).numpy()))
    return digest.hexdigest()
