"""Changes of a model that are asked for and recorded: its head, channels and dtype.

Those of its sizes are in `model/resizing.py`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitconvert.comparison import overflows
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable, UsageError, some
from vitconvert.tables.canonical import expected_shapes, first_kernel

Tensors = Mapping[str, Tensor]


def replace_head(
    tensors: Tensors, config: ViTConfig, num_classes: int
) -> tuple[Tensors, ViTConfig, str]:
    """Take the head off, or put one of zeros in its place, as Google fine-tunes (vit_jax).

    Returns:
        The tensors, the configuration and what was changed, in words.

    Raises:
        UsageError: A negative number of classes.
    """
    if num_classes < 0:
        raise UsageError("A head cannot have fewer than 0 classes.")
    wanted = config.replace(num_classes=num_classes)
    kept = {name: tensor for name, tensor in tensors.items() if not _of_head(name)}
    like = next(iter(tensors.values()))
    heads = {
        name: like.new_zeros(shape)
        for name, shape in expected_shapes(wanted).items()
        if _of_head(name)
    }
    before = f"the head of {config.num_classes} classes"
    change = f"replaced by one of {num_classes}, all zeros" if num_classes else "taken off"
    return {**kept, **heads}, wanted, f"{before} was {change}"


def select_classes(
    tensors: Tensors, config: ViTConfig, classes: Sequence[int]
) -> tuple[Tensors, ViTConfig, str]:
    """Keep some classes of the head, in this order; their logits stay what they are.

    Raises:
        UsageError: The head has no such class, or one is asked for twice.
    """
    if wrong := [index for index in classes if not 0 <= index < config.num_classes]:
        raise UsageError(
            f"The head has no class {wrong[0]}.",
            evidence={"classes": config.num_classes},
        )
    if len(set(classes)) < len(classes) or not classes:
        raise UsageError(
            "Classes to keep are named once each, and at least one is.",
            evidence={"asked": ", ".join(map(str, classes))},
            hint="leave out the second of two.",
        )
    heads = {n: tensor[list(classes)] for n, tensor in tensors.items() if _of_head(n)}
    change = f"{len(classes)} of {config.num_classes} classes were kept"
    return {**tensors, **heads}, config.replace(num_classes=len(classes)), change


def _of_head(name: str) -> bool:
    return name.startswith(("head.", "head_dist."))


def change_channels(
    tensors: Tensors, config: ViTConfig, channels: int
) -> tuple[Tensors, ViTConfig, str]:
    """Read images of another number of channels, as timm does it (`adapt_input_conv`, 1.0.31).

    To 1 channel, the weights of all channels are added up: a grey image gives what it gave when
    it was repeated in each. To any other number, the channels are repeated in turn, or the last
    left out, and scaled by the ratio of the numbers; from 1 to 3, which timm leaves alone,
    likewise.

    Raises:
        UsageError: No number of channels, or a norm reads each pixel of a patch.
    """
    if channels < 1:
        raise UsageError("Images have at least 1 channel.")
    if config.patch_pre_norm:
        raise UsageError("This model normalises pixels, so its channels cannot change.")
    name = first_kernel(config)
    kernel = tensors[name].float()
    if channels == 1:
        changed = kernel.sum(1, keepdim=True)
    else:
        repeats = -(-channels // config.in_channels)
        repeated = torch.cat([kernel] * repeats, dim=1)[:, :channels]
        changed = repeated * (config.in_channels / channels)
    change = f"input channels changed from {config.in_channels} to {channels}"
    wanted = config.replace(in_channels=channels)
    return {**tensors, name: changed.to(tensors[name].dtype)}, wanted, change


def cast(tensors: Tensors, dtype: torch.dtype) -> tuple[Tensors, str]:
    """Change the dtype of every floating-point tensor.

    Raises:
        NotRepresentable: A number is finite, and would not be in this dtype.
    """
    floating = {t.dtype for t in tensors.values() if t.is_floating_point()}
    before = sorted(str(d).removeprefix("torch.") for d in floating)
    cast = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
    word = str(dtype).removeprefix("torch.")
    lost = [k for k, t in cast.items() if not t.is_meta and overflows(tensors[k], t)]
    if lost:
        most = max(float(tensors[k].nan_to_num(0, 0, 0).abs().max()) for k in lost)
        raise NotRepresentable(
            f"{word} cannot hold the numbers of {len(lost)} tensor{'s' if len(lost) > 1 else ''}.",
            evidence={
                "tensors": some(lost),
                "largest": f"{most:.3g}",
                "limit": f"{torch.finfo(dtype).max:g}",
            },
            hint="--dtype bfloat16, or float32, holds them.",
        )
    return cast, f"cast from {' and '.join(before)} to {word}"
