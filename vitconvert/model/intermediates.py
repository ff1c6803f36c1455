"""What a ViT computes on its way: outputs of chosen blocks, and maps of attention."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from vitconvert.errors import UsageError
from vitconvert.model.inputs import chosen_layers

if TYPE_CHECKING:
    from vitconvert.model.vit import AnyBlock, ViT

Intermediates = list[Tensor] | list[tuple[Tensor, Tensor]]


def forward_intermediates(
    model: "ViT",
    images: Tensor,
    indices: int | Sequence[int] | None = None,
    return_prefix_tokens: bool = False,
    norm: bool = False,
    stop_early: bool = False,
    output_fmt: str = "NCHW",
    intermediates_only: bool = False,
) -> Intermediates | tuple[Tensor, Intermediates]:
    """The final tokens and the outputs of chosen blocks, like timm's method of this name.

    Args:
        model: From `load_model`.
        images: (B, in_channels, *image_size), of the dtype of the weights.
        indices: How many of the last blocks, or which (negative: from the end); None: all.
        return_prefix_tokens: Pair each output with its prefix tokens (B, prefix, D).
        norm: Apply the final norm to each output, and the neck, if there is one.
        stop_early: Compute no block after the last one asked for.
        output_fmt: "NCHW": (B, D, rows, columns), or "NLC": (B, patches, D).
        intermediates_only: Leave out the final tokens.

    Raises:
        UsageError: There are no such blocks or formats.
    """
    if output_fmt not in ("NCHW", "NLC"):
        raise UsageError(f"output_fmt is 'NCHW' or 'NLC', not {output_fmt!r}.")
    taken = chosen_layers(indices, len(model.blocks))
    count, grid = model.config.num_prefix_tokens, model.config.grid_size
    pairs, finish = [], nn.Sequential(model.norm, model.neck)
    for layer, x in enumerate(model.residual_stream(images), start=-1):
        if layer in taken:
            prefix, patches = (finish(x) if norm else x).tensor_split([count], dim=1)
            if output_fmt == "NCHW":
                patches = patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid)
            pairs.append((patches, prefix))
        if stop_early and layer == max(taken):
            break
    with_prefix = return_prefix_tokens and count > 0
    outputs: Intermediates = pairs if with_prefix else [patches for patches, _ in pairs]
    return outputs if intermediates_only else (finish(x), outputs)


def attentions(
    model: "ViT", images: Tensor, layers: int | Sequence[int] | None = None
) -> dict[int, Tensor]:
    """Attention probabilities (B, H, N, N) by block: rows attend to columns.

    They are computed in addition to the fused attention, which does not return them. A block of
    several attentions has the heads of all of them, one attention after another.

    Args:
        model: From `load_model`.
        images: (B, in_channels, *image_size), of the dtype of the weights.
        layers: Which blocks, as in `forward_intermediates`: the last so many, or these.

    Raises:
        UsageError: There are no such blocks.
    """
    return dict(each_attention(model, images, layers))


def each_attention(
    model: "ViT", images: Tensor, layers: int | Sequence[int] | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Block by block what `attentions` returns, which need not be in memory together."""
    taken = chosen_layers(layers, len(model.blocks))
    blocks = cast("list[AnyBlock]", list(model.blocks))[: max(taken) + 1]
    inputs = zip(blocks, model.residual_stream(images), model.token_positions(), strict=False)
    for layer, (block, x, positions) in enumerate(inputs):
        if layer in taken:
            yield layer, block.probabilities(x, positions)
