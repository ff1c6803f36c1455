"""Fields that no other library's model shows in one piece, each against a formula."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.packages import timm
from vitconvert.model import ViT
from vitconvert.model.layers import ACTIVATION


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        (
            "gelu_tanh",
            lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        ),
        ("quick_gelu", lambda x: x / (1 + torch.exp(-1.702 * x))),
        ("relu", lambda x: x.clamp(min=0)),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("tanh", lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
    ],
)
def test_activation_is_its_formula(name, formula):
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATION[name](x), formula(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_pre_logits_stand_between_norm_and_head(activation, make_config, randomise, images):
    config = make_config(representation_size=11, representation_activation=activation, fc_norm=True)
    model = randomise(ViT(config))
    tokens = model.forward_features(images(config))
    fc = model.pre_logits.fc
    features = ACTIVATION[activation](fc(model.fc_norm(tokens[:, 0])))
    assert torch.equal(model.forward_head(tokens, pre_logits=True), features)
    assert torch.equal(model.forward_head(tokens), model.head(features))


def test_attention_pooling_with_its_own_heads_and_width(make_config, randomise, images):
    config = make_config(pooling="map", pool_heads=5, pool_mlp_dim=90, class_token=False)
    model = randomise(ViT(config))
    theirs = timm.layers.AttentionPoolLatent(
        30, num_heads=5, mlp_ratio=3.0, norm_layer=timm.layers.LayerNorm
    ).eval()
    theirs.load_state_dict(model.attn_pool.state_dict())
    tokens = model.forward_features(images(config))
    assert torch.equal(model.pool(tokens), theirs(tokens))


def test_distillation_token_without_its_head_is_not_read(make_config, randomise, images):
    model = randomise(ViT(make_config(dist_token=True)))
    tokens = model.forward_features(images(model.config))
    assert tokens.shape == (2, 14, 30)
    assert torch.equal(model.forward_head(tokens), model.head(tokens[:, 0]))


def test_prefix_is_class_then_distillation_then_registers(make_config, randomise, images):
    config = make_config(dist_token=True, num_registers=2, no_embed_class=True)
    model = randomise(ViT(config))
    prefix = model.hidden_states(images(config))[0][:, :4]
    wanted = torch.cat([model.cls_token, model.dist_token, model.reg_token], dim=1)
    assert torch.equal(prefix, wanted.expand(2, -1, -1))


def test_fixed_positions_are_added_to_patches_alone(make_config, randomise, images):
    config = make_config(position_embedding="sincos2d", embed_dim=32, num_registers=1)
    fixed = randomise(ViT(config))
    bare = ViT(config.replace(position_embedding="none")).eval()
    bare.load_state_dict(fixed.state_dict())
    x = images(config)
    difference = fixed.hidden_states(x)[0] - bare.hidden_states(x)[0]
    assert torch.equal(difference[:, :2], torch.zeros(2, 2, 32))
    torch.testing.assert_close(difference[:, 2:], fixed.pos_embed.expand(2, -1, -1))


def test_fixed_positions_follow_the_model_to_another_dtype(make_config, randomise, images):
    config = make_config(position_embedding="sincos2d", embed_dim=32)
    model = randomise(ViT(config))
    double = copy.deepcopy(model).double()
    x = images(config)
    torch.testing.assert_close(double(x.double()).float(), model(x), rtol=1e-5, atol=1e-5)
    assert model.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_normalised_patches_need_no_bias(make_config, randomise, images):
    config = make_config(patch_pre_norm=True, patch_bias=False)
    model = randomise(ViT(config))
    x = images(config)
    patch = x[:, :, 8:16, 16:24].flatten(1)
    normal = F.layer_norm(
        patch, [192], model.patch_embed.pre_norm.weight, model.patch_embed.pre_norm.bias, 1e-6
    )
    wanted = normal @ model.patch_embed.proj.weight.flatten(1).T
    torch.testing.assert_close(model.patch_embed(x)[:, 5], wanted, rtol=1e-5, atol=1e-5)


def test_head_without_bias(make_config, randomise, images):
    model = randomise(ViT(make_config(head_bias=False)))
    tokens = model.forward_features(images(model.config))
    assert torch.equal(model.forward_head(tokens), tokens[:, 0] @ model.head.weight.T)


def test_model_survives_copying_and_saving(make_config, randomise, images, tmp_path):
    model = randomise(ViT(make_config(activation="gelu_tanh", pooling="avg")))
    x = images(model.config)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = ViT(model.config, device="meta").eval()
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), assign=True)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(again(x), model(x))
