"""What is no adapter for the model, is not merged by addition, or is hostile."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.writing import VIT, saved
from tests.huggingface.classes import CLASSES
from tests.packages import peft
from vitconvert.api import inspect, load_checkpoint
from vitconvert.checkpoint.adapters.config import AdapterConfig
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    NotRepresentable,
    TensorMismatch,
    VitConvertError,
)
from vitconvert.sources import locate

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
    with pytest.raises(TensorMismatch, match="only an adapter"):
        load_checkpoint(locate(adapter, offline=True))


def _moved(tensors):
    for side in ("A.weight", "B.weight"):
        moved = tensors.pop(f"base_model.model.vit.layers.1.attention.q_proj.lora_{side}")
        tensors[f"base_model.model.vit.layers.9.attention.q_proj.lora_{side}"] = moved


def _of_two(tensors):
    for i, key in enumerate(list(tensors)):
        tensors[key.replace(".weight", f".{'ab'[i % 2]}.weight")] = tensors.pop(key)


def _whole_numbers(tensors):
    tensors[f"{START}lora_A.weight"] = tensors[f"{START}lora_A.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "fields", "kind", "message"),
    [
        (
            lambda t: t.update({"base_model.model.vit.layers.0.gate": torch.ones(3)}),
            {},
            TensorMismatch,
            r"1 of 5 tensors of the adapter do not fit[^$]*vit\.layers\.0\.gate",
        ),
        (
            _moved,
            {},
            TensorMismatch,
            r"do not fit this model[^$]*the model has no blocks\.9\.attn\.qkv\.weight",
        ),
        (
            lambda t: t.pop(f"{START}lora_B.weight"),
            {},
            TensorMismatch,
            "lacks the tensors of LoRA",
        ),
        (dict, {"r": 3}, ConflictingFact, "another rank"),
        (
            lambda t: t.update({f"{START}lora_B.weight": torch.ones(36, 5)}),
            {},
            TensorMismatch,
            "do not fit each other",
        ),
        (dict, {"use_dora": True}, ConflictingFact, "contradict each other about DoRA"),
        (dict, {"modules_to_save": ["classifier"]}, TensorMismatch, "lacks the modules"),
        (_of_two, {}, TensorMismatch, "several adapters"),
        (_whole_numbers, {}, TensorMismatch, "floating-point"),
    ],
)
def test_what_does_not_add_up(pair, change, fields, kind, message):
    folder, adapter = pair
    _change(adapter, change)
    _configure(adapter, **fields)
    with pytest.raises(kind) as error:
        load_checkpoint(folder, adapter=adapter)
    assert re.search(message, str(error.value))


def test_adapters_of_other_models_and_no_adapters(pair, tmp_path):
    folder, _ = pair
    (tmp_path / "other").mkdir()
    _, other, _ = saved(CLASSES["CLIP"].model(), tmp_path / "other", target_modules=QV)
    with pytest.raises(TensorMismatch, match="do not fit this model"):
        load_checkpoint(folder, adapter=other)
    with pytest.raises(VitConvertError):
        load_checkpoint(folder, adapter=folder)
    with pytest.raises(TensorMismatch, match="is not an adapter"):
        load_checkpoint(folder, adapter=folder, lora_scale=2.0)


def test_another_method_is_refused_by_its_name(tmp_path):
    model = VIT.model()
    model.save_pretrained(tmp_path / "base")
    config = peft.HRAConfig(r=2, target_modules=["q_proj"])
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(NotRepresentable, match="of the type HRA is not merged"):
        load_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter")
    problem = inspect(tmp_path / "adapter").problem
    assert isinstance(problem, NotRepresentable)
    assert "HRA" in problem.fact


VARIANTS = (
    *({"init_lora_weights": "pissa"}, {"init_lora_weights": ["pissa"]}, {"use_qalora": True}),
    *({"layer_replication": [[0, 2]]}, {"trainable_token_indices": [1]}),
)
HOSTILE = (
    *({"r": wrong} for wrong in ("4", True, 0, -4, None)),
    *({"lora_alpha": wrong} for wrong in ([8], None, 1e999)),
    *({"use_rslora": 1}, {"fan_in_fan_out": "yes"}, {"use_dora": "no"}),
    *({"rank_pattern": [1]}, {"rank_pattern": {"q_proj": 2.5}}, {"alpha_pattern": {"q_proj": "x"}}),
    *({"alpha_pattern": {p: 1}} for p in ("((a+)+)+$", "(a|a)*b", "[", "a" * 5000 + ".*.*.*.*")),
    *({"modules_to_save": {"a": 1}}, {"base_model_name_or_path": 7}, {"peft_type": 3}),
)


def test_variants_that_compute_something_else_and_hostile_fields(pair):
    folder, adapter = pair
    before = (adapter / "adapter_config.json").read_text()
    for fields in (*VARIANTS, *HOSTILE):
        (adapter / "adapter_config.json").write_text(before)
        _configure(adapter, **fields)
        kinds = NotRepresentable if fields in VARIANTS else (ConflictingFact, CorruptFile)
        with pytest.raises(kinds):
            load_checkpoint(folder, adapter=adapter)
        assert isinstance(inspect(adapter).problem, VitConvertError), fields


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 1' + "0" * 400 + "}", "[" * 9000])
def test_hostile_json(pair, text):
    folder, adapter = pair
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises((CorruptFile, NotRepresentable, ConflictingFact)):
        load_checkpoint(folder, adapter=adapter)


def test_patterns_choose_the_modules_that_they_name():
    names = [f"encoder.layer.{i}.attention.{p}" for i in range(3) for p in ("query", "value")]
    each = AdapterConfig(rank=4, alpha=8, rank_pattern=dict.fromkeys(names, 2))
    assert {each.scale_of(name, 2) for name in names} == {4}
    some = AdapterConfig(rank=4, alpha=8, rank_pattern={r"layer\..*\.query": 2})
    assert [some.scale_of(name, 2 + 2 * ("value" in name)) for name in names] == [4, 2] * 3
