"""lucidrains' vit-pytorch: two classes, built by arguments; it has no configuration files."""

from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import Target
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference

EPS = 1e-5  # torch.nn.LayerNorm's default, which the package never changes


class VitPytorch(Program):
    """vit-pytorch's ViT and SimpleViT."""

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class of the installed release, changed where the configuration needs it."""
        from vitconvert.programs.vit_pytorch.reference import lucidrains_reference

        return lucidrains_reference(checkpoint)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """The class of the current release, where it is this model without being changed."""
        config, table = source.config, target.table
        usual = config.activation == "gelu" and config.norm_eps == EPS
        unchanged = usual and not config.attention_scale and config.num_classes > 0
        if table.install or table.allowed_as or not unchanged:
            return super().examples(target, source, has_processor)
        name, arguments = class_and_arguments(config)
        imports = f"import torch\nfrom vit_pytorch import {name}"
        if "pool" in arguments:
            arguments["pool"] = f'"{arguments["pool"]}"'
        return [class_example("With vit-pytorch", imports, name, arguments, config)]


def class_and_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The name of the class for a configuration, and its arguments."""
    arguments: dict[str, Any] = {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "dim": config.embed_dim,
        "depth": config.depth,
        "heads": config.num_heads,
        "dim_head": config.head_dim,
        "mlp_dim": config.mlp_dim,
        "channels": config.in_channels,
    }
    if config.computed_positions:
        return "SimpleViT", arguments
    return "ViT", arguments | {"pool": "cls" if config.class_token else "mean"}


PROGRAM = VitPytorch()
