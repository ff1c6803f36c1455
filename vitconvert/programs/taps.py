"""Taps: the points of a computation at which two implementations are compared.

A ViT is compared at its patches, at the tokens that enter the first block, behind the attention
and behind the MLP of each block, at the final norm, at the features that the head reads, and at
its output.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

OUTPUT = "output"
BRANCH = " output"  # behind the name of a module of a block: what it gives before it is added


@dataclass(frozen=True)
class Tap:
    """The first input of a module, or its output. The channels of a grid of patches come second.

    With `class_last`, the class token comes after the patches; what is kept has it first.
    """

    module: str
    input: bool = False
    channels_last: bool = False
    class_last: bool = False


Taps = Mapping[str, Tap]


def block_of(layer: str) -> int | None:
    """The block that a layer lies in."""
    return int(layer.split(".")[1]) if layer.startswith("blocks.") else None


def canonical_taps(depth: int, block_order: str = "pre") -> dict[str, Tap]:
    """For vitconvert's ViT, and for timm's, whose modules have the same names.

    In "post_norm" order, the tokens after the attention are what the first norm gives.
    """
    taps = {
        "patch_embed": Tap("patch_embed"),
        "features": Tap("head", input=True),
        **block_taps(depth, block="blocks.{i}", norm2="norm2", norm="norm"),
    }
    if block_order == "post_norm":
        taps |= {f"blocks.{i}.attn": Tap(f"blocks.{i}.norm1") for i in range(depth)}
    return taps


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

    def keep(layer: str, tap: Tap, tensor: "Tensor | None") -> None:
        if tensor is None:
            return
        if tensor.ndim > 3 and not tap.channels_last:
            tensor = tensor.movedim(1, -1)
        if tensor.ndim > 3:  # a grid, of clips with an axis of time
            tensor = tensor.flatten(1, -2)
        if tap.class_last and tensor.ndim == 3:
            tensor = tensor.roll(1, dims=1)
        kept[layer] = tensor.detach().clone()  # some models add to their tokens in place

    def tapped(module: "nn.Module", layer: str, tap: Tap) -> "Callable[[], None]":
        if tap.input:
            return module.register_forward_pre_hook(
                lambda called, args, named: keep(layer, tap, _first_input(called, args, named)),
                with_kwargs=True,
            ).remove
        return module.register_forward_hook(
            lambda _, __, output: keep(layer, tap, _first_tensor(output))
        ).remove

    modules = dict(model.named_modules())
    with ExitStack() as hooks:
        for layer, tap in taps.items():
            if (module := modules.get(tap.module)) is not None:
                hooks.callback(tapped(module, layer, tap))
        kept[OUTPUT] = run()
    return kept


def _first_input(
    module: "nn.Module", args: tuple[object, ...], named: Mapping[str, object]
) -> "Tensor | None":
    """The first tensor that a module is given, in the order of its parameters, named or not."""
    given = args or signature(module.forward).bind(**named).arguments.values()
    return _first_tensor([*given, *named.values()])


def _first_tensor(value: object) -> "Tensor | None":
    """A tensor, or the first of several; None if there is none."""
    from torch import Tensor

    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = [*value.values()]
    several = value if isinstance(value, tuple | list) else ()
    return next((one for one in several if isinstance(one, Tensor)), None)
