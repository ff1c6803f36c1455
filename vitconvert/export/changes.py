"""Changes that were asked for on the way: of the image size, of the dtype."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.fields import parse_field
from vitconvert.loading import Checkpoint

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is to be changed. None, everywhere, is to leave things as they are.

    Attributes:
        image_size: Resample the positions to this size.
        dtype: Cast the weights.
    """

    image_size: int | tuple[int, int] | None = None
    dtype: "torch.dtype | None" = None

    def __bool__(self) -> bool:
        return self != Changes()


def changed(checkpoint: Checkpoint, changes: Changes) -> Checkpoint:
    """The checkpoint after all changes, each of them in its ledger.

    Raises:
        UsageError: A change makes no sense for this model.
    """
    from vitconvert.conversion.morphs import cast, resample_positions

    tensors, config, ledger = checkpoint.tensors, checkpoint.config, checkpoint.ledger
    if changes.image_size is not None:
        size = parse_field("image_size", changes.image_size)
        tensors, config, change = resample_positions(tensors, config, size)
        ledger = ledger.with_change(change)
    if changes.dtype is not None:
        tensors, change = cast(tensors, changes.dtype)
        ledger = ledger.with_change(change)
    preprocessing = checkpoint.preprocessing
    if preprocessing is not None and changes.image_size is not None:
        preprocessing = preprocessing.at_size(config.image_size)
    return replace(
        checkpoint, tensors=tensors, config=config, ledger=ledger, preprocessing=preprocessing
    )
