# ruff: noqa: E501 (a row is a line, as in a table)
"""Spellings of projects, with the truth: the rows that a person would write, or has written since.

No draft knows the tables of `weights_map/`. `written` makes a checkpoint of a model by them, with
numpy-like code of its own, so that a draft is compared with what a person says and not with what
the package makes of it.
"""

import tomllib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.parity.team import TABLE
from tests.small_models import small_config
from vitconvert.config import ViTConfig
from vitconvert.tables.axes import Axes
from vitconvert.tables.canonical import canonical_tensors, expected_shapes, instances
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.expressions import Part, parse_expression
from vitconvert.tables.templates import Index

# Sizes of which no two are equal by chance.
SIZES: dict[str, Any] = {"image_size": (40, 40), "patch_size": (8, 8), "in_channels": 3}
SIZES |= {"embed_dim": 36, "depth": 11, "num_heads": 3, "head_dim": 12, "mlp_dim": 50}


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a project spells a ViT.

    Attributes:
        rows: Ours = theirs, as in a table.
        config: What is otherwise than in `SIZES`.
        words: As in a table.
        beside: Names and shapes of tensors that are no ViT's, or that no draft takes apart.
        undrafted: Ours that a table takes out of a larger array, which a draft leaves to people.
        ignore: Patterns of what is beside.
    """

    rows: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    beside: dict[str, tuple[int, ...]] = field(default_factory=dict)
    undrafted: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def vit(self, **changes: Any) -> ViTConfig:
        """A small model of theirs."""
        return small_config(**(SIZES | self.config | changes))

    def expressions(self) -> dict[str, str]:
        """The rows, with one for each of weight and bias."""
        return {
            name.replace("{p}", kind): text.replace("{p}", kind)
            for name, text in self.rows.items()
            for kind in (("weight", "bias") if "{p}" in name else ("",))
        }

    def written(self, tensors: dict[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
        """A model's tensors as the project keeps them."""
        found: dict[str, Tensor] = {}
        selected: dict[str, tuple[Axes, str, dict[int, Tensor]]] = {}
        sizes = config.axes()
        for name, several in instances(config).items():
            if not several or name in self.undrafted:
                continue
            text = self.expressions()[name]
            (alternative, *_) = parse_expression(text, self.words)
            axes = canonical_tensors()[name].axes
            for one in several:
                ours = tensors[one.name].reshape([sizes[axis] for axis in axes.names])
                for number, item in enumerate(alternative.items):
                    if not isinstance(item, Part):
                        continue
                    tensor, names = ours, list(axes.names)
                    if alternative.joined:
                        tensor, names = ours[number], names[1:]
                    layout = item.axes or (axes.step if alternative.joined else axes)
                    chosen = item.selection
                    wanted = [a for a in layout.names if not chosen or a != chosen.axis]
                    tensor = tensor.permute([names.index(axis) for axis in wanted])
                    key = item.key.write(one.indices)
                    if chosen:
                        steps = selected.setdefault(key, (layout, chosen.axis, {}))[2]
                        step = chosen.step
                        number = (
                            step.write(one.indices[step.name]) if isinstance(step, Index) else step
                        )
                        steps[number] = tensor
                    else:
                        found[key] = tensor.reshape(layout.shape(sizes)).contiguous()
        for key, (layout, axis, steps) in selected.items():
            place = layout.names.index(axis)
            whole = torch.stack([steps[step] for step in sorted(steps)], dim=place)
            found[key] = whole.reshape(layout.shape(sizes)).contiguous()
        return found


def weights(spelling: Spelling, config: ViTConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random numbers for every tensor of a model; a step that theirs leaves out is zero."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)
        for name, shape in expected_shapes(config).items()
    }
    for name, text in spelling.expressions().items():
        if "zeros" in text:
            for one in instances(config)[name]:
                found[one.name].view(3, -1)[1] = 0
    return found


