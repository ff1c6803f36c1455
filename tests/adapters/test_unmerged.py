"""A state dict with an adapter within: PEFT's own, loralib's and mmengine's spelling."""

import pytest
import torch

from tests.adapters.writing import with_adapter
from tests.packages import timm
from tests.small_models import SMALL_TIMM, randomise_calmly, relative
from vitconvert.api import convert_state_dict, inspect, load_checkpoint, load_model
from vitconvert.errors import MissingFact, TensorMismatch, UsageError

STATED = {"overrides": {"num_heads": 3}}


@pytest.fixture
def adapted():
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **{**SMALL_TIMM, "img_size": 32})
    return with_adapter(
        randomise_calmly(model), target_modules=["qkv", "fc2"], modules_to_save=["head", "norm"]
    )


def _peft(tensors):
    return tensors


def _mmengine(tensors):
    spelled = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
        plain = plain.replace("base_layer", "original_layer").replace(".default", "")
        plain = plain.replace("lora_A", "lora_down").replace("lora_B", "lora_up")
        if ".original_module." not in plain:
            spelled[plain] = tensor
    return spelled


def _loralib(tensors):
    named = _mmengine(tensors).items()
    return {
        n.replace(".original_layer", "")
        .replace("lora_down.weight", "lora_A")
        .replace("lora_up.weight", "lora_B"): t
        for n, t in named
    }


@pytest.mark.parametrize("spell", [_peft, _mmengine, _loralib])
def test_merged_with_the_scale_that_is_stated(spell, adapted, tmp_path):
    torch.save(spell(adapted.state_dict()), tmp_path / "model.pth")
    model = load_model(tmp_path / "model.pth", lora_scale=2.0, **STATED)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs = adapted.merge_and_unload().eval()(images)
        assert relative(model(images), theirs) < 2e-5
    other = load_model(tmp_path / "model.pth", lora_scale=1.0, **STATED)
    with torch.no_grad():
        assert relative(other(images), theirs) > 0.01


def test_without_a_scale_it_is_asked_for(adapted, tmp_path):
    file = tmp_path / "model.pth"
    torch.save(adapted.state_dict(), file)
    with pytest.raises(MissingFact) as error:
        load_checkpoint(file, **STATED)
    assert error.value.hint == "--lora-scale NUMBER (in Python, lora_scale=) states it."
    problem = inspect(file).problem
    assert isinstance(problem, MissingFact)
    adapted.peft_config["default"].save_pretrained(tmp_path)
    assert load_checkpoint(file, **STATED).merge is not None
    with pytest.raises(UsageError, match=r"adapter_config\.json states the scale"):
        load_checkpoint(file, lora_scale=2.0, **STATED)


def test_an_adapter_more_is_refused(adapted, tmp_path):
    file = tmp_path / "model.pth"
    torch.save(adapted.state_dict(), file)
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UsageError, match="contains an adapter"):
        load_checkpoint(file, adapter=tmp_path / "adapter", **STATED)


def test_a_state_dict_in_memory_is_merged_or_the_scale_is_asked_for(adapted):
    tensors = adapted.state_dict()
    with pytest.raises(MissingFact, match="a state dict"):
        convert_state_dict(tensors, to="timm", **STATED)
    merged = convert_state_dict(tensors, to="timm", lora_scale=2.0, **STATED)
    theirs = adapted.merge_and_unload().state_dict()
    assert merged.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-5, atol=1e-6)


def test_an_adapter_for_a_state_dict_in_memory(adapted, tmp_path):
    adapted.save_pretrained(tmp_path)
    merge = {"adapter": tmp_path, **STATED}
    alone = {name: tensor for name, tensor in adapted.state_dict().items() if "lora" in name}
    base = {
        name.removeprefix("base_model.model.")
        .replace(".base_layer", "")
        .replace(".original_module", ""): tensor
        for name, tensor in adapted.state_dict().items()
        if "lora" not in name and "modules_to_save" not in name
    }
    before = {name: tensor.clone() for name, tensor in base.items()}
    merged = convert_state_dict(base, to="timm", **merge)
    assert all(torch.equal(base[name], tensor) for name, tensor in before.items())
    assert relative(base["blocks.1.attn.qkv.weight"], merged["blocks.1.attn.qkv.weight"]) > 0.01
    theirs = adapted.merge_and_unload().state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-5, atol=1e-6)
    with pytest.raises(TensorMismatch, match="adapter= the directory"):
        convert_state_dict(alone, to="timm", **STATED)
    with pytest.raises(UsageError, match="prefer: this is for reading a file"):
        convert_state_dict(base, to="timm", prefer="model", **STATED)


def test_a_scale_without_an_adapter(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **{**SMALL_TIMM, "img_size": 32})
    torch.save(model.state_dict(), tmp_path / "model.pth")
    with pytest.raises(UsageError, match="no"):
        load_checkpoint(tmp_path / "model.pth", lora_scale=2.0, **STATED)
