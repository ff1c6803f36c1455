"""Dropout is on in training only, each rate where timm has it; a model learns."""

import copy

import pytest
import torch
from torch import nn

from tests.small_models import small_timm
from vitconvert.errors import ConflictingFact
from vitconvert.model import ViT

RATES = {
    "drop_rate": "drop_rate",
    "embed_drop_rate": "pos_drop_rate",
    "attention_drop_rate": "attn_drop_rate",
    "proj_drop_rate": "proj_drop_rate",
}


@pytest.mark.parametrize(("ours", "theirs"), RATES.items(), ids=RATES)
def test_each_rate_drops_what_timm_drops(ours, theirs, make_config, randomise, images):
    config = make_config(**{ours: 0.4})
    reference = randomise(small_timm(**{theirs: 0.4}))
    model = ViT(config).eval()
    model.load_state_dict(reference.state_dict())
    x = images(config)
    still = model(x)
    assert torch.equal(model(x), still)
    assert torch.equal(reference(x), still)
    model.train()
    reference.train()
    torch.manual_seed(3)
    found = model(x)
    torch.manual_seed(3)
    assert torch.equal(reference(x), found)
    assert not torch.equal(found, still)


def test_no_rate_no_chance(make_config, randomise, images):
    model = randomise(ViT(make_config()))
    x = images(model.config)
    assert torch.equal(copy.deepcopy(model).train()(x), model(x))


def test_gradients_reach_every_parameter(make_config, randomise, images):
    config = make_config(
        dist_token=True,
        dist_head=True,
        num_registers=2,
        patch_pre_norm=True,
        patch_norm=True,
        pre_norm=True,
        layer_scale=True,
        qk_norm=True,
        fc_norm=True,
        representation_size=11,
    )
    model = randomise(ViT(config))
    model(images(config)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_distilled_model_averages_in_training_too(make_config, randomise, images):
    model = randomise(ViT(make_config(dist_token=True, dist_head=True)))
    x = images(model.config)
    assert torch.equal(model.train()(x), model.eval()(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.ao")
def test_dynamic_quantisation_finds_every_linear_layer(make_config, randomise, images):
    model = randomise(ViT(make_config()))
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    found = dict(quantised.named_modules())
    assert linears
    assert all("quantized" in type(found[name]).__module__ for name in linears)
    x = images(model.config)
    assert quantised(x).shape == model(x).shape


@pytest.mark.parametrize("depth", [1, 3, 11])
@pytest.mark.parametrize("name", ["VisionTransformer", "Eva", "Beit", "VisionTransformerDistilled"])
def test_stochastic_depth_leaves_out_what_timm_leaves_out(name, depth, make_config, randomise):
    rates = [
        getattr(block.drop_path1, "drop_prob", 0.0)
        for block in small_timm(name, depth=depth, drop_path_rate=0.3).blocks
    ]
    blocks = ViT(make_config(depth=depth, drop_path_rate=0.3), device="meta").blocks
    for block, rate in zip(blocks, rates, strict=True):
        assert getattr(block.drop_path1, "drop_prob", 0.0) == rate
        assert getattr(block.drop_path2, "drop_prob", 0.0) == rate


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_stochastic_depth_draws_as_timm(rate, make_config, randomise, images):
    reference = randomise(small_timm(drop_path_rate=rate, depth=11))
    model = ViT(make_config(drop_path_rate=rate, depth=11)).eval()
    model.load_state_dict(reference.state_dict())
    x = images(model.config)
    still = reference(x)
    assert torch.equal(model(x), still)
    torch.manual_seed(3)
    wanted = reference.train()(x)
    torch.manual_seed(3)
    assert torch.equal(model.train()(x), wanted)
    assert not torch.equal(wanted, still)


@pytest.mark.parametrize(
    "fields",
    [
        {"block_order": "post_norm"},
        {"block_order": "res_post_norm"},
        {"block_order": "sandwich"},
        {"block_order": "parallel"},
        {"branches": 2},
        {"window_size": 2, "class_token": False, "pooling": "avg"},
    ],
    ids=str,
)
def test_a_block_that_is_always_left_out_changes_nothing(fields, make_config, randomise, images):
    config = make_config(drop_path_rate=1.0, depth=2, **fields)
    model = randomise(ViT(config)).train()
    embedded, first, second = model.hidden_states(images(config))
    assert not torch.equal(embedded, first)
    if config.block_order == "post_norm":  # which normalises what was added to nothing
        first = model.blocks[1].norm2(model.blocks[1].norm1(first))
    assert torch.equal(first, second)


def test_rates_of_depth_are_within_bounds(make_config):
    with pytest.raises(ConflictingFact) as caught:
        make_config(drop_path_rate=1.5)
    assert caught.value.details == ("drop_path_rate = 1.5 must be from 0 to 1",)
    assert "drop_path_rate" not in make_config(drop_path_rate=0.5).function()
