"""Taps: the points of a computation at which two implementations are compared.

A ViT is compared at its patches, at the tokens that enter the first block, behind the attention
and behind the MLP of each block, at the final norm, at the features that the head reads, and at
its output.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

OUTPUT = "output"
BRANCH = " output"  # behind the name of a module of a block: what it gives before it is added


@dataclass(frozen=True)
class Tap:
    """The first input of a module, or its output. The channels of a grid of patches come second."""

    module: str
    input: bool = False
    channels_last: bool = False


Taps = Mapping[str, Tap]


def block_of(layer: str) -> int | None:
    """The block that a layer lies in."""
    return int(layer.split(".")[1]) if layer.startswith("blocks.") else None


def canonical_taps(depth: int) -> dict[str, Tap]:
    """For vitconvert's ViT, and for timm's, whose modules have the same names."""
    return {
        "patch_embed": Tap("patch_embed"),
        "features": Tap("head", input=True),
        **block_taps(depth, block="blocks.{i}", norm2="norm2", norm="norm"),
    }


def block_taps(depth: int, *, block: str, norm2: str, norm: str) -> dict[str, Tap]:
    """For models whose blocks are modules: the second norm reads the tokens after the attention."""
    taps = {"embedding": Tap(block.format(i=0), input=True), "norm": Tap(norm)}
    for i in range(depth):
        path = block.format(i=i)
        taps[f"blocks.{i}.attn"] = Tap(f"{path}.{norm2}", input=True)
        taps[f"blocks.{i}.mlp"] = Tap(path)
    return taps


def channels_last(taps: Taps, *, ends: tuple[str, ...] = ("",)) -> dict[str, Tap]:
    """The same of a model that has patches as a grid with the channels last, in some layers."""
    return {
        layer: replace(tap, channels_last=True) if layer.endswith(ends) else tap
        for layer, tap in taps.items()
    }


def record(model: "nn.Module", taps: Taps, run: "Callable[[], Tensor]") -> "dict[str, Tensor]":
    """Run a model and keep what passes its taps, and its output as `OUTPUT`, in this order.

    A tap that the computation does not pass is left out.
    """
    kept: dict[str, Tensor] = {}

    def keep(layer: str, tap: Tap, *passed: object) -> None:
        value = passed[-1]  # the module; its inputs; its output, unless it was not computed yet
        tensor = cast("Tensor", value[0] if isinstance(value, tuple) else value)
        if tensor.ndim == 4 and not tap.channels_last:
            tensor = tensor.movedim(1, -1)
        if tensor.ndim == 4:
            tensor = tensor.flatten(1, 2)
        kept[layer] = tensor.detach().clone()  # some models add to their tokens in place

    modules = dict(model.named_modules())
    with ExitStack() as hooks:
        for layer, tap in taps.items():
            if (module := modules.get(tap.module)) is not None:
                register: Callable[..., RemovableHandle] = module.register_forward_hook
                if tap.input:
                    register = module.register_forward_pre_hook
                hooks.callback(register(partial(keep, layer, tap)).remove)
        kept[OUTPUT] = run()
    return kept
