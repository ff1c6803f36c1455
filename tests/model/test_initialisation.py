"""Fresh weights have the distribution of those that each project makes."""

import math

import pytest
import torch
from torch import nn

from tests.packages import timm, torchvision, transformers
from vitconvert.errors import UsageError
from vitconvert.model import ViT
from vitconvert.model.initialisation import STYLES, initialise

D, M = 64, 160


@pytest.fixture
def config(make_config):
    return make_config(
        image_size=(32, 32), embed_dim=D, num_heads=4, head_dim=16, mlp_dim=M, num_classes=50
    )


@pytest.mark.parametrize("heads", ["pooling", "distilled"])
@pytest.mark.parametrize("style", STYLES)
def test_every_parameter_is_overwritten(style, heads, make_config):
    pooling = {"pooling": "map"} if heads == "pooling" else {"dist_head": True}
    model = ViT(_everything(make_config, **pooling))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, style)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if "norm" in name and not name.endswith("norm3.weight"):
            assert torch.equal(parameter, torch.full_like(parameter, name.endswith("weight")))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "words",
    [
        {"kv_heads": (3, 1, 1), "layer_scale": True, "mlp_layer_scale": False},
        {"block_order": "parallel", "qkv_bias": False, "qk_norm": True},
        {"block_order": "parallel", "differential": True, "layer_scale": True},
    ],
    ids=["shared keys", "parallel order", "differential"],
)
def test_every_parameter_of_other_blocks_is_overwritten(style, words, make_config):
    model = ViT(make_config(**words))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, style)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if name.endswith("mlp.bias"):
            assert (parameter == 0).all(), name
        if "lambda" in name:
            assert 0 < parameter.abs().max() < 0.6, name


def test_periods_that_a_file_would_have_begin_as_computed_ones(make_config, images):
    config = make_config(rope="dinov3", head_dim=8, rope_temperature=100.0, rope_periods=True)
    model = ViT(config).eval()
    computed = ViT(config.replace(rope_periods=False)).eval()
    tensors = model.state_dict()
    assert tensors.pop("rope.periods").tolist() == [1.0, 10.0]
    computed.load_state_dict(tensors)
    x = images(config)
    assert torch.equal(model(x), computed(x))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("relative", ["block", "shared"])
def test_rotations_relative_positions_and_gates_are_overwritten(style, relative, make_config):
    words = {"relative_positions": relative, "rope": "mixed", "head_dim": 8}
    words |= {"gated_mlp": True, "mlp_norm": True, "attention_norm": True}
    model = ViT(make_config(norm="rms", norm_bias=False, **words))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, style)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if "norm" in name:
            assert (parameter == 1).all(), name
        if "relative" in name:
            assert (parameter == 0).all(), name


@pytest.mark.parametrize("pooling", ["token", "map"])
def test_timm(pooling, config):
    theirs = timm.models.VisionTransformer(
        32, 8, num_classes=50, global_pool=pooling, reg_tokens=9, init_values=1e-5, **_timm()
    )
    config = config.replace(pooling=pooling, num_registers=9, layer_scale=True)
    _assert_same_distributions(ViT(config), theirs.state_dict())


def test_timm_distilled(config):
    theirs = timm.models.VisionTransformerDistilled(32, 8, num_classes=50, **_timm())
    config = config.replace(dist_token=True, dist_head=True)
    _assert_same_distributions(ViT(config), theirs.state_dict())


def test_jax_is_timms_but_for_separate_q_k_v_and_a_zero_class_token(config):
    theirs = timm.models.VisionTransformer(
        32, 8, num_classes=50, weight_init="jax", **_timm()
    ).state_dict()
    for name in theirs:
        if name.endswith("qkv.weight"):
            theirs[name].mul_(math.sqrt(4 / 2))  # xavier over D + D, not over D + 3D
    theirs["cls_token"].zero_()
    model = ViT(config)
    initialise(model, "jax")
    _assert_same_distributions(model, theirs)
    bound = math.sqrt(6 / (D + D))
    assert 0.98 * bound < model.blocks[0].attn.qkv.weight.abs().max() <= bound


def test_jax_kernels_are_cut_at_two_deviations(config):
    model = ViT(config)
    initialise(model, "jax")
    kernel = model.patch_embed.proj.weight
    deviation = (3 * 8 * 8) ** -0.5
    assert abs(kernel.std() / deviation - 1) < 0.03
    assert kernel.abs().max() <= 2 * deviation / 0.8796


def test_head_bias(config):
    model = ViT(config.replace(dist_token=True, dist_head=True))
    initialise(model, "jax", head_bias=-math.log(50))
    for head in model.get_classifier():
        assert torch.equal(head.weight, torch.zeros(50, D))
        assert torch.equal(head.bias, torch.full((50,), -math.log(50)))


def test_huggingface(config):
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=D,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=M,
            image_size=32,
            patch_size=8,
            num_labels=50,
        )
    )
    model = ViT(config)
    initialise(model, "huggingface")
    for ours, name in (
        ("cls_token", "vit.embeddings.cls_token"),
        ("pos_embed", "vit.embeddings.position_embeddings"),
        ("patch_embed.proj.weight", "vit.embeddings.patch_embeddings.projection.weight"),
        ("patch_embed.proj.bias", "vit.embeddings.patch_embeddings.projection.bias"),
        ("blocks.0.attn.qkv.weight", "vit.layers.0.attention.q_proj.weight"),
        ("blocks.0.attn.qkv.bias", "vit.layers.0.attention.q_proj.bias"),
        ("blocks.1.mlp.fc1.weight", "vit.layers.1.mlp.fc1.weight"),
        ("blocks.1.mlp.fc2.bias", "vit.layers.1.mlp.fc2.bias"),
        ("head.weight", "classifier.weight"),
        ("head.bias", "classifier.bias"),
    ):
        _assert_same_distribution(name, model.get_parameter(ours), theirs.get_parameter(name))


