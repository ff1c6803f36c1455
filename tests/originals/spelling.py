"""Files of the original projects, spelled by hand from their sources, every number random."""

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]

WIDTH, HEADS, DEPTH, HIDDEN = 48, 3, 11, 96
PATCHES = 9  # images of 24 pixels in patches of 8
SIZES = {"embed_dim": WIDTH, "num_heads": HEADS, "depth": DEPTH, "img_size": 24, "patch_size": 8}


def filled(shapes: Shapes) -> Tensors:
    """Weights of a size at which every term counts."""
    torch.manual_seed(5)
    return {
        name: torch.randn(shape) * 0.2 + (0.5 if len(shape) == 1 else 0.02)
        for name, shape in shapes.items()
    }


def pair(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def meta_vit(
    *,
    positions: int = PATCHES + 1,
    class_token: bool = True,
    scale: Callable[[str, int], str] | None = None,
    block: str = "blocks.{}",
    swiglu: str = "",
) -> Shapes:
    """The names that timm's first ViT gave to nearly all of Meta's.

    Args:
        positions: Rows of the position table; 0 for none.
        class_token: Whether there is one.
        scale: Name of the LayerScale of a block: its name, 1 or 2.
        block: Name of a block.
        swiglu: "" for an MLP, "w12" for gate and value as one layer, "w1 w2" for two layers.
    """
    D, M = WIDTH, HIDDEN
    shapes: Shapes = {"cls_token": (1, 1, D)} if class_token else {}
    if positions:
        shapes["pos_embed"] = (1, positions, D)
    shapes |= {"patch_embed.proj.weight": (D, 3, 8, 8), "patch_embed.proj.bias": (D,)}
    for i in range(DEPTH):
        name = block.format(i)
        shapes |= pair(f"{name}.norm1", D) | pair(f"{name}.norm2", D)
        shapes |= pair(f"{name}.attn.qkv", 3 * D, D) | pair(f"{name}.attn.proj", D, D)
        if swiglu:
            rows = 2 * M if swiglu == "w12" else M
            for part in swiglu.split():
                shapes |= pair(f"{name}.mlp.{part}", rows, D)
            shapes |= pair(f"{name}.mlp.w3", D, M)
        else:
            shapes |= pair(f"{name}.mlp.fc1", M, D) | pair(f"{name}.mlp.fc2", D, M)
        if scale:
            shapes |= {scale(name, 1): (D,), scale(name, 2): (D,)}
    return shapes | pair("norm", D)


def named_scale(name: str, number: int) -> str:
    return f"{name}.ls{number}.gamma"


def dinov2(*, registers: int = 0, swiglu: bool = False, chunk: int = 0) -> Tensors:
    """`chunk`: how many blocks to a chunk."""
    shapes = meta_vit(scale=named_scale, swiglu="w12" if swiglu else "")
    shapes["mask_token"] = (1, WIDTH)
    if registers:
        shapes["register_tokens"] = (1, registers, WIDTH)
    tensors = filled(shapes)
    if not chunk:
        return tensors
    chunked = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition("blocks.")
        number = rest.partition(".")[0]
        chunked[f"blocks.{int(number) // chunk}.{rest}" if not head else name] = tensor
    return chunked


def dinov3(*, swiglu: bool = False, bias: bool = True) -> Tensors:
    shapes = meta_vit(positions=0, scale=named_scale, swiglu="w1 w2" if swiglu else "")
    shapes |= {"storage_tokens": (1, 4, WIDTH), "mask_token": (1, WIDTH)}
    tensors = filled(shapes)
    for i in range(DEPTH):
        name = f"blocks.{i}.attn.qkv.bias"
        if bias:
            tensors[f"{name}_mask"] = torch.ones(3 * WIDTH)
            tensors[f"{name}_mask"][WIDTH : 2 * WIDTH] = 0
        else:
            del tensors[name]
    quarter = WIDTH // HEADS // 4
    tensors["rope_embed.periods"] = 100 ** (torch.arange(quarter) / quarter)
    return tensors | ({} if bias else filled(pair("local_cls_norm", WIDTH)))


def deit3() -> Tensors:
    shapes = meta_vit(positions=PATCHES, scale="{}.gamma_{}".format)
    return filled(shapes | pair("head", 7, WIDTH))


def dino_head() -> Shapes:
    layers = pair("head.mlp.0", 16, WIDTH) | pair("head.mlp.2", 16, 16) | pair("head.mlp.4", 8, 16)
    return layers | {"head.last_layer.weight_g": (20, 1), "head.last_layer.weight_v": (20, 8)}


def mae_decoder() -> Shapes:
    shapes = pair("decoder_embed", 32, WIDTH) | pair("decoder_norm", 32)
    shapes |= {"mask_token": (1, 1, 32), "decoder_pos_embed": (1, PATCHES + 1, 32)}
    for i in range(2):
        name = f"decoder_blocks.{i}"
        shapes |= pair(f"{name}.norm1", 32) | pair(f"{name}.attn.qkv", 96, 32)
        shapes |= pair(f"{name}.attn.proj", 32, 32) | pair(f"{name}.norm2", 32)
        shapes |= pair(f"{name}.mlp.fc1", 64, 32) | pair(f"{name}.mlp.fc2", 32, 64)
    return shapes | pair("decoder_pred", 192, 32)


def msn_head() -> Tensors:
    shapes = pair("fc.fc1", 16, WIDTH) | pair("fc.fc2", 16, 16) | pair("fc.fc3", 8, 16)
    tensors = filled(shapes)
    for name in ("fc.bn1", "fc.bn2"):
        tensors |= filled(pair(name, 16))
        tensors |= {f"{name}.running_mean": torch.ones(16), f"{name}.running_var": torch.ones(16)}
        tensors[f"{name}.num_batches_tracked"] = torch.tensor(3)
    return tensors


def moco_head() -> Tensors:
    names = ("base_encoder.head", "momentum_encoder.head", "predictor")
    layers: Shapes = {}
    for name in names:
        layers |= {f"{name}.0.weight": (16, WIDTH), f"{name}.3.weight": (8, 16)}
        layers |= pair(f"{name}.1", 16) | {f"{name}.1.running_mean": (16,)}
    return filled(layers)
