"""PEFT on a loaded ViT, beside PEFT on timm's model of the same weights."""

import copy

import pytest
import torch
from torch import nn

from tests.packages import peft
from tests.saved_timm import FAMILIES, save_timm, timm_model
from tests.small_models import relative
from vitconvert.api import load_model

pytestmark = pytest.mark.slow
TOLERANCE = 2e-5
LAYERS = ["qkv", "proj", "fc1", "fc2"]  # proj of the patches too, which is a convolution
METHODS = {
    "LoRA": ("LoraConfig", {"r": 3, "target_modules": LAYERS}),
    "all-linear": ("LoraConfig", {"r": 3, "target_modules": "all-linear"}),
    "DoRA": ("LoraConfig", {"r": 3, "target_modules": LAYERS, "use_dora": True}),
    "a new head": ("LoraConfig", {"target_modules": LAYERS, "modules_to_save": ["head"]}),
    "AdaLoRA": ("AdaLoraConfig", {"target_modules": ["qkv", "fc1"], "total_step": 10}),
    "IA3": ("IA3Config", {"target_modules": LAYERS, "feedforward_modules": ["fc2"]}),
    "LoHa": ("LoHaConfig", {"r": 3, "target_modules": LAYERS}),
    "LoKr": ("LoKrConfig", {"r": 3, "target_modules": LAYERS}),
    "OFT": ("OFTConfig", {"target_modules": ["fc1", "fc2"], "oft_block_size": 6, "r": 0}),
    "BOFT": ("BOFTConfig", {"target_modules": ["fc1", "qkv"], "boft_block_size": 6}),
    "VeRA": ("VeraConfig", {"target_modules": ["fc1", "fc2"], "r": 5}),
    "HRA": ("HRAConfig", {"target_modules": ["fc1", "qkv"], "r": 4}),
    "FourierFT": ("FourierFTConfig", {"target_modules": ["fc1", "qkv"], "n_frequency": 20}),
    "SHiRA": ("ShiraConfig", {"target_modules": ["fc1", "qkv"], "r": 2}),
    "MiSS": ("MissConfig", {"target_modules": ["fc1", "qkv"], "r": 3}),
    "LN tuning": ("LNTuningConfig", {"target_modules": ["norm1", "norm2"]}),
}
MERGED_HERE = ("LoRA", "all-linear", "DoRA", "a new head", "IA3", "LoHa", "LoKr", "LN tuning")
# Whose layers have other names or shapes than timm's.
OTHERS = {"EVA-02": "mlp.fc1", "relative positions": "rel_pos"}
# timm 1.0.31 reads the weight of qkv without its module, so that no adapter of it is computed.
PAST_QKV = ("BEiT", "EVA-02")


def _adapted(model, method):
    kind, config = METHODS[method]
    torch.manual_seed(11)
    adapted = peft.get_peft_model(copy.deepcopy(model), getattr(peft, kind)(**config))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return adapted.eval()


def _images(model):
    torch.manual_seed(7)
    return torch.randn(2, model.config.in_channels, *model.config.image_size)


def _check(family, method, tmp_path):
    """An adapter that was made on timm's model, loaded on ours, merged and saved in both ways."""
    theirs = _adapted(timm_model(family)[0], method)
    theirs.save_pretrained(tmp_path / "adapter")
    source = save_timm(tmp_path / "source", family)
    ours = load_model(source)
    images = _images(ours)
    loaded = peft.PeftModel.from_pretrained(
        copy.deepcopy(ours), tmp_path / "adapter", is_trainable=True
    ).eval()
    output = loaded(images)
    output.sum().backward()
    trained = [p for p in loaded.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None for p in trained)

    with torch.no_grad():
        assert relative(ours(images), output) > 1e-4  # the adapter does something
        if family not in PAST_QKV:
            assert torch.equal(output, theirs(images))
        wanted = theirs.merge_and_unload()(images)
        loaded.save_pretrained(tmp_path / "again")
        merged = loaded.merge_and_unload()
        assert relative(merged(images), wanted) < TOLERANCE
        merged.save_pretrained(tmp_path / "merged", verify=False)
        again = load_model(tmp_path / "merged")
        assert torch.equal(again(images), merged(images))
        if method in MERGED_HERE:
            for adapter in ("adapter", "again"):
                ours = load_model(source, adapter=tmp_path / adapter)
                assert relative(ours(images), wanted) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_one_family(method, tmp_path):
    _check("plain", method, tmp_path)


@pytest.mark.parametrize("method", ["LoRA", "all-linear"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in OTHERS])
def test_an_adapter_of_timms_model_is_one_of_ours(family, method, tmp_path):
    _check(family, method, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_layers_are_linear(family, tmp_path):
    def layers(model):
        modules = model.named_modules()
        found = {name for name, module in modules if isinstance(module, nn.Linear)}
        return {name for name in found if OTHERS.get(family, "-") not in name}

    ours = load_model(save_timm(tmp_path / "source", family))
    assert layers(ours) == layers(timm_model(family)[0])
    assert "head" in layers(ours)


@pytest.mark.parametrize("family", OTHERS)
def test_where_names_or_shapes_differ_merging_does_not_mind(family, tmp_path):
    theirs = _adapted(timm_model(family)[0], "all-linear")
    theirs.save_pretrained(tmp_path / "adapter")
    source = save_timm(tmp_path / "source", family)
    ours, merged = load_model(source), load_model(source, adapter=tmp_path / "adapter")
    images = _images(ours)
    with torch.no_grad():
        wanted = theirs.merge_and_unload()(images)
        assert relative(merged(images), wanted) < TOLERANCE
        # PEFT refuses other shapes, and passes over other names without a word.
        try:
            loaded = peft.PeftModel.from_pretrained(ours, tmp_path / "adapter").eval()
        except RuntimeError as error:
            assert "size mismatch" in str(error)
        else:
            assert relative(loaded(images), wanted) > 1e-3
