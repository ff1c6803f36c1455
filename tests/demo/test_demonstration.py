import json
import socket
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from vitconvert import checkpoint as checkpoints
from vitconvert.checkpoint import Checkpoint, ReadOptions
from vitconvert.demo import Demonstration, demonstrate, demonstration
from vitconvert.sources import Located
from vitconvert.tables.dialects import builtin_tables

AS_TRAINED = {"hf_vit", "hf_vit_memory", "jeonsworld", "timm", "torchvision"}
AS_GOOGLE = {"big_vision", "big_vision_scan", "google_jax", "google_jax_linen"}
TOLERANCE = 2e-5


def only(monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    """One dialect holds the model, and no other is asked."""
    monkeypatch.setattr(demonstration, "holders", lambda wish: {dialect: None})


def test_every_dialect_either_holds_the_model_or_says_why_not(demonstration: Demonstration) -> None:
    trips = [trip.dialect for trip in demonstration.round_trips]
    refused = [refusal.dialect for refusal in demonstration.refusals]
    assert sorted(trips + refused) == sorted(builtin_tables().keys() - {"vit"})
    assert all(refusal.reason for refusal in demonstration.refusals)


def test_these_dialects_hold_the_model_as_it_was_trained(demonstration: Demonstration) -> None:
    as_trained = {t.dialect for t in demonstration.round_trips if not t.declared}
    assert as_trained >= AS_TRAINED
    assert not as_trained & AS_GOOGLE


def test_googles_dialects_hold_the_bytes_under_tanh_gelu_only(demonstration: Demonstration) -> None:
    declared = {t.dialect: t.declared for t in demonstration.round_trips}
    assert all(declared[name] == {"activation": "gelu_tanh"} for name in AS_GOOGLE)


def test_every_byte_comes_back(demonstration: Demonstration) -> None:
    assert [t.dialect for t in demonstration.round_trips if not t.bytes_equal] == []


def test_the_logits_come_back(demonstration: Demonstration) -> None:
    assert max(trip.logits_relative for trip in demonstration.round_trips) <= TOLERANCE
    assert all(t.logits_equal for t in demonstration.round_trips if t.dialect in AS_TRAINED)


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
    assert trip.agreement.ok
    assert trip.agreement.bit_equal
    assert trip.agreement.relative == 0.0


def test_what_has_no_package_is_not_claimed(demonstration: Demonstration) -> None:
    (trip,) = (trip for trip in demonstration.round_trips if trip.dialect == "jeonsworld")
    assert trip.agreement.ok is None
    assert trip.agreement.relative is None
    assert trip.agreement.why_not == (
        "jeonsworld ViT-pytorch: a repository of scripts, not a package to install."
    )


def test_only_head_counts_had_to_be_told(demonstration: Demonstration) -> None:
    told = {trip.dialect: trip.told for trip in demonstration.round_trips}
    assert told["jeonsworld"] == told["torchvision"] == {"num_heads": 3}
    assert not any(told[name] for name in ("timm", "hf_vit", *AS_GOOGLE))


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


def test_one_misread_digit_spoils_it(demonstration: Demonstration) -> None:
    first, *others = demonstration.samples
    assert not replace(demonstration, samples=(replace(first, predicted="9"), *others)).ok


@pytest.mark.parametrize(
    "loss",
    [{"bytes_equal": False}, {"logits_relative": 1e-3}, {"logits_relative": float("nan")}],
)
def test_one_lossy_trip_spoils_it(demonstration: Demonstration, loss: dict[str, Any]) -> None:
    first, *others = demonstration.round_trips
    assert not replace(demonstration, round_trips=(replace(first, **loss), *others)).ok


def test_one_disagreeing_package_spoils_it(demonstration: Demonstration) -> None:
    first, *others = demonstration.round_trips
    spoiled = replace(first, agreement=replace(first.agreement, ok=False))
    assert not replace(demonstration, round_trips=(spoiled, *others)).ok


def test_a_flipped_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(source: Located, options: ReadOptions | None = None) -> Checkpoint:
        checkpoint = checkpoints.read_checkpoint(source, options)
        if options is None or not options.dialect:  # not what came back
            return checkpoint
        bias = checkpoint.tensors["head.bias"].clone()
        bias.view(torch.int32)[7] ^= 1
        return replace(checkpoint, tensors={**checkpoint.tensors, "head.bias": bias})

    only(monkeypatch, "timm")
    monkeypatch.setattr(demonstration, "read_checkpoint", flip)
    (trip,) = demonstrate().round_trips
    assert not trip.bytes_equal


def test_a_model_read_back_with_another_function_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(source: Located, options: ReadOptions | None = None) -> Checkpoint:
        checkpoint = checkpoints.read_checkpoint(source, options)
        if options is None or not options.dialect:  # not what came back
            return checkpoint
        return replace(checkpoint, config=checkpoint.config.replace(norm_eps=1e-3))

    only(monkeypatch, "timm")
    monkeypatch.setattr(demonstration, "read_checkpoint", other)
    (trip,) = demonstrate().round_trips
    assert trip.bytes_equal
    assert not trip.logits_equal
    assert not trip.ok


@pytest.mark.slow
def test_no_network_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the demo asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert demonstrate().ok


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "hf_vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = demonstrate()
    (trip,) = result.round_trips
    missing = "transformers is not installed (pip install transformers)."
    assert trip.agreement == demonstration.Agreement(why_not=missing)
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
