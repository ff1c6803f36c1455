"""Google's vision_transformer and big_vision: scripts, whose .npz files timm's loader reads."""

from typing import TYPE_CHECKING, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.programs.program import Program

if TYPE_CHECKING:
    from vitconvert.programs.reference import Reference


class Npz(Program):
    """Projects of scripts with a reference."""

    packages: ClassVar[tuple[str, ...]] = ("timm",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """timm's model, which reads the file by itself."""
        from vitconvert.programs.npz.reference import npz_reference

        return npz_reference(checkpoint)


PROGRAM = Npz()
