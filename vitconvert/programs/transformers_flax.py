"""The Flax classes of transformers 4, which have the `config.json` of the torch classes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.programs.example import Example
from vitconvert.programs.program import Opener
from vitconvert.programs.reference import Reference
from vitconvert.programs.target import Target
from vitconvert.programs.transformers import Transformers

if TYPE_CHECKING:
    from torch import Tensor

_INSTALL = '"transformers<5" flax'


class TransformersFlax(Transformers):
    """transformers 4 on JAX; release 5, which verifies, has no such classes."""

    packages: ClassVar[tuple[str, ...]] = ("transformers 4 with flax",)

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """Nothing that stands beside transformers 5."""
        return {}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """Nothing, for the same reason."""
        raise NotRepresentable(
            f"{checkpoint.table.title}: transformers 5 has no Flax classes.",
            hint=f"in an environment of its own: pip install {_INSTALL}",
        )

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """None, likewise."""
        raise NotRepresentable(f"{checkpoint.table.title}: transformers 5 has no Flax classes.")

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class that `config.json` names."""
        kind = f"Flax{target.their_config['architectures'][0]}"
        size, channels = source.config.image_size, source.config.in_channels
        code = [
            "import numpy",
            f"from transformers import {kind}",
            "",
            f"images = numpy.zeros({(1, channels, *size)}, numpy.float32)",
            f'model = {kind}.from_pretrained(".")',
            "output = model(images)",
        ]
        return [Example(title=f"With `pip install {_INSTALL}`", code="\n".join(code))]


PROGRAM = TransformersFlax()
