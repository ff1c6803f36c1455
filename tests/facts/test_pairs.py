"""From any dialect to any other and back: a function that both can hold survives byte for byte."""

import itertools

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from tests.small_models import tiny_config
from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.facts.accounts import check_accounts
from vitconvert.facts.derivation import derive_config, state
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_reading
from vitconvert.programs.target import fit_target
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import canonical_tensors, expected_shapes
from vitconvert.tables.dialects import builtin_tables

# What a dialect's own files cannot show, and a reader is told.
TOLD = (
    *("num_heads", "head_dim", "image_size", "patch_size", "in_channels", "pool_heads"),
    *("pooling", "activation", "norm_eps", "position_embedding", "norm", "block_order"),
    *("rope", "rope_indexing", "rope_temperature", "rope_half", "final_norm", "num_registers"),
)
GATED = {"gated_mlp": True, "activation": "silu"}
SCALED = {"layer_scale": True}
KINDS = (
    *({}, {}, {}, {}, GATED, SCALED, GATED | SCALED),
    *(
        {"branches": 2},
        {"block_order": "post"},
        {"block_order": "parallel"},
        {"norm": "rms", "norm_bias": False},
    ),
    *({"differential": True}, {"differential": True, "block_order": "parallel"}),
    *({"attention_norm": True, "mlp_norm": True}, {"num_registers": 2, **SCALED}),
    *({"relative_positions": "block", **SCALED}, {"relative_positions": "shared"}),
    *({"rope": "axial"}, {"rope": "dinov3", **SCALED}, {"rope": "mixed", **SCALED}),
)


@st.composite
def configs(draw):
    """Plain ViTs of the kinds that projects have: mostly what several dialects hold."""
    flag = st.booleans()
    heads, dim = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    class_token = draw(flag)
    lucidrains, map_pooling = draw(flag), draw(st.integers(0, 3)) == 0
    computed = draw(st.integers(0, 3)) == 0
    width = draw(st.sampled_from([8, 12, 20])) if lucidrains or computed else heads * dim
    width += -width % 4 if computed else 0
    assume(not map_pooling or width % heads == 0)
    representation = 0 if lucidrains else draw(st.sampled_from([0, 0, 5, width]))
    kind = draw(st.sampled_from(KINDS))
    assume("rope" not in kind or dim % 4 == 0)
    assume("differential" not in kind or dim % 2 == 0)
    assume("relative_positions" not in kind or class_token)
    fields = {
        "image_size": draw(st.sampled_from([(12, 12), (12, 8), (13, 9)])),
        "patch_size": draw(st.sampled_from([(4, 4), (4, 2)])),
        "in_channels": draw(st.sampled_from([1, 3, 4])),
        "num_classes": draw(st.sampled_from([0, 2, 5])),
        "embed_dim": width,
        "depth": draw(st.integers(1, 12)),
        "num_heads": heads,
        "head_dim": dim,
        "mlp_dim": draw(st.integers(1, 9)),
        "activation": "gelu",
        "norm_eps": 1e-6,
        "pooling": "map" if map_pooling else "token" if class_token else "avg",
        "class_token": class_token,
        "no_embed_class": draw(flag),
        "position_embedding": "sincos2d" if computed else "learned",
        "patch_pre_norm": lucidrains,
        "patch_norm": lucidrains,
        "qkv_bias": not lucidrains,
        "proj_bias": not (lucidrains and computed),
        "representation_size": representation,
    }
    return ViTConfig(**fields | kind)


def told(config):
    return {name: getattr(config, name) for name in TOLD if getattr(config, name) is not None}


def holders(config):
    """The dialects in which a reader who is told so much finds the same function."""
    for table in builtin_tables().values():
        try:
            target = fit_target(table, config, named=state(told(config), "user"), only=False)
        except (NotRepresentable, ConflictingFact, MissingFact):
            continue
        yield table, target.plan


def random_tensors(config, seed, dtype, keyless):
    """Random numbers under canonical names; keys may have a bias of zero, as some projects' do."""
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(config).items()
    tensors = {n: torch.randn(shape, generator=generator).to(dtype) for n, shape in shapes}
    for name, tensor in tensors.items():
        if keyless and name.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0
    return tensors


def through(table, plan, canonical, config):
    """Write to a dialect and read back, knowing only what a reader is told."""
    theirs = materialise(plan, canonical.__getitem__)
    binding = bind(table, {name: tuple(tensor.shape) for name, tensor in theirs.items()})
    assert binding.fits
    found, _ = derive_config(binding, state(told(config), "user"))
    check_accounts(binding, found, table.name)
    assert len(theirs) == binding.explained + len(binding.ignored)
    return materialise(plan_reading(binding, found), theirs.__getitem__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=15, phases=[Phase.generate])
