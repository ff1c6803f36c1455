"""How a model computes: what the public functions take alike."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from vitconvert.arguments import (
    FLAG,
    TEXT,
    VALUES,
    described_by,
    given,
    one_of,
    option,
    read_fields,
    refuse,
    such,
    whole_number,
)
from vitconvert.checkpoint.options import IMAGES
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch

AUTO = "auto"


def _is_computed_in(value: object) -> bool:
    return value == AUTO if isinstance(value, str) else bool(VALUES["dtype"].parse(value))


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How images go through a model, with the help of each option."""

    batch_size: int = option(
        VALUES["batch_size"], "How many images to compute at once.", default=8, kind=int
    )
    threads: int | None = option(
        VALUES["threads"],
        "How many decode images, and how many torch takes; default: all processors.",
        kind=int,
    )
    workers: int | None = option(
        VALUES["workers"],
        "Processes that prepare images, or 0; default: one per processor if a GPU computes, else "
        "0. With --engine ray: workers of Ray, by default all that fit.",
        more="Without them, threads of this process do.",
        kind=int,
    )
    fast: bool = option(
        FLAG,
        "Faster arithmetic, equal within rounding.",
        more="See `load_model`.",
        default=True,
        kind=bool,
    )
    fast_preprocessing: bool = option(
        FLAG,
        "Read large images faster: pixels are close to the library's own, but not equal.",
        more="See `Preprocessing`.",
        default=False,
        kind=bool,
        heading=IMAGES,
    )
    decode: str = option(
        one_of("cpu", "gpu"),
        "gpu: decode and resize JPEG files on the GPU that computes. Pixels are close to the "
        "library's own, but not equal: how far the first are from them is printed.",
        more="Needs torchcodec or torchvision, and an NVIDIA GPU as `device`. Other files are read "
        "as ever, all of them by threads.",
        default="cpu",
        choices=("cpu", "gpu"),
        heading=IMAGES,
    )
    max_image_pixels: int | None = option(
        VALUES["max_image_pixels"],
        "The most pixels of an image; default: as many as 872 MB hold, 50 million and more.",
        more="The number is used even if it needs more memory. If it is above Pillow's own limit, "
        "PIL.Image.MAX_IMAGE_PIXELS of this process is raised to it.",
        kind=int,
        metavar="N",
        heading=IMAGES,
    )
    dtype: "torch.dtype | str | None" = option(
        such(_is_computed_in, "a dtype of torch that models compute in, or auto", "'auto'"),
        "Compute in it: bfloat16 is faster if the processor has it, but less precise; auto: in "
        "bfloat16 if it was measured to be faster than float32 here.",
        more="By default, as `load_model` does. In bfloat16, logits differ by 1 to 2 % of the "
        "largest; with auto, `tell` says by how much on the first images.",
    )
    device: "torch.device | str" = option(VALUES["device"], "Where to compute.", default="cpu")
    runtime: str = option(
        TEXT,
        "torch; onnxruntime or openvino, for which the model is exported once, checked and kept; "
        "or auto: what was measured to be the fastest here. Default: torch; of --dtype auto, auto.",
        more="All but torch need a checkpoint, `fast`, the CPU, and float32 or auto as `dtype`.",
        default="",
    )

    def __post_init__(self) -> None:
        read_fields(self)
        if not self.runtime:
            object.__setattr__(self, "runtime", AUTO if self.dtype == AUTO else "torch")

    @property
    def weights(self) -> "torch.dtype | None":
        """What weights are cast to: of auto, what bfloat16 is compared with."""
        if isinstance(self.dtype, str):
            import torch

            return torch.float32
        return self.dtype


class TorchArguments(TypedDict, total=False):
    """How images go through a model of torch."""

    batch_size: int
    threads: int | None
    workers: int | None
    fast: bool
    fast_preprocessing: bool
    decode: str
    max_image_pixels: int | None
    dtype: "torch.dtype | str | None"
    device: "torch.device | str"


@described_by(ComputeOptions)
class ComputeArguments(TorchArguments, total=False):
    """How images go through a model: keyword arguments of `vitconvert.predict` and others."""

    runtime: str


POOLS = {
    "cls": "class token",
    "mean": "mean of the patches",
    "cls_mean": "class token and mean of the patches",
    "patches": "patches",
    "tokens": "all tokens",
}
"""What may be taken of a layer's tokens, and what that is in words."""


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Which features are taken of a model, with the help of each option.

    Without any, what the classification head reads, pooled as the model pools.
    """

    layer: int | None = option(
        whole_number(-(2**12), 2**12),
        "Take the tokens after block N, counted from 1, without the final norm: hidden_states[N] "
        "of transformers. -1 is the last, -2 what LLaVA reads.",
        kind=int,
        metavar="N",
    )
    pool: str | None = option(
        one_of(*POOLS),
        "What to take of the tokens: cls (the class token), mean (of the patches), cls_mean (both, "
        "one after the other), patches or tokens (all); by default as the model pools, and of "
        "--layer all tokens.",
        choices=tuple(POOLS),
    )

    def __post_init__(self) -> None:
        read_fields(self)

    @property
    def asked(self) -> list[str]:
        """Names of those that say something."""
        return given(vars(self))

    def check(self, computed: str, runtime: str = "torch", dtype: object = None) -> None:
        """Refuse what contradicts what is computed, and by what.

        Raises:
            UsageError: Something does.
        """
        if computed in ("projected", "classes"):
            refuse(self.asked, f"{computed} are of the model's own features.")
        if computed == "tokens" and self.pool != "tokens":
            refuse(["pool"] if self.pool else [], "all tokens are asked for.")
        if dtype == AUTO:
            refuse(self.asked, "--dtype auto compares the model's own features.")
        if runtime not in ("", "torch"):
            refuse(self.asked, "only torch computes other features than the model's own.")


def computed_features(*, tokens: bool, projected: bool) -> str:
    """What is computed: "features", "tokens" or "projected".

    Raises:
        UsageError: Both are asked for.
    """
    if tokens and projected:
        raise UsageError(
            "Only pooled features can be projected, not tokens.",
            hint="ask for tokens or for projected features, not for both.",
        )
    return "tokens" if tokens else "projected" if projected else "features"


@described_by(FeatureOptions)
class FeatureArguments(TypedDict, total=False):
    """Which features are taken of a model: keyword arguments of `vitconvert.embed` and others."""

    layer: int | None
    pool: str | None


class EmbedArguments(FeatureArguments, ComputeArguments, total=False):
    """Which features are taken of a model, and how images go through it."""
