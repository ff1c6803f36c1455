"""torchvision's VisionTransformer."""

from functools import partial

from torch import nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap, block_taps
from vitconvert.programs.torchvision import class_arguments


def torchvision_reference(checkpoint: Checkpoint) -> Reference:
    """Build the class from the configuration; torchvision has no configuration files.

    torchvision 0.29. Its own hook renames the MLPs of old files (linear_1, linear_2).

    Raises:
        MissingPackage: torchvision is not installed.
        NotRepresentable: The class has no argument for a part of the configuration.
    """
    torchvision = package("torchvision", install="torchvision")
    config = checkpoint.config
    model = torchvision_model(config)
    name = f"torchvision {torchvision.__version__} VisionTransformer"
    notes = _fit(model, config)
    load_strictly(model, own_tensors(checkpoint), name)
    return Reference(
        name=name,
        model=model.eval(),
        taps={
            "patch_embed": Tap("conv_proj"),
            "features": Tap("heads.head", input=True),
            **block_taps(
                config.depth,
                block="encoder.layers.encoder_layer_{i}",
                norm2="ln_2",
                norm="encoder.ln",
            ),
        },
        notes=notes,
    )


def torchvision_model(config: ViTConfig) -> nn.Module:
    """torchvision's VisionTransformer of these sizes, which reads three channels and has a head.

    Raises:
        NotRepresentable: The class has no argument for a part of the configuration.
    """
    from torchvision.models import VisionTransformer

    _require_plain(config)
    norm = partial(nn.LayerNorm, eps=config.norm_eps)
    model: nn.Module = VisionTransformer(**class_arguments(config), norm_layer=norm)
    return model


def _require_plain(config: ViTConfig) -> None:
    if not config.square:
        raise NotRepresentable("torchvision's VisionTransformer reads square images only.")
    if not config.even_heads or config.activation != "gelu" or config.attention_scale:
        raise NotRepresentable(
            "torchvision's VisionTransformer has exact GELU and divides its width among the heads; "
            "this model does not."
        )


def _fit(model: nn.Module, config: ViTConfig) -> tuple[str, ...]:
    """Put in what the class has no arguments for."""
    notes = []
    if config.in_channels != 3:
        model.conv_proj = nn.Conv2d(
            config.in_channels, config.embed_dim, config.patch_size, config.patch_size
        )
        notes.append(f"the patch convolution was replaced by one of {config.in_channels} channels")
    if config.num_classes == 0:
        heads = model.heads
        assert isinstance(heads, nn.Sequential)
        heads[-1] = nn.Identity()
        notes.append("the head was taken away")
    return tuple(notes)