def of_table(
    name: str, config: dict[str, Any] | None = None, undrafted: tuple[str, ...] = (), **more: Any
) -> Spelling:
    """A spelling that has a table by now: its rows are those of what such a model has."""
    table = builtin_tables()[name]
    has = instances(small_config(**(SIZES | (config or {}))))
    rows = {}
    for _, key, text in table.entries("rows"):
        kinds = [kind for kind in ("weight", "bias") if has.get(key.replace("{p}", kind))]
        kind = kinds[0] if len(kinds) == 1 else "{p}"  # a norm may have no bias
        if kinds and key not in undrafted:
            rows[key.replace("{p}", kind)] = text.replace("{p}", kind)
    return Spelling(rows=rows, words=table.words, config=config or {}, undrafted=undrafted, **more)


def _rows(text: str) -> dict[str, str]:
    """Lines of `ours = theirs`."""
    pairs = (line.split(" = ", 1) for line in text.strip().splitlines() if line.strip())
    return {ours.strip(): theirs.strip() for ours, theirs in pairs}


_SWIGLU = {"activation": "silu", "gated_mlp": True}
_EVA = {"attention_norm": True, "mlp_norm": True, "pooling": "avg", "final_norm": False}
_EVA |= {"fc_norm": True}
_PE = {"norm_eps": 1e-5, "pooling": "map", "pre_norm": True, "patch_bias": False}
_PE |= {"head_bias": False, "layer_scale": True, "pool_mlp_dim": 70, "pool_heads": 4}
_AIM = {
    "activation": "silu",
    "gated_mlp": True,
    "norm": "rms",
    "norm_bias": False,
    "norm_eps": 1e-5,
}
_AIM |= {"class_token": False, "patch_norm": True, "pooling": "none", "num_classes": 0}
_AIM |= {"qkv_bias": False, "proj_bias": False, "mlp_bias": False}

