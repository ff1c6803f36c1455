"""Checkpoints of projects that cannot be installed, spelled by hand from their sources."""

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def google_arrays(
    *,
    depth: int,
    heads: int,
    width: int,
    size: int,
    patch: int = 8,
    classes: int = 5,
    seed: int = 0,
) -> Arrays:
    """Google's published .npz: the parameters of vit_jax/models_vit.py before Linen."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, factor: bool = False) -> NDArray[np.float32]:
        return (rng.normal(size=shape) * 0.15 + factor).astype(np.float32)

    dim, hidden, tokens = width // heads, 2 * width + 1, (size // patch) ** 2 + 1
    arrays = {
        "embedding/kernel": draw(patch, patch, 3, width),
        "embedding/bias": draw(width),
        "cls": draw(1, 1, width),
        "Transformer/posembed_input/pos_embedding": draw(1, tokens, width),
        "Transformer/encoder_norm/scale": draw(width, factor=True),
        "Transformer/encoder_norm/bias": draw(width),
        "head/kernel": draw(width, classes),
        "head/bias": draw(classes),
    }
    for block in (f"Transformer/encoderblock_{i}" for i in range(depth)):
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            arrays[f"{block}/{norm}/scale"] = draw(width, factor=True)
            arrays[f"{block}/{norm}/bias"] = draw(width)
        for part in ("query", "key", "value"):
            arrays[f"{attention}/{part}/kernel"] = draw(width, heads, dim)
            arrays[f"{attention}/{part}/bias"] = draw(heads, dim)
        arrays[f"{attention}/out/kernel"] = draw(heads, dim, width)
        arrays[f"{attention}/out/bias"] = draw(width)
        arrays[f"{block}/MlpBlock_3/Dense_0/kernel"] = draw(width, hidden)
        arrays[f"{block}/MlpBlock_3/Dense_0/bias"] = draw(hidden)
        arrays[f"{block}/MlpBlock_3/Dense_1/kernel"] = draw(hidden, width)
        arrays[f"{block}/MlpBlock_3/Dense_1/bias"] = draw(width)
    return arrays
