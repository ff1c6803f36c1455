"""What to make of a checkpoint: the changes on the way, and how it is written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from vitconvert.arguments import FLAG, VALUES, described_by, option, read_fields
from vitconvert.checkpoint.options import ReadArguments
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    import torch

    from vitconvert.tables.table import Table

_CHANGES = ("image_size", "patch_size", "in_channels", "num_classes", "classes", "dtype")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What to make of a checkpoint, with the help of each option; None leaves it as it is."""

    to: "str | Table" = "vit"
    image_size: int | tuple[int, int] | None = option(
        VALUES["image_size"],
        "Resample positions: 384 or 224x320 (height x width).",
        more="If the size of the images is unknown, this states it.",
    )
    patch_size: int | tuple[int, int] | None = option(
        VALUES["patch_size"],
        "Resize the patches, as in FlexiViT: 8 or 8x16.",
        more="Positions are resampled too.",
    )
    in_channels: int | None = option(
        VALUES["in_channels"],
        "Adapt to images of this many channels.",
        more="As timm adapts a first convolution.",
        kind=int,
    )
    num_classes: int | None = option(
        VALUES["num_classes"],
        "A new head of zeros for this many classes; 0 removes it.",
        kind=int,
    )
    classes: Sequence[int | str] | None = option(
        VALUES["classes"],
        "Keep these classes of the head: 3,7,tabby (index or name). Quote a name that has "
        "commas: '3,\"tench, Tinca tinca\"'.",
        repeats=True,
    )
    dtype: "torch.dtype | None" = option(
        VALUES["dtype"], "Cast the weights.", choices=("keep", "float32", "float16", "bfloat16")
    )
    allow: Sequence[str] = option(
        VALUES["allow"],
        "Allow a step that the target needs; the error message names them.",
        more="Steps keep the function but change the bytes, or are lossy and measured "
        '("norm-eps").',
        default=(),
        metavar="STEP",
        repeats=True,
    )
    image_only: bool = option(
        FLAG,
        "Leave out the text encoder, if the target has a place for both.",
        more="Without it, both encoders of a CLIP or SigLIP are written. vitconvert computes only "
        "the vision encoder.",
        default=False,
        kind=bool,
    )
    max_shard_size: int | str | None = option(
        VALUES["max_shard_size"],
        "Split safetensors into files of at most this size, such as 5GB.",
        more="They have an index.",
    )

    def __post_init__(self) -> None:
        read_fields(self, but=("to",))
        if self.num_classes is not None and self.classes is not None:
            raise UsageError("num_classes replaces the head, classes keeps a part: give only one.")
        _ = self.max_bytes  # refused before anything is read

    @property
    def changes(self) -> bool:
        """Whether the model is to change on the way."""
        return any(getattr(self, name) is not None for name in _CHANGES)

    @property
    def max_bytes(self) -> int | None:
        """Of a file of weights: a number, or one with a unit as in "5GB" (1000s), "5GiB" (1024s).

        Raises:
            UsageError: It is not a size.
        """
        text = self.max_shard_size
        if text is None or isinstance(text, int):
            return text
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i)?B?", text.strip(), re.IGNORECASE)
        if not match:
            raise UsageError(f"{text!r} is not a size.", hint="write bytes, or 5GB or 500MiB.")
        number, unit, binary = match.groups()
        power = " KMGT".index(unit.upper() or " ")
        return int(float(number) * (1024 if binary else 1000) ** power)


@described_by(WriteOptions)
class WriteArguments(TypedDict, total=False):
    """What to make of a checkpoint: keyword arguments of `vitconvert.convert`."""

    image_size: int | tuple[int, int] | None
    patch_size: int | tuple[int, int] | None
    in_channels: int | None
    num_classes: int | None
    classes: Sequence[int | str] | None
    dtype: "torch.dtype | None"
    allow: Sequence[str]
    image_only: bool
    max_shard_size: int | str | None


class ConvertArguments(WriteArguments, ReadArguments, total=False):
    """What to make of a checkpoint, and how to read it."""
