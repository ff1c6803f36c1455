"""Somebody's own model is proved, or its mistake is found: in a module that is not ours."""

import pytest
import torch

from tests.parity.team import TABLE, TeamViT
from vitconvert.api import load_checkpoint, verify

STATED = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "team.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def weights(randomise):
    return randomise(TeamViT()).state_dict()


@pytest.fixture
def checkpoint(weights, table, tmp_path):
    """What the team trained, as a file of its own spelling."""
    torch.save(weights, tmp_path / "team.pth")
    return load_checkpoint(tmp_path / "team.pth", table=table, overrides=STATED)


def team(weights, bug=""):
    model = TeamViT(bug)
    model.load_state_dict(weights)
    return model


def test_a_right_model_is_equal(weights, checkpoint, table):
    report = verify(team(weights), against=checkpoint, table=table)
    assert report.ok
    assert {c.images for c in report.comparisons} == {
        *("noise", "photograph", "constant", "large", "1 channel", "batch of 1", "batch of 3"),
    }
    assert {c.dtype for c in report.comparisons} == {"float32", "float64"}
    assert len({layer.layer for layer in report.layers}) == 2 + 2 * 11 + 3


BUGS = {
    "eps": ("blocks.0.attn", "norm_eps is 1e-05, not 1e-06"),
    "GELU": ("blocks.0.mlp", "activation is gelu_tanh, not gelu"),
    "q/k swap": ("blocks.0.attn", "the thirds of blocks.0.attn.qkv are k, q, v, not q, k, v"),
    "transposed projection": ("blocks.0.attn", "blocks.0.attn.proj.weight is transposed"),
    "off-by-one position": (
        "embedding",
        "pos_embed is off by one: each patch has that of the previous one",
    ),
    "missing final norm": ("features", "there is no final norm"),
    "wrong scale": ("blocks.0.attn", "attention_scale is embed_dim ** -0.5"),
    "head order": ("blocks.0.attn", "the heads are joined (dim head), not (head dim)"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug, weights, checkpoint, table):
    report = verify(team(weights, bug), against=checkpoint, table=table)
    layer, cause = BUGS[bug]
    assert not report.ok
    assert report.first_divergence.layer == layer
    assert cause in report.first_divergence.cause
