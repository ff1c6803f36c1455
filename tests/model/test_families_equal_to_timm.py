"""Architectures of timm's registry, narrow and two blocks deep, compute what timm computes."""

import copy
import itertools
import re

import pytest
import torch

from tests.packages import timm
from tests.sampling import sampled
from vitconvert.config import ViTConfig
from vitconvert.model import ViT

# The narrow model that every architecture becomes: 4 patches down, 3 across; 4 heads of 12.
SMALL = {
    "in_channels": 3,
    "num_classes": 7,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 4,
    "head_dim": 12,
    "mlp_dim": 192,
    "activation": "gelu",
    "norm_eps": 1e-6,
}
CLASS = {"pooling": "token"}
AVERAGE = {"pooling": "avg", "final_norm": False, "fc_norm": True}
SCALED = {"layer_scale": True}
NO_BIAS = {"qkv_bias": False}
UNPLACED = {"position_embedding": "none"}
PLACED_PATCHES = {"position_embedding": "learned", "no_embed_class": True}
EPS5 = {"norm_eps": 1e-5}
SWIGLU = {"gated_mlp": True, "activation": "silu", "mlp_dim": 128}
RMS = {"norm": "rms", "norm_bias": False}
MLP_NORM = {"mlp_norm": True}
BOTH_NORMS = {"mlp_norm": True, "attention_norm": True}
POST = {"block_order": "res_post_norm"}


def registers(number):
    return {"num_registers": number}


def hidden(width):
    return {"mlp_dim": width}


def axial(reference, offset=0.0, indexing="ij"):
    return {
        "rope": "axial",
        "rope_reference": reference,
        "rope_offset": offset,
        "rope_indexing": indexing,
    }


DINOV2 = CLASS | SWIGLU | SCALED
EVA02 = SWIGLU | axial((16, 16))
ROPE_REG = AVERAGE | UNPLACED | SCALED | axial((16, 16)) | {"class_token": False}
PE = EPS5 | {"pre_norm": True, "patch_bias": False, "pooling": "avg", "final_norm": False}
PE_CORE = PE | {"pooling": "map", "final_norm": True, "pool_heads": 8, "pool_include_prefix": True}
ROPE_VIT = CLASS | SCALED | UNPLACED | axial((), indexing="xy") | {"rope_temperature": 100.0}
MIXED = ROPE_VIT | {"rope": "mixed"}
DINOV3 = (
    EPS5
    | SCALED
    | UNPLACED
    | registers(4)
    | {"pooling": "avg", "rope": "dinov3", "rope_temperature": 100.0, "rope_half": True}
)
SAPIENS2 = (
    CLASS
    | SCALED
    | UNPLACED
    | RMS
    | SWIGLU
    | registers(8)
    | hidden(192)
    | {"qk_norm": True, "kv_heads": (2, 4), "mlp_layer_scale": False}
    | {"rope": "dinov3", "rope_temperature": 100.0, "rope_half": True}
)
PARALLEL = {"block_order": "parallel"}
WEE = AVERAGE | SCALED | PLACED_PATCHES | registers(1) | hidden(240) | {"class_token": False}
BEIT = AVERAGE | SCALED | UNPLACED | {"relative_positions": "block"}

