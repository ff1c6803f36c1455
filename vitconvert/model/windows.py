"""Attention within windows, and relative positions of rows and of columns that q meets.

Li et al., ViTDet, https://arxiv.org/abs/2203.16527; Kirillov et al., "Segment Anything",
https://arxiv.org/abs/2304.02643. Operations and their order are those of timm 1.0.31
(`vision_transformer_sam.py`).

Letters: B images, N patches, D width, H heads, K width of a head, W windows of an image, n patches
of a window, those of its padding too.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.attention import NO_POSITIONS, Attention, TokenPositions
from vitconvert.model.blocks import AnyBlock, Block, OneStepBlock, ParallelBlock
from vitconvert.model.open_sizes import Grid, is_open
from vitconvert.model.resampling import resample_decomposed_positions

torch.fx.wrap("_by_offset")


class WindowedAttention(Attention):
    """Attention of the patches of a window to each other, or of all of them in a global block.

    Windows that the grid does not fill are filled with zeros, which take part in the attention, or
    are hidden from it (transformers 5.24, `get_vision_window_index`, has smaller windows there).
    """

    unlike_timm = False  # whether scores are not kept, which is faster and rounds otherwise

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.layer = layer
        self.side = config.window_size if layer in config.window_blocks else None
        self.rel_pos_h: nn.Parameter | None = None
        self.rel_pos_w: nn.Parameter | None = None
        if config.decomposed_positions:
            rows, columns = (2 * side - 1 for side in config.attended_grid(layer))
            self.rel_pos_h = nn.Parameter(torch.empty(rows, config.head_dim))
            self.rel_pos_w = nn.Parameter(torch.empty(columns, config.head_dim))

    def forward(
        self, x: Tensor, head_mask: Tensor | None = None, positions: TokenPositions = NO_POSITIONS
    ) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        grid = positions.grid or self.config.grid_size
        positions = self._of_windows(x, positions)
        return self._joined(super().forward(self._cut(x, grid), head_mask, positions), grid)

    def whole_probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N), zero between windows.

        What patches attend to the padding of their window is left out.
        """
        grid = positions.grid or self.config.grid_size
        positions = self._of_windows(x, positions)
        found = self.probabilities(self.project(self._cut(x, grid)), positions)
        if self.side is None:
            return found
        B, N, _ = x.shape
        H, n, _ = found.shape[1:]
        numbers = torch.arange(1, N + 1, dtype=x.dtype, device=x.device)
        places = self._cut(numbers.view(1, N, 1), grid)[..., 0].long()  # (W, n), 0 for padding
        whole = found.new_zeros(B, H, N + 1, N + 1)
        of_windows = found.reshape(B, -1, H, n, n).transpose(1, 2)  # (B, H, W, n, n)
        whole[:, :, places[:, :, None], places[:, None, :]] = of_windows
        return whole[:, :, 1:, 1:]

    def _of_windows(self, x: Tensor, positions: TokenPositions) -> TokenPositions:
        """Those of the patches of each window, whose bias hides what only fills it up."""
        if self.side is None:
            return positions
        B, N, _ = x.shape
        grid = positions.grid or self.config.grid_size
        if positions.rope is not None and not self.config.rope_in_windows:
            rope = self._cut(positions.rope.expand(B, -1, -1), grid)
            positions = positions._replace(rope=rope[:, None])  # (B*W, 1, n, 2K)
        if not self.config.window_padding and self._has_partial(grid):
            there = self._cut(x.new_ones(B, N, 1), grid).transpose(1, 2)
            positions = positions._replace(bias=there.log()[:, None])  # (B*W, 1, 1, n)
        return positions

    def _bias(self, q: Tensor, positions: TokenPositions) -> Tensor | None:
        """(B, H, n, K) to (B, H, n, n): q, not scaled, times the vectors of all offsets."""
        if self.rel_pos_h is None or self.rel_pos_w is None:
            bias = positions.bias
            return None if bias is None else bias.expand(-1, q.shape[1], -1, -1)
        B, H, n, K = q.shape
        sides = positions.grid or self.config.grid_size
        sides = sides if self.side is None else (self.side, self.side)
        vectors = (self.rel_pos_h, self.rel_pos_w)
        if positions.grid is not None and self.side is None:
            of_rows, of_columns = (
                resample_decomposed_positions(table, side=side)
                for table, side in zip(vectors, sides, strict=True)
            )
        else:
            of_rows, of_columns = vectors
        grid = q.reshape(B * H, *sides, K)
        down = torch.einsum("bhwc,hkc->bhwk", grid, _by_offset(of_rows))
        across = torch.einsum("bhwc,wkc->bhwk", grid, _by_offset(of_columns))
        bias = down[..., None] + across[..., None, :]  # (B*H, rows, columns, rows, columns)
        return bias.reshape(B, H, n, n)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        if self.unlike_timm or torch.compiler.is_compiling():  # ONNX knows no other path
            return super()._fused(q, k, v, bias)
        # As there, images and heads are one dimension: torch then takes another path on a CPU.
        flat = (None if part is None else part.flatten(0, 1) for part in (q, k, v, bias))
        read = super()._fused(*cast("Sequence[Tensor]", tuple(flat)))
        return read.reshape(q.shape)

    def _has_partial(self, grid: Grid) -> bool:
        """Whether some window is filled up, or may be, where the grid is open."""
        return is_open(grid) or any(size % self.config.window_size for size in grid)

    def _cut(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, D) to (B*W, n, D)."""
        if self.side is None:
            return x
        B, _, D = x.shape
        (rows, columns), side = grid, self.side
        down, across = -(-rows // side), -(-columns // side)
        image = x.reshape(B, rows, columns, D)
        image = F.pad(image, (0, 0, 0, across * side - columns, 0, down * side - rows))
        windows = image.reshape(B, down, side, across, side, D).transpose(2, 3)
        return windows.reshape(-1, side * side, D)

    def _joined(self, windows: Tensor, grid: Grid) -> Tensor:
        """(B*W, n, D) to (B, N, D)."""
        if self.side is None:
            return windows
        (rows, columns), side = grid, self.side
        down, across = -(-rows // side), -(-columns // side)
        D = windows.shape[-1]
        image = windows.reshape(-1, down, across, side, side, D).transpose(2, 3)
        image = image.reshape(-1, down * side, across * side, D)[:, :rows, :columns]
        return image.reshape(-1, rows * columns, D)


def _by_offset(vectors: Tensor) -> Tensor:
    """(2 S - 1, K) to (S, S, K): of each row or column of q to each of k."""
    side = (vectors.shape[0] + 1) // 2
    places = torch.arange(side, device=vectors.device)
    return vectors[places[:, None] - places + side - 1]


def with_tokens_of_windows(x: Tensor, config: ViTConfig) -> Tensor:
    """Tokens (B, N, D), the prefix tokens of one window first, to those of every window first."""
    prefix, patches = x[:, : config.prefix_of_window], x[:, config.prefix_of_window :]
    return torch.cat((prefix.repeat(1, config.window_count**2, 1), patches), dim=1)


def mask_of_windows(config: ViTConfig, grid: tuple[int, int] | None = None) -> Tensor:
    """(N, N), on the CPU: whether two tokens are of one window, prefix tokens of windows first.

    RF-DETR, https://arxiv.org/abs/2511.09554; rfdetr 1.11, `WindowedDinov2WithRegistersEmbeddings`,
    has the windows as images of their own instead. transformers 5.24, `RfDetrDinov2Embeddings`.
    """
    count, (rows, columns) = config.window_count, grid or config.grid_size
    windows = torch.arange(count**2, device="cpu")
    down = torch.arange(rows, device="cpu") * count // rows
    across = torch.arange(columns, device="cpu") * count // columns
    of_patches = (down[:, None] * count + across).flatten()
    of_tokens = torch.cat((windows.repeat_interleave(config.prefix_of_window), of_patches))
    return of_tokens[:, None] == of_tokens


class WindowedBlock(Block):
    """A block whose attention is `WindowedAttention`."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.attn: WindowedAttention = WindowedAttention(config, layer)

    def probabilities(self, x: Tensor, positions: TokenPositions) -> Tensor:
        """(B, N, D) to (B, H, N, N)."""
        return self.attn.whole_probabilities(self.attention_input(x), positions)


def block_of(config: ViTConfig, layer: int) -> AnyBlock:
    """The block at a place, counted from 0, of a configuration's kind."""
    if config.parallel_branches:
        return ParallelBlock(config, layer)
    if config.windowed or config.decomposed_positions:
        return WindowedBlock(config, layer)
    return OneStepBlock(config, layer) if config.parallel_order else Block(config, layer)
