"""Rotary position embedding: q and k of each patch are rotated by angles that encode its position.

Su et al., https://arxiv.org/abs/2104.09864. A head's channels are pairs, and each pair is rotated
by a position times a frequency: half of the pairs by one axis of the grid and half by the other,
or each by a learned mixture of both (Heo et al., https://arxiv.org/abs/2403.13298). Operations,
their order and their precision are those of timm 1.0.31, `layers/pos_embed_sincos.py`.

Letters: H heads, P patches, K width of a head.
"""

import math
from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig

Grid = tuple[int, int]  # patches down and across


class RotaryEmbedding(nn.Module):
    """The sines and cosines that rotate q and k.

    They are computed again for each batch, which costs little compared with a block: there is no
    table that loading, `to` or a "meta" device could leave wrong.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.freqs: nn.Parameter | None = None
        if config.rope == "mixed":
            axes = (2, config.depth, config.num_heads, config.head_dim // 2)
            self.freqs = nn.Parameter(torch.empty(axes))
        self.periods: nn.Parameter | None = None
        if config.rope_periods:
            self.periods = nn.Parameter(torch.empty(config.head_dim // 4), requires_grad=False)
        self.class_angles: nn.Parameter | None = None
        if config.rope_class:
            self.class_angles = nn.Parameter(torch.empty(1, config.head_dim // 2))

    def tables(self, like: Tensor, grid: Grid) -> Sequence[Tensor]:
        """For each block (P, 2K), or (H, P, 2K) if learned: sines, then cosines.

        Those of a class token that is rotated come first, (1 + P, 2K).

        Args:
            like: A weight of the model. Axial and learned tables are computed in float32 and have
                its dtype; DINOv3's have float32 at least.
            grid: Patches down and across.
        """
        config = self.config
        if self.freqs is not None:
            return _LearnedTables(self.freqs, config, _index_grid(config, grid, like.device))
        if config.rope == "dinov3":
            angles = dinov3_angles(config, like, grid, self.periods)
            return [_table(angles, config)] * config.depth
        if config.vjepa_rope:
            angles = vjepa2_angles(config, grid, like.device)
            return [torch.cat((angles.sin(), angles.cos()), -1).to(like.dtype)] * config.depth
        angles = axial_angles(config, grid, like.device)
        if self.class_angles is not None:
            angles = torch.cat((self.class_angles.float(), angles))
        whole = _table(angles, config).to(like.dtype)
        window = whole
        if config.rope_in_windows:
            alone = (config.window_size,) * 2
            window = _table(axial_angles(config, alone, like.device), config).to(like.dtype)
        return [window if i in config.window_blocks else whole for i in range(config.depth)]


def rotary_tables(rope: RotaryEmbedding, like: Tensor, grid: Grid) -> Sequence[Tensor]:
    """`RotaryEmbedding.tables`, as a function that torch.fx can keep whole."""
    return rope.tables(like, grid)


class _LearnedTables(Sequence[Tensor]):
    """The tables of learned frequencies, each computed when it is read: they are large."""

    def __init__(self, freqs: Tensor, config: ViTConfig, grid: Tensor) -> None:
        self.freqs, self.config, self.grid = freqs, config, grid

    def __len__(self) -> int:
        return self.config.depth

    def __getitem__(self, layer: int) -> Tensor:  # type: ignore[override]
        first, second = self.grid.unbind(-1)
        along_first, along_second = self.freqs[:, layer].float()
        # Each head with each position: (P, 1) by (H, 1, K/2).
        angles = first[:, None] * along_first[:, None]
        angles = angles + second[:, None] * along_second[:, None]
        return _table(angles, self.config).to(self.freqs.dtype)


def axial_angles(config: ViTConfig, grid: Grid, device: torch.device) -> Tensor:
    """(P, K/2) float32: rows and columns, scaled to a reference grid, times K/4 frequencies each.

    timm's `RotaryEmbeddingCat`, as EVA-02, Perception Encoder and RoPE-ViT use it. Pixtral's two
    axes take turns in one series of frequencies (mistral_inference, `rope.py`). MoonViT's take
    turns with each frequency (transformers 5.24, `Kimi_K25VisionRotaryEmbedding`).
    """
    bands = config.head_dim // 4
    exponents = torch.arange(bands, device=device).float() / bands
    if config.rope_interleaved:
        exponents = torch.stack((exponents, exponents + 0.5 / bands))
    frequencies = 1.0 / config.rope_temperature**exponents
    places = _index_grid(config, grid, device)
    angles = places[..., None] * frequencies  # (P, 2, K/4)
    return (angles.transpose(-1, -2) if config.rope_alternating else angles).flatten(-2)


def dinov3_periods(count: int, temperature: float, device: torch.device | None = None) -> Tensor:
    """(count,) float32, from 1 up: the periods that DINOv3 divides positions by."""
    return temperature ** (torch.arange(count, device=device).float() / count)


def dinov3_angles(
    config: ViTConfig, like: Tensor, grid: Grid, periods: Tensor | None = None
) -> Tensor:
    """(P, K/2): patch centres in [-1, 1], in whole turns, divided by K/4 periods each.

    timm's `RotaryEmbeddingDinoV3` for images of any size: grid and periods in float32, products in
    the model's dtype if that is more precise. `periods` come from a checkpoint, if it stores them.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    if periods is None:
        count = config.head_dim // 4
        periods = dinov3_periods(count, config.rope_temperature, like.device)
    rows, columns = (
        (torch.arange(size, device=like.device).float() + 0.5 + config.rope_offset) / size
        for size in grid
    )
    centres = 2.0 * _grid(rows, columns, config.rope_indexing) - 1.0
    return (2 * math.pi * centres[..., None].to(dtype) / periods.to(dtype)).flatten(-2)


