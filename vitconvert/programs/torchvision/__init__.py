"""torchvision: one class, built by arguments; it has no configuration files."""

from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import Target
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference


class Torchvision(Program):
    """torchvision's VisionTransformer."""

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class, with a head and a patch convolution as the configuration has them."""
        from vitconvert.programs.torchvision.reference import torchvision_reference

        return torchvision_reference(checkpoint)

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
        arguments = class_arguments(config) | norm
        return [class_example("With torchvision", imports, "VisionTransformer", arguments, config)]


def class_arguments(config: ViTConfig) -> dict[str, Any]:
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


PROGRAM = Torchvision()
