"""transformers' TensorFlow classes, which its release 5 has no more."""

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


class TransformersTF(Transformers):
    """The files are those of transformers, and its classes have TF before their names."""

    packages: ClassVar[tuple[str, ...]] = ("transformers 4 with tensorflow",)

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """None beside the release that vitconvert uses."""
        return {}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """None beside the release that vitconvert uses."""
        raise NotRepresentable("TensorFlow's classes are in transformers 4, not beside 5.")

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """None, likewise."""
        raise NotRepresentable("TensorFlow's classes are in transformers 4, not beside 5.")

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class that `config.json` names."""
        config, kind = source.config, f"TF{target.their_config['architectures'][0]}"
        height, width = config.image_size
        code = (
            f"import tensorflow\nfrom transformers import {kind}\n\n"
            f'model = {kind}.from_pretrained(".")\n'
            f"images = tensorflow.zeros((1, {config.in_channels}, {height}, {width}))\n"
            "output = model(images)"
        )
        title = "With transformers 4 and TensorFlow: `pip install 'transformers<5' tf-keras`"
        return [Example(title=title, code=code)]


PROGRAM = TransformersTF()
