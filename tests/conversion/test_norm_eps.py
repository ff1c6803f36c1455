"""A norm's eps that a target lacks is replaced if that is allowed, and its effect is told."""

import json
from dataclasses import replace

import pytest
import torch

import vitconvert
from tests.packages import timm, transformers
from tests.sampling import sampled
from vitconvert.conversion.changes import with_steps
from vitconvert.conversion.steps import replace_norm_eps
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.preprocessing.sample_images import sample_images

HINT = (
    "--allow norm-eps makes it fit; it is lossy (the eps of all norms became 1e-06), and its "
    "effect on the outputs is measured."
)


@pytest.mark.parametrize(
    ("to", "activation"), sampled([("timm", "gelu"), ("jax", "gelu_pytorch_tanh")], 2, "slow")
)
def test_an_ordinary_fine_tune_gets_the_eps_of_the_target(
    to, activation, huggingface_directory, tmp_path
):
    source = huggingface_directory(num_hidden_layers=11, hidden_act=activation)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to=to, output=tmp_path / "no")
    assert error.value.hint == HINT
    assert not (tmp_path / "no").exists()
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out", allow=["norm-eps"])
    assert conversion.parity.ok  # of the source, before the step
    assert all(o.relative is None or o.relative <= 2e-5 for o in conversion.opened)
    assert conversion.config.norm_eps == 1e-6
    assert vitconvert.load_model(tmp_path / "out").config.norm_eps == 1e-6


@pytest.mark.slow
def test_the_effect_is_that_of_the_two_packages(huggingface_directory, tmp_path):
    source = huggingface_directory()
    conversion = vitconvert.convert(source, to="timm", output=tmp_path / "out", allow=["norm-eps"])
    theirs = transformers.ViTForImageClassification.from_pretrained(source).eval()
    timms = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    noise = sample_images(batch=4, channels=3, size=(24, 24), seed=0)["noise"]
    images = torch.from_numpy(noise).float()
    with torch.inference_mode():
        before, after = theirs(images).logits, timms(images)
    measured = conversion.ledger.measured[0]
    assert (measured["step"], measured["images"]) == ("norm-eps", "noise")
    assert measured["absolute"] == pytest.approx(float((after - before).abs().max()), rel=0.3)
    assert measured["argmax_kept"] == measured["rows"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e-4], ids=["ordinary weights", "tiny tokens"])
def test_report_card_and_record_tell_the_effect(scale, huggingface_directory, tmp_path):
    """Where the variance of tokens is near eps, the change is large, and is told."""
    source = huggingface_directory()
    if scale != 1:
        model = transformers.ViTForImageClassification.from_pretrained(source)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name and "layernorm" not in name and "classifier" not in name:
                    parameter *= scale
        model.save_pretrained(source)
    conversion = vitconvert.convert(source, to="timm", output=tmp_path / "out", allow=["norm-eps"])
    step, noise, photograph = conversion.ledger.changed
    assert step == "norm-eps (lossy): the eps of all norms became 1e-06"
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    effects = record["ledger"]["measured"]
    assert [effect["images"] for effect in effects] == ["noise", "photograph"]
    for effect, text in zip(effects, (noise, photograph), strict=True):
        assert f"outputs change by {effect['absolute']:.1e} at most" in text
        assert f"(relative {effect['relative']:.1e})" in text
        assert f"argmax kept in {effect['argmax_kept']} of 4" in text
        assert effect["relative"] > 0.01 if scale != 1 else 0 < effect["relative"] < 1e-3
    card = (tmp_path / "out" / "README.md").read_text()
    for text in conversion.ledger.changed:
        assert f"changed  {text}\n" in card
    assert "other outputs than the source's: norm-eps is lossy" in card


def test_numbers_that_are_none_are_told_as_none(timm_directory):
    before = vitconvert.load_checkpoint(timm_directory(depth=1, img_size=32))
    broken = {**before.tensors, "head.bias": torch.full((1000,), float("nan"))}
    spoil = replace(replace_norm_eps(1e-5), tensors=lambda *_: broken)
    measured = with_steps(before, [spoil], measured=True).ledger.measured
    assert [effect["relative"] for effect in measured] == [None, None]


def test_the_step_is_taken_only_where_it_is_needed(huggingface_directory, tmp_path):
    source = huggingface_directory()
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "out", allow=["norm-eps"])
    assert conversion.ledger.changed == conversion.ledger.measured == ()
    assert conversion.config.norm_eps == 1e-12


def test_the_nearest_eps_of_the_target_is_taken(huggingface_directory, tmp_path):
    """timm has architectures of 1e-5 and of 1e-6."""
    for eps, nearest in ((1e-8, 1e-6), (3e-5, 1e-5)):
        source = huggingface_directory(layer_norm_eps=eps)
        plan = vitconvert.plan_conversion(source, to="timm", allow=["norm-eps"])
        assert plan.config.norm_eps == nearest
        (change,) = plan.ledger.changed
        assert change.startswith("norm-eps: the eps of all norms became")


def test_error_an_unknown_step_lists_norm_eps(huggingface_directory, tmp_path):
    with pytest.raises(UsageError) as error:
        vitconvert.convert(
            huggingface_directory(), to="timm", output=tmp_path / "out", allow=["norm-epsilon"]
        )
    assert "norm-eps" in error.value.evidence["steps"].split(", ")
