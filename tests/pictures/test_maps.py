"""What a query attends to, against transformers' own attention and references written by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.huggingface.classes import CLASSES, LABELS, MLP, SIZES, Case, encoder, inputs
from tests.pictures.conftest import squashed
from vitconvert import load_model
from vitconvert.errors import CorruptFile, InputMismatch, UsageError
from vitconvert.model.attention_maps import attentions
from vitconvert.pictures.features import feature_maps
from vitconvert.pictures.maps import attention_maps

DISTILLED = Case(
    name="DeiTForImageClassificationWithTeacher",
    arguments=SIZES | MLP | LABELS | {"num_hidden_layers": 11},
    dialect="hf_deit",
)
NAMES = ("DINOv2, registers", "DINOv3", "DINOv3, SwiGLU, no bias", "BEiT", "BEiT, shared", "CLIP")
NAMES += ("Data2Vec", "SigLIP", "SigLIP, classes", "SigLIP 2", "AIMv2, pooled")
CASES = {"distilled, deep": DISTILLED, **{name: CLASSES[name] for name in NAMES}}


def maps_of(model, photograph, **options):
    """The maps of one photograph, all of which the model sees."""
    [maps] = attention_maps(model, photograph, squashed(model.config), **options)
    assert maps.error is None, maps.error
    return maps


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_rollout_and_pooling_are_huggingfaces(case, save, noise):
    case = replace(case, arguments={"attn_implementation": "eager", **case.arguments})
    folder, theirs = save(case)
    theirs.set_attn_implementation("eager")
    ours = load_model(folder)
    maps = maps_of(ours, noise)
    pooled = []
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            assert name.endswith("head.attention")
            module.register_forward_hook(lambda _, given, made: pooled.append(made[1]))
    given = inputs(theirs, squashed(ours.config)(noise)[None])
    with torch.no_grad():
        wanted = encoder(theirs)(**given, output_attentions=True).attentions
    assert len(wanted) == len(maps.attention) == ours.config.depth
    for block, attention in enumerate(wanted):
        found = torch.stack([maps.attention[block][head] for head in range(attention.shape[1])])
        torch.testing.assert_close(found, attention[0], rtol=0, atol=2e-6)
    flow = rolled_out([attention[0].double().numpy() for attention in wanted])
    np.testing.assert_allclose(maps.flow.numpy(), flow, rtol=0, atol=2e-6)
    first = len(maps.prefix)
    found = maps.rollout((1, 2)).flatten()
    np.testing.assert_allclose(found, flow[first + maps.grid[1] + 2, first:], rtol=0, atol=2e-6)
    assert (maps.pooling is None) == (ours.config.pooling != "map")
    if pooled and maps.pooling is not None:
        torch.testing.assert_close(maps.pooling.mean(0), pooled[0][0, 0], rtol=0, atol=2e-6)
    assert ours.config.num_prefix_tokens == first
    patch = (maps.grid[0] - 1, 1)
    row = first + patch[0] * maps.grid[1] + patch[1]
    np.testing.assert_allclose(
        maps.map(-1, 2, patch).flatten(), wanted[-1][0, 2, row, first:], rtol=0, atol=2e-6
    )


def rolled_out(attentions):
    """Equations 1 and 2 of Abnar and Zuidema, number by number."""
    count = attentions[0].shape[-1]
    flow = np.eye(count)
    for attention in attentions:
        mixed = np.array(
            [
                [
                    0.5 * sum(head[i, j] for head in attention) / len(attention) + 0.5 * (i == j)
                    for j in range(count)
                ]
                for i in range(count)
            ]
        )
        flow = (mixed / mixed.sum(axis=1, keepdims=True)) @ flow
    return flow


TOKENS = {"class_token": True, "dist_token": True, "num_registers": 2, "dist_head": True}


def test_a_query_is_a_row(small, noise):
    maps = maps_of(small(**TOKENS), noise)
    assert maps.prefix == ("class", "distillation", "register:0", "register:1")
    assert maps.grid == (4, 3)
    last = maps.attention[2]
    assert torch.equal(maps.map(-3), maps.map(0)) and not torch.equal(maps.map(0), maps.map(1))
    rows = {"class": 0, "distillation": 1, "register:1": 3, "register 1": 3}
    rows |= {"patch:2,1": 4 + 7, "patch: 2, 1": 4 + 7, (2, 1): 4 + 7, None: 0}
    for query, row in rows.items():
        assert torch.equal(maps.weights(-1, 1, query), last[1, row]), query
        assert torch.equal(maps.map(2, None, query).flatten(), last.mean(0)[row, 4:])
    mean = maps.weights(0, 2, "mean")
    torch.testing.assert_close(mean, maps.attention[0][2, 4:].mean(0))
    shares = maps.prefix_shares(0, 2, "mean")
    assert shares == dict(zip(maps.prefix, mean[:4].tolist(), strict=True))
    told = maps.to_dict(-1, None, (2, 1))
    assert maps.to_dict(-1, -1) == maps.to_dict(maps.depth - 1, len(maps.attention[0]) - 1)
    assert told["patches"] + sum(told["prefix"].values()) == pytest.approx(1)
    assert (told["layer"], told["head"], told["query"]) == (2, "mean", "patch:2,1")
    row, column = told["largest_patch"]
    assert float(maps.map(-1, None, (2, 1))[row, column]) == told["largest"]


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ({}, "class"),
        ({"class_token": False, "pooling": "avg"}, "mean"),
        ({"class_token": False, "pooling": "avg", "num_registers": 2}, "mean"),
        ({"class_token": False, "pooling": "map"}, "pooling"),
        ({"pooling": "map"}, "class"),
    ],
)
def test_the_query_by_default(small, noise, fields, query):
    maps = maps_of(small(**fields), noise)
    assert maps.query() == query
    assert torch.equal(maps.map(), maps.map(query=query))
    assert torch.equal(maps.rollout(), maps.map("rollout", None, query))


@pytest.mark.parametrize("include", [False, True])
def test_the_pooling_reads_what_its_output_is_made_of(small, noise, include):
    model = small(pooling="map", pool_include_prefix=include, pool_heads=5)
    maps = maps_of(model, noise)
    assert maps.pooling.shape == (5, 13)
    assert (maps.pooling[:, 0] == 0).all() != include
    tokens = model.forward_features(squashed(model.config)(noise)[None])[0]
    pool = model.attn_pool
    values = pool.kv(tokens)[:, 30:].unflatten(1, (5, 6))
    read = torch.einsum("hn,nhk->hk", maps.pooling, values).flatten()
    read = pool.proj(read)
    wanted = model.pool(tokens[None])[0]
    torch.testing.assert_close(read + pool.mlp(pool.norm(read)), wanted, rtol=1e-5, atol=1e-5)
    rolled = maps.pooling.mean(0) @ maps.flow
    torch.testing.assert_close(maps.rollout("pooling").flatten(), rolled[1:])


def test_a_rollout_of_differential_attention_stays_a_share(small, noise):
    model = small(differential=True)
    for block in model.blocks:  # the second attention has the larger factor
        block.attn.lambda_q1.data.fill_(0.9)
        block.attn.lambda_k1.data.fill_(0.9)
        block.attn.lambda_q2.data.fill_(0.1)
    maps = maps_of(model, noise)
    means = [attention.mean(0) for attention in maps.attention.values()]
    assert all((mean < 0).any() for mean in means)
    wanted = rolled_out([mean.clamp(min=0)[None].double().numpy() for mean in means])
    np.testing.assert_allclose(maps.flow.numpy(), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(maps.flow.sum(1), torch.ones(13))


def test_heads_of_several_attentions_are_counted_through(small, noise):
    model = small(branches=2)
    maps = maps_of(model, noise)
    assert maps.attention[0].shape == (6, 13, 13)
    image = squashed(model.config)(noise)[None]
    assert torch.equal(maps.map(1, 5, "class").flatten(), attentions(model, image)[1][0, 5, 0, 1:])


def test_only_some_blocks_are_kept_and_all_are_rolled_out(small, noise):
    model = small(depth=11)
    some, every = maps_of(model, noise, layers=[2, -1]), maps_of(model, noise)
    assert list(some.attention) == [2, 10]
    assert torch.equal(some.map(10), every.map(-1))
    assert torch.equal(some.flow, every.flow)
    with pytest.raises(UsageError, match="The attention of block 3 was not kept") as caught:
        some.map(3)
    assert caught.value.evidence == {"kept": "2, 10"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layer": 3}, "The model has no block 3"),
        ({"layer": -4}, "The model has no block -4"),
        ({"layer": "all"}, "The model has no block 'all'"),
        ({"head": 3}, "There is no head 3"),
        ({"query": "register:0"}, "The model has no token 'register:0'"),
        ({"query": "patch:4,0"}, "The model has no token 'patch:4,0'"),
        ({"query": (-1, 0)}, "The model has no token 'patch:-1,0'"),
        ({"query": "patch:1"}, "The model has no token 'patch:1'"),
        ({"query": "pooling"}, "This model has no map pooling"),
        ({"layer": "rollout", "head": 0}, "A rollout takes the mean over heads"),
    ],
)
def test_error_there_is_no_such_map(small, noise, asked, words):
    with pytest.raises(UsageError, match=words):
        maps_of(small(), noise).map(**asked)


def test_a_photograph_that_cannot_be_read_stops_no_other(small, noise, tmp_path):
    (tmp_path / "bad.png").write_text("meow")
    noise.save(tmp_path / "good.png")
    model = small()
    paths = [tmp_path / "bad.png", tmp_path / "good.png", tmp_path / "gone.png"]
    bad, good, gone = attention_maps(model, paths, squashed(model.config))
    assert isinstance(bad.error, CorruptFile) and bad.path == paths[0]
    assert good.error is None and good.path == paths[1]
    assert gone.error.code == "source-not-found"
    assert gone.to_dict()["path"] == str(paths[2])


def test_error_numbers_that_are_none(small, noise):
    model = small()
    model.blocks[1].attn.qkv.weight.data.fill_(math.nan)
    [found] = attention_maps(model, noise, squashed(model.config))
    assert found.error.fact == "The attention is not finite."


def test_error_other_images(small, noise):
    model = small()
    other = squashed(small(image_size=(24, 24)).config)
    with pytest.raises(InputMismatch):
        attention_maps(model, noise, other)


def test_error_too_much_to_keep(small, noise, monkeypatch):
    model = small()
    monkeypatch.setattr("vitconvert.pictures.maps.MOST_BYTES", 4 * 3 * 3 * 13**2 - 1)
    with pytest.raises(UsageError, match="The attention of 3 blocks has 6,084 bytes"):
        attention_maps(model, noise, squashed(model.config))
    assert maps_of(model, noise, layers=2)
    with pytest.raises(UsageError, match="The attention of 2 blocks has 8,112 bytes"):
        maps_of(small(branches=2), noise, layers=2)


def test_maps_print_in_a_line(small, noise):
    """And not their numbers, which are thousands."""
    model = small(depth=11)
    (features,) = feature_maps(model, noise, squashed(model.config))
    for maps in (maps_of(model, noise), features):
        text = repr(maps)
        assert text.startswith(f"<{type(maps).__name__} of ") and "grid " in text
        assert len(text) < 300 and "tensor" not in text and "\n" not in text
