"""Kinds of adapters besides LoRA, merged as PEFT merges them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.writing import VIT
from tests.huggingface.classes import CLASSES, outputs
from tests.packages import peft, timm, transformers
from tests.sampling import sampled
from tests.saved_timm import save_timm, timm_model
from tests.small_models import randomise_calmly, relative
from vitconvert.api import convert, load_checkpoint, load_model, plan_conversion
from vitconvert.errors import ConflictingFact, MissingFact, TensorMismatch

TOLERANCE = 2e-5
LINEAR = ["q_proj", "v_proj", "fc2"]
KINDS = {
    "IA3, outputs and inputs": (
        "IA3Config",
        {"target_modules": [*LINEAR, "classifier"], "feedforward_modules": ["fc2"]},
    ),
    "IA3, a convolution's outputs": (
        "IA3Config",
        {"target_modules": ["projection", "fc1"], "feedforward_modules": []},
    ),
    "IA3, a convolution's inputs by a pattern": (
        "IA3Config",
        {"target_modules": ["projection", "fc1"], "feedforward_modules": r".*\.projection"},
    ),
    "IA3, a new head": (
        "IA3Config",
        {"target_modules": LINEAR, "feedforward_modules": [], "modules_to_save": ["classifier"]},
    ),
    "LoHa": (
        "LoHaConfig",
        {"target_modules": LINEAR, "r": 3, "alpha": 5, "alpha_pattern": {"fc2": 7}},
    ),
    "LoHa, a convolution": ("LoHaConfig", {"target_modules": ["projection", "fc1"], "r": 3}),
    "LoKr, a convolution in two": (
        "LoKrConfig",
        {"target_modules": ["projection", "fc1"], "r": 2, "decompose_both": True},
    ),
    "LoKr": ("LoKrConfig", {"target_modules": LINEAR, "r": 3, "alpha": 5}),
    "LoKr, both in two": (
        "LoKrConfig",
        {
            "target_modules": LINEAR,
            "r": 2,
            "alpha": 5,
            "decompose_both": True,
            "decompose_factor": 3,
        },
    ),
    "LoKr, two whole matrices": (
        "LoKrConfig",
        {"target_modules": LINEAR, "r": 50, "alpha": 30, "rank_pattern": {"fc2": 40}},
    ),
    "LN tuning": (
        "LNTuningConfig",
        {"target_modules": ["layernorm_before", "layernorm"], "modules_to_save": ["classifier"]},
    ),
}


def _adapted(model, kind, config):
    torch.manual_seed(11)
    adapted = peft.get_peft_model(model, getattr(peft, kind)(**config))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.4)
    return adapted.eval()


def _saved(tmp_path, kind, config):
    model = randomise_calmly(VIT.model())
    model.save_pretrained(tmp_path / "base")
    adapted = _adapted(model, kind, config)
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "base", tmp_path / "adapter", adapted


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(KINDS, 4, "slow"))
def test_merged_as_peft_merges(name, tmp_path):
    folder, adapter, adapted = _saved(tmp_path, *KINDS[name])
    ours, base = load_model(folder, adapter=adapter), load_model(folder)
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    theirs = adapted.merge_and_unload().eval()(images).logits
    assert relative(ours(images), theirs) < TOLERANCE
    assert relative(base(images), theirs) > 0.02  # the adapter does something
    (change,) = plan_conversion(folder, adapter=adapter).ledger.changed
    assert change.startswith(f"merged the {name.partition(',')[0]} adapter adapter: ")


def test_a_bias_that_is_not_there_is_not_multiplied(tmp_path):
    torch.manual_seed(3)
    small = {"depth": 2, "embed_dim": 36, "num_heads": 3, "img_size": 32, "qkv_bias": False}
    model = randomise_calmly(timm.create_model("vit_tiny_patch16_224", num_classes=5, **small))
    folder = str(tmp_path / "base")
    timm.models.save_for_hf(model, folder, model_args=small, safe_serialization=True)
    config = {"target_modules": ["qkv", "head"], "feedforward_modules": []}
    adapted = _adapted(model, "IA3Config", config)
    adapted.save_pretrained(tmp_path / "adapter")
    ours = load_model(folder, adapter=tmp_path / "adapter")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert relative(ours(images), adapted(images)) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("family", ["BEiT, classes", "DINOv3"])
def test_of_transformers_a_key_without_a_bias(family, tmp_path):
    model = randomise_calmly(CLASSES[family].model())
    model.save_pretrained(tmp_path / "base")
    layers = {"target_modules": ["q_proj", "k_proj", "v_proj"], "feedforward_modules": []}
    adapted = _adapted(model, "IA3Config", layers)
    adapted.save_pretrained(tmp_path / "adapter")
    ours = load_model(tmp_path / "base", adapter=tmp_path / "adapter")
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    final, tokens = outputs(adapted.merge_and_unload().eval(), images)
    if final is None:
        assert relative(ours.forward_features(images), tokens) < TOLERANCE
    else:
        assert relative(ours(images), final) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("family", ["BEiT", "EVA-02"])
def test_biases_outside_of_the_layer_are_timms(family, tmp_path):
    """timm 1.0.31 keeps the biases of q and v beside qkv, where IA3 leaves them as they are."""
    source = save_timm(tmp_path / "source", family)
    layers = {"target_modules": ["qkv"], "feedforward_modules": []}
    images, merged = torch.randn(2, 3, *load_model(source).config.image_size), []
    for name, model in (("timm", timm_model(family)[0]), ("ours", load_model(source))):
        adapted = _adapted(model, "IA3Config", layers)
        adapted.save_pretrained(tmp_path / name)
        merged.append(adapted.merge_and_unload().eval()(images))
        ours = load_model(source, adapter=tmp_path / name)
        assert relative(ours(images), merged[-1]) < TOLERANCE
    assert relative(*merged) > 1e-3  # the same names and factors
    file = tmp_path / "ours" / "adapter_config.json"
    said = json.loads(file.read_text())
    for other in (None, {"parent_library": "mine.models"}, {"parent_library": 3}, ["timm"]):
        file.write_text(json.dumps({**said, "auto_mapping": other}))
        with pytest.raises(MissingFact, match="for its bias too"):
            load_checkpoint(source, adapter=tmp_path / "ours")


@torch.no_grad()
def test_in_names_of_timm_for_a_base_of_transformers(tmp_path):
    """Dialects whose qkv has no bias explain the names as well, and fewer of the numbers."""
    source = save_timm(tmp_path / "source", "plain")
    convert(source, to="hf", output=tmp_path / "base", verify=False)
    layers = {"target_modules": ["qkv"], "feedforward_modules": []}
    adapted = _adapted(timm_model("plain")[0], "IA3Config", layers)
    adapted.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    said = json.loads(file.read_text())
    images = torch.randn(2, 3, 32, 32)
    wanted = adapted(images)
    for adapted_class in (said["auto_mapping"], None):
        file.write_text(json.dumps({**said, "auto_mapping": adapted_class}))
        ours = load_model(tmp_path / "base", adapter=tmp_path / "adapter")
        assert relative(ours(images), wanted) < TOLERANCE


def test_what_does_not_add_up(tmp_path):
    folder, adapter, _ = _saved(tmp_path, *KINDS["IA3, outputs and inputs"])
    said, file = json.loads((adapter / "adapter_config.json").read_text()), adapter
    wrong = {**said, "feedforward_modules": ["q_proj"]}
    (file / "adapter_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ConflictingFact, match="do not say the same of a module"):
        load_checkpoint(folder, adapter=adapter)
    for hostile in ("((a+)+)+$", {"a": 1}, [1]):
        wrong = {**said, "feedforward_modules": hostile}
        (file / "adapter_config.json").write_text(json.dumps(wrong))
        with pytest.raises(ConflictingFact):
            load_checkpoint(folder, adapter=adapter)
    (file / "adapter_config.json").write_text(json.dumps(said))
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = next(name for name in tensors if name.endswith("q_proj.ia3_l"))
    tensors[first] = tensors[first][:-1].clone()
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(TensorMismatch, match="do not fit this model"):
        load_checkpoint(folder, adapter=adapter)


@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig"])
def test_a_part_that_is_missing_or_of_a_convolution_is_named(kind, tmp_path):
    config = {"target_modules": ["q_proj", "projection"], "use_effective_conv2d": True, "r": 2}
    folder, adapter, _ = _saved(tmp_path, kind, config)
    with pytest.raises(TensorMismatch, match=r"merge_and_unload|do not fit"):
        load_checkpoint(folder, adapter=adapter)
    tensors = load_file(adapter / "adapter_model.safetensors")
    tensors = {n: t for n, t in tensors.items() if "projection" not in n}
    gone = next(name for name in tensors if "_w2" in name)
    save_file(
        {n: t for n, t in tensors.items() if n != gone}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(TensorMismatch, match="has not the tensors of its kind"):
        load_checkpoint(folder, adapter=adapter)


def test_transformers_reads_what_was_merged(tmp_path):
    folder, adapter, adapted = _saved(tmp_path, *KINDS["IA3, a new head"])
    ours = load_model(folder, adapter=adapter)
    ours.save_pretrained(tmp_path / "merged", verify=False)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "merged")
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    with torch.no_grad():
        assert relative(theirs.eval()(images).logits, adapted(images).logits) < TOLERANCE
