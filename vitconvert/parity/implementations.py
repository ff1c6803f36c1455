"""Anything that computes outputs from images, and the result of a run.

vitconvert's ViT, another project's model, the user's own module or function: each becomes an
`Implementation`, so that any two can be compared.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.errors import UsageError
from vitconvert.model import ViT
from vitconvert.programs.program import explained_refusal
from vitconvert.programs.reference import Reference
from vitconvert.programs.taps import OUTPUT, Tap, Taps, canonical_taps, record

Model = TypeVar("Model", bound=nn.Module)
TOKENS, FEATURES = "tokens", "features"

_OUTPUT_NAMES = {
    "logits": OUTPUT,
    "last_hidden_state": TOKENS,
    "pooler_output": FEATURES,
    "image_embeds": OUTPUT,
}
"""Name of an output in other projects -> its name here."""

LAYER_OF_OUTPUT = {OUTPUT: OUTPUT, TOKENS: "norm", FEATURES: "features"}
"""An output of the ViT -> the layer that it is."""


def outputs_of(layers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a ViT among its layers."""
    return {name: layers[at] for name, at in LAYER_OF_OUTPUT.items() if at in layers}


@dataclass(frozen=True)
class Run:
    """The result of an implementation for a batch.

    Attributes:
        outputs: By name: "output" (logits, or what there is without a head), "tokens" behind the
            final norm, "features" that the head reads, or names of the user's own.
        layers: What passed the taps, in the order of computation.
    """

    outputs: Mapping[str, Tensor]
    layers: Mapping[str, Tensor]

    def through(self, view: "View") -> "Run":
        """The run as someone sees it who keeps only a view of each array."""
        return Run(
            {name: view(name, output) for name, output in self.outputs.items()},
            {layer: view(layer, values) for layer, values in self.layers.items()},
        )


View = Callable[[str, Tensor], Tensor]
"""Name and array of an output or a layer -> the part of it that is kept."""


def whole(_: str, values: Tensor) -> Tensor:
    """The view that keeps everything."""
    return values


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """Something that computes outputs from images.

    Attributes:
        name: As reports call it.
        prepare: Makes it ready for a dtype: a function of images (B, C, H, W) in that dtype.
        dtypes: In which it may compute throughout.
        vit: vitconvert's own model, if that is what computes: parts of it can be exchanged to find
            the cause of a difference.
        taps: Where layers are kept.
        reads: What of the ViT is compared, as in `Reference`.
        view: What it keeps of outputs and layers: others are compared with it through this.
    """

    name: str
    prepare: Callable[[torch.dtype], Callable[[Tensor], Run]]
    dtypes: tuple[str, ...] = ("float32", "float64")
    vit: ViT | None = None
    taps: Taps = field(default_factory=dict)
    reads: str = OUTPUT
    view: View = whole


def of_vit(
    model: ViT, *, name: str, reads: str = OUTPUT, taps: Taps | None = None
) -> Implementation:
    """vitconvert's own model, with the layers of `canonical_taps` and those of further taps."""
    taps = {**canonical_taps(model.config.depth, model.config.block_order), **(taps or {})}
    # What a head would read is the output then.
    if isinstance(model.pre_logits, nn.Identity) and model.config.num_classes == 0:
        taps.pop("features", None)

    def prepare(dtype: torch.dtype) -> Callable[[Tensor], Run]:
        ready = in_dtype(model, dtype)
        compute = ready if reads == OUTPUT else ready.forward_features

        def run(images: Tensor) -> Run:
            layers = record(ready, taps, partial(compute, images))
            return Run(outputs_of(layers), layers)

        return run

    return Implementation(name=name, prepare=prepare, vit=model, taps=taps, reads=reads)


