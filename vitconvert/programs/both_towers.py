"""A model of two towers as a program opened it: images and texts to one space."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BothTowers:
    """What a program computes with the model of an output.

    Attributes:
        name: The program, its version and its class.
        images: From (B, C, H, W) to (B, F), before they are normed.
        texts: From ids (B, L) to (B, F), before they are normed.
    """

    name: str
    images: "Callable[[Tensor], Tensor]"
    texts: "Callable[[Tensor], Tensor]"
