"""Checkpoints of Google, big_vision and jeonsworld, by hand from their sources."""

from functools import partial

from tests.tables.specimens.specimen import PLAIN, STEM, USER, Shapes, Specimen, linear

GOOGLE = PLAIN | {"image_size": (24, 18), "patch_size": (8, 6), "in_channels": 4}
BIG_VISION = PLAIN | {"embed_dim": 32, "num_heads": 4, "head_dim": 8}


def google_block(block: str, numbers: tuple[int, int, int, int]) -> Shapes:
    """Width 30, 3 heads of 10, MLP 50."""
    norm1, attention, norm2, mlp = numbers
    mha, dense = f"{block}/MultiHeadDotProductAttention_{attention}", f"{block}/MlpBlock_{mlp}"
    shapes: Shapes = {}
    for number in (norm1, norm2):
        shapes |= scale(f"{block}/LayerNorm_{number}", 30)
    for part in ("query", "key", "value"):
        shapes |= {f"{mha}/{part}/kernel": (30, 3, 10), f"{mha}/{part}/bias": (3, 10)}
    shapes |= kernel(f"{mha}/out", (3, 10, 30))
    return shapes | kernel(f"{dense}/Dense_0", (30, 50)) | kernel(f"{dense}/Dense_1", (50, 30))


def scale(name: str, *shape: int) -> Shapes:
    return {f"{name}/scale": shape, f"{name}/bias": shape}


def kernel(name: str, shape: tuple[int, ...]) -> Shapes:
    return {f"{name}/kernel": shape, f"{name}/bias": shape[-1:]}


OLD, LINEN = (0, 1, 2, 3), (0, 0, 1, 0)


def google(
    numbers: tuple[int, int, int, int] = OLD,
    *,
    depth: int = 11,
    cls: bool = True,
    positions: bool = True,
    pre_logits: bool = False,
    patch: tuple[int, ...] = (8, 6, 4),
) -> Shapes:
    shapes = kernel("embedding", (*patch, 30))
    if cls:
        shapes["cls"] = (1, 1, 30)
    if positions:
        shapes["Transformer/posembed_input/pos_embedding"] = (1, 9 + cls, 30)
    for i in range(depth):
        shapes |= google_block(f"Transformer/encoderblock_{i}", numbers)
    shapes |= scale("Transformer/encoder_norm", 30)
    if pre_logits:
        shapes |= kernel("pre_logits", (30, 20))
    return shapes | kernel("head", (20 if pre_logits else 30, 7))


def google_hybrid(ones: tuple[int, ...]) -> Shapes:
    """A stem of two stages, 1 and 2 units deep. `ones`: (1, 1, 1) for the old files."""
    shapes = google(patch=(1, 1, 256), depth=2)
    shapes["conv_root/kernel"] = (7, 7, 3, 32)
    shapes |= scale("gn_root", *ones, 32)
    reads = {(1, 1): 32, (2, 1): 128, (2, 2): 256}
    for (stage, unit), width in reads.items():
        name, mid = f"block{stage}/unit{unit}", 32 * stage
        shapes |= {f"{name}/conv1/kernel": (1, 1, width, mid)}
        shapes |= {f"{name}/conv2/kernel": (3, 3, mid, mid)}
        shapes |= {f"{name}/conv3/kernel": (1, 1, mid, 4 * mid)}
        shapes |= scale(f"{name}/gn1", *ones, mid) | scale(f"{name}/gn2", *ones, mid)
        shapes |= scale(f"{name}/gn3", *ones, 4 * mid)
        if unit == 1:
            shapes |= {f"{name}/conv_proj/kernel": (1, 1, width, 4 * mid)}
            shapes |= scale(f"{name}/gn_proj", *ones, 4 * mid)
    return shapes


def big_vision(
    prefix: str = "",
    *,
    cls: bool = False,
    pool: bool = False,
    pool_hidden: int = 55,
    positions: str = "pos_embedding",
) -> Shapes:
    shapes = kernel("embedding", (8, 8, 3, 32))
    if cls:
        shapes["cls"] = (1, 1, 32)
    if positions:
        shapes[positions] = (1, 9, 32)
    for i in range(11):
        block = google_block(f"Transformer/encoderblock_{i}", LINEN)
        shapes |= {name: widened(shape) for name, shape in block.items()}
    shapes |= scale("Transformer/encoder_norm", 32)
    if pool:
        mha = "MAPHead_0/MultiHeadDotProductAttention_0"
        shapes["MAPHead_0/probe"] = (1, 1, 32)
        for part in ("query", "key", "value"):
            shapes |= {f"{mha}/{part}/kernel": (32, 4, 8), f"{mha}/{part}/bias": (4, 8)}
        shapes |= kernel(f"{mha}/out", (4, 8, 32)) | scale("MAPHead_0/LayerNorm_0", 32)
        shapes |= kernel("MAPHead_0/MlpBlock_0/Dense_0", (32, pool_hidden))
        shapes |= kernel("MAPHead_0/MlpBlock_0/Dense_1", (pool_hidden, 32))
    shapes |= kernel("head", (32, 7))
    return {prefix + name: shape for name, shape in shapes.items()}


