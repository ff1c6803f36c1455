"""Vision encoders of KerasHub's larger models, each by KerasHub's own class, from files on disk."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.keras_hub.test_keras_hub import ROUNDING, randomised
from tests.packages import keras, keras_hub, needed
from tests.sampling import sampled
from tests.small_models import relative
from tests.uses import in_onnx_runtime
from vitconvert import convert, load_checkpoint, load_model, verify
from vitconvert.errors import NotRepresentable

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SIZES: dict[str, Any] = {"num_layers": 11, "num_heads": 2, "hidden_dim": 12}
SIZES |= {"patch_size": 8, "intermediate_dim": 20}
LANGUAGE = {"vocabulary_size": 20, "num_layers": 1, "num_query_heads": 2, "hidden_dim": 8}
LANGUAGE |= {"num_key_value_heads": 1, "intermediate_dim": 10, "head_dim": 4}
BLIP = {"dropout_rate": 0.0, "layer_norm_epsilon": 1e-4, "initializer_range": 0.02}


def metaclip_2_encoder(side: int) -> Any:
    return keras_hub.models.MetaCLIP2VisionEncoder(image_shape=(side, side, 3), **SIZES)


def metaclip_2(side: int) -> Any:
    text = {"vocabulary_size": 9, "embedding_dim": 10, "max_sequence_length": 5, "num_layers": 2}
    text |= {"num_heads": 5, "hidden_dim": 10, "intermediate_dim": 7}
    words = keras_hub.models.MetaCLIP2TextEncoder(**text)
    return keras_hub.models.MetaCLIP2Backbone(metaclip_2_encoder(side), words, projection_dim=10)


def pali_gemma(side: int) -> Any:
    own = {f"vit_{name}": size for name, size in SIZES.items()}
    return keras_hub.models.PaliGemmaBackbone(image_size=side, **LANGUAGE, **own)


def gemma_3_encoder(side: int) -> Any:
    return keras_hub.models.Gemma3VisionEncoder(
        image_size=side, output_dim=8, pool_size=2, layer_norm_epsilon=1e-4, **SIZES
    )


def gemma_3(side: int) -> Any:
    vision = gemma_3_encoder(side)
    return keras_hub.models.Gemma3Backbone(image_size=side, vision_encoder=vision, **LANGUAGE)


def blip_2_encoder(side: int, biases: bool = True) -> Any:
    said = {f"use_{part}": biases for part in ("patch_bias", "class_token", "mha_bias", "mlp_bias")}
    return keras_hub.models.BLIP2VisionEncoder(image_size=side, **SIZES, **BLIP, **said)


def blip_2(side: int) -> Any:
    small = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 9}
    small |= {"num_query_tokens": 3, "dropout": 0.0}
    former = keras_hub.models.BLIP2QFormer(
        vision_dim=12, cross_attention_frequency=1, layer_norm_epsilon=1e-5, **small
    )
    words = keras_hub.models.BLIP2CustomOPT(
        vocabulary_size=20, qformer_hidden_dim=8, max_sequence_length=9, **small
    )
    return keras_hub.models.BLIP2Backbone(blip_2_encoder(side), former, words)


# The dialect of each, what makes it, and whether KerasHub has a class of the ViT alone
CASES = {
    "MetaCLIP 2": ("keras_metaclip_2", metaclip_2, False),
    "MetaCLIP 2 alone": ("keras_metaclip_2_encoder", metaclip_2_encoder, True),
    "PaliGemma": ("keras_pali_gemma", pali_gemma, False),
    "Gemma 3": ("keras_gemma3", gemma_3, False),
    "Gemma 3 alone": ("keras_gemma3", gemma_3_encoder, False),
    "BLIP-2": ("keras_blip_2", blip_2, True),
    "BLIP-2 alone": ("keras_blip_2", blip_2_encoder, True),
    "BLIP-2 without biases": ("keras_blip_2", lambda side: blip_2_encoder(side, False), True),
}


def computed(model: Any, images: np.ndarray) -> np.ndarray:
    """Features of MetaCLIP 2, or tokens, before they are pooled or lead to a text model."""
    encoder = getattr(model, "vit_encoder", getattr(model, "vision_encoder", model))
    kind = type(encoder).__name__
    if model is not encoder and kind.startswith("Meta"):
        return np.array(model.get_vision_embeddings(images))
    if kind.startswith(("Gemma3", "PaliGemma")):
        images = images[:, None] if kind.startswith("Gemma3") else images
        encoder = keras.Model(encoder.inputs, encoder.get_layer("image_encoder").output)
        return np.array(encoder(images))
    return np.array(encoder({"images": images} if kind.startswith("Meta") else images))


def save(model: Any, folder: Path) -> Path:
    """A preset, or the whole file of a class that has none."""
    if hasattr(model, "save_to_preset"):
        model.save_to_preset(str(folder))
        return folder
    folder.mkdir()
    model.save(folder / "model.keras")
    return folder / "model.keras"


@torch.no_grad()
def ours(source: Path, images: np.ndarray, tokens: bool, **options: Any) -> torch.Tensor:
    model = load_model(source, **options)
    given = torch.from_numpy(images).permute(0, 3, 1, 2)
    return model.forward_features(given) if tokens else model(given)


@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("side", sampled([16, 40], 2))
@pytest.mark.parametrize("name", CASES)
def test_its_vision_encoder_computes_what_keras_hub_does(name, side, tmp_path):
    dialect, make, alone = CASES[name]
    model = randomised(make(side))
    source = save(model, tmp_path / "own")
    images = np.random.default_rng(1).normal(size=(2, side, side, 3)).astype("f4")
    wanted = torch.from_numpy(computed(model, images))
    assert load_checkpoint(source).dialect == dialect
    for fast in (False, True):
        assert relative(ours(source, images, wanted.ndim == 3, fast=fast), wanted) <= ROUNDING
    report = verify(source)
    assert report.verdict == ("equal" if alone else "not verified")
    assert alone or "KerasHub has no class of it alone" in report.summary()


TARGETS = {
    "MetaCLIP 2": ["vit", "hf"],
    "MetaCLIP 2 alone": ["vit", "timm", "keras_hub"],
    "PaliGemma": ["vit", "timm", "hf"],
    "Gemma 3": ["vit", "timm", "hf"],
    "BLIP-2": ["vit", "hf"],
}


@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", sampled(TARGETS, 4))
def test_it_becomes_all_that_hold_it(name, tmp_path):
    model = randomised(CASES[name][1](16))
    source = save(model, tmp_path / "own")
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype("f4")
    wanted = torch.from_numpy(computed(model, images))
    for to in TARGETS[name]:
        done = convert(source, to=to, output=tmp_path / to)
        assert done.opened and not [one for one in done.opened if one.why_not]
        assert relative(ours(tmp_path / to, images, wanted.ndim == 3), wanted) <= ROUNDING
    found = in_onnx_runtime(source, torch.from_numpy(images).permute(0, 3, 1, 2), tmp_path)
    assert relative(found, wanted) <= ROUNDING


@pytest.mark.usefixtures("keras_in_numpy")
def test_error_no_class_of_keras_hub_has_it_alone(tmp_path):
    source = save(randomised(pali_gemma(16)), tmp_path / "own")
    with pytest.raises(NotRepresentable, match="No dialect of 'keras_hub' computes"):
        convert(source, to="keras_hub", output=tmp_path / "again", verify=False)


DEPTH = """
import sys
import numpy as np
import keras_hub
from tests.keras_hub.test_keras_hub import randomised

