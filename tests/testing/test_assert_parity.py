"""`assert_parity` passes what is equal, and says of the rest which layer departs and why."""

import pytest
import torch

from tests.parity.conftest import trained
from tests.parity.team import STATED, TeamViT, team
from vitconvert.api import load_checkpoint
from vitconvert.errors import ParityFailed, UsageError
from vitconvert.testing import assert_parity

__all__ = ["trained"]


@pytest.fixture
def place(trained):
    """What a team has: weights, a table, and a golden file of them."""
    return trained


def built(place, bug=""):
    return team(torch.load(place / "team.pth", weights_only=True), bug)


def test_the_failure_shows_the_layers_and_the_cause(place):
    of_team = {"against": place / "team.golden", "table": place / "team.toml"}
    assert assert_parity(built(place), **of_team).verdict == "equal"
    with pytest.raises(AssertionError) as error:
        assert_parity(built(place, "GELU"), **of_team)
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
    assert any("layers after)" in line for line in lines), "long tables are cut around the layer"


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
    table = place / "team.toml"
    checkpoint = load_checkpoint(place / "team.pth", table=table, overrides=STATED)
    with pytest.raises(AssertionError, match="was not compared"):
        assert_parity(checkpoint)
    with pytest.raises(ParityFailed, match="other weights"):  # an error, and no difference
        assert_parity(TeamViT(), place / "team.golden", table=table)


@pytest.mark.parametrize(("options", "named"), [({"seed": 1}, "seed"), ({"batch": 3}, "batch")])
def test_a_golden_file_says_which_images_are_compared(place, options, named):
    with pytest.raises(UsageError, match=f"{named}: a golden file states which images"):
        assert_parity(built(place), place / "team.golden", **options)


def test_layers_are_those_of_a_model(place):
    with pytest.raises(UsageError, match="layers: this is about a model of your own"):
        assert_parity(place / "team.pth", place / "team.pth", layers={"a": "b"})
