"""What happens if one forgets how a library differs: loaded in silence, or an error, and how wrong.

A mistake changes tensors, configuration or pixels; the model is then loaded as torch does it. All
numbers are computed in float64, so that they are the same on every machine.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import vitconvert
from vitconvert.config import ViTConfig
from vitconvert.demo import train
from vitconvert.demo.demonstration import DIGITS
from vitconvert.model import ViT
from vitconvert.tables.canonical import expected_shapes

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a model is made of, the images that it sees, and whether names must fit."""

    config: ViTConfig
    tensors: Mapping[str, Tensor]
    images: Tensor  # (B, 3, 32, 32), float64
    strict: bool = True

    def logits(self) -> Tensor:
        """(B, num_classes), float64.

        Raises:
            RuntimeError: torch's, of names or shapes that do not fit.
        """
        torch.manual_seed(0)  # of tensors that strict=False leaves as they were initialised
        model = ViT(self.config, dtype=torch.float64).eval()
        model.load_state_dict(dict(self.tensors), strict=self.strict)
        with torch.no_grad():
            return model(self.images)


Mistake = Callable[[Loaded], Loaded]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """torch's error, or how far the logits are from the right ones."""

    error: str = ""
    relative: float = 0.0  # largest difference of a logit over the largest logit
    changed: int = 0  # images whose largest logit is of another class


def outcome(right: Loaded, mistake: Mistake) -> Outcome:
    """What a mistake leads to."""
    expected = right.logits()
    try:
        found = mistake(right).logits()
    except RuntimeError as error:
        return Outcome(error=re.sub(r"\s+", " ", str(error)))
    return Outcome(
        relative=float((found - expected).abs().max() / expected.abs().max()),
        changed=int((found.argmax(dim=1) != expected.argmax(dim=1)).sum()),
    )


@functools.cache
def digits() -> Loaded:
    """The demo's trained ViT and the digits that were held out from its training."""
    model = vitconvert.load_model(DIGITS)
    _, held_out = train.split()
    tensors = {name: tensor.double() for name, tensor in model.state_dict().items()}
    return Loaded(config=model.config, tensors=tensors, images=held_out.pixels.double())


