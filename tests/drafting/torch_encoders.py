"""ViTs as people write them around torch's encoder and attention, in the layouts that were found.

Each is ours; what they compute differently is what the repositories that were tried compute.
"""

from typing import Any

import torch
from torch import Tensor, nn


class EncoderViT(nn.Module):
    """`nn.TransformerEncoder` between patches and a head that begins with a norm, or has none."""

    def __init__(
        self, *, depth: int = 3, normed: bool = True, batch_first: bool = True, **layer: Any
    ) -> None:
        super().__init__()
        width = 36
        self.to_patches = nn.Conv2d(4, width, (8, 6), (8, 6))
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 13, width))
        self.batch_first, norm = batch_first, layer.pop("norm", False)
        one = nn.TransformerEncoderLayer(width, 4, 50, batch_first=batch_first, **layer)
        last = nn.LayerNorm(width) if norm else None
        self.encoder = nn.TransformerEncoder(one, depth, last)
        head = nn.Linear(width, 7)
        self.answer = nn.Sequential(nn.LayerNorm(width), head) if normed else head

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.summary.expand(len(x), -1, -1), x), dim=1) + self.places
        if self.batch_first:
            return self.answer(self.encoder(x)[:, 0])
        return self.answer(self.encoder(x.transpose(0, 1))[0])


class SummedLayer(nn.Module):
    """Post-LN by hand: each sum is normed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 50), nn.GELU(), nn.Linear(50, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(query=x, key=x, value=x)[0])
        return self.norm2(input=x + self.mlp(x))


class SummedViT(nn.Module):
    """Layers by hand and the final norm in one `nn.Sequential`, and a head with a tanh inside."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        width = 36
        self.patch = nn.Conv2d(4, width, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.zeros(1, 13, width))
        layers = (SummedLayer(width) for _ in range(depth))
        self.encoder = nn.Sequential(*layers, nn.LayerNorm(width))
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), dim=1) + self.pos
        return self.fc2(torch.tanh(self.fc1(self.encoder(x)[:, 0])))


class NormedThriceBlock(nn.Module):
    """Pre-LN whose first norm is computed for q, for k and for v."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 50), nn.GELU(), nn.Dropout(0.1), nn.Linear(50, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), self.norm1(x), self.norm1(x))[0]
        return x + self.mlp(self.norm2(x))


class NormedThriceViT(nn.Module):
    """Blocks in an `nn.Sequential`; only the class token is normed at the end."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        width = 36
        self.patch = nn.Conv2d(4, width, 8, 8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 13, width))
        self.transformer = nn.Sequential(*(NormedThriceBlock(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.transformer(x)[:, 0]))


class Added(nn.Module):
    """What a branch gives, added to what it reads."""

    def __init__(self, *fn: nn.Module) -> None:
        super().__init__()
        self.fn = nn.Sequential(*fn)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fn(x)


class ScaledAfterwards(nn.Module):
    """q, k and v of a channel lie side by side; probabilities are scaled, not scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (4, -1, 3)).permute(4, 0, 2, 1, 3)
        read = (q @ k.mT).softmax(-1) / x.shape[-1] ** 0.5 @ v
        return self.projection(read.transpose(1, 2).flatten(2))


class TokensOfPatches(nn.Module):
    """Patches, the class token and positions without a batch axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Sequential(nn.Conv2d(4, width, 8, 8), nn.Flatten(2))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(13, width))

    def forward(self, images: Tensor) -> Tensor:
        x = self.projection(images).transpose(1, 2)
        return torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.positions


class MeanOfTokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def scaled_afterwards_vit(depth: int = 3, *, second_activation: bool = False) -> nn.Sequential:
    """A ViT of `nn.Sequential` throughout, whose names are numbers; the mean is normed."""
    width = 36
    second = [nn.GELU()] if second_activation else []
    blocks = [
        nn.Sequential(
            Added(nn.LayerNorm(width), ScaledAfterwards(width), nn.Dropout(0.1)),
            Added(
                nn.LayerNorm(width),
                nn.Sequential(nn.Linear(width, 50), nn.GELU(), nn.Linear(50, width), *second),
            ),
        )
        for _ in range(depth)
    ]
    head = nn.Sequential(MeanOfTokens(), nn.LayerNorm(width), nn.Linear(width, 7))
    return nn.Sequential(TokensOfPatches(width), nn.Sequential(*blocks), head)
