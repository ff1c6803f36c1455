"""Classes of transformers 4 for Flax and TensorFlow, which its release 5 has no more.

Their files are those of the torch classes, and their names begin with Flax or TF.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

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


class Transformers4(Transformers):
    """transformers 4, which cannot be installed beside the release 5 that vitconvert uses."""

    packages = ("transformers 4 with flax or tensorflow",)
    framework = "tf"  # Flax' own files say none

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """Its classes cannot run beside release 5."""
        return {}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """Its classes cannot run beside release 5."""
        raise _elsewhere(checkpoint)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """Its classes cannot run beside release 5."""
        raise _elsewhere(checkpoint)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class that `config.json` names."""
        size, kind = source.config.image_size, target.their_config["architectures"][0]
        shape = (1, source.config.in_channels, *size)
        if target.table.ecosystem == "hf_tf":
            kind, imports, images = f"TF{kind}", "tensorflow", f"tensorflow.zeros({shape})"
            title = "With transformers 4 and TensorFlow: `pip install 'transformers<5' tf-keras`"
        else:
            kind, imports, images = f"Flax{kind}", "numpy", f"numpy.zeros({shape}, numpy.float32)"
            title = 'With `pip install "transformers<5" flax`'
        code = (
            f"import {imports}\nfrom transformers import {kind}\n\n"
            f'images = {images}\nmodel = {kind}.from_pretrained(".")\noutput = model(images)'
        )
        return [Example(title=title, code=code)]


def _elsewhere(checkpoint: Checkpoint) -> NotRepresentable:
    name, package = "Flax", "flax"
    if checkpoint.table.ecosystem == "hf_tf":
        name, package = "TensorFlow", "tf-keras"
    return NotRepresentable(
        f"{checkpoint.table.title}: transformers 5 has no {name} classes.",
        hint=f'in an environment of its own: pip install "transformers<5" {package}',
    )


PROGRAM = Transformers4()
