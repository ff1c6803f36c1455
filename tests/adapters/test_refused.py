"""What is no adapter for the model, is not merged by addition, or is hostile."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.writing import saved
from tests.huggingface.classes import CLASSES, LABELS, MLP, _case
from tests.packages import peft
from vitconvert.api import inspect, load_checkpoint
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    NotRepresentable,
    TensorMismatch,
    VitConvertError,
)

VIT = _case("ViTForImageClassification", "ViTConfig", "hf_vit", MLP, LABELS)
QV = ["q_proj", "v_proj"]
START = "base_model.model.vit.layers.0.attention.q_proj."


@pytest.fixture
def pair(tmp_path):
    folder, adapter, _ = saved(VIT.model(), tmp_path, target_modules=QV)
    return folder, adapter


def _change(adapter, change):
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def _configure(adapter, **fields):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_an_adapter_alone_names_its_base(pair):
    _, adapter = pair
    _configure(adapter, base_model_name_or_path="google/vit-base-patch16-224")
    problem = inspect(adapter).problem
    assert isinstance(problem, TensorMismatch)
    assert problem.hint and problem.hint.startswith(
        f"`vitconvert hf google/vit-base-patch16-224 --adapter {adapter}` "
    )
    with pytest.raises(TensorMismatch, match="adapter alone"):
        load_checkpoint(adapter)


def test_a_tensor_left_over(pair):
    folder, adapter = pair
    _change(adapter, lambda t: t.update({"base_model.model.vit.layers.0.gate": torch.ones(3)}))
    with pytest.raises(TensorMismatch) as error:
        load_checkpoint(folder, adapter=adapter)
    assert "1 of 5 tensors of the adapter do not fit" in str(error.value)
    assert "vit.layers.0.gate" in str(error.value)


def test_a_block_that_the_model_has_not(pair):
    folder, adapter = pair
    one, nine = (f"base_model.model.vit.layers.{i}.attention.q_proj.lora_" for i in (1, 9))

    def move(tensors):
        for side in ("A.weight", "B.weight"):
            tensors[nine + side] = tensors.pop(one + side)

    _change(adapter, move)
    with pytest.raises(TensorMismatch, match=re.escape("the adapter do not fit this model")) as e:
        load_checkpoint(folder, adapter=adapter)
    assert "the model has no blocks.9.attn.qkv.weight" in str(e.value)


def test_half_of_a_pair_is_missing(pair):
    folder, adapter = pair
    _change(adapter, lambda tensors: tensors.pop(f"{START}lora_B.weight"))
    with pytest.raises(TensorMismatch, match="has not the tensors of LoRA"):
        load_checkpoint(folder, adapter=adapter)


def test_a_rank_that_does_not_fit(pair):
    folder, adapter = pair
    _configure(adapter, r=3)
    with pytest.raises(ConflictingFact, match="another rank"):
        load_checkpoint(folder, adapter=adapter)
    _configure(adapter, r=4)
    _change(adapter, lambda t: t.update({f"{START}lora_B.weight": torch.ones(36, 5)}))
    with pytest.raises(TensorMismatch, match="do not fit each other"):
        load_checkpoint(folder, adapter=adapter)


def test_dora_without_its_lengths(pair):
    folder, adapter = pair
    _configure(adapter, use_dora=True)
    with pytest.raises(ConflictingFact, match="do not say the same of DoRA"):
        load_checkpoint(folder, adapter=adapter)


def test_a_head_that_was_to_be_saved(pair):
    folder, adapter = pair
    _configure(adapter, modules_to_save=["classifier"])
    with pytest.raises(TensorMismatch, match="lacks the modules"):
        load_checkpoint(folder, adapter=adapter)


def test_an_adapter_of_another_model(pair, tmp_path):
    folder, _ = pair
    (tmp_path / "other").mkdir()
    _, other, _ = saved(CLASSES["CLIP"].model(), tmp_path / "other", target_modules=QV)
    with pytest.raises(TensorMismatch, match="do not fit this model"):
        load_checkpoint(folder, adapter=other)


def test_two_adapters_in_one_file(pair):
    folder, adapter = pair

    def name(tensors):
        for i, key in enumerate(list(tensors)):
            tensors[key.replace(".weight", f".{'ab'[i % 2]}.weight")] = tensors.pop(key)

    _change(adapter, name)
    with pytest.raises(TensorMismatch, match="several adapters"):
        load_checkpoint(folder, adapter=adapter)


def test_a_whole_model_given_for_an_adapter(pair):
    folder, _ = pair
    with pytest.raises(VitConvertError):
        load_checkpoint(folder, adapter=folder)
    with pytest.raises(TensorMismatch, match="no LoRA adapter"):
        load_checkpoint(folder, adapter=folder, lora_scale=2.0)


def test_another_method_is_refused_by_its_name(tmp_path):
    model = VIT.model()
    model.save_pretrained(tmp_path / "base")
    config = peft.LoHaConfig(r=2, target_modules=["q_proj"])
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    for source, more in ((tmp_path / "base", {"adapter": tmp_path / "adapter"}),):
        with pytest.raises(NotRepresentable, match="of the type LOHA is not merged"):
            load_checkpoint(source, **more)
    problem = inspect(tmp_path / "adapter").problem
    assert isinstance(problem, NotRepresentable)
    assert "LOHA" in problem.fact


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": ["pissa"]},
        {"use_qalora": True},
        {"layer_replication": [[0, 2]]},
        {"trainable_token_indices": [1]},
    ],
)
def test_a_variant_that_computes_something_else(pair, fields):
    folder, adapter = pair
    _configure(adapter, **fields)
    with pytest.raises(NotRepresentable):
        load_checkpoint(folder, adapter=adapter)


@pytest.mark.parametrize(
    "fields",
    [
        {"r": "4"},
        {"r": True},
        {"r": 0},
        {"r": -4},
        {"r": None},
        {"lora_alpha": [8]},
        {"lora_alpha": None},
        {"lora_alpha": 1e999},
        {"use_rslora": 1},
        {"fan_in_fan_out": "yes"},
        {"use_dora": "no"},
        {"rank_pattern": [1]},
        {"rank_pattern": {"q_proj": 2.5}},
        {"alpha_pattern": {"q_proj": "x"}},
        {"alpha_pattern": {"((a+)+)+$": 1}},
        {"alpha_pattern": {"(a|a)*b": 1}},
        {"alpha_pattern": {"[": 1}},
        {"alpha_pattern": {"a" * 5000 + ".*.*.*.*": 1}},
        {"modules_to_save": {"a": 1}},
        {"base_model_name_or_path": 7},
        {"peft_type": 3},
    ],
)
def test_hostile_fields(pair, fields):
    folder, adapter = pair
    _configure(adapter, **fields)
    with pytest.raises((ConflictingFact, CorruptFile)):
        load_checkpoint(folder, adapter=adapter)
    assert isinstance(inspect(adapter).problem, VitConvertError)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 1' + "0" * 400 + "}", "[" * 9000])
def test_hostile_json(pair, text):
    folder, adapter = pair
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises((CorruptFile, NotRepresentable, ConflictingFact)):
        load_checkpoint(folder, adapter=adapter)


def test_whole_numbers_are_no_weights(pair):
    folder, adapter = pair
    key = f"{START}lora_A.weight"
    _change(adapter, lambda t: t.update({key: t[key].to(torch.int8)}))
    with pytest.raises(TensorMismatch, match="floating-point"):
        load_checkpoint(folder, adapter=adapter)
