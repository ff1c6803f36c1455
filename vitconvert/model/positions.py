"""The fixed sine-cosine positions, which are computed."""

import torch
from torch import Tensor

from vitconvert.config import ViTConfig


def computed_positions(config: ViTConfig) -> Tensor:
    """The fixed positions of a configuration, (rows * columns, D) float32 on the CPU."""
    if config.position_embedding == "sincos2d_mae":
        return sincos2d_mae_positions(config.grid_size, config.embed_dim)
    return sincos2d_positions(config.grid_size, config.embed_dim)


def sincos2d_positions(grid: tuple[int, int], dim: int, temperature: float = 10000.0) -> Tensor:
    """Fixed positions of big_vision (`posemb_sincos_2d`) and lucidrains' SimpleViT.

    Returns:
        (rows * columns, dim) float32, always on the CPU, even inside `torch.device("meta")`:
        sin x, cos x, sin y, cos y, each with dim/4 frequencies from 1 down to 1/temperature.
    """
    frequencies = torch.arange(dim // 4, device="cpu") / (dim // 4 - 1)
    return _sines_and_cosines(grid, 1.0 / temperature**frequencies)


def sincos2d_mae_positions(grid: tuple[int, int], dim: int, temperature: float = 10000.0) -> Tensor:
    """Fixed positions of MAE (`get_2d_sincos_pos_embed`), computed in float64.

    AIMv2 for images of native size uses them too (transformers 5.23,
    `build_2d_sinusoidal_position_embedding`).

    Returns:
        As `sincos2d_positions`, but the dim/4 frequencies end before 1/temperature.
    """
    frequencies = torch.arange(dim // 4, device="cpu", dtype=torch.float64) / (dim // 4)
    return _sines_and_cosines(grid, 1.0 / temperature**frequencies).float()


def _sines_and_cosines(grid: tuple[int, int], omega: Tensor) -> Tensor:
    rows, columns = (torch.arange(size, device="cpu") for size in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y = y.flatten()[:, None] * omega
    x = x.flatten()[:, None] * omega
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)