# timm's architecture: (patch size, fields of ViTConfig)
FAMILIES = {
    "vit_giant_patch14_dinov2": (14, DINOV2),
    "vit_giant_patch14_reg4_dinov2": (14, DINOV2 | registers(4) | {"no_embed_class": True}),
    "aimv2_large_patch14_224": (
        14,
        SWIGLU
        | RMS
        | EPS5
        | NO_BIAS
        | hidden(132)
        | {"proj_bias": False, "mlp_bias": False, "patch_norm": True}
        | {"pooling": "avg", "class_token": False},
    ),
    "beit3_base_patch16_224": (16, AVERAGE | EPS5 | BOTH_NORMS),
    "eva_giant_patch14_224": (14, AVERAGE | hidden(209)),
    "eva_giant_patch14_clip_224": (14, CLASS | hidden(209)),
    "eva02_tiny_patch14_224": (14, AVERAGE | EVA02),
    "eva02_base_patch14_224": (14, AVERAGE | EVA02 | MLP_NORM),
    "eva02_base_patch16_clip_224": (16, CLASS | EVA02 | BOTH_NORMS),
    "eva02_enormous_patch14_clip_224": (14, CLASS | POST | hidden(411)),
    "vit_medium_patch16_rope_reg1_gap_256": (16, ROPE_REG | registers(1)),
    "vit_mediumd_patch16_rope_reg1_gap_256": (16, ROPE_REG | registers(1) | NO_BIAS),
    "vit_betwixt_patch16_rope_reg4_gap_256": (16, ROPE_REG | registers(4)),
    "vit_pe_core_base_patch16_224": (16, PE_CORE | axial((14, 14), 1.0, "xy")),
    "vit_pe_core_gigantic_patch14_448": (
        14,
        PE_CORE
        | axial((32, 32), 0.0, "xy")
        | hidden(280)
        | {"class_token": False, "pool_mlp_dim": 192},
    ),
    "vit_pe_lang_large_patch14_448": (14, PE | SCALED | axial((32, 32), 1.0, "xy")),
    "vit_pe_spatial_tiny_patch16_512": (16, PE | axial((32, 32), 1.0, "xy")),
    "vit_small_patch16_rope_224": (16, ROPE_VIT),
    "vit_small_patch16_rope_ape_224": (16, ROPE_VIT | PLACED_PATCHES),
    "vit_small_patch16_rope_mixed_224": (16, MIXED),
    "vit_small_patch16_rope_mixed_ape_224": (16, MIXED | PLACED_PATCHES),
    "vit_small_patch16_dinov3": (16, DINOV3 | NO_BIAS),
    "vit_small_patch16_dinov3_qkvb": (16, DINOV3),
    "vit_small_plus_patch16_dinov3": (16, DINOV3 | NO_BIAS | SWIGLU | hidden(192)),
    "vit_7b_patch16_dinov3": (16, DINOV3 | NO_BIAS | SWIGLU),
    "vit_small_patch16_lingbot": (16, DINOV3 | CLASS),
    "vit_giant_patch16_lingbot": (16, DINOV3 | CLASS | NO_BIAS | SWIGLU),
    "beit_base_patch16_224": (16, BEIT),
    "beitv2_base_patch16_224": (16, BEIT),
    "vit_base_patch16_rpn_224": (16, AVERAGE | POST | NO_BIAS | {"class_token": False}),
    "vit_small_patch16_18x2_224": (16, CLASS | SCALED | {"branches": 2}),
    "vit_base_patch16_xp_224": (
        16,
        CLASS
        | RMS
        | NO_BIAS
        | PARALLEL
        | {"qk_norm": True, "pre_norm": True, "patch_bias": False, "no_embed_class": True},
    ),
    "vit_pwee_patch16_reg1_gap_256": (16, WEE | PARALLEL),
    "vit_dwee_patch16_reg1_gap_256": (16, WEE | {"differential": True}),
    "vit_dpwee_patch16_reg1_gap_256": (16, WEE | PARALLEL | {"differential": True}),
    "vit_base_patch16_sapiens2": (16, SAPIENS2),
    "deit_tiny_distilled_patch16_224": (16, CLASS | {"dist_token": True, "dist_head": True}),
    "vit_intern300m_patch14_448": (14, CLASS | SCALED | {"final_norm": False}),
}
# Arguments without which timm cannot build an architecture two blocks deep.
ARGUMENTS = {"vit_base_patch16_sapiens2": {"num_kv_heads": (2, 4)}}
# timm's options that none of its architectures has with random weights at a small size.
OPTIONS = {
    "shared relative positions": (
        "beit_base_patch16_224",
        {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
        {"relative_positions": "shared"},
    ),
    "rotary offset of DINOv3": (
        "vit_small_patch16_dinov3_qkvb",
        {"rope_grid_offset": 0.25, "rope_grid_indexing": "xy"},
        {"rope_offset": 0.25, "rope_indexing": "xy"},
    ),
    "learned rotation, rows first": (
        "vit_small_patch16_rope_mixed_224",
        {"rope_grid_indexing": "ij"},
        {"rope_indexing": "ij"},
    ),
    "rotation of halves": (
        "eva02_tiny_patch14_224",
        {"rope_rotate_half": True},
        {"rope_half": True},
    ),
    "rotation of neighbours": (
        "vit_small_patch16_dinov3_qkvb",
        {"rope_rotate_half": False},
        {"rope_half": False},
    ),
    "rotation after the norm of q and k": (
        "vit_small_patch16_rope_224",
        {"qk_norm": True},
        {"qk_norm": True},
    ),
    "a larger grid": (
        "vit_small_patch16_dinov3_qkvb",
        {"img_size": (23 * 16, 37 * 16)},
        {"image_size": (23 * 16, 37 * 16)},
    ),
    "a larger grid than the reference": (
        "eva02_tiny_patch14_224",
        {"img_size": (23 * 14, 19 * 14)},
        {"image_size": (23 * 14, 19 * 14)},
    ),
    "norm without bias": (
        "vit_base_patch16_rpn_224",
        {"norm_layer": lambda dim, **dd: timm.layers.LayerNorm(dim, eps=1e-6, bias=False, **dd)},
        {"norm_bias": False},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_timm(name, randomise, images):
    theirs, config = _pair(name, randomise)
    ours = _same_weights(config, theirs)
    x = images(config)
    assert torch.equal(ours.forward_features(x), theirs.forward_features(x))
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_timm_in_double_precision(name, randomise, images):
    theirs, config = _pair(name, randomise)
    ours = _same_weights(config, theirs.double())
    x = images(config).double()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_timm_in_bfloat16(name, randomise, images):
    theirs, config = _pair(name, randomise)
    ours = _same_weights(config, theirs.bfloat16())
    x = images(config).bfloat16()
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize(("name", "arguments", "fields"), OPTIONS.values(), ids=OPTIONS)
def test_option_equals_timm(name, arguments, fields, randomise, images):
    theirs, config = _pair(name, randomise, arguments, fields)
    ours = _same_weights(config, theirs)
    x = images(config)
    assert torch.equal(ours(x), theirs(x))


# What drops numbers in training: attention scores, hidden and projected channels.
@pytest.mark.parametrize(
    "name",
    [
        "aimv2_large_patch14_224",
        "beit_base_patch16_224",
        "beit3_base_patch16_224",
        "eva02_tiny_patch14_224",
        "eva02_base_patch16_clip_224",
        "eva02_enormous_patch14_clip_224",
        "vit_small_patch16_rope_mixed_224",
        "vit_small_patch16_18x2_224",
        "vit_base_patch16_xp_224",
        "vit_dwee_patch16_reg1_gap_256",
        "vit_dpwee_patch16_reg1_gap_256",
    ],
)
def test_training_drops_what_timm_drops(name, randomise, images):
    theirs, config = _pair(
        name,
        randomise,
        {"attn_drop_rate": 0.3, "proj_drop_rate": 0.2},
        {"attention_drop_rate": 0.3, "proj_drop_rate": 0.2},
    )
    ours = _same_weights(config, theirs).train()
    x = images(config)
    torch.manual_seed(3)
    wanted = theirs.train()(x)
    torch.manual_seed(3)
    assert torch.equal(ours(x), wanted)
    assert not torch.equal(ours.eval()(x), wanted)


# What timm has to say about intermediates, in each combination.
CHOICES = {
    "indices": (None, [0]),
    "return_prefix_tokens": (False, True),
    "norm": (False, True),
    "stop_early": (False, True),
    "output_fmt": ("NCHW", "NLC"),
    "intermediates_only": (False, True),
}
OF_DINO = dict.fromkeys(("reshape", "return_prefix_tokens", "norm"), (False, True))


@pytest.mark.parametrize("name", sampled(FAMILIES, 6, "slow"))
@torch.inference_mode()
def test_intermediates_equal_timm(name, randomise, images):
    theirs, config = _pair(name, randomise)
    ours = _same_weights(config, theirs)
    x = images(config)
    for arguments in _combinations(CHOICES):
        # Without prefix tokens, timm's Eva fails when asked for them.
        if config.num_prefix_tokens or not arguments["return_prefix_tokens"]:
            found, wanted = (m.forward_intermediates(x, **arguments) for m in (ours, theirs))
            assert _equal(found, wanted), arguments
    if hasattr(theirs, "get_intermediate_layers"):
        for arguments in _combinations({"n": (1, [0, 1]), **OF_DINO}):
            found, wanted = (m.get_intermediate_layers(x, **arguments) for m in (ours, theirs))
            assert _equal(found, wanted), arguments
    present = dict(ours.named_parameters()).keys()
    assert ours.no_weight_decay() & present == theirs.no_weight_decay() & present


@pytest.mark.parametrize("relative", ["block", "shared"])
def test_relative_index_is_real_in_a_model_on_meta_and_in_no_state(relative, make_config, images):
    config = make_config(relative_positions=relative)
    whole = ViT(config).eval()
    with torch.device("meta"):
        model = ViT(config).eval()
    assert not any("index" in name for name in model.state_dict())
    model.load_state_dict(whole.state_dict(), strict=True, assign=True)
    x = images(config)
    assert torch.equal(model(x), whole(x))
    half = copy.deepcopy(model).bfloat16()
    assert half(x.bfloat16()).dtype == torch.bfloat16
    assert half.relative_index.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("vit_small_patch16_rope_mixed_224", "rope.freqs"),
        ("beit_base_patch16_224", "blocks.1.attn.relative_position_bias_table"),
    ],
)
def test_gradients_equal_timms(name, parameter, randomise, images):
    theirs, config = _pair(name, randomise)
    ours = _same_weights(config, theirs)
    for model in (ours, theirs):
        model.set_grad_checkpointing(model is ours)
        model(images(config).fill_(0.3)).square().sum().backward()
    found, wanted = (model.get_parameter(parameter).grad for model in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 1e-3


def test_learned_rotation_begins_as_timms():
    theirs = timm.layers.RotaryEmbeddingMixed(96, depth=3, num_heads=4, temperature=10.0).freqs
    config = ViTConfig(
        **SMALL
        | MIXED
        | {"image_size": (32, 32), "patch_size": (8, 8)}
        | {"embed_dim": 96, "head_dim": 24, "depth": 3}
    )
    ours = ViT(config).rope.freqs
    assert ours.shape == theirs.shape
    # A random angle turns pairs of (first axis, second axis); lengths are not random.
    torch.testing.assert_close(ours.norm(dim=0), theirs.norm(dim=0))
    along, across = ours.unflatten(-1, (2, -1)).unbind(-2)
    torch.testing.assert_close((along * across).sum(0), torch.zeros(3, 4, 6), atol=1e-6, rtol=0)
    assert len(along[0, :, :, 0].unique()) == 12


def _combinations(choices):
    return [dict(zip(choices, c, strict=True)) for c in itertools.product(*choices.values())]


def _equal(found, wanted):
    if isinstance(wanted, torch.Tensor):
        return torch.equal(found, wanted)
    return len(found) == len(wanted) and all(map(_equal, found, wanted))


def _pair(name, randomise, arguments=None, changes=None):
    patch, fields = FAMILIES[name]
    sizes = {"image_size": (4 * patch, 3 * patch), "patch_size": (patch, patch)}
    config = ViTConfig(**(SMALL | sizes | fields | (changes or {})))
    narrow = {"embed_dim": 48, "num_heads": 4, "depth": 2, "num_classes": 7}
    narrow |= {"img_size": config.image_size, **ARGUMENTS.get(name, {}), **(arguments or {})}
    return randomise(timm.create_model(name, **narrow)), config


def _same_weights(config, theirs):
    ours = ViT(config, device="meta").eval()
    ours.load_state_dict(_canonical(theirs.state_dict(), config), strict=True, assign=True)
    return ours


def _canonical(theirs, config):
    """timm's tensors under canonical names: q, k and v in one, gate and value apart."""
    state = {}
    for name, tensor in theirs.items():
        if config.parallel_order:
            name = name.replace("in_norm", "norm1").replace(".ls.", ".ls1.")
            name = name.replace("mlp_bias", "mlp.bias").replace("mlp_out_proj", "mlp.fc2")
            name = re.sub(r"\.([qk]_norm|lambda_..|sub_norm)", r".attn.\1", name)
            name = name.replace("attn_out_proj", "attn.proj")
        name = re.sub(r"\bgamma_(\d)$", r"ls\1.gamma", name).replace("fc1_x", "fc1")
        if config.kv_heads and re.search(r"attn\.[qkv]_proj", name):
            state[name.replace("_proj", "")] = tensor
        elif re.search(r"attn\.(q_bias|q_proj\.\w+)$", name):
            state[re.sub("q_bias", "qkv.bias", name).replace("q_proj", "qkv")] = _joined(
                name, theirs
            )
        elif config.gated_mlp and re.search(r"^blocks.*\.fc1\.", name) and name in theirs:
            state[name.replace("fc1", "fc1_g")], state[name] = tensor.chunk(2)
        elif not re.search(r"attn\.(v_bias|[kv]_proj)", name):
            state[name] = tensor
    return state


def _joined(name, theirs):
    # BEiT and EVA have no bias of keys.
    q, k, v = (theirs.get(re.sub(r"q(?=_bias|_proj)", part, name)) for part in "qkv")
    return torch.cat((q, torch.zeros_like(q) if k is None else k, v))
