import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from vitconvert import checkpoint as checkpoints
from vitconvert.checkpoint import Checkpoint, ReadOptions
from vitconvert.cli.demo import demo_report
from vitconvert.demo import Demonstration, demonstrate
from vitconvert.demo import demonstration as demonstrations
from vitconvert.sources import Located
from vitconvert.tables.dialects import builtin_tables

AS_TRAINED = {"hf_vit", "hf_vit_memory", "jeonsworld", "timm", "torchvision"}
AS_GOOGLE = {"big_vision", "big_vision_scan", "google_jax", "google_jax_linen"}
TOLERANCE = 2e-5


def only(monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    """One dialect holds the model, and no other is asked."""
    monkeypatch.setattr(demonstrations, "holders", lambda wish: {dialect: None})


def test_every_dialect_either_holds_the_model_or_says_why_not(demonstration: Demonstration) -> None:
    trips = [trip.dialect for trip in demonstration.round_trips]
    refused = [refusal.dialect for refusal in demonstration.refusals]
    assert sorted(trips + refused) == sorted(builtin_tables().keys() - {"vit"})
    assert all(refusal.reason for refusal in demonstration.refusals)


def test_what_each_dialect_was_told_and_gave_back(demonstration: Demonstration) -> None:
    trips = {trip.dialect: trip for trip in demonstration.round_trips}
    assert {name for name, trip in trips.items() if not trip.bytes_equal} == set()
    assert max(trip.logits_relative for trip in trips.values()) <= TOLERANCE
    assert all(trips[name].logits_equal and not trips[name].declared for name in AS_TRAINED)
    # Google's code knows no other GELU; and only head counts are in no file of some projects.
    assert all(trips[name].declared == {"activation": "gelu_tanh"} for name in AS_GOOGLE)
    told = {name for name in ("timm", "hf_vit", *AS_GOOGLE) if trips[name].told}
    assert told == set()
    assert trips["jeonsworld"].told == trips["torchvision"].told == {"num_heads": 3}


@pytest.mark.parametrize(
    ("dialect", "package"),
    [
        ("timm", "timm"),
        ("hf_vit", "transformers"),
        ("torchvision", "torchvision"),
        ("google_jax", "timm"),
        ("big_vision", "timm"),
    ],
)
def test_the_real_packages_agree(demonstration: Demonstration, dialect: str, package: str) -> None:
    pytest.importorskip(package)
    (trip,) = (trip for trip in demonstration.round_trips if trip.dialect == dialect)
    assert trip.agreement.reference.startswith(f"{package} ")
    assert trip.agreement.ok and trip.agreement.bit_equal
    assert trip.agreement.relative == 0.0


def test_what_has_no_package_is_not_claimed(demonstration: Demonstration) -> None:
    (trip,) = (trip for trip in demonstration.round_trips if trip.dialect == "jeonsworld")
    why_not = "jeonsworld ViT-pytorch: a repository of scripts, not a package to install."
    assert trip.agreement == demonstrations.PackageAgreement(why_not=why_not)


def test_lucidrains_is_refused_for_its_missing_biases(demonstration: Demonstration) -> None:
    (refusal,) = (r for r in demonstration.refusals if r.dialect == "lucidrains")
    assert refusal.reason == (
        "lucidrains vit-pytorch ViT (since 1.16.1) has no place for 4 tensors of this model; "
        "tensors blocks.0.attn.qkv.bias, blocks.1.attn.qkv.bias, blocks.2.attn.qkv.bias and 1 more"
    )


def test_all_samples_are_read_right(demonstration: Demonstration) -> None:
    read = {sample.file: (sample.true, sample.predicted) for sample in demonstration.samples}
    assert read == {f"{digit}.png": (str(digit), str(digit)) for digit in range(10)}
    assert all(0.5 < sample.probability <= 1 for sample in demonstration.samples)


def test_the_whole_demonstration_is_well_and_says_so_in_json(demonstration: Demonstration) -> None:
    assert demonstration.ok
    written = json.loads(json.dumps(demonstration.to_dict(), allow_nan=False))
    assert written["ok"] is True
    assert written["parameters"] == 86554
    assert all(trip["ok"] for trip in written["round_trips"])
    assert len(written["round_trips"]) == len(demonstration.round_trips)


def test_one_loss_spoils_it(demonstration: Demonstration) -> None:
    digit, *digits = demonstration.samples
    assert not replace(demonstration, samples=(replace(digit, predicted="9"), *digits)).ok
    trip, *trips = demonstration.round_trips
    losses: list[dict[str, Any]] = [
        {"bytes_equal": False},
        {"logits_relative": 1e-3},
        {"logits_relative": float("nan")},
        {"agreement": replace(trip.agreement, ok=False)},
    ]
    for loss in losses:
        assert not replace(demonstration, round_trips=(replace(trip, **loss), *trips)).ok


@pytest.mark.parametrize("changed", ["a bit", "the function"])
def test_what_came_back_changed_is_noticed(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(source: Located, options: ReadOptions | None = None) -> Checkpoint:
        checkpoint = checkpoints.read_checkpoint(source, options)
        if options is None or not options.dialect:  # not what came back
            return checkpoint
        if changed == "the function":
            return replace(checkpoint, config=checkpoint.config.replace(norm_eps=1e-3))
        bias = checkpoint.tensors["head.bias"].clone()
        bias.view(torch.int32)[7] ^= 1
        return replace(checkpoint, tensors={**checkpoint.tensors, "head.bias": bias})

    only(monkeypatch, "timm")
    monkeypatch.setattr(demonstrations, "read_checkpoint", other)
    (trip,) = demonstrate().round_trips
    assert trip.bytes_equal == (changed == "the function")
    assert not trip.ok
    assert trip.logits_equal == (changed == "a bit")  # of a bias, too small to be seen


@pytest.mark.slow
def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "hf_vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = demonstrate()
    (trip,) = result.round_trips
    missing = "transformers is not installed (pip install transformers)."
    assert trip.agreement == demonstrations.PackageAgreement(why_not=missing)
    assert result.ok


def test_a_format_whose_package_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "hf_flax_vit")
    monkeypatch.setitem(sys.modules, "msgpack", None)
    result = demonstrate()
    assert result.round_trips == ()
    assert [(one.dialect, one.reason) for one in result.untried] == [
        ("hf_flax_vit", "pip install msgpack")
    ]
    assert result.ok


def test_it_fits_on_a_screen_and_verbosely_has_every_reason(demonstration: Demonstration) -> None:
    lines = "\n".join(demo_report(demonstration, verbose=False)).split("\n")
    assert len(lines) <= 24 and max(map(len, lines)) <= 106
    (row,) = (line.split() for line in lines if line.strip().startswith("transformers "))
    assert "hf_vit," in row
    assert lines[-2] == "All bytes returned, all numbers agreed."
    assert lines[-1].startswith("next ") and "vitconvert inspect " in lines[-1]
    whole = "\n".join(demo_report(demonstration, verbose=True))
    assert all(trip.dialect in whole for trip in demonstration.round_trips)
    assert "class_token is always False there, and True here" in whole
    trip, *others = demonstration.round_trips
    lost = replace(demonstration, round_trips=(replace(trip, bytes_equal=False), *others))
    told = list(demo_report(lost, verbose=False))
    assert "BYTES DIFFER" in told[1] and told[-1] == "Something disagreed."
