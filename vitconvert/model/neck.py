"""The convolutions after the blocks of "Segment Anything": https://arxiv.org/abs/2304.02643.

Operations and their order are those of timm 1.0.31 (`vision_transformer_sam.py`).

Letters: B images, N patches, D width.
"""

from torch import Tensor, nn

from vitconvert.config import ViTConfig


class Neck(nn.Sequential):
    """SAM's neck: a convolution of each patch, one of its neighbours too, a norm after each.

    Its norms have an eps of their own in timm, transformers and segment-anything.
    """

    def __init__(self, config: ViTConfig) -> None:
        channels = config.neck_dim
        super().__init__(
            nn.Conv2d(config.embed_dim, channels, 1, bias=False),
            nn.LayerNorm(channels, 1e-6),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.LayerNorm(channels, 1e-6),
        )
        self.grid = config.grid_size

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, neck_dim)."""
        first, first_norm, second, second_norm = self
        B, _, D = x.shape
        x = first(x.reshape(B, *self.grid, D).permute(0, 3, 1, 2))
        x = second(first_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        tokens: Tensor = second_norm(x.permute(0, 2, 3, 1)).flatten(1, 2)
        return tokens
