"""The same ViT with faster arithmetic: equal within a few units in the last place, not bit-equal.

Each part was measured by itself, in float32 on one core of an AMD processor (torch 2.15, batches
of 1 and 8, widths of 192 to 768):

    linear layers by oneDNN               1.6 to 2 times as fast as torch's own, which use MKL
    activations fused into them           0 to 11 %
    the last block for pooled tokens only 4 to 6 % of 12 blocks
    weights in oneDNN's own order         5 to 10 %; costs twice the memory of the linear layers,
                                          and about one forward pass to prepare
    large batches in parts                5 to 12 %, where activations exceed 32 MiB
    memory kept from batch to batch       4 to 6 % for 8 images and more of width 192
    scores of windows not kept            half the time of SAM's base at 512 pixels

Not worth it: fused residual additions (no gain), patches as a matrix product (0.5 %), attention by
oneDNN, head by head (1 to 4 %, and nothing with more cores) or as a convolution whose groups are
the heads (slower except for the largest), fewer Python calls (1 %), a thread for each half of a
batch (2 to 11 %, but the threads outlive the call; `predict` and `embed` do it), torch's compiler
with frozen weights and a C++ wrapper (for one image, 0.6 to 0.8 of the speed). AOTInductor's
package, which needs no Python, showed no clear gain (0.7 to 1.0 of the speed at its best; 1.1 to
1.4 while others computed), takes a minute to compile, and is as large as the weights.

For one image of width 192, what could still be saved is in the attention, a quarter of the time,
and in the 12 microseconds that oneDNN takes to start each linear layer.

Without AVX-512, MKL can be as fast as oneDNN (on Zen 3, a base and 8 images took 1.03 times the
time), so once its weight is in oneDNN's order, a layer measures both for each number of rows.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.heads import PreLogits
from vitconvert.model.inputs import HeadMask
from vitconvert.model.layers import ACTIVATION, Mlp
from vitconvert.model.open_sizes import Grid
from vitconvert.model.vit import ViT
from vitconvert.model.windows import WindowedAttention


def _dtypes_of_onednn() -> tuple[torch.dtype, ...]:
    # A private operator of torch, which torch's own compiler uses; torch without oneDNN lacks it.
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return ()
    bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32, torch.bfloat16) if bfloat16 else (torch.float32,)


_DTYPES = _dtypes_of_onednn()
# Most bytes of an activation on a CPU. malloc maps fresh memory for each block above 32 MiB, and
# keeps twice as much in total: see `_keep_freed_memory`.
_AT_ONCE = 24 * 2**20
# oneDNN's name and algorithm of each activation. Its relu is left out, because it turns NaN into 0.
_POST_OPS = {
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


# With AVX-512, oneDNN is 1.6 to 2 times as fast as MKL: nothing is to be measured.
_COMPARES = torch.backends.cpu.get_cpu_capability() != "AVX512"
_TRIES = 3
_CLEARLY = 0.97  # of the other's time: what differs by less stays as it is
# Whether torch's own product was clearly faster, by all that decides it; measured once a process.
_measured: dict[tuple[object, ...], bool] = {}


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """A copy of a weight in oneDNN's own order."""

    weight: Tensor
    source: Tensor  # what was copied; held, so that its memory is not reused
    identity: tuple[object, ...]


def _identity(weight: Tensor) -> tuple[object, ...]:
    """Where a weight is in memory, and torch's count of its changes."""
    return weight.data_ptr(), weight.shape, weight.stride(), weight._version


