"""An independent implementation, ready to run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import MissingPackage, NotRepresentable
from vitconvert.programs.taps import Taps
from vitconvert.tables.binding import NO_ELEMENTS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitconvert.model import ViT

# Tables that a program computes, and parts that it has for other tasks, are smaller than that.
_MOST_GROWTH, _FREE_GROWTH = 4, 2**28


def call(model: "nn.Module", images: "Tensor") -> "Tensor":
    """Run a model that takes images and returns a tensor."""
    output: Tensor = model(images)
    return output


def as_tokens(features: "Tensor") -> "Tensor":
    """A map of features, (B, channels, rows, columns), as tokens; anything else as it is."""
    return features.flatten(2).transpose(1, 2) if features.ndim == 4 else features


class TensorsNotTaken(NotRepresentable):
    """The program's class for such models does not take these tensors."""


class ConfigNotTaken(NotRepresentable):
    """The program's class for such models does not take what its config.json says."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A real package's model with a checkpoint's own tensors in it.

    Attributes:
        name: Package, version and class.
        model: In eval mode, in float32, or float64 where the checkpoint is.
        taps: Which of its modules compute which layer of a ViT.
        run: Images to logits, or to what `reads` says.
        reads: "output": what vitconvert's model returns; "tokens": what its forward_features does.
        notes: What had to be changed in the package's model, or in ours to compare them.
        dtypes: In which the package computes throughout; its norms or angles may round to float32.
        adapts: Fields of ViTConfig in which vitconvert's model has to follow the package.
        told: Fields of ViTConfig that it was built with as vitconvert knows them, where the package
            knew no better: whatever is wrong in one of them is wrong on both sides.
        any_size: Whether `run` takes images of another size, and fits positions to them as the
            package does for its users. The model may stay of that size.
    """

    name: str
    model: "nn.Module"
    taps: Taps
    run: "Callable[[nn.Module, Tensor], Tensor]" = call
    reads: str = "output"
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    adapts: Mapping[str, str] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    any_size: bool = False

    def adapt(self, ours: "ViT") -> "ViT":
        """Our model as it is to be compared: of the same weights, with the fields of `adapts`."""
        from vitconvert.model import ViT

        if not self.adapts:
            return ours
        other = ViT(ours.config.replace(**self.adapts), device="meta")
        other.load_state_dict(ours.state_dict(), strict=True, assign=True)
        return other.eval()


def own_tensors(checkpoint: Checkpoint) -> "dict[str, Tensor]":
    """The checkpoint's tensors in its own names, without wrappers and what plays no part.

    Raises:
        CorruptFile: The bytes of a tensor are damaged.
    """
    import torch

    ignored, weights = checkpoint.ledger.ignored, checkpoint.weights
    read = {name: weights.read(name) for name in weights.recognised.binding.shapes}
    # Arrays without elements that a table names ([constants], [ignore]) are their own module's.
    kept = {n for n, t in read.items() if not t.numel() and ignored.get(n) != NO_ELEMENTS}
    read = {name: t for name, t in read.items() if name not in ignored or name in kept}
    return {n: t if t.dtype == torch.float64 else t.float() for n, t in read.items()}


def package(name: str, *, install: str) -> ModuleType:
    """Import a reference package.

    Args:
        name: Of the module.
        install: The argument of pip that installs it.

    Raises:
        MissingPackage: It is not installed, or what it imports is not.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        whole = name.partition(".")[0]
        lacks = error.name if error.name != whole else None
        needed = f"{lacks}, which {name} imports," if lacks else whole
        raise MissingPackage(
            f"{needed} is not installed.", hint=f"pip install {lacks or install}"
        ) from None


def built_of_size(
    build: "Callable[[], nn.Module]", tensors: "Mapping[str, Tensor]", name: str = ""
) -> "nn.Module":
    """A model for tensors: on the meta device, where it takes no memory, but for its buffers.

    Raises:
        ConfigNotTaken: It is far larger than the tensors are.
    """
    import torch

    from vitconvert.programs.undrawn import Undrawn

    with torch.device("meta"), Undrawn():
        model = build()
    check_size(model, tensors, name or type(model).__name__)
    if not any(buffer.is_meta for buffer in model.buffers()):
        return model
    with Undrawn():  # Rotary tables, masks and the like are in no file: the package computes them.
        return build()


def check_size(model: "nn.Module", tensors: "Mapping[str, Tensor]", name: str) -> None:
    """Refuse a model of which a config.json makes more than the tensors could fill.

    Args:
        model: On the meta device, where it takes no memory.
        tensors: The checkpoint's.
        name: Of the class.

    Raises:
        ConfigNotTaken: It is far larger than they are.
    """
    made = sum(part.nbytes for part in (*model.parameters(), *model.buffers()))
    given = sum(tensor.nbytes for tensor in tensors.values())
    if made > _MOST_GROWTH * given + _FREE_GROWTH:
        raise ConfigNotTaken(
            f"{name} would be far larger than its tensors by what config.json says: {made:,} "
            f"bytes instead of {given:,}."
        )


def load_strictly(model: "nn.Module", tensors: "Mapping[str, Tensor]", name: str) -> None:
    """Give a model its tensors, all of them and no others.

    Raises:
        TensorsNotTaken: Names or shapes differ.
    """
    try:
        model.load_state_dict(dict(tensors), strict=True, assign=True)
    except RuntimeError as error:
        details = [line.strip() for line in str(error).splitlines()[1:]]
        raise TensorsNotTaken(f"{name} does not take these tensors.", details=details) from None
