"""From tokens to logits: attention pooling, the layer before the head, the head.

Letters: B images, N tokens, D width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.model.layers import ACTIVATION, Mlp, linear, norm_if

# Pooling that needs no weights: (B, N, D) to (B, D).
REDUCTION: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": lambda x: x.mean(dim=1),
    "max": lambda x: x.amax(dim=1),
    "avgmax": lambda x: 0.5 * (x.amax(dim=1) + x.mean(dim=1)),
}


class AttentionPool(nn.Module):
    """A learned query reads all tokens; an MLP with a residual follows.

    big_vision's `MAPHead`, after Lee et al., https://arxiv.org/abs/1810.00825; operations as in
    timm 1.0.31, `AttentionPoolLatent`. AIMv2 (https://arxiv.org/abs/2411.14402) neither projects
    the query nor has the MLP: transformers 5.23, `Aimv2AttentionPoolingHead`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        D = config.embed_dim
        self.num_heads = config.pool_heads or config.num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, D))
        self.q = linear(D, D) if config.pool_q_proj else nn.Identity()
        self.kv = linear(D, 2 * D, bias=config.pool_kv_bias)
        self.proj = linear(D, D)
        self.norm = norm_if(config.pool_mlp, D, config)
        hidden = config.pool_mlp_dim or config.mlp_dim
        self.mlp = Mlp(config, hidden, bias=True, drop=0.0) if config.pool_mlp else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, D)."""
        q, k, v = self._project(x)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        pooled: Tensor = self.proj(read)
        if self.mlp is not None:
            pooled = pooled + self.mlp(self.norm(pooled))
        return pooled[:, 0]

    def probabilities(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, H, N): how much of each token each head reads."""
        q, k, _ = self._project(x)
        scores: Tensor = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.softmax(-1)[:, :, 0]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self._heads(self.q(self.latent.expand(x.shape[0], -1, -1)))
        k, v = self.kv(x).chunk(2, dim=-1)
        return q, self._heads(k), self._heads(v)

    def _heads(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        return x.reshape(B, N, self.num_heads, D // self.num_heads).transpose(1, 2)


def pool(x: Tensor, config: ViTConfig, attn_pool: AttentionPool | None) -> Tensor:
    """Tokens (B, N, D) to (B, D), (B, 2D) if "token_avg", unchanged if pooling is "none"."""
    prefix = config.num_prefix_tokens
    match config.pooling:
        case "none":
            return x
        case "token":
            return x[:, 0]
        case "token_avg":
            # Hugging Face `Dinov2ForImageClassification`: registers are in neither part.
            return torch.cat((x[:, 0], x[:, prefix:].mean(dim=1)), dim=1)
        case "prefix_avg":
            return x[:, :prefix].mean(dim=1)
        case reduction:
            read = x if config.pool_include_prefix else x[:, prefix:]
            pooled: Tensor = (attn_pool or REDUCTION[reduction])(read)
            return pooled


class PreLogits(nn.Module):
    """The layer between features and head: Google's pre_logits, Hugging Face's pooler."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc = linear(config.embed_dim, config.representation_size)
        self.act = ACTIVATION[config.representation_activation]

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., representation_size)."""
        return self.act(self.fc(x))


def classifier(config: ViTConfig) -> nn.Module:
    """The head; an identity if there are no classes."""
    if config.num_classes == 0:
        return nn.Identity()
    return linear(config.feature_dim, config.num_classes, bias=config.head_bias)


def scores_of(logits: Tensor, function: str) -> Tensor:
    """Logits (..., classes) as `ViTConfig.score_function` says: probabilities, or as they are."""
    if function == "none":
        return logits
    return logits.sigmoid() if function == "sigmoid" else logits.softmax(dim=-1)


def logits_of(scores: Tensor, function: str) -> Tensor:
    """The inverse, which of a softmax is right but for a constant, which changes no score."""
    if function == "none":
        return scores
    least = torch.finfo(scores.dtype)
    if function == "sigmoid":
        return scores.logit(eps=least.eps / 2)
    return scores.clamp(min=least.tiny).log()