class FastLinear(nn.Linear):
    """A linear layer and the activation after it, computed by oneDNN for inference on a CPU.

    Otherwise (another device or dtype, gradients, autocast, compilers) torch's usual operations
    are used. oneDNN first reads the weight itself, and after some calls a copy of it in oneDNN's
    own order. The copy is not part of the state dict, of copies of the module or of pickles, and is
    dropped when the weight is replaced or changed in place. Only changes that torch does not count
    are missed: those to `weight.data` or through another library's view of the memory. torch counts
    no changes of a weight that was made in inference mode, so such a weight is not copied.
    """

    activation: str | None = None  # one of ACTIVATIONS
    packs_after: float = 16  # calls that make up for the time of packing; math.inf: never
    _calls = 0
    _packed: _Packed | None = None

    def reset_parameters(self) -> None:
        """Do nothing: a fast layer is made on the meta device, and gets its weights later."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": 0, "_packed": None}

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if torch.compiler.is_compiling() or not self._suits_onednn(x):
            return self._by_torch(x)
        if _COMPARES and self._packed is not None and self._torch_is_faster(x):
            return self._by_torch(x)
        return self._by_onednn(x)

    def _by_torch(self, x: Tensor) -> Tensor:
        return self._activated(super().forward(x))

    def _by_onednn(self, x: Tensor) -> Tensor:
        if self.activation in _POST_OPS:
            return self._product(x, *_POST_OPS[self.activation])
        return self._activated(self._product(x, "none", ""))

    def _torch_is_faster(self, x: Tensor) -> bool:
        """As measured once for layers of this shape, for each power of two of rows."""
        rows = (x.numel() // self.in_features).bit_length()
        threads = torch.get_num_threads()
        case = (rows, self.in_features, self.out_features, self.activation, x.dtype, threads)
        if case not in _measured:
            ours, torchs = _seconds([lambda: self._by_onednn(x), lambda: self._by_torch(x)])
            _measured[case] = torchs < _CLEARLY * ours
        return _measured[case]

    def _product(self, x: Tensor, word: str, algorithm: str) -> Tensor:
        # oneDNN ignores the stride of a bias (torch 2.15).
        bias = None if self.bias is None else self.bias.contiguous()
        pointwise = torch.ops.mkldnn._linear_pointwise.default
        return cast("Tensor", pointwise(x, self._ordered_weight(), bias, word, [], algorithm))

    def _ordered_weight(self) -> Tensor:
        weight, packed = self.weight, self._packed
        if weight.is_inference():  # Changes to it are not counted.
            return weight
        if packed is not None and packed.identity == _identity(weight):
            return packed.weight
        self._calls = 1 if packed is not None else self._calls + 1
        packed = _pack(weight) if self._calls > self.packs_after else None
        self._packed = packed
        return weight if packed is None else packed.weight

    def _activated(self, x: Tensor) -> Tensor:
        return x if self.activation is None else ACTIVATION[self.activation](x)

    def _suits_onednn(self, x: Tensor) -> bool:
        needs_gradient = torch.is_grad_enabled() and (
            x.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        )
        return (
            x.device.type == "cpu"
            and x.dtype in _DTYPES
            and x.dtype == self.weight.dtype
            and not needs_gradient
            and not torch.is_autocast_enabled("cpu")
            and bool(torch.backends.mkldnn.enabled)
        )


def _seconds(ways: list[Callable[[], Tensor]]) -> list[float]:
    """The least time of each, in turn."""
    least = [math.inf] * len(ways)
    for _ in range(_TRIES):
        for number, way in enumerate(ways):
            start = time.perf_counter()
            way()
            least[number] = min(least[number], time.perf_counter() - start)
    return least


def _pack(weight: Tensor) -> _Packed:
    source = weight.detach()
    reordered = torch.ops.mkldnn._reorder_linear_weight.default(source)
    return _Packed(weight=reordered, source=source, identity=_identity(weight))


class FastViT(ViT):
    """A ViT for inference, with the same weights, names and methods, and faster arithmetic.

    Its parameters require no gradient; if they are set to, or in training, the usual arithmetic is
    used. A hook on `fc1` of an MLP sees activated channels, and on a CPU, hooks see a large batch
    in parts. On a GPU the last block is shorter and patches are a matrix product; torch computes
    the rest as usual: `model.compile()` fuses it, and for small batches of a fixed size,
    `model.compile(mode="reduce-overhead")` captures it in CUDA graphs.

    To make one of a `ViT`, without a second copy of the weights:

        >>> fast = FastViT(model.config, device="meta").eval()           # doctest: +SKIP
        >>> fast.load_state_dict(model.state_dict(), assign=True)        # doctest: +SKIP
    """

    def __init__(
        self,
        config: ViTConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config, device=device, dtype=dtype)
        self.requires_grad_(False)
        _keep_freed_memory()

    def train(self, mode: bool = True) -> Self:
        """As torch's, with a warning if no parameter requires a gradient."""
        if mode and not any(parameter.requires_grad for parameter in self.parameters()):
            warnings.warn(
                "A fast model is for inference: none of its parameters requires a gradient. To "
                "train the model, load it with fast=False.",
                stacklevel=2,
            )
        return super().train(mode)

    def _build(self, config: ViTConfig) -> None:
        super()._build(config)
        self.patch_embed.product_on_gpu = True
        for module in list(self.modules()):
            for name, child in module.named_children():
                if type(child) is nn.Linear:  # a clipped one is more than that
                    setattr(module, name, _fast_linear(child))
        for module in self.modules():
            if isinstance(module, Mlp) and not config.clipped_linears:
                _join(module, module.fc1_g or module.fc1, config.activation)
            elif isinstance(module, WindowedAttention):
                module.unlike_timm = True
            elif isinstance(module, PreLogits):
                _join(module, module.fc, config.representation_activation)

    def forward(self, images: Tensor, head_mask: HeadMask = None) -> Tensor:
        """Logits, or features without a head, as `ViT.forward`."""
        self.patch_embed.checked(images)
        whole = self.training or images.device.type != "cpu" or torch.compiler.is_compiling()
        bytes_of_one = self._activations(self.grid_of(images)) * images.element_size()
        at_once = max(1, _AT_ONCE // bytes_of_one)
        if whole or len(images) <= at_once:
            return self._forward_part(images, head_mask)
        parts = images.chunk(-(-len(images) // at_once))
        return torch.cat([self._forward_part(part, head_mask) for part in parts])

    def _forward_part(self, images: Tensor, head_mask: HeadMask) -> Tensor:
        for x in self.residual_stream(images, head_mask, self._pooled_tokens):  # noqa: B007
            pass
        grid = self.grid_of(images)
        return self.forward_head(self.finished(x, grid), grid=grid)

    def _activations(self, grid: Grid) -> int:
        """Numbers in the largest activation of one image's tokens: an MLP's, or q, k and v."""
        config = self.config
        widest = max(config.mlp_dim, 3 * config.num_heads * config.head_dim)
        return (grid[0] * grid[1] + config.num_prefix_tokens) * widest

    @property
    def _pooled_tokens(self) -> int | None:
        """How many of the first tokens the head reads; None: all."""
        if self.config.pooling == "token":
            return 2 if self.config.dist_head else 1
        return self.config.num_prefix_tokens if self.config.pooling == "prefix_avg" else None


def _keep_freed_memory() -> None:
    """Make malloc keep the memory of a batch's activations for the next batch.

    glibc's malloc would return it to the system, which then has to clear as many fresh pages. It
    keeps twice the size of the largest block up to 32 MiB that was ever freed (mallopt(3),
    M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). The block freed here is never written to.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")


def _fast_linear(linear: nn.Linear) -> FastLinear:
    has_bias = linear.bias is not None
    return FastLinear(linear.in_features, linear.out_features, bias=has_bias, device="meta")


def _join(module: Mlp | PreLogits, linear: nn.Module, activation: str) -> None:
    """Let a linear layer compute the activation that follows it."""
    cast("FastLinear", linear).activation = activation
    module.act = _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x