def test_torchvision(config):
    theirs = torchvision.models.VisionTransformer(
        32, 8, 3, 4, D, M, num_classes=50, representation_size=40
    )
    model = ViT(config.replace(representation_size=40))
    initialise(model, "torchvision")
    layer = "encoder.layers.encoder_layer_"
    for ours, name in (
        ("cls_token", "class_token"),
        ("pos_embed", "encoder.pos_embedding"),
        ("patch_embed.proj.weight", "conv_proj.weight"),
        ("patch_embed.proj.bias", "conv_proj.bias"),
        ("blocks.0.attn.qkv.weight", f"{layer}0.self_attention.in_proj_weight"),
        ("blocks.0.attn.qkv.bias", f"{layer}0.self_attention.in_proj_bias"),
        ("blocks.0.attn.proj.weight", f"{layer}0.self_attention.out_proj.weight"),
        ("blocks.0.attn.proj.bias", f"{layer}0.self_attention.out_proj.bias"),
        ("blocks.1.mlp.fc1.weight", f"{layer}1.mlp.0.weight"),
        ("blocks.1.mlp.fc1.bias", f"{layer}1.mlp.0.bias"),
        ("blocks.1.mlp.fc2.weight", f"{layer}1.mlp.3.weight"),
        ("blocks.1.mlp.fc2.bias", f"{layer}1.mlp.3.bias"),
        ("pre_logits.fc.weight", "heads.pre_logits.weight"),
        ("pre_logits.fc.bias", "heads.pre_logits.bias"),
        ("head.weight", "heads.head.weight"),
        ("head.bias", "heads.head.bias"),
    ):
        _assert_same_distribution(name, model.get_parameter(ours), theirs.get_parameter(name))


def test_jeonsworld(config):
    model = ViT(config)
    initialise(model, "jeonsworld")
    for name in ("pos_embed", "cls_token"):
        assert not model.get_parameter(name).any()
    plain = nn.Linear(D, 3 * D)
    for name in ("blocks.0.attn.qkv", "blocks.2.attn.proj", "head"):
        layer = model.get_submodule(name)
        _assert_same_distribution(name, layer.weight, plain.weight)
        _assert_same_distribution(name, layer.bias, plain.bias)
    for layer in (model.blocks[0].mlp.fc1, model.blocks[0].mlp.fc2):
        assert abs(layer.weight.std() / math.sqrt(2 / (D + M)) - 1) < 0.05
        assert layer.weight.abs().max() <= math.sqrt(6 / (D + M))
        assert 5e-7 < layer.bias.std() < 2e-6


@pytest.mark.parametrize("style", STYLES)
def test_last_norm_of_a_bottleneck(style, make_config):
    model = ViT(_everything(make_config))
    initialise(model, style)
    wanted = 0.0 if style in ("timm", "jax") else 1.0
    assert (model.patch_embed.backbone.stages[0].blocks[0].norm3.weight == wanted).all()


def test_a_new_model_is_timms(config):
    torch.manual_seed(5)
    model = ViT(config)
    torch.manual_seed(5)
    again = ViT(config)
    state = again.state_dict()
    torch.manual_seed(5)
    initialise(again, "timm")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(state[name], tensor) for name, tensor in again.state_dict().items())


def test_unknown_style_is_told(config):
    with pytest.raises(UsageError) as caught:
        initialise(ViT(config), "keras")
    assert str(caught.value) == (
        "error: usage\n"
        "  There is no initialisation style 'keras'.\n"
        "  known  timm, jax, huggingface, jeonsworld, torchvision"
    )


def _timm():
    return {"embed_dim": D, "depth": 3, "num_heads": 4, "mlp_ratio": M / D}


def _everything(make_config, **pooling):
    return make_config(
        **pooling,
        image_size=(32, 48),
        patch_size=(1, 1),
        dist_token=True,
        num_registers=2,
        patch_norm=True,
        patch_pre_norm=True,
        pre_norm=True,
        stem=True,
        stem_depths=(1, 1),
        stem_width=32,
        qk_norm=True,
        layer_scale=True,
        fc_norm=True,
        representation_size=11,
    )


def _assert_same_distributions(model, theirs):
    assert model.state_dict().keys() == theirs.keys()
    for name, tensor in model.state_dict().items():
        _assert_same_distribution(name, tensor, theirs[name])


def _assert_same_distribution(name, ours, theirs):
    """Standard deviations and largest values agree, as far as so few numbers can tell."""
    ours, theirs = ours.detach(), theirs.detach()
    if theirs.std() == 0:
        assert torch.equal(ours.unique(), theirs.unique()), name
        return
    few = min(ours.numel(), theirs.numel())
    slack = 5 / math.sqrt(few)
    assert abs(ours.std() / theirs.std() - 1) < slack, name
    assert abs(ours.mean()) < 5 * theirs.std() / math.sqrt(few), name
    uniform = theirs.abs().max() < 2 * theirs.std()
    assert (ours.abs().max() < 2 * ours.std()) == uniform, name
