"""torchvision: one class, built by arguments; it has no configuration files."""

from functools import partial
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Program
from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap, block_taps
from vitconvert.programs.target import Target

if TYPE_CHECKING:
    from torch import nn


class Torchvision(Program):
    """torchvision's VisionTransformer."""

    packages = ("torchvision",)

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class for the configuration, changed where it has no argument.

        torchvision 0.29. Its own hook renames the MLPs of old files (linear_1, linear_2).
        """
        from torch import nn

        torchvision = package("torchvision", install="torchvision")
        config = checkpoint.config
        model = torchvision_model(config)
        name = f"torchvision {torchvision.__version__} VisionTransformer"
        notes = []  # what the class has no arguments for
        if config.in_channels != 3:
            sizes = (config.in_channels, config.embed_dim, config.patch_size, config.patch_size)
            model.conv_proj = nn.Conv2d(*sizes)
            notes.append(
                f"the patch convolution was replaced by one of {config.in_channels} channels"
            )
        if config.num_classes == 0:
            heads = model.heads
            assert isinstance(heads, nn.Sequential)
            heads[-1] = nn.Identity()
            notes.append("the head was removed")
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
            notes=tuple(notes),
            told=("image_size", "num_heads", "norm_eps"),
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """The class, where its arguments alone describe the model."""
        config = source.config
        if not (config.square and config.in_channels == 3 and config.num_classes > 0):
            return super().examples(target, source, has_processor)
        imports = (
            "from functools import partial\n\nimport torch\n"
            "from torchvision.models import VisionTransformer"
        )
        norm = {"norm_layer": f"partial(torch.nn.LayerNorm, eps={config.norm_eps!r})"}
        arguments = {**class_arguments(config), **norm}
        return [class_example("With torchvision", imports, "VisionTransformer", arguments, config)]


def class_arguments(config: ViTConfig) -> JsonObject:
    """Arguments of torchvision's VisionTransformer, but for its norms."""
    return {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "hidden_dim": config.embed_dim,
        "mlp_dim": config.mlp_dim,
        "num_classes": config.num_classes,
        "representation_size": config.representation_size or None,
    }


def torchvision_model(config: ViTConfig) -> "nn.Module":
    """torchvision's VisionTransformer of these sizes, which reads three channels and has a head.

    Raises:
        NotRepresentable: The class has no argument for a part of the configuration.
    """
    from torch import nn
    from torchvision.models import VisionTransformer

    if not config.square:
        raise NotRepresentable("torchvision's VisionTransformer reads square images only.")
    if not config.even_heads or config.activation != "gelu" or config.attention_scale:
        raise NotRepresentable(
            "torchvision's VisionTransformer has exact GELU and divides its width among the heads; "
            "this model does not."
        )
    norm = partial(nn.LayerNorm, eps=config.norm_eps)
    model: nn.Module = VisionTransformer(**class_arguments(config), norm_layer=norm)
    return model


PROGRAM = Torchvision()
