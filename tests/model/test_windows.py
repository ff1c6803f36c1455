"""Attention within windows, relative positions of rows and columns, and SAM's neck."""

import pytest
import torch
import torch.nn.functional as F

from tests.packages import timm
from tests.small_models import randomise, relative, small_config
from vitconvert.model import FastViT, ViT
from vitconvert.model.attention_maps import attentions
from vitconvert.model.pruning import prune_heads

FIELDS = {"class_token": False, "pooling": "avg", "depth": 11, "relative_positions": "decomposed"}
WINDOWED = FIELDS | {"window_size": 3, "global_blocks": (1, 10)}  # of 4 patches down, 3 across
ROTATED = WINDOWED | {"relative_positions": "none", "window_padding": False, "head_dim": 12}
ROTATED |= {"rope": "axial", "rope_half": True}
SAM = WINDOWED | {"neck_dim": 8, "final_norm": False, "norm_eps": 1e-5, "num_classes": 0}


def made(fields):
    torch.manual_seed(4)
    model = randomise(ViT(small_config(**fields)))
    return model, torch.randn(2, 3, 32, 24)


@torch.no_grad()
def test_intermediates_as_timms():
    """A neck ends each output that is to be normed."""
    ours, x = made(SAM)
    config = ours.config
    theirs = timm.models.vision_transformer_sam.VisionTransformerSAM(
        img_size=(32, 24),
        patch_size=8,
        embed_dim=30,
        depth=11,
        num_heads=3,
        mlp_ratio=50 / 30,
        num_classes=0,
        use_rel_pos=True,
        neck_chans=8,
        window_size=3,
        global_attn_indexes=(1, 10),
    ).eval()
    own = ours.state_dict()
    theirs.load_state_dict({**own, "pos_embed": own.pop("pos_embed").reshape(1, 4, 3, 30)})
    for norm in (False, True):
        last, found = ours.forward_intermediates(x, [0, 1, 9], norm=norm)
        their_last, wanted = theirs.forward_intermediates(x, [0, 1, 9], norm=norm)
        assert torch.equal(last, their_last.flatten(2).transpose(1, 2))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert found[0].shape == (2, config.neck_dim if norm else 30, 4, 3)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("order", ["pre", "res_post_norm", "post_norm"])
@torch.no_grad()
def test_maps_are_of_whole_images_and_give_what_attention_gives(order):
    model, x = made(WINDOWED | {"block_order": order})
    tokens, maps = model.hidden_states(x), attentions(model, x)
    apart = torch.zeros(12, 12, dtype=torch.bool)  # windows of 3 patches: of rows 0 to 2, of row 3
    apart[:9, 9:] = apart[9:, :9] = True
    for layer, probabilities in maps.items():
        assert probabilities.shape == (2, 3, 12, 12)
        block, windowed = model.blocks[layer], layer not in (1, 10)
        assert (probabilities[:, :, apart] == 0).all() == windowed
        # Six patches of the second window are padding: zeros, which take part.
        left = 1 - probabilities.sum(-1)
        if order == "pre":  # without a norm, q and k are far from zero, and hardly see it
            assert (left[:, :, 9:] > 1e-3).all() == windowed
        assert left[:, :, :9].abs().max() < 1e-5
        seen = block.norm1(tokens[layer]) if order == "pre" else tokens[layer]
        _, _, v = block.attn.project(seen)
        padding = block.attn.project(torch.zeros(1, 1, 30))[2]
        read = probabilities @ v + left[..., None] * padding
        wanted = block.attn.proj(read.transpose(1, 2).flatten(2))
        assert relative(block.attn(seen), wanted) < 1e-5


@torch.no_grad()
def test_what_fills_a_smaller_window_is_hidden():
    model, x = made(ROTATED)
    tokens, maps = model.hidden_states(x), attentions(model, x)
    for layer, positions in enumerate(model.token_positions()):
        block, windowed = model.blocks[layer], layer not in (1, 10)
        assert (maps[layer][:, :, :9, 9:] == 0).all() == windowed
        torch.testing.assert_close(maps[layer].sum(-1), torch.ones(2, 3, 12))
        seen = block.norm1(tokens[layer])
        _, _, v = block.attn.project(seen)
        wanted = block.attn.proj((maps[layer] @ v).transpose(1, 2).flatten(2))
        assert relative(block.attn(seen, None, positions), wanted) < 1e-5


@torch.no_grad()
def test_scores_are_those_of_the_formula():
    """softmax(q k / sqrt(K) + q r_h[y - y'] + q r_w[x - x']), patch by patch."""
    model, x = made(FIELDS)
    block = model.blocks[0]
    q, k, _ = block.attn.project(block.norm1(model.hidden_states(x)[0]))
    scores = q @ k.transpose(-2, -1) * 10**-0.5
    for one in range(12):
        for other in range(12):
            down, across = one // 3 - other // 3 + 3, one % 3 - other % 3 + 2
            vector = block.attn.rel_pos_h[down] + block.attn.rel_pos_w[across]
            scores[:, :, one, other] += q[:, :, one] @ vector
    assert relative(attentions(model, x, [0])[0], scores.softmax(-1)) < 1e-5


@torch.no_grad()
def test_a_window_as_large_as_the_image_is_no_window():
    model, x = made(FIELDS | {"image_size": (24, 24), "window_size": 3, "global_blocks": ()})
    plain = ViT(model.config.replace(window_size=0)).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x[:, :, :24]), plain(x[:, :, :24]))
    assert model.config.function() == plain.config.function()
    larger = model.config.replace(window_size=4)
    assert larger.function() != plain.config.function()


@pytest.mark.parametrize("fields", [WINDOWED, ROTATED], ids=["padded", "smaller"])
@torch.no_grad()
def test_heads_are_pruned_as_they_are_masked(fields):
    model, x = made(fields)
    mask = torch.ones(11, 3)
    mask[0, 1] = mask[1, 2] = 0
    masked = model(x, head_mask=mask)
    prune_heads(model, {0: [1], 1: [2]})
    assert relative(model(x), masked) < 1e-5


def test_gradients_reach_every_parameter_and_checkpointing_changes_nothing():
    model, x = made(WINDOWED | {"neck_dim": 8, "final_norm": False})
    model.train()
    sums = []
    for recompute in (False, True):
        model.set_grad_checkpointing(recompute)
        model.zero_grad()
        F.cross_entropy(model(x), torch.tensor([1, 4])).backward()
        sums.append(torch.stack([p.grad.abs().sum() for p in model.parameters()]))
    assert torch.equal(*sums) and (sums[0] > 0).all()


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_model_takes_any_number_of_images():
    model, x = made(SAM | {"depth": 2})
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    more = torch.cat([x, x.flip(0), x])
    assert relative(program.module()(more), model(more)) < 1e-6


@torch.no_grad()
def test_fast_arithmetic_is_as_near_to_the_truth():
    usual, x = made(SAM)
    fast = FastViT(usual.config, device="meta").eval()
    fast.load_state_dict(usual.state_dict(), assign=True)
    found = fast(x)
    truth = usual.double()(x.double())
    assert relative(found.double(), truth) < 4e-6
