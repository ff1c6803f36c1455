"""OpenAI's CLIP: a repository of scripts, whose image towers open_clip computes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.programs.example import Example, blank_text, zeros
from vitconvert.programs.program import Program
from vitconvert.programs.target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.program import BothTowers
    from vitconvert.programs.reference import Reference


class OpenAIClip(Program):
    """A project of scripts with a reference."""

    packages = ("open_clip",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """open_clip's own tower."""
        from vitconvert.programs.open_clip.reference import openclip_reference

        return openclip_reference(checkpoint)

    def open_both(self, directory: Path) -> "BothTowers":
        """With open_clip's loader of OpenAI's state dicts."""
        from vitconvert.programs.open_clip.reference import open_state_dict

        return open_state_dict(directory / "model.pt")

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the project's own loader, of a model of both towers."""
        if not target.text:
            return super().examples(target, source, has_processor)
        code = (
            'import clip\nimport torch\n\nmodel, preprocess = clip.load("model.pt", device="cpu")\n'
            f"output = model.encode_image({zeros(source.config)})\n"
            f"texts = model.encode_text({blank_text(target)})  # ids of clip.tokenize"
        )
        return [Example(title="With openai/CLIP", code=code)]

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """open_clip's own."""
        from vitconvert.programs.open_clip.reference import texts_of_openai

        return texts_of_openai(checkpoint)


PROGRAM = OpenAIClip()