def vjepa2_angles(config: ViTConfig, grid: Grid, device: torch.device) -> Tensor:
    """(P, K) float32: of channels, not of pairs, whose two channels turn by angles of their own.

    transformers 5.24, `rotate_queries_or_keys` and `apply_rotary_embeddings`: frequencies repeat
    after half of an axis' channels, while pairs are neighbours. An image's time is 0, and what
    three equal even parts leave of a head is not turned. The same in facebookresearch/vjepa2,
    `src/models/utils/modules.py`, `RoPEAttention`. V-JEPA 2.1 (the same in `app/vjepa_2_1` at
    204698b) gives the two channels of a pair one frequency.
    """
    bands = config.head_dim // 3 // 2
    exponents = torch.arange(bands, device=device).float() / bands
    of_pairs = 1.0 / config.rope_temperature**exponents
    frequencies = of_pairs.repeat_interleave(2) if config.rope == "vjepa2_1" else of_pairs.repeat(2)
    turned = (_index_grid(config, grid, device)[..., None] * frequencies).flatten(-2)
    if config.clips:
        times = torch.arange(config.time_steps, device=device).float()[:, None] * frequencies
        of_each = times.repeat_interleave(len(turned), 0), turned.repeat(len(times), 1)
        return F.pad(torch.cat(of_each, dim=-1), (0, config.head_dim - 6 * bands))
    return F.pad(turned, (2 * bands, config.head_dim - 6 * bands))


class Rotation(TypedDict):
    """How heads are rotated: by which pairs of channels, and which tokens and channel are not."""

    prefix: int
    half: bool
    by_axis: bool
    odd: bool


def rotation_of(config: ViTConfig) -> Rotation:
    """The rotation of a configuration."""
    prefix = 0 if config.rope_class else config.num_prefix_tokens
    odd = config.head_dim % 2 > 0
    return Rotation(prefix=prefix, half=config.rope_half, by_axis=config.rope_by_axis, odd=odd)


def rotate(
    x: Tensor, table: Tensor, *, prefix: int, half: bool, by_axis: bool, odd: bool
) -> Tensor:
    """Rotate the tokens of (B, H, N, K), and leave the `prefix` ones in front unchanged.

    A pair of channels is two neighbours or, if `half`, one of the first half of a head and one of
    the second; `by_axis`, one of each half of the channels that an axis of the grid rotates. The
    last channel of an `odd` number (V-JEPA 2) does not turn.
    """
    tokens = x[:, :, prefix:]
    if half:
        halves = tokens.chunk(4 if by_axis else 2, dim=-1)
        pairs = zip(halves[::2], halves[1::2], strict=True)
        turned = [part for first, second in pairs for part in (-second, first)]
        quarter_turn = torch.cat(turned, dim=-1)
    else:
        first, second = tokens[..., ::2], tokens[..., 1::2]
        if odd:
            first = first[..., :-1]
        quarter_turn = torch.stack((-second, first), dim=-1).flatten(-2)
        quarter_turn = F.pad(quarter_turn, (0, 1)) if odd else quarter_turn
    sin, cos = table.chunk(2, dim=-1)
    rotated = tokens * cos + quarter_turn * sin
    return torch.cat((x[:, :, :prefix], rotated.to(x.dtype)), dim=2)


def with_other_pairs(qkv: Tensor, config: ViTConfig) -> Tensor:
    """(3HK, ...) to the same function where `rope_half` is the other: q and k in another order."""
    half = config.head_dim // 2
    pairs = (2, half) if config.rope_half else (half, 2)
    heads = qkv.reshape(3, config.num_heads, *pairs, *qkv.shape[1:])
    return torch.cat([part.flatten(0, 3) for part in (heads[:2].transpose(2, 3), heads[2:])])


def _table(angles: Tensor, config: ViTConfig) -> Tensor:
    """Angles (..., K/2) of pairs to sines and cosines (..., 2K) of channels."""
    parts = angles.sin(), angles.cos()
    if not config.rope_half:
        return torch.cat([x.repeat_interleave(2, -1) for x in parts], dim=-1)
    groups = 2 if config.rope_by_axis else 1
    spread = [torch.cat([g for x in p.chunk(groups, -1) for g in (x, x)], -1) for p in parts]
    return torch.cat(spread, dim=-1)


def _index_grid(config: ViTConfig, grid: Grid, device: torch.device) -> Tensor:
    """(P, 2) float32: row and column of each patch, shifted and scaled as the config says."""
    rows, columns = (torch.arange(size, device=device).float() for size in grid)
    if config.rope == "axial":
        rows, columns = rows + config.rope_offset, columns + config.rope_offset
    if config.rope == "vjepa2_1":  # the last patches have the places of those of 256 pixels
        down, across = (256 // side - 1 for side in config.patch_size)
        rows, columns = rows * down / (grid[0] - 1), columns * across / (grid[1] - 1)
    reference = (config.window_size,) * 2 if config.rope_in_windows else config.rope_reference
    if config.rope == "axial" and any(reference):
        (height, width), (far_down, far_across) = grid, reference
        rows, columns = rows / height * far_down, columns / width * far_across
    return _grid(rows, columns, config.rope_indexing)


def _grid(rows: Tensor, columns: Tensor, indexing: str) -> Tensor:
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((y, x) if indexing == "ij" else (x, y), dim=-1).flatten(0, 1)
