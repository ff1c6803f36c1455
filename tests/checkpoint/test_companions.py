"""What lies beside the weights."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.small_models import small_config
from vitconvert.checkpoint import ReadOptions
from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.images import stated_preprocessing
from vitconvert.checkpoint.reading import open_weights
from vitconvert.checkpoint.recognition import statements_on
from vitconvert.errors import NotRepresentable, VitConvertError
from vitconvert.formats import hash_file
from vitconvert.sources import locate
from vitconvert.tables.dialects import builtin_tables

CONFIG = small_config(
    image_size=(24, 36),
    patch_size=(8, 12),
    num_classes=5,
    depth=2,
    mlp_dim=52,
)


def companions_in(directory):
    located = locate(directory)
    return Companions(located=located, container=open_weights(located, ReadOptions()))


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        (
            "preprocessor_config.json",
            {"image_processor_type": "ViTImageProcessor", "resample": "bicubic"},
            "error: conflicting-fact\n"
            "  resample = 'bicubic' is not the number of a filter of Pillow.\n"
            "  file   {file}\n"
            "  known  0 nearest, 1 lanczos, 2 bilinear, 3 bicubic, 4 box, 5 hamming",
        ),
        (
            "config.json",
            {"pretrained_cfg": {"crop_pct": -1}},
            "error: conflicting-fact\n  crop_pct = -1 must be positive.\n  file  {file}",
        ),
        (
            "config.json",
            {"preprocess_cfg": {"mean": "grey"}},
            "error: conflicting-fact\n  mean = 'grey' should be 3 numbers.\n  file  {file}",
        ),
        (
            "config.json",
            {"pretrained_cfg": {"std": [0.5, 0, 0.5]}},
            "error: conflicting-fact\n"
            "  The preprocessing contradicts itself.\n"
            "  file  {file}\n"
            "  std = (0.5, 0.0, 0.5) divides by zero",
        ),
        (
            "vitconvert.json",
            {"preprocessing": {"image_size": [24, 36], "resize": "squash"}},
            "error: missing-fact\n"
            "  Preprocessing lacks backend, crop, interpolation, mean, origin, resize_size, std.\n"
            "  file  {file}",
        ),
        (
            "vitconvert.json",
            {"preprocessing": [1]},
            "error: conflicting-fact\n"
            "  preprocessing = [1] should be an object with fields.\n"
            "  file  {file}",
        ),
    ],
)
def test_error_wrong_preprocessing_names_its_file(name, said, message, tmp_path):
    save_file({"head.bias": np.zeros(5, np.float32)}, tmp_path / "model.safetensors")
    if name == "vitconvert.json":
        said = {**said, "sha256": {"model.safetensors": hash_file(tmp_path / "model.safetensors")}}
    (tmp_path / name).write_text(json.dumps(said))
    with pytest.raises(VitConvertError) as caught:
        stated_preprocessing(companions_in(tmp_path), builtin_tables()["timm"], CONFIG)
    assert str(caught.value) == message.format(file=tmp_path / name)


@pytest.mark.parametrize(
    ("table", "said", "message"),
    [
        (
            "timm",
            {"model_args": {"img_size": 24, "talking_heads": True}},
            "error: not-representable\n"
            "  config.json passes arguments that vitconvert has no word for: talking_heads.\n"
            "  file   {file}\n"
            "  table  weights_map/timm.toml\n"
            "  A model that needs them computes another function than a plain ViT.",
        ),
        (
            "openclip_clipa",
            {"model_cfg": {"vision_cfg": {"image_size": 24}}},
            "error: not-representable\n"
            "  config.json would have to say model_cfg.vision_cfg.final_ln_after_pool = True.\n"
            "  file   {file}\n"
            "  table  weights_map/openclip_clipa.toml\n"
            "  Without it, the same tensors are another function, which has no table.",
        ),
    ],
)
def test_error_the_config_asks_for_another_model(table, said, message, tmp_path):
    save_file({"head.bias": np.zeros(5, np.float32)}, tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(said))
    with pytest.raises(NotRepresentable) as caught:
        statements_on(companions_in(tmp_path), ReadOptions()).facts(builtin_tables()[table])
    assert str(caught.value) == message.format(file=file)
