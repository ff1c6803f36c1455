"""Maps of attention: how much each token attends to each other token, block by block."""

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor

from vitconvert.model.blocks import AnyBlock
from vitconvert.model.inputs import chosen_layers
from vitconvert.model.vit import ViT


def attentions(
    model: ViT, images: Tensor, layers: int | Sequence[int] | None = None
) -> dict[int, Tensor]:
    """Attention probabilities (B, H, N, N) by block: rows attend to columns.

    They are computed in addition to the fused attention, which does not return them. A block of
    several attentions has the heads of all of them, one attention after another.

    Args:
        model: From `load_model`.
        images: (B, in_channels, *image_size), of the dtype of the weights.
        layers: Which blocks, as in `forward_intermediates`: the last so many, or these.

    Returns:
        Number of a block -> its probabilities.

    Raises:
        UsageError: There are no such blocks.

    Example:
        >>> model = vitconvert.load_model("my-vit")
        >>> images = torch.zeros(1, model.config.in_channels, *model.config.image_size)
        >>> vitconvert.attentions(model, images, layers=1)[3].shape
        torch.Size([1, 3, 17, 17])
    """
    return dict(each_attention(model, images, layers))


def each_attention(
    model: ViT, images: Tensor, layers: int | Sequence[int] | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Block by block what `attentions` returns, which need not be in memory together."""
    taken = chosen_layers(layers, len(model.blocks))
    blocks = cast("list[AnyBlock]", list(model.blocks))[: max(taken) + 1]
    every = model.token_positions(model.grid_of(images))
    inputs = zip(blocks, model.residual_stream(images), every, strict=False)
    for layer, (block, x, positions) in enumerate(inputs):
        if layer in taken:
            yield layer, block.probabilities(x, positions)
