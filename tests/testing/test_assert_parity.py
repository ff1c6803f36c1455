"""`assert_parity` passes what is equal, and says of the rest which layer departs and why."""

import pytest
import torch

from tests.parity.team import STATED, TABLE, TeamViT, team
from vitconvert.api import load_checkpoint, record_golden
from vitconvert.errors import UsageError
from vitconvert.testing import assert_parity


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What a team has: weights, a table, and a golden file of them."""
    from tests.small_models import randomise

    folder = tmp_path_factory.mktemp("team")
    torch.manual_seed(4)
    torch.save(randomise(TeamViT()).state_dict(), folder / "team.pth")
    (folder / "team.toml").write_text(TABLE)
    checkpoint = load_checkpoint(folder / "team.pth", table=folder / "team.toml", overrides=STATED)
    record_golden(checkpoint, folder / "team.golden")
    return folder


def built(place, bug=""):
    return team(torch.load(place / "team.pth", weights_only=True), bug)


def test_an_equal_model_passes(place):
    report = assert_parity(built(place), place / "team.golden", table=place / "team.toml")
    assert report.verdict == "equal"


def test_the_failure_shows_the_layers_and_the_cause(place):
    model = built(place, "GELU")
    with pytest.raises(AssertionError) as error:
        assert_parity(model, place / "team.golden", table=place / "team.toml")
    lines = str(error.value).splitlines()
    named = "team.golden, recorded of team.pth (not verified)"
    assert lines[0] == f"tests.parity.team.TeamViT does not compute what {named} computes."
    assert lines[1].startswith("  first departs  blocks.0.mlp, relative ")
    assert lines[2].startswith("  likely cause   tests.parity.team.TeamViT computes as if")
    assert lines[2].endswith("activation is gelu_tanh, not gelu")
    (header,) = (line.split() for line in lines if line.split()[:1] == ["layer"])
    assert header == ["layer", "float32", "float64"]
    (marked,) = (line.split() for line in lines if line.startswith(">"))
    assert marked[1] == "blocks.0.mlp" and marked[4:] == ["<-", "departs", "first"]
    assert float(marked[3]) > 1e-6
    (before,) = (line.split() for line in lines if line.split()[:1] == ["blocks.0.attn"])
    assert max(map(float, before[1:])) < 1e-5
    assert any("argmax" in line for line in lines)


def test_long_tables_are_cut_around_the_layer(place):
    with pytest.raises(AssertionError, match=r"\n  \(\d+ layers after\)\n"):
        assert_parity(built(place, "eps"), place / "team.golden", table=place / "team.toml")


def test_tolerances_are_per_dtype(place):
    def nearly(images):
        return built(place).to(images.dtype)(images) * (1 + 1e-7)

    golden = place / "team.golden"
    with pytest.raises(AssertionError, match=r"float64: relative 1\.0e-07, allowed 2e-12"):
        assert_parity(nearly, golden)
    assert_parity(nearly, golden, tolerance={"float64": 1e-6, "float32": 2e-5})
    only = assert_parity(nearly, golden, tolerance={"float32": 2e-5})
    assert {c.dtype for c in only.comparisons} == {"float32"}
    with pytest.raises(AssertionError, match="float64"):
        assert_parity(nearly, golden, tolerance={"float64": 1e-8, "float32": 2e-5})
    for wrong, message in (({}, "no dtype"), ({"float16": 0.01}, "float16, in which")):
        with pytest.raises(UsageError, match=message):
            assert_parity(nearly, golden, tolerance=wrong)


def test_what_is_not_compared_does_not_pass(place):
    checkpoint = load_checkpoint(place / "team.pth", table=place / "team.toml", overrides=STATED)
    with pytest.raises(AssertionError, match="was not compared"):
        assert_parity(checkpoint)


def test_other_weights_are_an_error_and_no_difference(place):
    with pytest.raises(UsageError, match="other weights"):
        assert_parity(TeamViT(), place / "team.golden", table=place / "team.toml")
