"""ViTs in the layouts of much copied tutorials, written anew: their names, sizes and habits.

Each is built without arguments. Comments say whose layout it is; the code is ours.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN, DEPTH, CLASSES = 36, 3, 50, 3, 7
DEEP = 11
PATCH, SIZE = 8, (40, 40)
PATCHES = SIZE[0] // PATCH * (SIZE[1] // PATCH)


def _patches(images: Tensor) -> Tensor:
    """Flattened: channel, then rows, then columns."""
    return F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float | None = None) -> Tensor:
    b, n, d = q.shape
    q, k, v = (t.reshape(b, n, heads, d // heads).transpose(1, 2) for t in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return found.transpose(1, 2).reshape(b, n, d)


def _table(width: int, length: int) -> Tensor:
    """Sines and cosines of a position, channel by channel in turn (Vaswani et al., 3.5)."""
    steps = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([steps.sin(), steps.cos()], dim=-1).flatten(1)


class HeadsAsModules(nn.Module):
    """tintn/vision-transformer-from-scratch: a module for each head, no last norm, a tuple."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("query", "key", "value"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH // HEADS))

        def forward(self, x: Tensor) -> Tensor:
            return _attend(self.query(x), self.key(x), self.value(x), 1)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.Module()
            self.attention.heads = nn.ModuleList(HeadsAsModules.Head() for _ in range(HEADS))
            self.attention.output_projection = nn.Linear(WIDTH, WIDTH)
            self.layernorm_1 = nn.LayerNorm(WIDTH)
            self.mlp = nn.Module()
            self.mlp.dense_1, self.mlp.dense_2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
            self.layernorm_2 = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.layernorm_1(x)
            heads = torch.cat([head(normed) for head in self.attention.heads], dim=-1)
            x = x + self.attention.output_projection(heads)
            hidden = F.gelu(self.mlp.dense_1(self.layernorm_2(x)), approximate="tanh")
            return x + self.mlp.dense_2(hidden)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Module()
        self.embedding.patch_embeddings = nn.Module()
        self.embedding.patch_embeddings.projection = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.embedding.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.embedding.position_embeddings = nn.Parameter(torch.zeros(1, PATCHES + 1, WIDTH))
        self.encoder = nn.Module()
        self.encoder.blocks = nn.ModuleList(self.Block() for _ in range(DEEP))
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        x = self.embedding.patch_embeddings.projection(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.embedding.cls_token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.embedding.position_embeddings
        for block in self.encoder.blocks:
            x = block(x)
        return self.classifier(x[:, 0]), None


class LanguageModelHabits(nn.Module):
    """The heads of Karpathy's lectures in a ViT: no biases, and a scale of the whole width."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("key", "query", "value"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH // HEADS, bias=False))

        def forward(self, x: Tensor) -> Tensor:
            return _attend(self.query(x), self.key(x), self.value(x), 1, WIDTH**-0.5)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sa = nn.Module()
            self.sa.heads = nn.ModuleList(LanguageModelHabits.Head() for _ in range(HEADS))
            self.sa.proj = nn.Linear(WIDTH, WIDTH)
            self.ffwd = nn.Module()
            self.ffwd.net = nn.Sequential(
                nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)
            )
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.ln1(x)
            x = x + self.sa.proj(torch.cat([head(normed) for head in self.sa.heads], dim=-1))
            return x + self.ffwd.net(self.ln2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patch_proj = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.position_embedding_table = nn.Embedding(PATCHES, WIDTH)
        self.blocks = nn.Sequential(*(self.Block() for _ in range(DEPTH)))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_proj(_patches(images))
        x = x + self.position_embedding_table(torch.arange(x.shape[1]))
        return self.lm_head(self.ln_f(self.blocks(x)).mean(1))


class PaperReplicating(nn.Module):
    """mrdbourke/pytorch-deep-learning, lesson 8: blocks of two modules with a norm each."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.msa_block = nn.Module()
            self.msa_block.layer_norm = nn.LayerNorm(WIDTH)
            self.msa_block.multihead_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.mlp_block = nn.Module()
            self.mlp_block.layer_norm = nn.LayerNorm(WIDTH)
            layers = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(), nn.Linear(HIDDEN, WIDTH)
            self.mlp_block.mlp = nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Tensor:
            y = self.msa_block.layer_norm(x)
            x = self.msa_block.multihead_attn(query=y, key=y, value=y, need_weights=False)[0] + x
            return self.mlp_block.mlp(self.mlp_block.layer_norm(x)) + x

    def __init__(self) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position_embedding = nn.Parameter(torch.zeros(1, PATCHES + 1, WIDTH))
        self.patch_embedding = nn.Module()
        self.patch_embedding.patcher = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.transformer_encoder = nn.Sequential(*(self.Block() for _ in range(DEPTH)))
        self.classifier = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding.patcher(images).flatten(2).permute(0, 2, 1)
        x = torch.cat((self.class_embedding.expand(len(x), -1, -1), x), dim=1)
        x = self.transformer_encoder(self.position_embedding + x)
        return self.classifier(x[:, 0])


class LightningNotebook(nn.Module):
    """UvA's tutorial 15: linear patches, tokens first, a table longer than needed, and its MLP."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer_norm_1 = nn.LayerNorm(WIDTH)
            self.attn = nn.MultiheadAttention(WIDTH, HEADS)
            self.layer_norm_2 = nn.LayerNorm(WIDTH)
            layers = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(), nn.Linear(HIDDEN, WIDTH)
            self.linear = nn.Sequential(*layers, nn.Dropout())

        def forward(self, x: Tensor) -> Tensor:
            normed = self.layer_norm_1(x)
            x = x + self.attn(normed, normed, normed)[0]
            return x + self.linear(self.layer_norm_2(x))

    def __init__(self) -> None:
        super().__init__()
        self.image_size = SIZE
        self.input_layer = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.transformer = nn.Sequential(*(self.Block() for _ in range(DEPTH)))
        self.mlp_head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embedding = nn.Parameter(torch.randn(1, 1 + 64, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        x = self.input_layer(_patches(images))
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        x = (x + self.pos_embedding[:, : x.shape[1]]).transpose(0, 1)
        return self.mlp_head(self.transformer(x)[0])


class TorchEncoder(nn.Module):
    """uygarkurt/ViT-PyTorch and others: nn.TransformerEncoder, norms first."""

    post = False

    def __init__(self) -> None:
        super().__init__()
        self.embeddings_block = nn.Module()
        self.embeddings_block.patcher = nn.Sequential(
            nn.Conv2d(1, WIDTH, PATCH, PATCH), nn.Flatten(2)
        )
        self.embeddings_block.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.embeddings_block.position_embeddings = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, activation="gelu", batch_first=True, norm_first=not self.post
        )
        self.encoder_blocks = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.mlp_head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        block = self.embeddings_block
        x = block.patcher(images).transpose(1, 2)
        x = torch.cat([block.cls_token.expand(len(x), -1, -1), x], dim=1)
        return self.mlp_head(self.encoder_blocks(block.position_embeddings + x)[:, 0])


class PostNorm(TorchEncoder):
    """The same with the defaults of nn.TransformerEncoderLayer: norms behind the branches."""

    post = True


class SequentialOfSequentials(nn.Sequential):
    """FrancescoSaverioZuppichini/ViT: numbers for names, and a scale behind the softmax."""

    after = True

    class Attention(nn.Module):
        def __init__(self, *, after: bool) -> None:
            super().__init__()
            for name in ("keys", "queries", "values", "projection"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH))
            self.after = after
            self.num_heads = HEADS

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.queries(x), self.keys(x), self.values(x)
            scale = 1.0 if self.after else None
            found = _attend(q, k, v, HEADS, scale)
            return self.projection(found / WIDTH**0.5 if self.after else found)

    class Add(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.fn = nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fn(x)

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Sequential(nn.Conv2d(3, WIDTH, PATCH, PATCH), nn.Flatten(2))
            self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
            self.positions = nn.Parameter(torch.randn(PATCHES + 1, WIDTH))

        def forward(self, images: Tensor) -> Tensor:
            x = self.projection(images).transpose(1, 2)
            return torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.positions

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    def __init__(self) -> None:
        blocks = (
            nn.Sequential(
                self.Add(nn.LayerNorm(WIDTH), self.Attention(after=self.after), nn.Dropout()),
                self.Add(
                    nn.LayerNorm(WIDTH),
                    nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)),
                ),
            )
            for _ in range(DEPTH)
        )
        head = nn.Sequential(self.Mean(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
        super().__init__(self.Patches(), nn.Sequential(*blocks), head)


class Mended(SequentialOfSequentials):
    """The same with the scale where the paper has it."""

    after = False


class HeadsOfSlices(nn.Module):
    """Brian Pulfer's ViT of MNIST: each head reads its own slice; no projection; a softmax."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(WIDTH)
            self.mhsa = nn.Module()
            dim = WIDTH // HEADS
            for name in ("q_mappings", "k_mappings", "v_mappings"):
                setattr(self.mhsa, name, nn.ModuleList(nn.Linear(dim, dim) for _ in range(HEADS)))
            self.norm2 = nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            slices = self.norm1(x).chunk(HEADS, dim=-1)
            mhsa = self.mhsa
            maps = zip(mhsa.q_mappings, mhsa.k_mappings, mhsa.v_mappings, slices, strict=True)
            x = x + torch.cat([_attend(q(s), k(s), v(s), 1) for q, k, v, s in maps], dim=-1)
            return x + self.mlp(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = HEADS
        self.linear_mapper = nn.Linear(PATCH * PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.randn(1, WIDTH))
        self.register_buffer("positional_embeddings", _table(WIDTH, PATCHES + 1))
        self.blocks = nn.ModuleList(self.Block() for _ in range(DEPTH))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Softmax(dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        x = self.linear_mapper(_patches(images))
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        x = x + self.positional_embeddings
        for block in self.blocks:
            x = block(x)
        return self.mlp(x[:, 0])


class StoredSinusoid(nn.Module):
    """A PositionalEncoding of tutorials on text, `pe` of [1, 5000, D], before a ViT's encoder."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = HEADS
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.wo = nn.Linear(WIDTH, WIDTH)
            self.ln = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-6) for _ in range(2))
            self.ff1, self.ff2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.wo(_attend(*self.qkv(self.ln[0](x)).chunk(3, dim=-1), HEADS))
            return x + self.ff2(F.silu(self.ff1(self.ln[1](x))))

    def __init__(self) -> None:
        super().__init__()
        self.img_size = SIZE
        self.to_tokens = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_encoding = nn.Module()
        self.pos_encoding.register_buffer("pe", _table(WIDTH, 500)[None])
        self.layers = nn.ModuleList(self.Block() for _ in range(DEPTH))
        self.ln_out = nn.LayerNorm(WIDTH, eps=1e-6)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_tokens(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        x = x + self.pos_encoding.pe[:, : x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.ln_out(x)[:, 0])


class OneNorm(StoredSinusoid):
    """The same whose blocks use one norm before the attention and before the MLP."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = HEADS
            for name in ("to_q", "to_k", "to_v", "to_out"):
                setattr(self, name, nn.Linear(WIDTH, WIDTH))
            self.norm = nn.LayerNorm(WIDTH)
            self.net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            x = x + self.to_out(_attend(self.to_q(y), self.to_k(y), self.to_v(y), HEADS))
            return x + self.net(self.norm(x))


class Unnamed(StoredSinusoid):
    """Names that say nothing of their places: only running them tells which is which."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = HEADS
            self.c, self.a, self.b, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.z, self.y = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.u, self.v = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            n = self.y(x)
            x = x + self.d(_attend(self.a(n), self.c(n), self.b(n), HEADS))
            return x + self.v(F.gelu(self.u(self.z(x))))


class BareMatrices(StoredSinusoid):
    """Apzmie/Vision-Transformer-From-Scratch: parameters instead of layers, as [in, out]."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = HEADS
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                setattr(self, name, nn.Parameter(torch.empty(WIDTH, WIDTH)))
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.W1, self.b1 = (
                nn.Parameter(torch.empty(WIDTH, HIDDEN)),
                nn.Parameter(torch.zeros(HIDDEN)),
            )
            self.W2, self.b2 = (
                nn.Parameter(torch.empty(HIDDEN, WIDTH)),
                nn.Parameter(torch.zeros(WIDTH)),
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(x)
            x = x + _attend(y @ self.W_Q, y @ self.W_K, y @ self.W_V, HEADS) @ self.W_O
            return x + F.gelu(self.norm2(x) @ self.W1 + self.b1) @ self.W2 + self.b2


class TwiceActivated(StoredSinusoid):
    """keras.io's `mlp`, copied to torch: an activation after each layer, the last as well."""

    class Block(OneNorm.Block):
        def __init__(self) -> None:
            super().__init__()
            self.net.append(nn.GELU())


class MlpHead(StoredSinusoid):
    """A head of two layers with ReLU between, of which the last has the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, CLASSES))


class ComputedSinusoid(StoredSinusoid):
    """emnzn/ViT-from-scratch, `learnable_pe = False`: a sinusoid that no file holds."""

    after_token = False

    def __init__(self) -> None:
        super().__init__()
        del self.pos_encoding

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_tokens(images).flatten(2).transpose(1, 2)
        if self.after_token:
            x = x + _table(WIDTH, PATCHES)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        if not self.after_token:
            x = x + _table(WIDTH, PATCHES + 1)
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.ln_out(x)[:, 0])


class SinusoidOfPatches(ComputedSinusoid):
    """The same, added before the class token is put in front."""

    after_token = True


class FusedPair(PaperReplicating):
    """Two of q, k and v in one layer (lucidrains' `to_kv`); the MLP is as wide as that layer.

    `pair` are the two in the order of the layer; `by_head`: all of a head before the next.
    """

    pair, by_head = "kv", False

    class Block(nn.Module):
        def __init__(self, pair: str = "kv", by_head: bool = False) -> None:
            super().__init__()
            self.pair, self.by_head, self.heads = pair, by_head, HEADS
            single = next(name for name in "qkv" if name not in pair)
            fused = "".join(name for name in "qkv" if name in pair)
            setattr(self, f"to_{single}", nn.Linear(WIDTH, WIDTH, bias=False))
            setattr(self, f"to_{fused}", nn.Linear(WIDTH, 2 * WIDTH, bias=False))
            self.to_out = nn.Linear(WIDTH, WIDTH)
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.net = nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(x)
            single = next(name for name in "qkv" if name not in self.pair)
            both = getattr(self, "to_" + "".join(name for name in "qkv" if name in self.pair))(y)
            if self.by_head:
                both = both.unflatten(-1, (HEADS, 2, -1)).transpose(-2, -3).flatten(-3)
            made = dict(zip(self.pair, both.chunk(2, dim=-1), strict=True))
            made[single] = getattr(self, f"to_{single}")(y)
            x = x + self.to_out(_attend(made["q"], made["k"], made["v"], HEADS))
            return x + self.net(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        blocks = (self.Block(self.pair, self.by_head) for _ in range(DEPTH))
        self.transformer_encoder = nn.Sequential(*blocks)


class KeysByHead(FusedPair):
    by_head = True


class ValuesFirst(FusedPair):
    pair = "vk"


class QueriesWithKeys(FusedPair):
    pair = "kq"


class ThriceByHead(PaperReplicating):
    """q, k and v in one layer, head by head."""

    class Block(FusedPair.Block):
        def __init__(self) -> None:
            super().__init__("kv", by_head=True)
            del self.to_q, self.to_kv
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            both = self.qkv(self.norm1(x)).unflatten(-1, (HEADS, 3, -1))
            q, k, v = (both[..., step, :].flatten(-2) for step in range(3))
            x = x + self.to_out(_attend(q, k, v, HEADS))
            return x + self.net(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.transformer_encoder = nn.Sequential(*(self.Block() for _ in range(DEPTH)))


EQUAL = (HeadsAsModules, LanguageModelHabits, PaperReplicating, LightningNotebook, TorchEncoder)
EQUAL += (Mended, StoredSinusoid, OneNorm, Unnamed, MlpHead, ComputedSinusoid, SinusoidOfPatches)
EQUAL += (BareMatrices, FusedPair)
FUSED = (KeysByHead, ValuesFirst, QueriesWithKeys, ThriceByHead)
REFUSED = (PostNorm, SequentialOfSequentials, HeadsOfSlices, TwiceActivated)
SURPLUS = (LightningNotebook, StoredSinusoid, OneNorm, Unnamed, MlpHead, BareMatrices)
"""Those that keep more positions than they use."""