SPELLINGS: dict[str, Spelling] = {
    # formats2.md 2: mmpretrain 1.2.0, whose own names are in NAMES below
    "mmpretrain": of_table(
        "mmpretrain",
        config={"layer_scale": True, "representation_size": 20},
    ),
    # 3: transformers 4, Flax
    "flax": of_table("hf_flax_vit"),
    "tensorflow": of_table("hf_tf_vit"),
    # 6.1: mlx-image 0.1.10
    "mlx_image": of_table(
        "mlx_image",
        config={"norm_eps": 1e-5},
    ),
    # 5.1: keras-hub 0.32, the paths of its variables in memory, counted from 1
    "keras_hub": Spelling(
        rows=_rows("""
            cls_token = vi_t_patching_and_embedding/class_token
            pos_embed = vi_t_patching_and_embedding/position_embedding/embeddings : position width
            patch_embed.proj.weight = vi_t_patching_and_embedding/patch_embedding/kernel : y x channel width
            patch_embed.proj.bias = vi_t_patching_and_embedding/patch_embedding/bias
            blocks.{i}.norm1.weight = vit_encoder/transformer_block_{i+1}/ln_1/gamma
            blocks.{i}.norm1.bias = vit_encoder/transformer_block_{i+1}/ln_1/beta
            blocks.{i}.attn.qkv.weight = cat(vit_encoder/transformer_block_{i+1}/mha/query/kernel : width head dim, vit_encoder/transformer_block_{i+1}/mha/key/kernel : width head dim, vit_encoder/transformer_block_{i+1}/mha/value/kernel : width head dim)
            blocks.{i}.attn.qkv.bias = cat(vit_encoder/transformer_block_{i+1}/mha/query/bias : head dim, vit_encoder/transformer_block_{i+1}/mha/key/bias : head dim, vit_encoder/transformer_block_{i+1}/mha/value/bias : head dim)
            blocks.{i}.attn.proj.weight = vit_encoder/transformer_block_{i+1}/mha/attention_output/kernel : head dim width
            blocks.{i}.attn.proj.bias = vit_encoder/transformer_block_{i+1}/mha/attention_output/bias
            blocks.{i}.norm2.weight = vit_encoder/transformer_block_{i+1}/ln_2/gamma
            blocks.{i}.norm2.bias = vit_encoder/transformer_block_{i+1}/ln_2/beta
            blocks.{i}.mlp.fc1.weight = vit_encoder/transformer_block_{i+1}/mlp/dense_1/kernel : width hidden
            blocks.{i}.mlp.fc1.bias = vit_encoder/transformer_block_{i+1}/mlp/dense_1/bias
            blocks.{i}.mlp.fc2.weight = vit_encoder/transformer_block_{i+1}/mlp/dense_2/kernel : hidden width
            blocks.{i}.mlp.fc2.bias = vit_encoder/transformer_block_{i+1}/mlp/dense_2/bias
            norm.weight = vit_encoder/ln/gamma
            norm.bias = vit_encoder/ln/beta
            head.weight = predictions/kernel : feature label
            head.bias = predictions/bias
        """),
    ),
    # 9: EVA-02, EVA-CLIP of BAAI (rotary embedding, whose buffers play no part)
    "eva02": Spelling(
        config={**_SWIGLU, **_EVA, "rope": "axial", "rope_indexing": "ij"},
        rows=_rows("""
            cls_token = cls_token
            pos_embed = pos_embed
            patch_embed.proj.{p} = patch_embed.proj.{p}
            blocks.{i}.norm1.{p} = blocks.{i}.norm1.{p}
            blocks.{i}.attn.qkv.weight = cat(blocks.{i}.attn.q_proj.weight, blocks.{i}.attn.k_proj.weight, blocks.{i}.attn.v_proj.weight)
            blocks.{i}.attn.qkv.bias = cat(blocks.{i}.attn.q_bias, zeros, blocks.{i}.attn.v_bias)
            blocks.{i}.attn.norm.{p} = blocks.{i}.attn.inner_attn_ln.{p}
            blocks.{i}.attn.proj.{p} = blocks.{i}.attn.proj.{p}
            blocks.{i}.norm2.{p} = blocks.{i}.norm2.{p}
            blocks.{i}.mlp.fc1_g.{p} = blocks.{i}.mlp.w1.{p}
            blocks.{i}.mlp.fc1.{p} = blocks.{i}.mlp.w2.{p}
            blocks.{i}.mlp.norm.{p} = blocks.{i}.mlp.ffn_ln.{p}
            blocks.{i}.mlp.fc2.{p} = blocks.{i}.mlp.w3.{p}
            fc_norm.{p} = norm.{p}
            head.{p} = head.{p}
        """),
        beside={"mask_token": (1, 1, 36), "rope.freqs_cos": (25, 12), "rope.freqs_sin": (25, 12)},
    ),
    # 9: Perception Encoder of Meta (its rotary embedding leaves no trace)
    "perception_encoder": Spelling(
        config=_PE,
        rows=_rows("""
            cls_token = visual.class_embedding : width
            pos_embed = visual.positional_embedding : position width
            patch_embed.proj.weight = visual.conv1.weight
            norm_pre.{p} = visual.ln_pre.{p}
            blocks.{i}.norm1.{p} = visual.transformer.resblocks.{i}.ln_1.{p}
            blocks.{i}.attn.qkv.weight = visual.transformer.resblocks.{i}.attn.in_proj_weight
            blocks.{i}.attn.qkv.bias = visual.transformer.resblocks.{i}.attn.in_proj_bias
            blocks.{i}.attn.proj.{p} = visual.transformer.resblocks.{i}.attn.out_proj.{p}
            blocks.{i}.ls1.gamma = visual.transformer.resblocks.{i}.ls_1.gamma
            blocks.{i}.norm2.{p} = visual.transformer.resblocks.{i}.ln_2.{p}
            blocks.{i}.mlp.fc1.{p} = visual.transformer.resblocks.{i}.mlp.c_fc.{p}
            blocks.{i}.mlp.fc2.{p} = visual.transformer.resblocks.{i}.mlp.c_proj.{p}
            blocks.{i}.ls2.gamma = visual.transformer.resblocks.{i}.ls_2.gamma
            norm.{p} = visual.ln_post.{p}
            attn_pool.latent = visual.attn_pool.probe
            attn_pool.q.weight = visual.attn_pool.attn.in_proj_weight[qkv=0] : (qkv pool_head pool_dim) width
            attn_pool.q.bias = visual.attn_pool.attn.in_proj_bias[qkv=0] : (qkv pool_head pool_dim)
            attn_pool.kv.weight = cat(visual.attn_pool.attn.in_proj_weight[qkv=1] : (qkv pool_head pool_dim) width, visual.attn_pool.attn.in_proj_weight[qkv=2] : (qkv pool_head pool_dim) width)
            attn_pool.kv.bias = cat(visual.attn_pool.attn.in_proj_bias[qkv=1] : (qkv pool_head pool_dim), visual.attn_pool.attn.in_proj_bias[qkv=2] : (qkv pool_head pool_dim))
            attn_pool.proj.{p} = visual.attn_pool.attn.out_proj.{p}
            attn_pool.norm.{p} = visual.attn_pool.layernorm.{p}
            attn_pool.mlp.fc1.{p} = visual.attn_pool.mlp.c_fc.{p}
            attn_pool.mlp.fc2.{p} = visual.attn_pool.mlp.c_proj.{p}
            head.weight = visual.proj : feature label
        """),
        beside={"logit_scale": (), "text_projection": (36, 36), "transformer.text.ln": (36,)},
        ignore=("text_projection", "transformer.text.*"),
    ),
    # 9: RADIO; its first tokens are steps of one array, as hf_radio.toml has them
    "radio": Spelling(
        config={"num_registers": 4, "final_norm": False, "num_classes": 0, "patch_bias": False}
        | {"no_embed_class": True, "image_size": (128, 128)},
        rows=_rows("""
            pos_embed = radio_model.model.patch_generator.pos_embed
            patch_embed.proj.weight = radio_model.model.patch_generator.embedder.weight : width (channel y x)
            blocks.{i}.norm1.{p} = radio_model.model.blocks.{i}.norm1.{p}
            blocks.{i}.attn.qkv.{p} = radio_model.model.blocks.{i}.attn.qkv.{p}
            blocks.{i}.attn.proj.{p} = radio_model.model.blocks.{i}.attn.proj.{p}
            blocks.{i}.norm2.{p} = radio_model.model.blocks.{i}.norm2.{p}
            blocks.{i}.mlp.fc1.{p} = radio_model.model.blocks.{i}.mlp.fc1.{p}
            blocks.{i}.mlp.fc2.{p} = radio_model.model.blocks.{i}.mlp.fc2.{p}
        """),
        beside={
            "radio_model.model.patch_generator.cls_token.token": (5, 36),
            "radio_model.input_conditioner.norm_mean": (3, 1, 1),
            "radio_model.input_conditioner.norm_std": (3, 1, 1),
            "radio_model.summary_idxs": (3,),
        },
        undrafted=("cls_token", "reg_token"),
    ),
    # 9: AIMv2 of Apple
    "aimv2": of_table(
        "aimv2",
        config=_AIM,
    ),
    # 9: BEiT-3 of Microsoft; its positions begin after two rows, as beit3.toml has them
    "beit3": of_table(
        "beit3",
        config={**_EVA, "norm_eps": 1e-5},
        beside={
            "beit3.encoder.embed_positions.A.weight": (28, 36),
            "beit3.text_embed.weight": (99, 36),
            "beit3.vision_embed.mask_token": (1, 1, 36),
            **{
                f"beit3.encoder.layers.{i}.{name}.B.{kind}": (36,) if kind == "bias" else shape
                for i in range(11)
                for name, shape in (
                    ("self_attn_layer_norm", (36,)),
                    ("self_attn.q_proj", (36, 36)),
                    ("self_attn.out_proj", (36, 36)),
                )
                for kind in ("weight", "bias")
            },
        },
        undrafted=("pos_embed",),
    ),
    # 8: SAM without what a plain ViT lacks: relative positions in every block, and a neck
    "sam": Spelling(
        config={"class_token": False, "pooling": "avg", "num_classes": 0, "final_norm": False},
        rows=_rows("""
            patch_embed.proj.{p} = image_encoder.patch_embed.proj.{p}
            blocks.{i}.norm1.{p} = image_encoder.blocks.{i}.norm1.{p}
            blocks.{i}.attn.qkv.{p} = image_encoder.blocks.{i}.attn.qkv.{p}
            blocks.{i}.attn.proj.{p} = image_encoder.blocks.{i}.attn.proj.{p}
            blocks.{i}.norm2.{p} = image_encoder.blocks.{i}.norm2.{p}
            blocks.{i}.mlp.fc1.{p} = image_encoder.blocks.{i}.mlp.lin1.{p}
            blocks.{i}.mlp.fc2.{p} = image_encoder.blocks.{i}.mlp.lin2.{p}
        """),
        beside={
            "image_encoder.pos_embed": (1, 5, 5, 36),
            "image_encoder.neck.0.weight": (16, 36, 1, 1),
            "image_encoder.neck.1.weight": (16,),
            "image_encoder.neck.1.bias": (16,),
            **{
                f"image_encoder.blocks.{i}.attn.rel_pos_{a}": (9, 12)
                for i in range(11)
                for a in "hw"
            },
        },
        undrafted=("pos_embed",),
    ),
    # 9: Sapiens 2 of Meta without shared heads; gate and value are one matrix
    "sapiens2": Spelling(
        config={**_SWIGLU, "num_registers": 3, "layer_scale": True, "mlp_layer_scale": False}
        | {"norm": "rms", "norm_bias": False, "register_positions": True},
        rows=_rows("""
            cls_token = cls_token
            reg_token = storage_tokens
            pos_embed = pos_embed
            patch_embed.proj.{p} = patch_embed.projection.{p}
            blocks.{i}.norm1.weight = blocks.{i}.ln1.weight
            blocks.{i}.attn.qkv.{p} = cat(blocks.{i}.attn.wq.{p}, blocks.{i}.attn.wk.{p}, blocks.{i}.attn.wv.{p})
            blocks.{i}.attn.proj.{p} = blocks.{i}.attn.proj.{p}
            blocks.{i}.ls1.gamma = blocks.{i}.attn.gamma.weight
            blocks.{i}.norm2.weight = blocks.{i}.ln2.weight
            blocks.{i}.mlp.fc1_g.weight = blocks.{i}.ffn.w12.weight[gate=0] : (gate hidden) width
            blocks.{i}.mlp.fc1_g.bias = blocks.{i}.ffn.w12.bias[gate=0] : (gate hidden)
            blocks.{i}.mlp.fc1.weight = blocks.{i}.ffn.w12.weight[gate=1] : (gate hidden) width
            blocks.{i}.mlp.fc1.bias = blocks.{i}.ffn.w12.bias[gate=1] : (gate hidden)
            blocks.{i}.mlp.fc2.{p} = blocks.{i}.ffn.w3.{p}
            norm.weight = ln1.weight
            head.{p} = head.{p}
        """),
    ),
    # 12: mmproj of llama.cpp, once it is read
    "gguf": Spelling(
        config={
            "pre_norm": True,
            "patch_bias": False,
            "num_classes": 0,
            "activation": "quick_gelu",
        },
        rows=_rows("""
            cls_token = v.class_embd : width
            pos_embed = v.position_embd.weight : position width
            patch_embed.proj.weight = v.patch_embd.weight
            norm_pre.{p} = v.pre_ln.{p}
            blocks.{i}.norm1.{p} = v.blk.{i}.ln1.{p}
            blocks.{i}.attn.qkv.{p} = cat(v.blk.{i}.attn_q.{p}, v.blk.{i}.attn_k.{p}, v.blk.{i}.attn_v.{p})
            blocks.{i}.attn.proj.{p} = v.blk.{i}.attn_out.{p}
            blocks.{i}.norm2.{p} = v.blk.{i}.ln2.{p}
            blocks.{i}.mlp.fc1.{p} = v.blk.{i}.ffn_up.{p}
            blocks.{i}.mlp.fc2.{p} = v.blk.{i}.ffn_down.{p}
            norm.{p} = v.post_ln.{p}
        """),
        beside={"mm.0.weight": (80, 36), "mm.0.bias": (80,)},
        ignore=("mm.*",),
    ),
}

