"""Code that turns a photograph into what a model reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What prepares photographs, of a program or of vitconvert.

    Attributes:
        name: Whose it is, as reports call it.
        prepare: An open image, as its file is -> (C, H, W).
        steps: What it does, where that is known.
    """

    name: str
    prepare: "Callable[[Image.Image], Tensor]"
    steps: Preprocessing | None = None
