"""OpenAI's CLIP: a repository of scripts, whose image towers open_clip computes."""

from typing import TYPE_CHECKING, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference


class OpenAIClip(Program):
    """A project of scripts with a reference."""

    packages: ClassVar[tuple[str, ...]] = ("open_clip",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """open_clip's own tower."""
        from vitconvert.programs.open_clip.reference import openclip_reference

        return openclip_reference(checkpoint)


PROGRAM = OpenAIClip()
