"""The image towers of Qwen3-VL, Gemma 4 and DeepSeek-V4, whose last step merges patches."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.coverage.families import random_model
from tests.packages import transformers
from tests.sampling import sampled
from tests.small_models import assert_same_tensors
from vitconvert.errors import MissingFact
from vitconvert.programs.transformers.running import run
from vitconvert.tables.dialects import builtin_tables

GEMMA = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 11,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "patch_size": 8,
    "position_embedding_size": 7,
}
QWEN = {
    "hidden_size": 48,
    "intermediate_size": 50,
    "depth": 11,
    "num_heads": 3,
    "patch_size": 6,
    "out_hidden_size": 20,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [1, 3],
}


def randomised(model):
    torch.manual_seed(4)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("_min", "_max")):
                tensor.fill_(torch.rand(()).item() + 0.9).mul_(-1 if name.endswith("min") else 1)
            elif "inv_freq" not in name:
                factor = tensor.ndim == 1 and name.endswith(("weight", "scale"))
                tensor.normal_(std=0.1).add_(0.5 if factor else 0.0)
    return model.eval()


def gemma(**changes):
    kinds = transformers
    return randomised(kinds.Gemma4VisionModel(kinds.Gemma4VisionConfig(**GEMMA | changes)))


def qwen():
    kinds = transformers.models.qwen3_vl.configuration_qwen3_vl
    return randomised(transformers.Qwen3VLVisionModel(kinds.Qwen3VLVisionConfig(**QWEN)))


def assert_close(model, ours):
    images = torch.rand(2, 3, *ours.config.image_size)
    with torch.inference_mode():
        wanted, found = run(model, images), ours(images)
    assert wanted.std() > 0
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5 * wanted.abs().max().item())


@pytest.mark.parametrize(
    "changes", sampled([{"use_clipped_linears": True}, {"standardize": True}], 2, "slow"), ids=str
)
def test_gemma_is_read_and_written(changes, tmp_path):
    model = gemma(**changes)
    model.save_pretrained(tmp_path / "hf")
    said = {"overrides": {"image_size": (24, 48)}}
    found = vitconvert.load_checkpoint(tmp_path / "hf", **said)
    assert found.table.name == "hf_gemma4"
    assert_close(model, vitconvert.load_model(found))
    vitconvert.convert(tmp_path / "hf", output=tmp_path / "timm", to="timm", **said)
    back = vitconvert.convert(tmp_path / "timm", output=tmp_path / "back", to="hf")
    assert [opened.consumer for opened in back.opened] == ["transformers"]
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("hf", "back"))
    assert_same_tensors(after, before)
    # In a larger model, of which config.json says nothing about sizes of images.
    tensors = {f"model.vision_tower.{key}": tensor for key, tensor in before.items()}
    section = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    whole = larger(tmp_path / "whole", tensors, {"model_type": "gemma4", "vision_config": section})
    with pytest.raises(MissingFact, match="image_size"):
        vitconvert.load_model(whole)
    assert_close(model, vitconvert.load_model(whole, **said))


def test_what_gemma_scales_beyond_float16_is_standardised_before_it_is_rounded(tmp_path):
    model = gemma(standardize=True)
    with torch.no_grad():
        model.encoder.layers[-1].post_feedforward_layernorm.weight.fill_(8000.0)
        model.std_bias.fill_(60000.0)
        model.std_scale.fill_(1e-3)
    model.save_pretrained(tmp_path)
    ours = vitconvert.load_model(tmp_path, overrides={"image_size": (24, 48)})
    images = torch.rand(2, 3, 24, 48)
    with torch.inference_mode():
        wanted = run(model, images)
        assert (wanted / 1e-3 + 60000).abs().max() > torch.finfo(torch.float16).max
        found = ours.half()(images.half()).float()
    assert (found - wanted).abs().max() < 1e-2 * wanted.abs().max()


def larger(folder, tensors, config):
    folder.mkdir()
    text = {"model.language_model.embed_tokens.weight": torch.zeros(5, 3)}
    save_file({**tensors, **text}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_qwens_kernel_of_two_frames_is_summed(tmp_path):
    model = qwen()
    model.save_pretrained(tmp_path / "hf")
    said = {"overrides": {"image_size": (24, 36)}}
    found = vitconvert.load_checkpoint(tmp_path / "hf", **said)
    assert found.table.name == "hf_qwen3_vl"
    assert any("it was summed over them, in float64" in note for note in found.ledger.notes)
    assert_close(model, vitconvert.load_model(found))
    kernel = model.patch_embed.proj.weight.detach()
    assert torch.equal(found.tensors["patch_embed.proj.weight"], kernel.double().sum(dim=2).float())
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors = {f"model.visual.{key}": tensor for key, tensor in tensors.items()}
    section = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    # Files of the Hub call the section's type as they call the whole.
    config = {"model_type": "qwen3_vl", "vision_config": section | {"model_type": "qwen3_vl"}}
    whole = larger(tmp_path / "whole", tensors, config)
    assert_close(model, vitconvert.load_model(whole, **said))
    assert vitconvert.verify(whole, **said).verdict == "equal"


SMALLEST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SMALLEST)
def test_each_of_qwens_frames_gets_a_half(dtype, tmp_path):
    model = qwen()
    # Numbers that have no half, and one of the two zeros.
    first, second = model.patch_embed.proj.weight.data.unbind(2)
    first[0, 0, 0, :5] = torch.tensor([3.0, 1.0, -1.0, 5.0, -0.0]) * SMALLEST[dtype]
    second[0, 0, 0, :5] = -0.0
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "hf")
    said = {"overrides": {"image_size": (24, 36)}, "verify": dtype == "float32"}
    vitconvert.convert(tmp_path / "hf", output=tmp_path / "timm", to="timm", **said)
    done = vitconvert.convert(tmp_path / "timm", output=tmp_path / "back", to="hf", verify=True)
    assert [opened.consumer for opened in done.opened] == ["transformers"]
    assert "do not come back" in done.ledger.notes[-1]
    planned = vitconvert.plan_conversion(tmp_path / "timm", to="hf")
    assert planned.ledger.notes == done.ledger.notes
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("hf", "back"))
    assert after.keys() == {key for key in before if not key.startswith("deepstack")}
    assert {t.assembly.target: t.info.shape for t in planned.tensors} == {
        key: tuple(tensor.shape) for key, tensor in after.items()
    }
    name = "patch_embed.proj.weight"
    assert all(torch.equal(tensor, before[key]) for key, tensor in after.items() if key != name)
    halves = after[name].double()
    assert torch.equal(halves[:, :, 0, 1:], halves[:, :, 1, 1:])
    ours = load_file(tmp_path / "timm" / "model.safetensors")[name]
    vitconvert.convert(tmp_path / "back", output=tmp_path / "again", to="timm", verify=False)
    again = load_file(tmp_path / "again" / "model.safetensors")[name]
    assert torch.equal(ours, again) and torch.equal(ours.signbit(), again.signbit())
    assert ours[0, 0, 0].count_nonzero() == ours.shape[-1] - 1 and ours[0, 0, 0, 4].signbit()


def test_deepseeks_own_names(tmp_path):
    sizes = {"embed_dim": 128, "num_heads": 2, "depth": 11, "out_features": 20, "patch_size": 6}
    model = random_model("deepseek_vit_412m_enc", **sizes)
    tensors = {"embed.weight": torch.ones(9, 7), "norm.weight": torch.ones(7)}
    for key, tensor in model.state_dict().items():
        for timms, own in (("qkv", "wqkv"), ("attn.proj", "attn.wo"), ("fc1", "w1"), ("fc2", "w2")):
            key = key.replace(timms, own)
        if key == "patch_embed.proj.weight":
            tensor = tensor.flatten(1)
        tensors[key if key.startswith("aligner") else f"vision.{key}"] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    load = partial(vitconvert.load_model, tmp_path / "model.safetensors")
    ours = load(overrides={"image_size": (24, 30), "patch_size": 6})
    assert ours.config.origins["head_dim"] == builtin_tables()["deepseek"].origin
    images = torch.rand(2, 3, 24, 30)
    with torch.inference_mode():
        wanted = model.forward_features(images).flatten(1, 2)
        torch.testing.assert_close(ours(images), wanted, rtol=1e-5, atol=1e-5)
