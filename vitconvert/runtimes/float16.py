"""A graph in float16, and what of it stays in float32: decided by measuring.

float16 ends at 65,504 and has eleven bits. Some models compute larger numbers: one channel of a
register, or of a patch that serves as one, may be far larger than all others, from block to block
(Sun et al., "Massive Activations in Large Language Models", https://arxiv.org/abs/2402.17762;
Darcet et al., https://arxiv.org/abs/2309.16588). On GPUs they may become infinite, and norms that
are computed in float16 square numbers that are much smaller.

A processor hides this: ONNX Runtime and OpenVINO compute most of a float16 file in float32 there.
So what is measured is this module's own arithmetic, which rounds the result of each operation to
float16, those within norms and softmax too. A runtime that rounds less is closer to float32.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitconvert.comparison import largest, relative_difference
from vitconvert.model import ViT
from vitconvert.runtimes.check import Expected
from vitconvert.runtimes.check_onnx import images as golden_images
from vitconvert.runtimes.graph import Graph, Shape

SOFTMAX, NORMS, RESIDUAL = "softmax", "norms", "residual"
KINDS = (SOFTMAX, NORMS, RESIDUAL)
# From the fastest to the most exact. A norm reads the residual sum, so that one includes norms.
CHOICES: tuple[tuple[str, ...], ...] = (
    (),
    (SOFTMAX,),
    (NORMS,),
    (SOFTMAX, NORMS),
    (NORMS, RESIDUAL),
    KINDS,
)
_LARGEST = torch.finfo(torch.float16).max
_ROOM = 4  # other images may make larger numbers than the measured ones
_MARGIN = 0.5  # of the tolerance, for the same reason

_PRODUCTS = (nn.Linear, nn.Conv2d)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm2d)


@dataclass(frozen=True, kw_only=True)
class InFloat32:
    """What of a file in float16 stays in float32.

    Attributes:
        kinds: Of KINDS.
        layers: Names of the matrix products and convolutions that do, because float16 cannot hold
            their numbers.
        products: How many there are.
        difference: Of the largest output, as measured.
        tried: The difference of each choice that was measured, by its kinds.
    """

    kinds: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    products: int = 0
    difference: float = math.inf
    tried: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For the file's metadata; a difference that is not finite is None."""

        def number(difference: float) -> float | None:
            return float(f"{difference:.1e}") if math.isfinite(difference) else None

        return {
            **{kind: "float32" if kind in self.kinds else "float16" for kind in KINDS},
            "layers": list(self.layers),
            "difference": number(self.difference),
            "tried": [
                {"float32": list(kinds), "difference": number(difference)}
                for kinds, difference in self.tried.items()
            ],
        }

    def notes(self) -> Iterator[str]:
        """In sentences, for people."""
        names = {RESIDUAL: "the residual sum"}
        kept = [names.get(kind, kind) for kind in KINDS if kind in self.kinds]
        others = [names.get(kind, kind) for kind in KINDS if kind not in self.kinds]
        told = f"in float32: {', '.join(kept) or 'nothing'}"
        told += f"; in float16: {', '.join([*others, 'the rest'])}"
        measured = ", ".join(
            f"{difference:.1e} with {' + '.join(kinds) or 'nothing'}"
            for kinds, difference in self.tried.items()
        )
        yield f"{told}; every operation rounded, the difference is {measured} in float32"
        if self.layers:
            few = ", ".join(self.layers[:3]) + (", ..." if len(self.layers) > 3 else "")
            many = f"{len(self.layers)} of {self.products} products"
            yield f"in float32, because of numbers near or beyond {_LARGEST:.0f}: {many} ({few})"


class HalfGraph(Graph):
    """A graph in float16 but for what is kept in float32.

    Args:
        model: In float32; its weights are replaced.
        shape, stops: As of `Graph`.
        kept: What stays.
        rounded: Whether norms and softmax, where they do not stay, round each of their operations:
            for measuring.
    """

    def __init__(
        self,
        model: ViT,
        shape: Shape,
        kept: InFloat32,
        *,
        rounded: bool = False,
        stops: bool = True,
    ) -> None:
        super().__init__(model, shape, stops=stops)
        _round_weights(self.model, kept)
        self.dtype = self.model.patch_embed.a_weight().dtype
        self.arithmetic = _Arithmetic(kept.kinds, rounded=rounded)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """As `Graph.forward`."""
        with self.arithmetic:
            return super().forward(images)


def _round_weights(model: nn.Module, kept: InFloat32) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _PRODUCTS):
            stays = name in kept.layers
        else:
            stays = RESIDUAL in kept.kinds or (NORMS in kept.kinds and isinstance(module, _NORMS))
        if stays:
            continue
        for part, weights in list(module.named_parameters(recurse=False)):
            setattr(module, part, nn.Parameter(weights.detach().half(), requires_grad=False))
        for part, table in list(module.named_buffers(recurse=False)):
            if table.is_floating_point():
                setattr(module, part, table.half())


