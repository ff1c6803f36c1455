"""What follows the blocks in some models: convolutions, or squares of patches that become tokens.

SAM has convolutions. Vision-language models merge squares before the language model reads them:
DeepSeek's aligner and Qwen3-VL's merger project a square's channels by an MLP, Gemma 4 takes their
mean. Operations and their order are those of timm 1.0.31 (`vision_transformer_sam.py`,
`deepseek_vit.py`, `qwen3_vit.py`, `gemma4_vit.py`).

Letters: B images, N patches, D width, R patches down or across a square, M squares.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import ACTIVATION, linear
from vitconvert.model.open_sizes import Grid


class Neck(nn.Sequential):
    """SAM's neck: a convolution of each patch, one of its neighbours too, a norm after each.

    Kirillov et al., "Segment Anything", https://arxiv.org/abs/2304.02643. Its norms have an eps of
    their own in timm, transformers and segment-anything.
    """

    def __init__(self, config: ViTConfig) -> None:
        channels = config.neck_dim
        super().__init__(
            nn.Conv2d(config.embed_dim, channels, 1, bias=False),
            nn.LayerNorm(channels, 1e-6),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.LayerNorm(channels, 1e-6),
        )
        self.config = config

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """(B, N, D) of a grid, by default the model's own, to (B, N, neck_dim)."""
        first, first_norm, second, second_norm = self
        B, _, D = x.shape
        x = first(x.reshape(B, *(grid or self.config.grid_size), D).permute(0, 3, 1, 2))
        x = second(first_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        tokens: Tensor = second_norm(x.permute(0, 2, 3, 1)).flatten(1, 2)
        return tokens


class MlpMerger(nn.Module):
    """An MLP reads the channels of all patches of a square, row by row.

    Squares at the edges are filled up with zeros, where a model allows such grids (DeepSeek).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        inputs = config.merge_size**2 * config.embed_dim
        self.fc1 = linear(inputs, config.merge_mlp_dim)
        self._add_end(config)

    def _add_end(self, config: ViTConfig) -> None:
        self.fc2 = linear(config.merge_mlp_dim, config.merge_dim)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """(B, N, D) of a grid, by default the model's own, to (B, M, merge_dim)."""
        return self.ended(self.fc1(self.squares(x, grid or self.config.grid_size)))

    def ended(self, x: Tensor) -> Tensor:
        """(B, M, merge_mlp_dim) to (B, M, merge_dim)."""
        merged: Tensor = self.fc2(F.gelu(x))
        return merged

    def squares(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, D) to (B, M, R*R*D)."""
        side, D = self.config.merge_size, x.shape[-1]
        rows, columns = grid
        image = x.reshape(-1, rows, columns, D)
        image = F.pad(image, (0, 0, 0, -columns % side, 0, -rows % side))
        down, across = -(-rows // side), -(-columns // side)
        squares = image.reshape(-1, down, side, across, side, D).transpose(2, 3)
        return squares.reshape(-1, down * across, side * side * D)


class GatedMerger(MlpMerger):
    """The first layer is a convolution; a projection, a norm and a gated MLP follow (GLM-4V).

    transformers 5.24, `Glm4vVisionPatchMerger`, whose norm has torch's own eps.
    """

    def _add_end(self, config: ViTConfig) -> None:
        inner, gated = config.merge_mlp_dim, config.merge_gated_dim
        self.act = ACTIVATION[config.activation]
        self.proj = linear(inner, inner, bias=False)
        self.norm = nn.LayerNorm(inner)
        self.gate, self.up = (linear(inner, gated, bias=False) for _ in range(2))
        self.down = linear(gated, config.merge_dim, bias=False)

    def ended(self, x: Tensor) -> Tensor:
        """(B, M, merge_mlp_dim) to (B, M, merge_dim)."""
        x = F.gelu(self.norm(self.proj(x)))
        merged: Tensor = self.down(self.act(self.gate(x)) * self.up(x))
        return merged


class MeanMerger(nn.Module):
    """The mean of a square, times the root of the width, and then perhaps standardised."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        standard = config.merge_standard
        self.std_bias = nn.Parameter(torch.empty(config.embed_dim)) if standard else None
        self.std_scale = nn.Parameter(torch.empty(config.embed_dim)) if standard else None

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """(B, N, D) to (B, M, D); unchanged in a model that only keeps the numbers."""
        if not self.config.merge_size:
            return x
        # A product with a matrix of ones and zeros, as there, so that sums round alike.
        shares = self._shares(grid or self.config.grid_size, x.device)
        mean = shares.expand(x.shape[0], -1, -1).transpose(1, 2) @ x.float()
        # In float32, as transformers 5.24 (modeling_gemma4.py): float16 ends at 65,504.
        wide = torch.promote_types(x.dtype, torch.float32)
        merged: Tensor = mean.to(x.dtype).to(wide) * x.shape[-1] ** 0.5
        if self.std_bias is not None and self.std_scale is not None:
            merged = torch.mul(merged - self.std_bias, self.std_scale)
        return merged.to(x.dtype)

    def _shares(self, grid: Grid, device: torch.device) -> Tensor:
        """(1, N, M) float32: what each patch gives to each square."""
        side = self.config.merge_size
        rows, columns = (torch.arange(n, device=device) // side for n in grid)
        across = grid[1] // side
        square = (rows[:, None] * across + columns).flatten()
        squares = torch.arange(across * (grid[0] // side), device=device)
        return (square[None, :, None] == squares).float() / side**2


def merger_of(config: ViTConfig) -> nn.Module:
    """What merges patches; an identity for most ViTs."""
    if not config.merge_size and not config.merge_standard:
        return nn.Identity()
    if not config.merge_mlp:
        return MeanMerger(config)
    return MlpMerger(config) if config.plain_merge else GatedMerger(config)