@given(configs(), st.integers(0, 1000), st.booleans())
def test_there_and_back_through_every_pair(dtype, config, seed, keyless):
    canonical = random_tensors(config, seed, dtype, keyless)
    several = []
    for table, plan in holders(config):
        if plan.zeros and not keyless:
            with pytest.raises(NotRepresentable, match="leaves out a part that is not zero"):
                materialise(plan, canonical.__getitem__)
        else:
            several.append((table, plan))
    once = {table.name: through(table, plan, canonical, config) for table, plan in several}
    for (first, _), (second, plan) in itertools.permutations(several, 2):
        twice = through(second, plan, once[first.name], config)
        assert twice.keys() == canonical.keys()
        for name, tensor in canonical.items():
            assert twice[name].dtype == dtype, name
            assert torch.equal(twice[name], tensor), (first.name, second.name, name)


REGISTERS = {"num_registers": 2, "no_embed_class": True}
DINOV2_REGISTERS = {"num_registers": 2, "register_positions": False, "image_size": (12, 12)}
DINOV3 = {"rope": "dinov3", "position_embedding": "none", "num_registers": 4}
DINOV3 |= {"rope_half": True, "rope_temperature": 100.0}
BEIT = {"relative_positions": "block", "position_embedding": "none", "image_size": (12, 12)}
BEIT_BARE = BEIT | {"pooling": "none", "num_classes": 0, "final_norm": False}
CLIP = {"pre_norm": True, "patch_bias": False, "final_norm": False, "fc_norm": True}
CLIP |= {"head_bias": False}
NO_CLASS = {"class_token": False}
WINDOWS = {**NO_CLASS, "relative_positions": "decomposed", "window_size": 2, "num_classes": 0}
WINDOWS |= {"global_blocks": (1,), "pooling": "none", "image_size": (12, 12)}
WINDOWS |= {"position_embedding": "none", "position_grid": ()}
UNPLACED = {**NO_CLASS, "position_embedding": "none"}
NECK = {"neck_dim": 5, "final_norm": False}
VITDET = {**WINDOWS, "final_norm": False, "position_embedding": "class_grid"}
VITDET |= {"position_grid": (2, 2), "mlp_dim": 24, "position_resampling": "bicubic"}
RADIO = {"position_embedding": "grid", "position_grid": (4, 4), "position_square": True}
RADIO |= {"position_resampling": "bilinear", "patch_bias": False, "num_registers": 2}
RADIO |= {"final_norm": False, "num_classes": 0}
SQUARE = {"image_size": (12, 12)}
PE = {"fc_norm": False, "final_norm": True}
SAPIENS2 = {"rope": "dinov3", "position_embedding": "none", "num_registers": 4}
SAPIENS2 |= {"mlp_layer_scale": False, "norm": "rms", "norm_bias": False, "kv_heads": (3, 1)}
MOBILECLIP = {"stem": True, "stem_style": "mobileclip", "stem_depths": (), "stem_width": 8}
MOBILECLIP |= {"no_embed_class": True, "patch_size": (2, 2), "image_size": (32, 32)}
AIMV2 = GATED | NO_CLASS | {"norm": "rms", "norm_bias": False, "qkv_bias": False}
AIMV2 |= {"proj_bias": False, "mlp_bias": False, "patch_norm": True, "pooling": "avg"}
AIMV2 |= {"num_classes": 0}
GRID = {"position_embedding": "grid", "position_grid": (4, 4)}
TURNED = {**NO_CLASS, "rope": "axial", "rope_half": True, "pooling": "avg", "bare_fc_norm": True}
TOKENS = {"pooling": "none", "num_classes": 0, "bare_fc_norm": False}
MERGED = {**TOKENS, "image_size": (16, 8), "merge_size": 2, "merge_mlp_dim": 48, "merge_dim": 5}
DEEPSEEK = {**TURNED, **GATED, "mlp_bias": False, "norm": "rms", "norm_bias": False}
DEEPSEEK |= {"position_embedding": "none", "head_dim": 64, "num_heads": 2, "embed_dim": 128}
QWEN3 = {**TURNED, **GRID, "activation": "gelu_tanh", "final_norm": False}
QWEN3 |= {"position_resampling": "bilinear_align_corners"}
GEMMA4 = {**TURNED, "norm": "rms", "norm_bias": False, "qkv_bias": False, "proj_bias": False}
GEMMA4 |= {"mlp_bias": False, "gated_mlp": True, "activation": "gelu_tanh", "final_norm": False}
GEMMA4 |= {"kv_heads": (3, 3), "qk_norm": True, "v_norm": True, "attention_scale": 1.0}
GEMMA4 |= {"position_embedding": "axes", "position_grid": (5, 5), "position_resampling": "first"}
GEMMA4 |= {"centred_pixels": True, "block_order": "sandwich", "rope_by_axis": True}
GEMMA4 |= {"rope_indexing": "xy", "rope_temperature": 100.0, "patch_bias": False}


