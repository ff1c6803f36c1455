"""lucidrains' vit-pytorch: two classes, built by arguments; it has no configuration files."""

from typing import TYPE_CHECKING, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Program
from vitconvert.programs.target import Target
from vitconvert.programs.vit_pytorch.classes import EPS, class_and_arguments

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference


class VitPytorch(Program):
    """vit-pytorch's ViT and SimpleViT."""

    packages: ClassVar[tuple[str, ...]] = ("vit-pytorch",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class of the installed release, changed where the configuration needs it."""
        from vitconvert.programs.vit_pytorch.reference import vit_pytorch_reference

        return vit_pytorch_reference(checkpoint)

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


PROGRAM = VitPytorch()