def clip() -> Loaded:
    """A CLIP image encoder of 12 blocks with random weights, and the same digits."""
    config = digits().config.replace(
        num_classes=64, depth=12, pre_norm=True, final_norm=False, fc_norm=True,
        patch_bias=False, head_bias=False, activation="quick_gelu", norm_eps=1e-5,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    tensors = {name: _drawn(name, shape, rng) for name, shape in expected_shapes(config).items()}
    return replace(digits(), config=config, tensors=tensors)


def _drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """Matrices keep the variance of what they read; norms and biases are as after training."""
    noise = torch.from_numpy(rng.normal(size=shape))
    if len(shape) > 1:
        inputs = shape[1:] if "weight" in name else ()
        return noise * float(np.prod(inputs)) ** -0.5
    return 1 + 0.2 * noise if name.endswith("weight") else 0.1 * noise


def config_with(**fields: object) -> Mistake:
    """The library's numerics are replaced by others."""
    return lambda right: replace(right, config=right.config.replace(**fields))


def tensors_with(change: Callable[[Tensor, ViTConfig], Tensor], *endings: str) -> Mistake:
    """All tensors whose names end so are changed."""

    def changed(right: Loaded) -> Loaded:
        made = {
            name: change(tensor, right.config) if name.endswith(endings) else tensor
            for name, tensor in right.tensors.items()
        }
        return replace(right, tensors=made)

    return changed


def without(*beginnings: str) -> Mistake:
    """Tensors are left out, and strict=False hides it."""

    def less(right: Loaded) -> Loaded:
        kept = {n: t for n, t in right.tensors.items() if not n.startswith(beginnings)}
        return replace(right, tensors=kept, strict=False)

    return less


def skipping(**fields: object) -> Mistake:
    """A layer is not there, and strict=False hides that its tensors are."""
    return lambda right: replace(config_with(**fields)(right), strict=False)


def prefixed(*, strict: bool) -> Mistake:
    """Names begin as those of a larger model."""
    return lambda right: replace(
        right, tensors={f"vit.{n}": t for n, t in right.tensors.items()}, strict=strict
    )


def pixels_with(change: Callable[[Tensor], Tensor]) -> Mistake:
    """Pixels from 0 to 1 are prepared in another way than (x - 0.5) / 0.5."""
    return lambda right: replace(right, images=change(right.images / 2 + 0.5))


def _rows_by_head(t: Tensor, c: ViTConfig) -> Tensor:
    """Rows (qkv head dim), read as if they were (head qkv dim)."""
    heads = t.reshape(c.num_heads, 3, c.head_dim, -1)
    return heads.transpose(0, 1).reshape(t.shape)


def _rows_by_channel(t: Tensor, c: ViTConfig) -> Tensor:
    """Rows (qkv head dim), read as if they were (qkv dim head)."""
    return t.reshape(3, c.head_dim, c.num_heads, -1).transpose(1, 2).reshape(t.shape)


def _swapped(t: Tensor, _: ViTConfig) -> Tensor:
    q, k, v = t.chunk(3)
    return torch.cat([k, q, v])


def _qkv_transposed(t: Tensor, _: ViTConfig) -> Tensor:
    return torch.cat([part.T for part in t.chunk(3)])


def _channels_last(t: Tensor, _: ViTConfig) -> Tensor:
    """Columns (y x channel), read as if they were (channel y x)."""
    return t.permute(0, 2, 3, 1).reshape(t.shape)


def _class_row(t: Tensor, _: ViTConfig) -> Tensor:
    """The class token's row is last instead of first."""
    return t.roll(-1, dims=1)


def _no_class_position(t: Tensor, _: ViTConfig) -> Tensor:
    return torch.cat([torch.zeros_like(t[:, :1]), t[:, 1:]], dim=1)


def _imagenet(x: Tensor) -> Tensor:
    mean, std = (torch.tensor(n, dtype=x.dtype).view(3, 1, 1) for n in IMAGENET)
    return (x - mean) / std


def _transposed(t: Tensor, _: ViTConfig) -> Tensor:
    return t.T


def _by_channel_first(t: Tensor, c: ViTConfig) -> Tensor:
    """Columns (head dim), read as if they were (dim head)."""
    return t.reshape(-1, c.head_dim, c.num_heads).transpose(1, 2).reshape(t.shape)


def _split(right: Loaded) -> Loaded:
    """q, k and v are tensors of their own, as in transformers' file."""
    made = {n: t for n, t in right.tensors.items() if ".qkv." not in n}
    for name in right.tensors.keys() - made.keys():
        for letter, part in zip("qkv", right.tensors[name].chunk(3), strict=True):
            made[name.replace(".qkv.", f".{letter}.")] = part
    return replace(right, tensors=made)


_QKV = ("qkv.weight", "qkv.bias")
_PATCHES = "patch_embed.proj.weight"
# What torch loads all the same.
SILENT: Mapping[str, Mapping[str, Mistake]] = {
    "numerics": {
        "LayerNorm eps 1e-12 instead of 1e-6": config_with(norm_eps=1e-12),
        "LayerNorm eps 1e-5 instead of 1e-6": config_with(norm_eps=1e-5),
        "tanh GELU instead of exact GELU": config_with(activation="gelu_tanh"),
        "quick GELU instead of exact GELU": config_with(activation="quick_gelu"),
        "`width ** -0.5` instead of `head_dim ** -0.5`": config_with(attention_scale=48**-0.5),
        "6 heads instead of 3": config_with(num_heads=6, head_dim=8),
        "mean of the patches instead of the class token": config_with(pooling="avg"),
    },
    "tensors": {
        "fused qkv: rows read as (head qkv dim)": tensors_with(_rows_by_head, *_QKV),
        "fused qkv: rows read as (qkv dim head)": tensors_with(_rows_by_channel, *_QKV),
        "fused qkv: q and k swapped": tensors_with(_swapped, *_QKV),
        "q, k, v not transposed": tensors_with(_qkv_transposed, "qkv.weight"),
        "attention output not transposed": tensors_with(_transposed, "attn.proj.weight"),
        "attention output: columns read as (dim head)": tensors_with(
            _by_channel_first, "attn.proj.weight"
        ),
        "patches (y x channel) read as (channel y x)": tensors_with(_channels_last, _PATCHES),
        "patches: y and x swapped": tensors_with(lambda t, _: t.transpose(2, 3), _PATCHES),
        "position of the class token last, not first": tensors_with(_class_row, "pos_embed"),
        "no position for the class token": tensors_with(_no_class_position, "pos_embed"),
    },
    "pixels": {
        "ImageNet's mean and std instead of 0.5": pixels_with(_imagenet),
        "0 to 1, not normalised": pixels_with(lambda x: x),
        "0 to 255, not divided by 255": pixels_with(lambda x: (x * 255 - 0.5) / 0.5),
    },
    "strict=False": {
        "all names have a prefix: nothing is loaded": prefixed(strict=False),
        "the model has no final LayerNorm": skipping(final_norm=False),
        "the file has no positions": without("pos_embed"),
    },
}
OF_CLIP: Mapping[str, Mistake] = {
    "exact GELU instead of quick GELU": config_with(activation="gelu"),
    "LayerNorm eps 1e-6 instead of 1e-5": config_with(norm_eps=1e-6),
    "no `ln_pre` (`strict=False`)": skipping(pre_norm=False),
}
LOUD: Mapping[str, Mistake] = {
    "MLP kernel not transposed": tensors_with(_transposed, "blocks.0.mlp.fc1.weight"),
    "patches in JAX's order (y x channel width)": tensors_with(
        lambda t, _: t.permute(2, 3, 1, 0), _PATCHES
    ),
    "patches of a linear layer": tensors_with(lambda t, _: t.flatten(1), _PATCHES),
    "no row for the class token's position": tensors_with(lambda t, _: t[:, 1:], "pos_embed"),
    "positions without the leading 1": tensors_with(lambda t, _: t[0], "pos_embed"),
    "q, k and v apart for a fused qkv": _split,
    "all names have a prefix": prefixed(strict=True),
}


def silent_table(group: str) -> str:
    """Of mistakes of a group: how far the logits are, and how many digits are read differently."""
    of_clip = group == "CLIP"
    right = clip() if of_clip else digits()
    lines = ["| mistake | logits | digits |", "|---|---|---|"]
    for title, mistake in (OF_CLIP if of_clip else SILENT[group]).items():
        found = outcome(right, mistake)
        assert not found.error, f"{title}: {found.error}"
        lines.append(f"| {title} | {_percent(found.relative)} | {found.changed} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def loud_table() -> str:
    """What torch says of mistakes that it sees; of lists, two names."""
    right = digits()
    lines = ["| mistake | torch's error |", "|---|---|"]
    for title, mistake in LOUD.items():
        said = outcome(right, mistake).error.partition("ViT: ")[2]
        assert said, title
        said = re.sub(r'(: "[^"]+", "[^"]+",) .*', r"\1 ...", said)
        lines.append(f"| {title} | `{said}` |")
    return "\n".join(lines)
