"""What a ViT computes on its way: the outputs of chosen blocks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError
from vitconvert.model.inputs import chosen_layers

Intermediates = list[Tensor] | list[tuple[Tensor, Tensor]]


def forward_intermediates(
    stream: Iterable[Tensor],
    finish: Callable[[Tensor], Tensor],
    config: ViTConfig,
    grid: tuple[int, int],
    indices: int | Sequence[int] | None = None,
    return_prefix_tokens: bool = False,
    norm: bool = False,
    stop_early: bool = False,
    output_fmt: str = "NCHW",
    intermediates_only: bool = False,
    output_dict: bool = False,
) -> Intermediates | tuple[Tensor, Intermediates] | dict[str, Any]:
    """The final tokens and the outputs of chosen blocks, as timm's method of this name.

    Args:
        stream: The embedded tokens, then each block's output, (B, N, D) each.
        finish: The final norm, and the neck.
        config: Of the model.
        grid: Patches down and across.
        indices: How many of the last blocks, or which (negative: from the end); None: all.
        return_prefix_tokens: Pair each output with its prefix tokens (B, prefix, D).
        norm: Apply the final norm to each output, and the neck, if there is one.
        stop_early: Compute no block after the last one asked for.
        output_fmt: "NCHW": (B, D, rows, columns), or "NLC": (B, patches, D).
        intermediates_only: Leave out the final tokens.
        output_dict: Return a dictionary, with timm's keys.

    Raises:
        UsageError: There are no such blocks or formats.
    """
    if output_fmt not in ("NCHW", "NLC"):
        raise UsageError(f"output_fmt is 'NCHW' or 'NLC', not {output_fmt!r}.")
    taken = chosen_layers(indices, config.depth)
    count = config.num_prefix_tokens
    pairs = []
    for layer, x in enumerate(stream, start=-1):
        if layer in taken:
            prefix, patches = (finish(x) if norm else x).tensor_split([count], dim=1)
            if output_fmt == "NCHW":
                patches = patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid)
            pairs.append((patches, prefix))
        if stop_early and layer == max(taken):
            break
    with_prefix = return_prefix_tokens and count > 0
    if output_dict:
        found: dict[str, Any] = {"image_intermediates": [patches for patches, _ in pairs]}
        if with_prefix:
            found["image_intermediates_prefix"] = [prefix for _, prefix in pairs]
        return found if intermediates_only else {**found, "image_features": finish(x)}
    outputs: Intermediates = pairs if with_prefix else [patches for patches, _ in pairs]
    return outputs if intermediates_only else (finish(x), outputs)
