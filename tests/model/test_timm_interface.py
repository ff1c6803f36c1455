"""Attributes, groups and calls of timm's models, by timm's names, against timm's own models."""

import copy
import re

import pytest
import timm.optim
import torch
from timm.data import resolve_model_data_config
from timm.utils import AttentionExtract

from tests.model.timm_pairs import FAMILIES, images, ours, theirs, under_our_names
from tests.sampling import sampled
from tests.small_models import randomise
from vitconvert.errors import MissingFact, UsageError
from vitconvert.model import FastViT, ViT

ATTRIBUTES = (
    *("num_classes", "in_chans", "embed_dim", "num_features", "head_hidden_size", "global_pool"),
    *("num_prefix_tokens", "num_reg_tokens", "has_class_token", "no_embed_class", "feature_info"),
    *("pool_include_prefix", "grad_checkpointing"),
)
OF_PATCHES = ("img_size", "patch_size", "grid_size", "num_patches")
OF_PLAIN = ("flatten", "strict_img_size", "dynamic_img_pad", "output_fmt")  # not NHWC inside
OF_ATTENTION = ("num_heads", "head_dim", "scale", "fused_attn")
SOME = sampled(FAMILIES, 9, "slow")
# timm's own words for its other layers, and sizes that it leaves open.
OTHERWISE = {
    "vit_small_patch16_dinov3": {"input_size", "fixed_input_size"},
    "samvit_base_patch16": {"input_size", "fixed_input_size", "classifier"},
    "vit_tiny_r_s16_p8_224": {"first_conv"},
}


@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
def test_attributes(name):
    their, our = theirs(name), ours(name)
    for attribute in ATTRIBUTES:
        if hasattr(their, attribute):
            assert getattr(our, attribute) == getattr(their, attribute), attribute
    dynamic = not their.patch_embed.strict_img_size
    for attribute in OF_PATCHES if dynamic else OF_PATCHES + OF_PLAIN:
        assert getattr(our.patch_embed, attribute) == getattr(their.patch_embed, attribute)
    for scalar in (True, False):
        assert our.patch_embed.feat_ratio(scalar) == their.patch_embed.feat_ratio(scalar)
    for size in ((224, 160), (100, 130)):
        if "_r_" not in name or size == (224, 160):  # timm rounds a stem's grid down
            assert our.patch_embed.dynamic_feat_size(size) == (
                their.patch_embed.dynamic_feat_size(size)
            )
    if hasattr(their.blocks[-1], "attn"):
        for attribute in OF_ATTENTION:
            if hasattr(their.blocks[-1].attn, attribute):
                wanted = getattr(their.blocks[-1].attn, attribute)
                assert getattr(our.blocks[-1].attn, attribute) == wanted, attribute


@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
def test_pretrained_cfg(name):
    their, our = theirs(name), ours(name)
    found, wanted = our.pretrained_cfg, their.pretrained_cfg
    for key in found.keys() - OTHERWISE.get(name, set()):
        if key == "classifier":
            wanted[key] = tuple(w) if isinstance(w := wanted[key], list) else w
        assert found[key] == wanted[key], key
    assert our.default_cfg == found
    assert our.get_submodule(found["first_conv"]).in_channels == our.in_chans
    if our.in_chans in (1, 3) and name not in OTHERWISE:
        assert resolve_model_data_config(our) == resolve_model_data_config(their)


@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
def test_groups_of_an_optimizer(name):
    """Each of our parameters has the scale and the decay of timm's that it was made of."""
    their, our = theirs(name), ours(name)
    wanted = {key: torch.full_like(p, -1.0) for key, p in their.named_parameters()}
    options = {"opt": "adamw", "lr": 1e-3, "weight_decay": 0.05, "layer_decay": 0.7}
    groups = timm.optim.create_optimizer_v2(their, **options).param_groups
    kinds = sorted({(g["lr_scale"], g["weight_decay"]) for g in groups})
    names = {id(p): key for key, p in their.named_parameters()}
    for group in groups:
        kind = kinds.index((group["lr_scale"], group["weight_decay"]))
        for parameter in group["params"]:
            wanted[names[id(parameter)]].fill_(kind + 1)
    mapped = under_our_names(name, wanted)
    our_groups = timm.optim.create_optimizer_v2(our, **options).param_groups
    kind_of = {
        id(p): kinds.index((g["lr_scale"], g["weight_decay"])) + 1
        for g in our_groups
        for p in g["params"]
    }
    assert len(kinds) >= their.feature_info.__len__()
    for key, parameter in our.named_parameters():
        if parameter.requires_grad:
            made_of = set(mapped[key].unique().tolist()) - {0.0}  # of keys, which have no bias
            assert made_of == {kind_of[id(parameter)]}, key