# The made-up team of tests/parity, whose words nobody has.
_TEAM = tomllib.loads(TABLE)
SPELLINGS["team"] = Spelling(
    rows={
        name: text.replace("{attn}", "layers.{i}.attention").replace("{part}", "layers.{i}")
        for name, text in _TEAM["rows"].items()
    }
)

# formats2.md 1.6 and 2, PyTorch's own encoder, and what people make.
_BARE = {"norm": "rms", "norm_bias": False, "norm_eps": 1e-5, "class_token": False}
_BARE |= {"pooling": "none", "num_classes": 0, "patch_bias": False, "pre_norm": True}
_BARE |= {"final_norm": False, "qkv_bias": False, "proj_bias": False, "mlp_bias": False}
_BARE |= {"position_embedding": "none", "rope": "axial"}
SPELLINGS |= {
    "pixtral": Spelling(
        config={**_SWIGLU, **_BARE},
        rows=_rows("""
            patch_embed.proj.weight = vision_tower.patch_conv.weight
            norm_pre.weight = vision_tower.ln_pre.weight
            blocks.{i}.norm1.weight = {at}.attention_norm.weight
            blocks.{i}.attn.qkv.weight = cat({at}.attention.q_proj.weight, {at}.attention.k_proj.weight, {at}.attention.v_proj.weight)
            blocks.{i}.attn.proj.weight = {at}.attention.o_proj.weight
            blocks.{i}.norm2.weight = {at}.ffn_norm.weight
            blocks.{i}.mlp.fc1_g.weight = {at}.feed_forward.gate_proj.weight
            blocks.{i}.mlp.fc1.weight = {at}.feed_forward.up_proj.weight
            blocks.{i}.mlp.fc2.weight = {at}.feed_forward.down_proj.weight
        """),
        words={"at": ("vision_tower.transformer.layers.{i}",)},
    ),
    "mmseg": of_table(
        "mmseg",
        config={"num_classes": 0},
        beside={"decode_head.conv_seg.weight": (9, 36, 1, 1), "decode_head.conv_seg.bias": (9,)}
        | {"auxiliary_head.x.weight": (36, 36)},
        ignore=("decode_head.*", "auxiliary_head.*"),
    ),
    "torch_encoder": Spelling(
        rows=_rows("""
            cls_token = tok
            pos_embed = pe : position width
            patch_embed.proj.{p} = to_patches.{p}
            blocks.{i}.norm1.{p} = enc.layers.{i}.norm1.{p}
            blocks.{i}.attn.qkv.weight = enc.layers.{i}.self_attn.in_proj_weight
            blocks.{i}.attn.qkv.bias = enc.layers.{i}.self_attn.in_proj_bias
            blocks.{i}.attn.proj.{p} = enc.layers.{i}.self_attn.out_proj.{p}
            blocks.{i}.norm2.{p} = enc.layers.{i}.norm2.{p}
            blocks.{i}.mlp.fc1.{p} = enc.layers.{i}.linear1.{p}
            blocks.{i}.mlp.fc2.{p} = enc.layers.{i}.linear2.{p}
            norm.{p} = enc.norm.{p}
            head.{p} = out.{p}
        """),
    ),
    "nested": Spelling(
        rows=_rows("""
            cls_token = net.cls
            pos_embed = net.pos
            patch_embed.proj.{p} = net.embed.1.{p}
            blocks.{i}.norm1.{p} = net.body.{i}.0.fn.0.{p}
            blocks.{i}.attn.qkv.{p} = net.body.{i}.0.fn.1.all.{p}
            blocks.{i}.attn.proj.{p} = net.body.{i}.0.fn.1.fc.{p}
            blocks.{i}.norm2.{p} = net.body.{i}.1.fn.0.{p}
            blocks.{i}.mlp.fc1.{p} = net.body.{i}.1.fn.1.{p}
            blocks.{i}.mlp.fc2.{p} = net.body.{i}.1.fn.3.{p}
            norm.{p} = net.head.0.{p}
            head.{p} = net.head.1.{p}
        """),
    ),
    "alternating": Spelling(
        rows=_rows("""
            cls_token = cls
            pos_embed = position
            patch_embed.proj.{p} = patchify.{p}
            blocks.{i}.norm1.{p} = seq.{2*i}.ln.{p}
            blocks.{i}.attn.qkv.{p} = cat(seq.{2*i}.to_queries.{p}, seq.{2*i}.to_keys.{p}, seq.{2*i}.to_values.{p})
            blocks.{i}.attn.proj.{p} = seq.{2*i}.unify.{p}
            blocks.{i}.norm2.{p} = seq.{2*i+1}.ln.{p}
            blocks.{i}.mlp.fc1.{p} = seq.{2*i+1}.expand.{p}
            blocks.{i}.mlp.fc2.{p} = seq.{2*i+1}.contract.{p}
            norm.{p} = ln_out.{p}
            head.{p} = cls_head.{p}
        """),
    ),
    # blocks stacked in one array, as big_vision's scan has them
    "stacked": Spelling(
        rows=_rows("""
            cls_token = params/cls
            pos_embed = params/posemb
            patch_embed.proj.weight = params/stem/kernel : y x channel width
            patch_embed.proj.bias = params/stem/bias
            blocks.{i}.norm1.weight = params/blocks/ln_attn/scale[layer={i}] : layer width
            blocks.{i}.norm1.bias = params/blocks/ln_attn/bias[layer={i}] : layer width
            blocks.{i}.attn.qkv.weight = cat({at}/query/kernel[layer={i}] : layer width head dim, {at}/key/kernel[layer={i}] : layer width head dim, {at}/value/kernel[layer={i}] : layer width head dim)
            blocks.{i}.attn.qkv.bias = cat({at}/query/bias[layer={i}] : layer head dim, {at}/key/bias[layer={i}] : layer head dim, {at}/value/bias[layer={i}] : layer head dim)
            blocks.{i}.attn.proj.weight = {at}/out/kernel[layer={i}] : layer head dim width
            blocks.{i}.attn.proj.bias = {at}/out/bias[layer={i}] : layer width
            blocks.{i}.norm2.weight = params/blocks/ln_ffn/scale[layer={i}] : layer width
            blocks.{i}.norm2.bias = params/blocks/ln_ffn/bias[layer={i}] : layer width
            blocks.{i}.mlp.fc1.weight = params/blocks/ffn/up/kernel[layer={i}] : layer width hidden
            blocks.{i}.mlp.fc1.bias = params/blocks/ffn/up/bias[layer={i}] : layer hidden
            blocks.{i}.mlp.fc2.weight = params/blocks/ffn/down/kernel[layer={i}] : layer hidden width
            blocks.{i}.mlp.fc2.bias = params/blocks/ffn/down/bias[layer={i}] : layer width
            norm.weight = params/final_ln/scale
            norm.bias = params/final_ln/bias
            head.weight = params/logits/kernel : feature label
            head.bias = params/logits/bias
        """),
        words={"at": ("params/blocks/att",)},
    ),
}