def of_reference(reference: Reference, checkpoint: Checkpoint) -> Implementation:
    """The model of the checkpoint's own project, which may refuse its config.json on running."""

    def prepare(dtype: torch.dtype) -> Callable[[Tensor], Run]:
        model = in_dtype(reference.model, dtype)

        def run(images: Tensor) -> Run:
            with explained_refusal(checkpoint):
                layers = record(model, reference.taps, partial(reference.run, model, images))
            return Run({OUTPUT: layers[OUTPUT]}, layers)

        return run

    return Implementation(name=reference.name, prepare=prepare, dtypes=reference.dtypes)


def of_module(module: nn.Module, *, name: str, taps: Mapping[str, Tap]) -> Implementation:
    """The user's own module: a copy of it, in eval mode and on the CPU."""

    def prepare(dtype: torch.dtype) -> Callable[[Tensor], Run]:
        model = in_dtype(module, dtype)

        def run(images: Tensor) -> Run:
            outputs: dict[str, Tensor] = {}

            def compute() -> Tensor:
                outputs.update(named_outputs(model(images), name))
                return next(iter(outputs.values()))

            layers = record(model, taps, compute)
            return Run(outputs, layers)

        return run

    return Implementation(name=name, prepare=prepare, taps=taps)


def of_function(function: Callable[..., Any], *, name: str, takes_numpy: bool) -> Implementation:
    """The user's own function of images, of torch or of NumPy, JAX, ONNX Runtime or a process."""

    def run(images: Tensor) -> Run:
        given = images.numpy() if takes_numpy else images
        outputs = named_outputs(function(given), name)
        return Run(outputs, {OUTPUT: next(iter(outputs.values()))})

    # A function shows no weights: it computes in whatever dtype the images ask for.
    return Implementation(name=name, prepare=lambda _: run)


def named_outputs(result: object, name: str) -> dict[str, Tensor]:
    """The tensors that an implementation returned, by name; the unnamed one is "output".

    Args:
        result: A tensor, an array, or several in a mapping, a dataclass, a tuple or a list.
        name: Of the implementation, for messages.

    Raises:
        UsageError: There is no tensor in it.
    """
    tensor = _tensor(result)
    if tensor is not None:
        return {OUTPUT: tensor}
    if isinstance(result, Mapping):
        named = dict(result)
    elif isinstance(result, tuple) and hasattr(result, "_asdict"):
        named = result._asdict()
    elif isinstance(result, tuple | list):
        named = {(str(i) if i else OUTPUT): item for i, item in enumerate(result)}
    else:
        named = vars(result) if hasattr(result, "__dict__") else {}
    tensors = {_OUTPUT_NAMES.get(str(k), str(k)): _tensor(v) for k, v in named.items()}
    outputs = {key: item for key, item in tensors.items() if item is not None}
    if not outputs:
        raise UsageError(
            f"{name} returned no tensor and no array.",
            evidence={
                "returned": type(result).__name__,
                "expected": "a tensor, or several by name",
            },
            hint="wrap it in a function that returns the logits.",
        )
    return outputs


def _tensor(value: object) -> Tensor | None:
    """A tensor or an array as a tensor on the CPU; None if it is neither."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.array(value)) if value.dtype.kind == "f" else None
    if hasattr(value, "__array__") and not isinstance(value, type):  # JAX, TensorFlow
        return torch.from_numpy(np.array(value))
    return None


def in_dtype(model: Model, dtype: torch.dtype) -> Model:
    """The model itself if it is ready, or a copy on the CPU in eval mode."""
    ready = all(p.dtype == dtype and p.device.type == "cpu" for p in model.parameters())
    if ready and not any(module.training for module in model.modules()):
        return model
    return copy.deepcopy(model).to(device="cpu", dtype=dtype).eval()


def name_of(something: object) -> str:
    """The name in reports of the user's own module or function."""
    kind = something if inspect.isroutine(something) else type(something)
    module = getattr(kind, "__module__", "") or ""
    name = getattr(kind, "__qualname__", type(something).__name__)
    return f"{module}.{name}" if module not in ("", "__main__", "builtins") else name