@pytest.mark.parametrize("name", SOME)
@torch.inference_mode()
def test_features(name):
    their, our = theirs(name), ours(name)
    x = images(our)
    for arguments in ({"output_dict": True}, {"output_dict": True, "intermediates_only": True}):
        for prefix in (True, False):
            arguments = {**arguments, "indices": [0, 2], "norm": True}
            if our.num_prefix_tokens and hasattr(their, "num_prefix_tokens"):
                arguments["return_prefix_tokens"] = prefix
            try:
                wanted = their.forward_intermediates(x, **arguments)
            except TypeError:  # timm's has no such argument
                continue
            _assert_equal(our.forward_intermediates(x, **arguments), wanted)
    features = our.forward_features(x)
    for pre_logits in (True, False):
        found = our.forward_head(features, pre_logits=pre_logits)
        assert torch.equal(found, their.forward_head(their.forward_features(x), pre_logits))


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_siglip_224"],
)
@torch.inference_mode()
def test_attention_masks(name):
    their, our = theirs(name), ours(name)
    x = images(our)
    tokens = our.num_prefix_tokens + our.patch_embed.num_patches
    allowed = torch.rand(tokens, tokens) < 0.6
    allowed |= torch.eye(tokens, dtype=torch.bool)
    for arguments in (
        {"attn_mask": allowed},
        {"attn_mask": torch.randn(3, 1, tokens, tokens)},
        {"is_causal": True},
    ):
        (found, outputs), (wanted, their_outputs) = (
            model.forward_intermediates(x, **arguments) for model in (our, their)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs, their_outputs, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, our.forward_features(x), atol=1e-2)
    (found,), (wanted,) = (m.get_intermediate_layers(x, attn_mask=allowed) for m in (our, their))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_mask_is_added_to_relative_positions():
    model = ours("beit_base_patch16_224")
    x = images(model)
    allowed = torch.ones(13, 13, dtype=torch.bool)
    allowed[:, 5] = False
    _, (before, _, _) = model.forward_intermediates(x, attn_mask=allowed, norm=False)
    model.blocks[0].attn.relative_position_bias_table.add_(torch.randn(3).mean())
    torch.testing.assert_close(
        model.forward_intermediates(x, attn_mask=allowed)[1][0], before, rtol=1e-4, atol=1e-4
    )
    model.blocks[0].attn.relative_position_bias_table.normal_()
    assert not torch.allclose(model.forward_intermediates(x, attn_mask=allowed)[1][0], before)


def test_masks_that_make_no_sense():
    model = ours("samvit_base_patch16")
    with pytest.raises(UsageError, match="within windows takes no attn_mask"):
        model.forward_intermediates(images(model), is_causal=True)
    model = ours("vit_tiny_patch16_224")
    with pytest.raises(UsageError, match="exclude each other"):
        model.forward_intermediates(images(model), attn_mask=torch.ones(13, 13), is_causal=True)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("word", sampled(["avg", "", "token", None], 4, "slow"))
