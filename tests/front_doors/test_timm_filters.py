"""Files of transformers through timm's own filters, which may read them otherwise than their owner.

timm 1.0.31: `checkpoint_filter_fn_encoder` of gemma4_vit and qwen3_vit, which `create_model` uses.
"""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file

import vitconvert
from tests.huggingface.every_class import made
from tests.packages import timm
from tests.small_models import relative
from vitconvert.programs.transformers.running import run

# Class, timm's module, what stands before its names in a larger model, the size of images, and
# whether timm computes what transformers does
KINDS = {
    "Gemma 4": ("Gemma4VisionModel", "gemma4_vit", "model.vision_tower.", (24, 48), False),
    "Qwen3-VL": ("Qwen3VLVisionModel", "qwen3_vit", "model.visual.", (32, 48), True),
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_for_timm_computes_the_function_of_the_source(kind, tmp_path):
    name, module, prefix, size, alike = KINDS[kind]
    theirs = made(name)
    theirs.save_pretrained(tmp_path / "hf")
    how = {"to": "timm", "overrides": {"image_size": size}}
    done = vitconvert.convert(tmp_path / "hf", output=tmp_path / "timm", **how)
    assert [opened.why_not for opened in done.opened] == [None]
    stated = json.loads((tmp_path / "timm" / "config.json").read_text())
    model = timm.create_model(stated["architecture"], num_classes=0, **stated["model_args"]).eval()
    images = torch.rand(2, 3, *size)
    wanted = run(theirs, images)  # its own processor cuts the patches
    model.load_state_dict(load_file(tmp_path / "timm" / "model.safetensors"))
    assert relative(model(images), wanted) < 2e-6
    filtered = import_module(f"timm.models.{module}").checkpoint_filter_fn_encoder(
        {prefix + key: tensor for key, tensor in theirs.state_dict().items()}, model
    )
    model.load_state_dict(filtered)
    # timm takes Gemma's weight of patches (y x channel) for one of patches (channel y x).
    assert (relative(model(images), wanted) < 2e-6) == alike
