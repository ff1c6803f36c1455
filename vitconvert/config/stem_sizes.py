"""How many positions a hybrid's stem makes of pixels."""

import math

from vitconvert.config.vocabularies import MOBILECLIP_STEMS


def stem_stride(style: str, depths: tuple[int, ...]) -> int:
    """Pixels per position of a stem's grid: root 2, pooling 2, each later stage 2."""
    return 8 if style in MOBILECLIP_STEMS else 4 * 2 ** max(len(depths) - 1, 0)


def stem_positions(pixels: int, style: str, depths: tuple[int, ...]) -> int:
    """Positions that a stem makes of a row or column of pixels."""
    if style in MOBILECLIP_STEMS:
        return (pixels + 2 * stem_padding(style)) // 4 // 2
    root = math.ceil(pixels / 2)
    # Padded strides of 2 round up; jeonsworld's max-pooling of 3 has no padding.
    pooled = (root - 3) // 2 + 1 if style == "jeonsworld" else math.ceil(root / 2)
    return math.ceil(pooled / (1 << max(len(depths) - 1, 0)))


def stem_padding(style: str) -> int:
    """Zeros around the image, which MobileCLIP's first convolution reads."""
    return 1 if style == "mobileclip_padded" else 0
