"""How a model computes: what the public functions take alike."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitconvert.arguments import FLAG, TEXT, VALUES, option, read_fields

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How images go through a model: keyword arguments of the public functions.

    `vitconvert.predict` says what each is for.
    """

    batch_size: int = option(
        VALUES["batch_size"], "How many images to compute at once.", default=8, kind=int
    )
    threads: int | None = option(
        VALUES["threads"],
        "How many decode images, and how many torch takes; default: all processors.",
        kind=int,
    )
    fast: bool = option(FLAG, "Faster arithmetic, equal within rounding.", default=True, kind=bool)
    fast_preprocessing: bool = option(
        FLAG,
        "Read large images faster: pixels are close to the project's own, but not equal.",
        default=False,
        kind=bool,
    )
    dtype: "torch.dtype | None" = option(
        VALUES["dtype"],
        "Compute in it: bfloat16 is faster if the processor has it, but less precise.",
    )
    device: "torch.device | str" = option(VALUES["device"], "Where to compute.", default="cpu")
    runtime: str = option(
        TEXT,
        "torch; onnxruntime or openvino, for which the model is exported once, checked and kept; "
        "or auto: what was measured to be the fastest here.",
        default="torch",
    )

    def __post_init__(self) -> None:
        read_fields(self)