class _Arithmetic(TorchFunctionMode):
    """The dtype of each operation: a product's is that of its weight, sums are promoted."""

    def __init__(self, kinds: Sequence[str], *, rounded: bool) -> None:
        super().__init__()
        norm: Any = _norm_in_float32 if NORMS in kinds else _rounded_norm if rounded else _called
        attention = partial(_attention, in_float32=SOFTMAX in kinds, rounded=rounded)
        self.rules: dict[object, Callable[..., Any]] = {
            **dict.fromkeys((F.linear, F.conv2d, F.conv_transpose2d), _product),
            **dict.fromkeys((F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm), norm),
            F.scaled_dot_product_attention: attention,
            torch.einsum: _einsum,
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        rule: Callable[..., Any] = self.rules.get(func, _called)
        return rule(func, *args, **(kwargs or {}))


def _called(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return func(*args, **options)


def _product(
    func: Callable[..., Tensor], x: Tensor, weight: Tensor, *args: Any, **options: Any
) -> Tensor:
    return func(x.to(weight.dtype), weight, *args, **options)


def _einsum(func: Callable[..., Tensor], equation: str, *operands: Tensor) -> Tensor:
    dtype = torch.float32 if any(x.dtype == torch.float32 for x in operands) else torch.float16
    return func(equation, *(x.to(dtype) for x in operands))


def _norm_in_float32(func: Callable[..., Tensor], x: Tensor, *args: Any, **options: Any) -> Tensor:
    def whole(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) else value

    named = {name: whole(value) for name, value in options.items()}
    return func(x.float(), *map(whole, args), **named).to(x.dtype)


def _rounded_norm(func: Callable[..., Tensor], x: Tensor, *args: Any, **options: Any) -> Tensor:
    """Norms over the last axis as an engine computes them that has float16 alone."""
    if func not in (F.layer_norm, F.rms_norm):
        return func(x, *args, **options)
    weight, bias, eps = (options.get(name) for name in ("weight", "bias", "eps"))
    x = x - x.mean(-1, keepdim=True) if func is F.layer_norm else x
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    x = x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _attention(
    func: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    in_float32: bool,
    rounded: bool,
    **options: Any,
) -> Tensor:
    """Scores and softmax, in float32 or not; what they weigh has the dtype of `v`."""
    dtype = torch.float32 if in_float32 else v.dtype
    q, k = q.to(dtype), k.to(dtype)
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(dtype)
    if not (in_float32 or rounded):
        return func(q, k, v, attn_mask=attn_mask, scale=scale, **options)
    root = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5  # of both, as torch does
    scores = (q * root) @ (k * root).transpose(-2, -1)
    scores = scores if attn_mask is None else _masked(scores, attn_mask)
    weights = scores.softmax(-1) if in_float32 else _rounded_softmax(scores)
    return weights.to(v.dtype) @ v


def _rounded_softmax(scores: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


@dataclass
class _Range:
    """The largest numbers that a model in float32 reads, adds up and computes with."""

    residual: float = 0.0
    layers: dict[str, bool] = field(default_factory=dict)  # product: whether float16 holds it

    @classmethod
    @torch.no_grad()
    def of(cls, expected: Expected, images: Tensor) -> "_Range":
        found, model = cls(), expected.model
        blocks = set(model.blocks.children())

        def look(name: str, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
            seen = max(largest(args[0]), largest(out))
            if module in blocks:
                found.residual = max(found.residual, seen)
            else:
                fits = seen <= _LARGEST / _ROOM and _fits(module)
                found.layers[name] = found.layers.get(name, True) and fits

        handles = [
            module.register_forward_hook(partial(look, name))
            for name, module in model.named_modules()
            if module in blocks or isinstance(module, _PRODUCTS)
        ]
        try:
            expected(images)
        finally:
            for handle in handles:
                handle.remove()
        products = (module for module in model.modules() if isinstance(module, _PRODUCTS))
        own = {id(parameter) for module in products for parameter in module.parameters()}
        if not all(_fits(p) for p in model.parameters() if id(p) not in own):
            found.residual = math.inf
        return found


def _fits(weights: nn.Module | Tensor) -> bool:
    tensors = [weights] if isinstance(weights, Tensor) else list(weights.parameters(recurse=False))
    return all(largest(tensor.detach()) <= _LARGEST for tensor in tensors)


@torch.no_grad()
def kept_in_float32(build: Callable[[], ViT], shape: Shape, *, tolerance: float) -> InFloat32:
    """Measure on the golden images what has to stay in float32, the least of it first.

    The first choice is taken that differs by half the tolerance at most, else the closest one.

    Args:
        build: Makes the model in float32, each time another whose weights may be replaced.
        shape: What the graph takes and gives.
        tolerance: Of the file, relative to the largest output.
    """
    expected, shape = Expected(build(), shape), replace(shape, probes=False)
    config, pixels = expected.model.config, shape.pixels is not None
    both = torch.from_numpy(golden_images(config.in_channels, *config.image_size, pixels=pixels))
    wanted, seen = expected(both), _Range.of(expected, both)
    layers = tuple(name for name, fits in seen.layers.items() if not fits)
    choices: Sequence[tuple[str, ...]] = [kinds for kinds in CHOICES if RESIDUAL in kinds]
    if layers:
        choices = [KINDS]
    elif seen.residual <= _LARGEST / _ROOM:
        choices = CHOICES
    tried: dict[tuple[str, ...], float] = {}
    for kinds in choices:
        kept = InFloat32(kinds=kinds, layers=layers)
        graph = HalfGraph(build(), shape, kept, rounded=True)
        tried[kinds] = relative_difference(graph(both), wanted)
        if tried[kinds] <= _MARGIN * tolerance:
            break
    best = min(tried, key=tried.__getitem__)
    return InFloat32(
        kinds=best,
        layers=layers,
        products=len(seen.layers),
        difference=tried[best],
        tried=tried,
    )