def test_every_dialect_is_held_by_some_model():
    """Otherwise the property above would be about nothing."""
    generous = {"pooling": "avg", "class_token": False, "position_embedding": "learned"}
    lucid = {"qkv_bias": False}
    normed = {"patch_pre_norm": True, "patch_norm": True}
    early = {"attention_scale": 12**-0.5, "representation_size": 7}
    early["representation_activation"] = "gelu"
    late = {"final_norm": False, "fc_norm": True}
    simple = {**lucid, "proj_bias": False, "pooling": "avg", "class_token": False}
    simple |= {"position_embedding": "sincos2d"}
    dinov2 = {**SCALED, "image_size": (12, 12)}
    kinds = [
        *(
            {},
            generous,
            {"representation_size": 5},
            {"stem": True, "stem_width": 32, "patch_size": (1, 1)},
            {"stem": True, "stem_width": 32, "patch_size": (1, 1), "stem_style": "timm"},
            {"stem": True, "patch_size": (1, 1), "stem_style": "resnet_d"},
            {"stem": True, "patch_size": (1, 1), "stem_style": "mobileclip"},
        ),
        *({"dist_token": True}, {"dist_token": True, "dist_head": True}),
        *({**lucid, **normed}, {**lucid, **normed, **generous}, {**lucid, **normed, **late}),
        *({**lucid, **late}, {**lucid, **late, **early}),
        {**lucid, **early, "final_norm": False},
        *({**simple, **normed}, {**simple, **normed, **late}, {**simple, **late}),
        {"representation_size": 5, "num_classes": 0},
        {"representation_size": 5, "num_classes": 0, "dist_token": True},
        *(dinov2, GATED | dinov2, REGISTERS | dinov2, REGISTERS | GATED | dinov2),
        *(DINOV2_REGISTERS | SCALED, DINOV2_REGISTERS | GATED | SCALED),
        {**DINOV3, **SCALED},
        {**DINOV3, **SCALED, "num_classes": 0},
        {**DINOV3, **SCALED, **GATED},
        {**DINOV3, **SCALED, **GATED, "qkv_bias": False},
        {**DINOV3, **SCALED, **GATED, **lucid, "rope_periods": True, "num_classes": 0},
        {**DINOV3, **SCALED, "rope_periods": True, "num_classes": 0},
        {**DINOV3, **SCALED, **GATED, "rope_periods": True, "num_classes": 0},
        {**SQUARE, "final_norm": False},
        {**SCALED, "no_embed_class": True},
        {**SCALED, "final_norm": False, "num_classes": 0},
        {**SCALED, **BEIT, **late},
        {**SCALED, **BEIT_BARE},
        {"rope": "mixed", **SCALED},
        {"block_order": "parallel"},
        {**SCALED, **GATED, "kv_heads": (3, 1), "mlp_layer_scale": False},
        CLIP,
        {**CLIP, "fc_norm": False, "pooling": "avg", "head_bias": True},
        {**CLIP, "pre_norm": False, "pooling": "avg"},
        {**CLIP, **SQUARE, "num_classes": 0},
        {**NO_CLASS, "pooling": "map", "num_classes": 0},
        AIMV2,
        RADIO,
        {"num_classes": 0, "final_norm": True},
        *({**dinov2, "num_classes": 0}, {**dinov2, **GATED, "num_classes": 0}),
        *(DINOV2_REGISTERS | SCALED | kind | {"num_classes": 0} for kind in ({}, GATED)),
        {**UNPLACED, "relative_positions": "shared_mlp", "relative_mlp_dim": 5, "pooling": "avg"},
        *(
            WINDOWS,
            WINDOWS | NECK,
            {**WINDOWS, **NECK, "position_embedding": "grid", "position_grid": (3, 3)},
            VITDET,
            {**VITDET, "relative_positions": "none"},
        ),
        *(GRID, DEEPSEEK, {**DEEPSEEK, **TOKENS}, QWEN3, {**QWEN3, **MERGED, "final_norm": True}),
        {**DEEPSEEK, **MERGED, "merge_size": 3, "merge_padding": True},
        *(GEMMA4, {**GEMMA4, **TOKENS, "image_size": (12, 12), "merge_size": 3}),
        {**DINOV2_REGISTERS, **SCALED, "num_classes": 0},
        {**DINOV2_REGISTERS, **SCALED, **GATED, "num_classes": 0},
        {"attention_norm": True, "mlp_norm": True},
        {**SQUARE, "patch_bias": False, "pre_norm": True, "final_norm": False, "num_classes": 0},
        {**SQUARE, **NO_CLASS, "pooling": "none", "num_classes": 0},
        {**CLIP, **PE, "pooling": "map", "pool_include_prefix": True},
        {**CLIP, **PE, "pooling": "none", "num_classes": 0},
        {**SCALED, **GATED, **SAPIENS2},
        {**MOBILECLIP, "head_bias": False, "stem_style": "mobileclip_padded", "norm_eps": 1e-5},
        lucid,
    ]
    held = {t.name for kind in kinds for t, _ in holders(tiny_config(**kind))}
    tables = {name: table for name, table in builtin_tables().items() if writable(table)}
    # How many registers there are is asked of files without a config.json.
    asked = {name for name, table in tables.items() if "num_registers" in table.ask}
    assert held | asked == set(tables)


def writable(table):
    """Whether all that the dialect requires can be written; other dialects are only read."""
    inert = (template for template, *_ in (*table.constants, *table.holds))
    written = canonical_tensors().keys() | {template.text for template in inert}
    return all(set(group) & written for group in table.requires)
