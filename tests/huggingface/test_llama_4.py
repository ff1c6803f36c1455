"""Llama 4's vision encoder up to its adapter, with its class token at the end, by its own class."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.sampling import sampled
from tests.small_models import relative
from tests.towers.families import LANGUAGE
from tests.uses import in_onnx_runtime
from vitconvert.errors import NotRepresentable, TensorMismatch
from vitconvert.programs.transformers.running import run_to_tokens

SIZES = {"hidden_size": 60, "num_hidden_layers": 11, "num_attention_heads": 5, "patch_size": 8}
SIZES |= {"intermediate_size": 240, "projector_input_dim": 20, "projector_output_dim": 20}
TEXT = {"intermediate_size_mlp": 30, "num_local_experts": 2, "head_dim": 10} | LANGUAGE


def made(side, *, theta=77.0, **changes):
    rope = {"rope_type": "default", "rope_theta": theta}
    said = SIZES | {"image_size": side, "rope_parameters": rope, "vision_output_dim": 20} | changes
    model = transformers.Llama4VisionModel(transformers.Llama4VisionConfig(**said))
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1).add_(0.1 if parameter.ndim == 1 else 0.0)
    return model.eval()


def images_of(side, channels=3):
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(7))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("side", "channels", "changes"),
    [
        (16, 3, {"norm_eps": 1e-2, "hidden_act": "relu"}),  # neither of which it reads
        pytest.param(48, 4, {"theta": 1e4}, marks=pytest.mark.slow),
    ],
)
def test_outputs_are_those_of_its_class(side, channels, changes, tmp_path):
    (model := made(side, num_channels=channels, **changes)).save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path)
    assert (found.dialect, found.config.image_size) == ("hf_llama4", (side, side))
    images = images_of(side, channels)
    tokens = run_to_tokens(model, images)  # of these the class token comes first
    for fast in (False, True):
        ours = vitconvert.load_model(tmp_path, fast=fast)
        assert relative(ours(images), tokens) < 1e-6
    # What the larger model reads is what its adapter makes of the others.
    adapted = model.vision_adapter(ours(images)[:, 1:])
    assert relative(adapted, model(images).last_hidden_state) < 1e-6


@torch.inference_mode()
@pytest.mark.parametrize("on_disk", sampled([True, False], 2))
@pytest.mark.slow
def test_it_is_found_in_the_larger_model(on_disk, tmp_path):
    vit, images = made(32), images_of(32)
    config = transformers.Llama4Config(vision_config=vit.config.to_dict(), text_config=TEXT)
    model = transformers.Llama4ForConditionalGeneration(config)
    model.vision_model.load_state_dict(vit.state_dict())
    model.save_pretrained(tmp_path, save_original_format=on_disk)
    assert vitconvert.inspect(tmp_path).prefix == "vision_model."
    found = vitconvert.load_checkpoint(tmp_path)
    assert found.dialect == "hf_llama4"
    assert relative(vitconvert.load_model(tmp_path)(images), run_to_tokens(vit, images)) < 1e-6
    ignored = found.ledger.ignored["vision_adapter.mlp.fc1.weight"]
    assert "makes one token of four patches" in ignored
    report = vitconvert.verify(tmp_path)
    assert report.verdict == "equal" and "Llama4VisionModel" in report.reference


@pytest.mark.coverage
@torch.inference_mode()
def test_it_is_converted_and_exported(tmp_path):
    (model := made(32)).save_pretrained(tmp_path / "hf")
    images = images_of(32)
    done = vitconvert.convert(tmp_path / "hf", to="vit", output=tmp_path / "vit", verify=True)
    assert relative(vitconvert.load_model(done.output)(images), run_to_tokens(model, images)) < 1e-6
    found = load_file(tmp_path / "vit" / "model.safetensors")["pos_embed"]
    assert torch.equal(found[0], model.positional_embedding_vlm.roll(1, dims=0))
    made_by_onnx = in_onnx_runtime(tmp_path / "hf", images, tmp_path)
    assert relative(made_by_onnx, run_to_tokens(model, images)) < 1e-5


@pytest.mark.parametrize("to", sampled(["hf_llama4", "hf", "timm"], 3))
def test_what_holds_it_not_is_named(to, tmp_path):
    made(16).save_pretrained(tmp_path / "hf")
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: vit"):
        vitconvert.convert(tmp_path / "hf", to=to, output=tmp_path / "out")


def test_other_images_and_names(tmp_path):
    made(16).save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="numbers the patches of a square image"):
        vitconvert.load_checkpoint(tmp_path, overrides={"image_size": (8, 32)})
    transformers.Llama4ImageProcessor().save_pretrained(tmp_path)
    notes = vitconvert.load_checkpoint(tmp_path).ledger.notes
    assert "it cuts an image into tiles" in " ".join(notes)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]  # as it is on the Hub
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vitconvert.load_checkpoint(tmp_path).config.rope_temperature == 77.0
    tensors = load_file(file := tmp_path / "model.safetensors")
    del tensors["positional_embedding_vlm"]
    save_file(tensors, file)
    with pytest.raises(TensorMismatch, match="pos_embed"):
        vitconvert.load_checkpoint(tmp_path)
