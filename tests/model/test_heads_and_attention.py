"""Attention maps, masked heads and pruned heads."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from vitconvert.errors import UsageError
from vitconvert.model import ViT
from vitconvert.model.attention_maps import attentions
from vitconvert.model.pruning import prune_heads

CONFIGS = {
    "plain": {},
    "qk norm": {"qk_norm": True},
    "scale": {"attention_scale": 0.5},
    "scale after softmax": {"attention_scale": 1.0, "post_softmax_scale": 0.3},
    "narrow heads": {"head_dim": 4, "qkv_bias": False},
    "post-norm order": {"block_order": "post_norm"},
    "res-post-norm order": {"block_order": "res_post_norm"},
    "rotation": {"rope": "axial", "head_dim": 8, "qk_norm": True},
    "rotation of halves": {"rope": "dinov3", "head_dim": 8, "rope_half": True},
    "relative positions": {"relative_positions": "block"},
    "relative positions of an MLP": {"relative_positions": "block_mlp", "relative_mlp_dim": 9},
    "differential": {"differential": True},
    "shared keys": {"kv_heads": (3, 1, 1), "qk_norm": True},
    "parts of an MLP": {"gated_mlp": True, "mlp_norm": True, "norm": "rms", "norm_bias": False},
}
# Words that join the heads, or blocks, so that pruning is refused.
JOINED = {
    "norm of whole queries": ({"whole_qk_norm": True}, "a norm spans all heads"),
    "attention norm": ({"attention_norm": True}, "a norm spans all heads"),
    "no projection": (
        {"attention_proj": False, "proj_bias": False},
        "an output projection is missing",
    ),
    "branches": ({"branches": 2}, "a block has several attentions"),
    "shared table": (
        {"relative_positions": "shared"},
        "the blocks share a table of relative positions",
    ),
    "shared MLP": (
        {"relative_positions": "shared_mlp", "relative_mlp_dim": 9},
        "the blocks share a table of relative positions",
    ),
    "learned rotation": (
        {"rope": "mixed", "head_dim": 8},
        "the blocks share the rotary embedding's frequencies",
    ),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def model(request, make_config, randomise):
    return randomise(ViT(make_config(**request.param)))


def test_probabilities_give_the_outputs_of_attention(model, images):
    x = images(model.config)
    _assert_probabilities_give_outputs(model, x, attentions(model, x, layers=[1])[1])


@pytest.mark.parametrize("fields", [fields for fields, _ in JOINED.values()], ids=JOINED)
def test_probabilities_give_the_outputs_of_joined_heads(fields, make_config, randomise, images):
    model = randomise(ViT(make_config(**fields)))
    x = images(model.config)
    _assert_probabilities_give_outputs(model, x, attentions(model, x, layers=[1])[1])


def test_attentions_stop_after_the_last_block_asked_for(model, images):
    ran = []
    model.blocks[1].register_forward_hook(lambda *_: ran.append(1))
    attentions(model, images(model.config), layers=[0, 1])
    assert ran == []


def test_attention_scale_changes_the_fused_path_as_it_should(make_config, randomise, images):
    plain = randomise(ViT(make_config(attention_scale=10**-0.5)))
    wanted = ViT(make_config()).eval()
    wanted.load_state_dict(plain.state_dict())
    scaled = ViT(make_config(attention_scale=0.5)).eval()
    scaled.load_state_dict(plain.state_dict())
    x = images(plain.config)
    torch.testing.assert_close(plain(x), wanted(x))
    assert (scaled(x) - wanted(x)).abs().max() > 1e-3


def test_pruned_and_masked_models_agree(model, images):
    x = images(model.config)
    mask = torch.ones(3, 3)
    mask[0, 1] = mask[2, 0] = mask[2, 2] = 0
    pruned = copy.deepcopy(model)
    prune_heads(pruned, {0: [1], 2: {0, 2}})
    masked = model(x, mask)
    torch.testing.assert_close(pruned(x), masked, rtol=1e-6, atol=1e-6)
    assert (masked - model(x)).abs().max() > 1e-3
    assert [block.attn.num_heads for block in pruned.blocks] == [2, 3, 1]
    width = model.config.head_dim
    if model.config.joined_qkv:
        assert pruned.state_dict()["blocks.2.attn.qkv.weight"].shape == (3 * width, 30)
    assert pruned.state_dict()["blocks.2.attn.proj.weight"].shape == (30, width)
    assert attentions(pruned, x)[0].shape == (2, 2, 13, 13)
    assert torch.equal(attentions(pruned, x)[0], attentions(model, x)[0][:, [0, 2]])


def test_pruning_again_counts_the_heads_that_are_left(model, images):
    x = images(model.config)
    once, twice = copy.deepcopy(model), copy.deepcopy(model)
    prune_heads(once, {1: [0, 2]})
    prune_heads(twice, {1: [0]})
    prune_heads(twice, {-2: [1]})
    assert torch.equal(once(x), twice(x))
    masks = [None, torch.zeros(1), None]
    assert torch.equal(once(x, masks), twice(x, masks))


def test_a_mask_of_ones_or_none_changes_nothing(model, images):
    x = images(model.config)
    assert torch.equal(model(x, torch.ones(3, 3, dtype=torch.bool)), model(x))
    assert torch.equal(model(x, [None, None, None]), model(x))


def test_a_mask_has_gradients(model, images):
    mask = torch.ones(3, 3, requires_grad=True)
    model(images(model.config), mask).sum().backward()
    assert (mask.grad.abs() > 0).all()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (
            {0: [3]},
            "  The block does not have all of the heads to prune.\n  pruned  [3]\n  heads   0 to 2",
        ),
        (
            {0: [0], 1: [0, 1, 2]},
            "  A block must keep at least one head.\n"
            "  pruned  [0, 1, 2]\n"
            "  heads   0 to 2\n"
            "  hint: head_mask can switch off all of them.",
        ),
        (
            {0: [0], 3: [0]},
            "  The model does not have all of these blocks.\n  asked   [0, 3]\n  blocks  0 to 2",
        ),
    ],
)
def test_impossible_pruning_is_refused_and_changes_nothing(heads, message, make_config):
    model = ViT(make_config())
    with pytest.raises(UsageError) as caught:
        prune_heads(model, heads)
    assert str(caught.value) == "error: usage\n" + message
    assert [block.attn.num_heads for block in model.blocks] == [3, 3, 3]


@pytest.mark.parametrize(("fields", "reason"), JOINED.values(), ids=JOINED)
def test_joined_heads_are_not_pruned(fields, reason, make_config):
    model = ViT(make_config(**fields))
    with pytest.raises(UsageError) as caught:
        prune_heads(model, {0: [1]})
    assert str(caught.value) == f"error: usage\n  Heads of this model cannot be pruned: {reason}."


def test_masks_of_branches_count_the_heads_of_all(make_config, randomise, images):
    model = randomise(ViT(make_config(branches=2)))
    x = images(model.config)
    mask = torch.ones(3, 6)
    assert torch.equal(model(x, mask), model(x))
    mask[1, 4] = 0  # head 1 of the second attention
    silenced = copy.deepcopy(model)
    silenced.blocks[1].attns[1].attn.proj.weight.data[:, 10:20] = 0
    torch.testing.assert_close(model(x, mask), silenced(x), rtol=1e-5, atol=1e-5)
    assert (model(x, mask) - model(x)).abs().max() > 1e-3
    assert attentions(model, x)[1].shape == (2, 6, 13, 13)


@pytest.mark.parametrize("mask", [torch.ones(2, 3), torch.ones(3, 2), torch.ones(3, 3, 1)])
def test_a_mask_for_another_model_is_refused(mask, make_config, images):
    model = ViT(make_config())
    with pytest.raises(UsageError) as caught:
        model(images(model.config), mask)
    found = [tuple(row.shape) for row in mask]
    assert str(caught.value) == (
        "error: usage\n"
        "  head_mask does not have one factor for each head of each block.\n"
        f"  found   {found}\n"
        "  wanted  [(3,), (3,), (3,)]"
    )


def _assert_probabilities_give_outputs(model, x, probabilities):
    block = model.blocks[1]
    attentions = (
        [branch.attn for branch in block.attns] if model.config.branches > 1 else [block.attn]
    )
    seen = []
    for attention in attentions:
        attention.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    model(x)
    total = torch.ones(2, 3 * len(attentions), 13)
    if model.config.differential:
        total = total - _learned_factor(block.attn)
    torch.testing.assert_close(probabilities.sum(-1), total)
    for attention, weights, (tokens, wanted) in zip(
        attentions, probabilities.split(3, dim=1), seen, strict=True
    ):
        linear = attention.v if model.config.kv_heads else attention.qkv
        values = linear(tokens).unflatten(2, (-1, attention.head_dim))
        values = values[:, :, -(model.config.kv_heads or (3, 3))[1] :]
        read = (weights @ values.transpose(1, 2)).transpose(1, 2)
        read = read * model.config.post_softmax_scale
        if model.config.differential:
            read = attention.sub_norm(read) * (0.2 + 0.6 * math.exp(-0.3))
        found = attention.proj(attention.norm(read.flatten(2)))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def _learned_factor(attention):
    """How much of the second attention is taken away in the second block."""
    plus, minus = (
        (getattr(attention, f"lambda_q{n}") @ getattr(attention, f"lambda_k{n}")).exp()
        for n in (1, 2)
    )
    return plus - minus + 0.8 - 0.6 * math.exp(-0.3)


@pytest.mark.parametrize("differential", [False, True])
def test_a_block_in_parallel_order_is_masked(differential, make_config, randomise, images):
    config = make_config(block_order="parallel", differential=differential)
    model = randomise(ViT(config))
    x = images(config)
    block, tokens = model.blocks[1], model.hidden_states(x)[1]
    mask = torch.tensor([1.0, 0.0, 1.0])
    normal = block.norm1(tokens)
    hidden, _, _, v = block.in_proj(normal).split([50, 30, 30, 30], dim=-1)
    weights = attentions(model, x)[1] * mask.view(-1, 1, 1)
    read = (weights @ v.unflatten(-1, (3, 10)).transpose(1, 2)).transpose(1, 2)
    if differential:
        read = block.attn.sub_norm(read) * (0.2 + 0.6 * math.exp(-0.3))
        joined = torch.cat((read.flatten(2), F.gelu(hidden)), dim=-1)
        wanted = tokens + block.out_proj(joined)
    else:
        wanted = tokens + block.attn.proj(read.flatten(2)) + block.mlp.fc2(F.gelu(hidden))
    torch.testing.assert_close(block(tokens, mask), wanted, rtol=1e-5, atol=1e-5)


PARALLEL = {"block_order": "parallel"}


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (
            PARALLEL,
            {"in_proj.weight": (68, 30), "in_proj.bias": (68,), "attn.proj.weight": (30, 6)},
        ),
        (PARALLEL | {"qkv_bias": False}, {"in_proj.weight": (68, 30), "mlp.bias": (50,)}),
        (PARALLEL | {"differential": True}, {"out_proj.weight": (30, 56)}),
        ({"kv_heads": (6, 2, 3)}, {"attn.q.bias": (6,), "attn.k.bias": (4,), "attn.v.bias": (4,)}),
        ({"kv_heads": (6, 2, 6)}, {"attn.q.bias": (6,), "attn.k.bias": (6,), "attn.v.bias": (6,)}),
    ],
    ids=["parallel", "parallel, no bias", "parallel, differential", "shared keys", "own keys"],
)
def test_heads_that_share_a_matrix_or_keys_are_pruned(words, left, make_config, randomise, images):
    model = randomise(ViT(make_config(num_heads=6, head_dim=2, **words)))
    x = images(model.config)
    mask = torch.ones(3, 6)
    mask[1, 3] = mask[2, 0] = mask[2, 1] = mask[2, 4] = 0
    masked = model(x, mask)
    pruned = copy.deepcopy(model)
    prune_heads(pruned, {1: [3], 2: [0, 1, 4]})
    torch.testing.assert_close(pruned(x), masked, rtol=1e-5, atol=1e-5)
    assert (masked - model(x)).abs().max() > 1e-3
    state = pruned.blocks[2].state_dict()
    assert {name: tuple(state[name].shape) for name in left} == left
    once = copy.deepcopy(pruned)
    prune_heads(once, {2: [1]})  # number 3 of all
    mask[2, 3] = 0
    torch.testing.assert_close(once(x), model(x, mask), rtol=1e-5, atol=1e-5)