@torch.no_grad()
def test_reset_classifier_takes_timms_words(name, word):
    their, our = theirs(name), ours(name)
    try:
        their.reset_classifier(5, word)
    except AssertionError:  # no class token, or two heads
        return
    our.reset_classifier(5, word)
    if not name.startswith("samvit"):  # whose head keeps an older word
        assert (our.num_classes, our.global_pool) == (5, their.global_pool)
    x = images(our)
    heads = our.get_classifier(), their.get_classifier()
    for ours_, theirs_ in zip(*(h if isinstance(h, tuple) else (h,) for h in heads), strict=True):
        getattr(theirs_, "fc", theirs_).load_state_dict(ours_.state_dict())
    if not (name.startswith("samvit") and word == ""):  # timm's then gives maps (B, C, H, W)
        torch.testing.assert_close(our(x), their(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", sampled([[7, 4], [2, 5]], 2, "slow"), ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of timm's own resampling of tables
@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
@torch.no_grad()
def test_set_input_size(name, size):
    their, our = theirs(name), ours(name)
    if not hasattr(their, "set_input_size"):  # SAM's
        return
    pixels = FAMILIES[name][0]
    size = (size[0] * pixels, size[1] * pixels)
    copied = copy.deepcopy(our)
    for model in (their, our):
        model.set_input_size(img_size=size)
    assert our.patch_embed.grid_size == their.patch_embed.grid_size
    assert our.config.image_size == our.patch_embed.img_size == size
    x = images(our)
    torch.testing.assert_close(our(x), their(x), rtol=1e-4, atol=1e-4)
    assert our.pretrained_cfg["input_size"] == (our.in_chans, *size)
    loaded = ours(name, image_size=size)
    assert torch.equal(our(x), loaded(x))
    assert all(parameter.requires_grad for parameter in our.parameters())
    assert copied.patch_embed.img_size != size


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    sampled(["vit_tiny_patch16_224", "beit_base_patch16_224", "flexivit_small"], 3, "slow"),
)
@torch.no_grad()
def test_patches_of_another_size(name):
    their, our = theirs(name), ours(name)
    our.patch_embed.proj.weight.requires_grad_(False)
    for model in (their, our):
        model.set_input_size(img_size=(40, 30), patch_size=(10, 10))
    assert our.patch_embed.patch_size == (10, 10)
    assert our.patch_embed.proj.kernel_size == our.patch_embed.proj.stride == (10, 10)
    assert not our.patch_embed.proj.weight.requires_grad
    x = images(our)
    torch.testing.assert_close(our(x), their(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"position_embedding": "sincos2d", "embed_dim": 36, "head_dim": 12, "no_embed_class": True},
        {"rope": "dinov3", "head_dim": 12},
        {"relative_positions": "shared_mlp", "relative_mlp_dim": 8},
        {"class_token": False, "pooling": "avg", "window_size": 3, "window_padding": False},
        {"class_token": False, "pooling": "avg", "relative_positions": "decomposed"},
        {"class_token": False, "pooling": "avg", "final_norm": False, "neck_dim": 8},
        {"position_embedding": "grid", "position_grid": (5, 5), "no_embed_class": True},
    ],
    ids=lambda fields: ",".join(map(str, fields.values())),
)
@pytest.mark.parametrize("kind", sampled([ViT, FastViT], 2, "slow"))
@torch.no_grad()
def test_nothing_of_the_old_size_is_left(kind, fields, make_config, randomise, images):
    """What a part computes for itself is that of a model made for the size."""
    model = kind(make_config(**fields), device="meta")
    plain = randomise(ViT(make_config(**fields)))
    model.load_state_dict(plain.state_dict(), assign=True)
    model.eval().set_input_size((48, 40))
    made = kind(model.config, device="meta").eval()
    made.load_state_dict(model.state_dict(), assign=True)
    x = images(model.config)
    assert x.shape[2:] == (48, 40)
    assert torch.equal(model(x), made(x))


def test_a_new_head_leaves_fixed_positions_alone(make_config):
    fields = {"position_embedding": "sincos2d", "embed_dim": 36, "head_dim": 12}
    model = ViT(make_config(**fields, no_embed_class=True))
    before = model.pos_embed.clone()
    model.patch_embed.bfloat16()  # as of a file, before load_model makes it float32
    model.reset_classifier(3, "avg")
    assert torch.equal(model.pos_embed, before) and model.pos_embed.dtype == torch.float32
    model.set_input_size(48)
    assert model.pos_embed.shape == (1, 36, 36) and model.pos_embed.dtype == torch.float32


def test_sizes_that_cannot_be():
    model = ours("vit_tiny_patch16_224")
    with pytest.raises(UsageError, match="does not divide into patches"):
        model.set_input_size(65)
    model.resampling_doubt = "two libraries have two rules"
    with pytest.raises(MissingFact, match="resamples positions is unknown"):
        model.set_input_size(32)
    model.patch_embed.proj = torch.nn.Sequential(model.patch_embed.proj)
    with pytest.raises(UsageError, match="wrapped in another layer"):
        model.set_input_size(patch_size=8)
    assert model.config.image_size == (64, 48)


@pytest.mark.parametrize("indices", sampled([[-2, 0], 1, 2, [0]], 4, "slow"), ids=str)
@pytest.mark.parametrize("name", SOME)
@torch.no_grad()
def test_prune_intermediate_layers(name, indices):
    their, our = theirs(name), ours(name)
    for norm, head in ((False, True), (True, False)):
        their, our = copy.deepcopy(their), copy.deepcopy(our)
        taken = our.prune_intermediate_layers(indices, prune_norm=norm, prune_head=head)
        assert taken == their.prune_intermediate_layers(indices, norm, head)
        assert len(our.blocks) == our.config.depth == len(their.blocks)
        assert our.num_classes == their.num_classes
        x = images(our)
        arguments = {"indices": taken, "intermediates_only": True}
        _assert_equal(*(m.forward_intermediates(x, **arguments) for m in (our, their)))
        if not (head and our.config.dist_head):  # timm's then still averages two tokens
            wanted = their(x)
            wanted = wanted.flatten(2).transpose(1, 2) if wanted.ndim == 4 else wanted
            torch.testing.assert_close(our(x), wanted)
        again = ViT(our.config, device="meta").eval()
        again.load_state_dict(our.state_dict(), assign=True)
        assert torch.equal(again(x), our(x))