folder, side = sys.argv[1], int(sys.argv[2])
shape = (side, side, 3)
sizes = {"num_layers": 11, "num_heads": 2, "hidden_dim": 12, "patch_size": 8}
encoder = keras_hub.models.DINOV2Backbone(
    intermediate_dim=24, image_shape=shape, position_embedding_shape=shape, apply_layernorm=True,
    **sizes)
model = keras_hub.models.DepthAnythingBackbone(
    encoder, reassemble_factors=[2, 1], neck_hidden_dims=[4, 6], fusion_hidden_dim=6,
    head_hidden_dim=3, head_in_index=-1, feature_keys=["stage3", "stage11"])
randomised(model).save_to_preset(folder)
model = keras_hub.models.Backbone.from_preset(folder)  # it makes its positions when it is loaded
images = np.random.default_rng(1).normal(size=(2, *shape)).astype("f4")
tokens = model.image_encoder({"images": images})
np.savez(folder + "/tokens.npz", images=images, tokens=np.array(tokens))
"""


@pytest.mark.parametrize("side", sampled([32, 48], 2))
def test_the_dinov2_of_depth_anything(side, tmp_path):
    """Its neck resizes by JAX or PyTorch, and the other tests here have Keras on NumPy."""
    needed("keras_hub")
    folder = tmp_path / "own"
    here = {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DEPTH, str(folder), str(side)]
    subprocess.run(command, check=True, env=os.environ | here, capture_output=True)
    with np.load(folder / "tokens.npz") as found:
        images, wanted = found["images"], torch.from_numpy(found["tokens"])
    assert load_checkpoint(folder).dialect == "keras_dinov2"
    assert relative(ours(folder, images, tokens=True), wanted) <= ROUNDING
