"""A made-up team's ViT: names, attention and habits of its own, and mistakes to plant."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bug: str) -> None:
        super().__init__()
        self.heads, self.bug = heads, bug
        self.ask = nn.Linear(width, width)
        self.match = nn.Linear(width, width)
        self.carry = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        ask, match = (self.match, self.ask) if self.bug == "q/k swap" else (self.ask, self.match)
        split = (b, n, self.heads, d // self.heads)
        q, k, v = (m(x).reshape(split).transpose(1, 2) for m in (ask, match, self.carry))
        by_width, by_head = d**-0.5, (d // self.heads) ** -0.5
        scale, after = {
            "wrong scale": (by_width, 1.0),
            "no scale": (1.0, 1.0),
            "scaled after the softmax": (1.0, by_width),
            "scaled after the softmax by heads": (1.0, by_head),
            "scaled twice": (by_head, by_head),
        }.get(self.bug, (by_head, 1.0))
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * scale, dim=-1) * after
        mixed = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        if self.bug == "head order":
            mixed = mixed.transpose(2, 3)
        mixed = mixed.reshape(b, n, d)
        if self.bug == "transposed projection":
            return mixed @ self.out.weight + self.out.bias
        return self.out(mixed)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, bug: str) -> None:
        super().__init__()
        eps = 1e-5 if bug == "eps" else 1e-6
        self.ln_attention = nn.LayerNorm(width, eps=eps)
        self.attention = Attention(width, heads, bug)
        self.ln_feed = nn.LayerNorm(width, eps=eps)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.bug = bug
        self.approximate = "tanh" if bug == "GELU" else "none"

    def feed(self, x: Tensor) -> Tensor:
        fed = self.narrow(F.gelu(self.widen(x), approximate=self.approximate))
        return F.gelu(fed) if self.bug == "activation after fc2" else fed

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "post-LN":
            x = self.ln_attention(x + self.attention(x))
            return self.ln_feed(x + self.feed(x))
        if self.bug == "res-post":
            x = x + self.ln_attention(self.attention(x))
            return x + self.ln_feed(self.feed(x))
        if self.bug == "along the batch":
            x = x + self.attention(self.ln_attention(x).transpose(0, 1)).transpose(0, 1)
            return x + self.feed(self.ln_feed(x))
        x = x + self.attention(x=self.ln_attention(input=x))  # a layer is called by keyword, too
        return x + self.feed(self.ln_feed(input=x))


class TeamViT(nn.Module):
    """Patches are unfolded, not convolved; q, k and v are apart; the class has a position."""

    def __init__(
        self,
        bug: str = "",
        *,
        image_size: tuple[int, int] = (32, 24),
        patch: int = 8,
        channels: int = 4,
        width: int = 30,
        depth: int = 11,
        heads: int = 3,
        hidden: int = 50,
        classes: int = 7,
    ) -> None:
        super().__init__()
        self.patch, self.bug = patch, bug
        patches = image_size[0] // patch * (image_size[1] // patch)
        self.pixels = nn.Linear(channels * patch * patch, width)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, patches + 1, width))
        self.layers = nn.ModuleList(Layer(width, heads, hidden, bug) for _ in range(depth))
        self.ln_last = nn.LayerNorm(width, eps=1e-5 if bug in ("eps", "last eps") else 1e-6)
        self.answer = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        tokens = self.pixels(patches)
        tokens = torch.cat([self.summary.expand(len(images), -1, -1), tokens], dim=1)
        places = self.places
        if self.bug == "off-by-one position":
            places = torch.cat([places[:, :1], places[:, 1:].roll(1, 1)], dim=1)
        tokens = tokens + places
        for layer in self.layers:
            tokens = layer(tokens)
        if self.bug != "missing final norm":
            tokens = self.ln_last(input=tokens)
        pooled = {"mean": tokens.mean(1), "mean of patches": tokens[:, 1:].mean(1)}
        return self.answer(input=pooled.get(self.bug, tokens[:, 0]))


TABLE = """\
[dialect]
title    = "A made-up team's ViT"
source   = "this test"
requires = ["blocks.{i}.mlp.fc1.weight"]

[words]
part  = "layers.{i}"
attn  = "{part}.attention"

[rows]
"cls_token"                   = "summary"
"pos_embed"                   = "places"
"patch_embed.proj.weight"     = "pixels.weight : width (channel y x)"
"patch_embed.proj.bias"       = "pixels.bias"
"blocks.{i}.norm1.{p}"        = "{part}.ln_attention.{p}"
"blocks.{i}.attn.qkv.{p}"     = "cat({attn}.ask.{p}, {attn}.match.{p}, {attn}.carry.{p})"
"blocks.{i}.attn.proj.{p}"    = "{attn}.out.{p}"
"blocks.{i}.norm2.{p}"        = "{part}.ln_feed.{p}"
"blocks.{i}.mlp.fc1.{p}"      = "{part}.widen.{p}"
"blocks.{i}.mlp.fc2.{p}"      = "{part}.narrow.{p}"
"norm.{p}"                    = "ln_last.{p}"
"head.{p}"                    = "answer.{p}"

[config]
activation = "gelu"
norm_eps   = 1e-6
pooling    = "token"
"""
"""The table that says which of the team's tensors is which of ours."""

STATED = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
"""What the team's tensors do not show."""

BUGS = {
    "eps": ("blocks.0.attn", "norm_eps is 1e-05, not 1e-06"),
    "GELU": ("blocks.0.mlp", "activation is gelu_tanh, not gelu"),
    "q/k swap": ("blocks.0.attn", "the thirds of blocks.0.attn.qkv are k, q, v, not q, k, v"),
    "transposed projection": ("blocks.0.attn", "blocks.0.attn.proj.weight is transposed"),
    "off-by-one position": (
        "embedding",
        "pos_embed is off by one: each patch has that of the previous one",
    ),
    "missing final norm": ("features", "there is no final norm"),
    "wrong scale": ("blocks.0.attn", "attention_scale is embed_dim ** -0.5"),
    "no scale": ("blocks.0.attn", "attention_scale is 1, not"),
    "scaled after the softmax": (
        "blocks.0.attn",
        "scaled after the softmax: post_softmax_scale is embed_dim ** -0.5, not 1, and "
        "attention_scale is 1",
    ),
    "scaled after the softmax by heads": (
        "blocks.0.attn",
        "scaled after the softmax: post_softmax_scale is head_dim ** -0.5, not 1, and "
        "attention_scale is 1",
    ),
    "scaled twice": (
        "blocks.0.attn",
        "scaled after the softmax: post_softmax_scale is head_dim ** -0.5, not 1, and "
        "attention_scale is 0.316228",
    ),
    "post-LN": ("embedding", "block_order is post_norm, not pre: the norms are of each sum"),
    "res-post": ("embedding", "block_order is res_post_norm, not pre"),
    "activation after fc2": ("blocks.0.mlp", "there is an activation after fc2 too"),
    "last eps": ("norm", "final_norm_eps is 1e-05, not 1e-06"),
    "mean": ("features", "pooling is avg over all tokens, not token"),
    "mean of patches": ("features", "pooling is avg, not token"),
    "along the batch": ("blocks.0.attn", "attention along the batch"),
    "head order": ("blocks.0.attn", "the heads are joined (dim head), not (head dim)"),
}
"""Each mistake, the first layer that it changes, and its likely cause."""


def team(weights: dict[str, Tensor], bug: str = "") -> TeamViT:
    """The team's model of these weights."""
    model = TeamViT(bug)
    model.load_state_dict(weights)
    return model
