"""open_clip's own image tower, which OpenAI's weights fit too."""

from functools import partial
from typing import Any

from torch import nn

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.loading import Reading
from vitconvert.parity.references.reference import Reference, load_strictly, own_tensors, package
from vitconvert.parity.taps import Tap, block_taps


def openclip_reference(reading: Reading) -> Reference:
    """Build open_clip's VisionTransformer from the configuration, without the text tower.

    open_clip 3.3, `transformer.py`.

    Raises:
        MissingPackage: open_clip is not installed.
        NotRepresentable: The tower is another class, or has no argument for a part of it.
    """
    open_clip = package("open_clip", install="open-clip-torch")
    config = reading.config
    tensors = {n.removeprefix("visual."): t for n, t in own_tensors(reading).items()}
    if "class_embedding" not in tensors:
        raise NotRepresentable(
            "open_clip builds this tower by the name of one of timm's architectures, which the "
            "tensors do not tell."
        )
    name = f"open_clip {open_clip.__version__} VisionTransformer"
    model: nn.Module = open_clip.transformer.VisionTransformer(
        **_arguments(config), act_layer=_activation(config, open_clip)
    )
    notes = _fit(model, config)
    load_strictly(model, tensors, name)
    block = "transformer.resblocks.{i}"
    taps = block_taps(config.depth, block=block, norm2="ln_2", norm="ln_post")
    del taps["norm"]  # it norms all tokens, and our fc_norm the pooled one
    return Reference(
        name=name,
        model=model.eval(),
        taps={"patch_embed": Tap("conv1"), **taps},
        notes=notes,
    )


def _arguments(config: ViTConfig) -> dict[str, Any]:
    if not config.even_heads or config.attention_scale or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip's VisionTransformer reads three channels and divides its width among the "
            "heads; this model does not."
        )
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "width": config.embed_dim,
        "layers": config.depth,
        "heads": config.num_heads,
        "mlp_ratio": (config.mlp_dim + 0.5) / config.embed_dim,  # open_clip rounds it down
        "ls_init_value": 1e-5 if config.layer_scale else None,
        "output_dim": config.num_classes or 1,
        "no_ln_pre": not config.pre_norm,
        "pool_type": "tok" if config.pooling == "token" else "avg",
        "final_ln_after_pool": config.pooling != "token",
        "norm_layer": partial(nn.LayerNorm, eps=config.norm_eps),
    }


def _activation(config: ViTConfig, open_clip: Any) -> type[nn.Module]:
    if config.activation not in ("gelu", "quick_gelu"):
        raise NotRepresentable(f"open_clip has no towers with {config.activation}.")
    quick: type[nn.Module] = open_clip.transformer.QuickGELU
    return quick if config.activation == "quick_gelu" else nn.GELU


def _fit(model: nn.Module, config: ViTConfig) -> tuple[str, ...]:
    """Take away what the class always has."""
    if config.num_classes:
        return ()
    model.register_parameter("proj", None)
    return ("the projection was taken away",)
