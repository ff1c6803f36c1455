"""Image towers of other models that are near those of Qwen's and of GLM-4V."""

from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.small_models import relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert.programs.transformers.running import run

SIZES = {"hidden_size": 48, "intermediate_size": 50, "out_hidden_size": 20}
SIZES |= {"depth": 11, "num_heads": 3, "patch_size": 6}
POSITIONS = SIZES | {"num_position_embeddings": 25}
DEEP = POSITIONS | {"deepstack_visual_indexes": [1, 3]}
BARE = {k: v for k, v in SIZES.items() if k != "out_hidden_size"}
# The module, the class, its arguments, the table, and what stands before it in the larger model
KINDS = {
    "qwen2_5_omni": (
        "Qwen2_5OmniVisionEncoder",
        SIZES | {"window_size": 30, "fullatt_block_indexes": [3, 7]},
        "hf_qwen2_5_omni",
        "thinker.visual.",
    ),
    "qwen3_omni_moe": ("Qwen3OmniMoeVisionEncoder", DEEP, "hf_qwen3_vl_omni", "thinker.visual."),
    "qwen4_exp": ("Qwen4ExpVisionModel", POSITIONS, "hf_qwen3_vl", "model.visual."),
    "cohere_compass": ("CohereCompassVisionModel", DEEP, "hf_qwen3_vl", "model.visual."),
    "glm_ocr": (
        "GlmOcrVisionModel",
        SIZES | {"rms_norm_eps": 1e-4, "attention_bias": True},
        "hf_glm_ocr",
        "model.visual.",
    ),
    "ernie4_5_vl_moe": (
        "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
        BARE | {"rms_norm_eps": 1e-4},
        "hf_ernie4_5_vl",
        "model.vision_tower.",
    ),
    "video_llama_3": (
        "VideoLlama3VisionModel",
        {"hidden_size": 48, "intermediate_size": 50, "patch_size": 6}
        | {"num_hidden_layers": 11, "num_attention_heads": 3, "layer_norm_eps": 1e-4},
        "hf_video_llama_3",
        "model.vision_model.",
    ),
}


def made(kind, **changes):
    """A tower with every parameter random."""
    assert transformers
    name, own, *_ = KINDS[kind]
    of_kind = getattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), name)
    model = of_kind(of_kind.config_class(**own | changes))
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1).add_(0.1 if parameter.ndim == 1 else 0.0)
    return model.eval()


@pytest.fixture(scope="module", params=list(KINDS))
def tower(request, tmp_path_factory):
    model, folder = made(request.param), tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return request.param, model, folder


def stated(*size):
    return {"overrides": {"image_size": size}}


@torch.inference_mode()
def test_outputs_are_those_of_transformers_at_every_size(tower):
    kind, model, folder = tower
    assert vitconvert.load_checkpoint(folder, **stated(24, 24)).table.name == KINDS[kind][2]
    for size in ((24, 24), (36, 60)):
        images = torch.rand(2, 3, *size)
        assert (
            relative(vitconvert.load_model(folder, **stated(*size))(images), run(model, images))
            < 1e-6
        )


@torch.inference_mode()
def test_it_is_written_again_and_opened(tower, tmp_path):
    _, _, folder = tower
    images = torch.rand(2, 3, 36, 24)
    for to in ("hf", "vit"):
        done = vitconvert.convert(
            folder, output=tmp_path / to, to=to, verify=True, **stated(36, 24)
        )
        assert done.opened[-1 if to == "hf" else 0].consumer in ("transformers", "timm")
        ours = vitconvert.load_model(tmp_path / to)
        assert torch.equal(ours(images), vitconvert.load_model(folder, **stated(36, 24))(images))
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "hf"))
    assert {n for n in before if "merger_list" not in n} == after.keys()


@torch.inference_mode()
def test_it_is_found_in_the_larger_model(tower, tmp_path):
    kind, model, folder = tower
    _, _, table, start = KINDS[kind]
    tensors = {start + k: t for k, t in load_file(folder / "model.safetensors").items()}
    save_file(
        {**tensors, "model.embed_tokens.weight": torch.zeros(5, 3)}, tmp_path / "model.safetensors"
    )
    section = (folder / "config.json").read_text()
    config = f'{{"model_type": "{kind}", "vision_config": {section}}}'
    if start.startswith("thinker"):
        config = f'{{"model_type": "{kind}", "thinker_config": {config}}}'
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    found = vitconvert.load_checkpoint(tmp_path, **stated(36, 60))
    assert found.table.name == table
    images = torch.rand(2, 3, 36, 60)
    ours = vitconvert.load_model(tmp_path, **stated(36, 60))
    # 1.1e-6 of GLM-OCR's on a processor without AVX-512, whose products round otherwise.
    assert relative(ours(images), run(model, images)) < 2e-6


@pytest.mark.coverage
def test_it_is_exported_and_embedded(tower, tmp_path):
    _, model, folder = tower
    images = torch.rand(2, 3, 24, 36)
    found = in_onnx_runtime(folder, images, tmp_path, **stated(24, 36))
    with torch.inference_mode():
        assert relative(found, run(model, images)) < 1e-5
    said = ("--set=image_size=24x36", "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert embedded(folder, tmp_path, *said).shape[1:] == found.shape[1:]