def widened(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Width 32 with 4 heads of 8."""
    return tuple({30: 32, 3: 4, 10: 8}.get(size, size) for size in shape)


def scanned(shapes: Shapes) -> Shapes:
    """The arrays of eleven blocks as one."""
    stacked = {}
    for name, shape in shapes.items():
        if "encoderblock_0/" in name:
            stacked[name.replace("encoderblock_0/", "encoderblock/")] = (11, *shape)
        elif "encoderblock_" not in name:
            stacked[name] = shape
    return stacked


def jeonsworld(*, hybrid: bool = False) -> Shapes:
    base = "transformer.embeddings"
    patch = (30, 256, 1, 1) if hybrid else (30, 4, 8, 6)
    shapes = {f"{base}.cls_token": (1, 1, 30), f"{base}.position_embeddings": (1, 10, 30)}
    shapes |= linear(f"{base}.patch_embeddings", *patch)
    shapes[f"{base}.patch_embeddings.bias"] = (30,)
    if hybrid:
        shapes |= jeonsworld_stem(f"{base}.hybrid_model")
    for i in range(2 if hybrid else 11):
        layer = f"transformer.encoder.layer.{i}"
        shapes |= linear(f"{layer}.attention_norm", 30) | linear(f"{layer}.ffn_norm", 30)
        for part in ("query", "key", "value", "out"):
            shapes |= linear(f"{layer}.attn.{part}", 30, 30)
        shapes |= linear(f"{layer}.ffn.fc1", 50, 30) | linear(f"{layer}.ffn.fc2", 30, 50)
    return shapes | linear("transformer.encoder.encoder_norm", 30) | linear("head", 7, 30)


def jeonsworld_stem(base: str) -> Shapes:
    shapes: Shapes = {f"{base}.root.conv.weight": (32, 3, 7, 7), **linear(f"{base}.root.gn", 32)}
    for (stage, unit), width in {(1, 1): 32, (2, 1): 128, (2, 2): 256}.items():
        name, mid = f"{base}.body.block{stage}.unit{unit}", 32 * stage
        shapes |= {f"{name}.conv1.weight": (mid, width, 1, 1)}
        shapes |= {f"{name}.conv2.weight": (mid, mid, 3, 3)}
        shapes |= {f"{name}.conv3.weight": (4 * mid, mid, 1, 1)}
        shapes |= linear(f"{name}.gn1", mid) | linear(f"{name}.gn2", mid)
        shapes |= linear(f"{name}.gn3", 4 * mid)
        if unit == 1:
            shapes |= {f"{name}.downsample.weight": (4 * mid, width, 1, 1)}
            shapes |= linear(f"{name}.gn_proj", 4 * mid)
    return shapes


GOOGLE_LIKE = {
    "google": Specimen(
        dialect="google_jax",
        make=google,
        expected=GOOGLE | {"pooling": "token", "activation": "gelu_tanh", "no_embed_class": False},
    ),
    "google with pre_logits": Specimen(
        dialect="google_jax",
        make=partial(google, pre_logits=True),
        expected=GOOGLE | {"representation_size": 20},
    ),
    "google, mean of patches": Specimen(
        dialect="google_jax",
        make=partial(google, cls=False),
        expected=GOOGLE | {"pooling": "avg", "class_token": False},
    ),
    "google without positions": Specimen(
        dialect="google_jax",
        make=partial(google, positions=False),
        stated={"image_size": (24, 18)},
        expected=GOOGLE | {"position_embedding": "none"},
    ),
    "google, counted by class": Specimen(
        dialect="google_jax_linen",
        make=partial(google, LINEN),
        expected=GOOGLE | {"pooling": "token"},
    ),
    "google hybrid": Specimen(
        dialect="google_jax",
        make=partial(google_hybrid, ()),
        expected=STEM | {"stem_depths": (1, 2), "stem_style": "google", "image_size": (24, 24)},
    ),
    "google hybrid, old norms": Specimen(
        dialect="google_jax",
        make=partial(google_hybrid, (1, 1, 1)),
        expected=STEM | {"stem_depths": (1, 2)},
        squeezed=True,
    ),
    "big_vision token": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "params/", cls=True),
        expected=BIG_VISION | {"pooling": "token", "no_embed_class": True},
    ),
    "big_vision mean": Specimen(
        dialect="big_vision",
        make=partial(big_vision, positions="Transformer/pos_embedding"),
        expected=BIG_VISION | {"pooling": "avg", "class_token": False},
        rewritten=lambda name: "params/" + name.replace("Transformer/pos_", "pos_"),
    ),
    "big_vision pooled by attention": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "opt/target/", pool=True),
        expected=BIG_VISION | {"pooling": "map", "pool_heads": 4, "pool_mlp_dim": 55},
        rewritten=lambda name: name.replace("opt/target/", "params/"),
    ),
    "big_vision, computed positions": Specimen(
        dialect="big_vision",
        make=partial(big_vision, "params/", pool=True, positions=""),
        stated={"image_size": (24, 40)},
        expected=BIG_VISION | {"position_embedding": "sincos2d", "image_size": (24, 40)},
    ),
    "big_vision scanned": Specimen(
        dialect="big_vision_scan",
        make=lambda: scanned(big_vision("params/", pool=True)),
        expected=BIG_VISION | {"pooling": "map", "depth": 11},
    ),
    "jeonsworld": Specimen(
        dialect="jeonsworld",
        make=jeonsworld,
        stated=USER,
        expected=GOOGLE | {"activation": "gelu", "pooling": "token"},
    ),
    "jeonsworld hybrid": Specimen(
        dialect="jeonsworld",
        make=partial(jeonsworld, hybrid=True),
        stated=USER,
        expected=STEM | {"stem_depths": (1, 2), "stem_style": "jeonsworld"},
    ),
}