@pytest.mark.parametrize("norm", sampled([True, False], 2, "slow"))
@pytest.mark.parametrize("name", SOME)
@torch.no_grad()
def test_timms_wrapper_of_features(name, norm):
    x = images(ours(name))
    wrapper = type(timm.create_model("vit_tiny_patch16_224", features_only=True, out_indices=[1]))
    features = [
        wrapper(model, out_indices=[0, 1], norm=norm) for model in (ours(name), theirs(name))
    ]
    _assert_equal(*(network(x) for network in features))
    assert features[0].feature_info.channels() == features[1].feature_info.channels()
    assert features[0].feature_info.reduction() == features[1].feature_info.reduction()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fx", "hook"])
@torch.no_grad()
def test_timms_extraction_of_attention(method):
    found = []
    for model in (ours("vit_tiny_patch16_224"), theirs("vit_tiny_patch16_224")):
        for block in model.blocks:
            block.attn.fused_attn = False
        x = images(ours("vit_tiny_patch16_224"))
        torch.testing.assert_close(model(x), ours("vit_tiny_patch16_224")(x))
        found.append(AttentionExtract(model, method=method)(x))
    assert len(found[0]) == 11
    for (name, our), their in zip(found[0].items(), found[1].values(), strict=True):
        assert re.match(r"blocks\.\d+\.attn\.", name)
        torch.testing.assert_close(our, their)


@pytest.mark.parametrize("name", sampled(FAMILIES, 9, "slow"))
@torch.no_grad()
def test_attention_that_is_not_fused_computes_the_same(name):
    model = ours(name)
    x = images(model)
    wanted = model(x)
    unfused = [part for part in model.modules() if hasattr(part, "fused_attn")]
    seen = []
    for attention in unfused:
        attention.fused_attn = False
        attention.attn_drop.register_forward_hook(lambda *given: seen.append(given[-1]))
    torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-4)
    assert len(seen) == len(unfused) >= 3


@torch.no_grad()
def test_recipes_that_go_block_by_block():
    """As self-supervised trainers and maps of attention call the parts of timm's ViT."""
    outputs = []
    for model in (ours("vit_tiny_patch16_224"), theirs("vit_tiny_patch16_224")):
        x = model.patch_embed(images(ours("vit_tiny_patch16_224")))
        x = model.norm_pre(model.patch_drop(model._pos_embed(x)))
        outputs.append(model.forward_head(model.norm(model.blocks(x))))
        attention, read = model.blocks[-1].attn, model.blocks[-1].norm1(x)
        qkv = attention.qkv(read).reshape(3, -1, 3, attention.num_heads, attention.head_dim)
        q, k, _ = qkv.permute(2, 0, 3, 1, 4)
        scores = attention.q_norm(q) * attention.scale @ attention.k_norm(k).transpose(-2, -1)
        outputs[-1] = (outputs[-1], scores.softmax(-1))
    _assert_equal(*outputs)


@pytest.mark.parametrize(
    "name",
    ["eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_relpos_small_patch16_224"],
)
def test_a_block_without_its_positions_is_refused(name):
    model = ours(name)
    tokens = model._pos_embed(model.patch_embed(images(model)))
    with pytest.raises(UsageError, match="needs the positions of its tokens"):
        model.blocks(tokens)
    for block, positions in zip(model.blocks, model.token_positions(), strict=True):
        tokens = block(tokens, None, positions)
    assert torch.equal(model.norm(tokens), model.forward_features(images(model)))


def _assert_equal(found, wanted):
    """Tensors in lists, tuples and dictionaries."""
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
        return
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = found.values(), wanted.values()
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        _assert_equal(one, other)


def test_timms_names_are_those_of_a_model_without_a_checkpoint(make_config):
    model = randomise(ViT(make_config(pooling="none")))
    assert model.global_pool == ""
    assert "mean" not in model.pretrained_cfg
    assert model.pretrained_cfg["first_conv"] == "patch_embed.proj"
