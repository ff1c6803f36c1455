"""Write files/: tiny models of each Flax class of transformers 4, with what they compute.

Run from the repository's root, in an environment of its own:

    pip install 'transformers==4.57.1' 'flax==0.12.8' 'jax==0.10.2'
    python tests/flax/make_files.py

With a folder as argument, it opens what vitconvert wrote there instead, and compares:

    python tests/flax/make_files.py OUT images.npz
"""

import json
import shutil
import sys
from pathlib import Path

import flax
import jax
import numpy as np
import transformers

PLACE = Path(__file__).parent / "files"
SIZES = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 5}
SIZES |= {"image_size": 12, "patch_size": 4, "num_hidden_layers": 2}
WIDER = {"num_hidden_layers": 11, "hidden_size": 12, "num_attention_heads": 3}
TEXT = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 3, "vocab_size": 7}
TEXT |= {"num_hidden_layers": 1, "max_position_embeddings": 5}
BEIT = {"use_relative_position_bias": True, "use_mean_pooling": True, "num_labels": 5}
SHARED = {"use_shared_relative_position_bias": True, "use_mean_pooling": False}

# Folder: class, changes of the configuration.
CASES = {
    "vit": ("ViTForImageClassification", WIDER | {"num_labels": 5}),
    "vit_shards": ("ViTForImageClassification", {"num_labels": 5, "hidden_act": "gelu_new"}),
    "vit_bfloat16": ("ViTModel", {"qkv_bias": False}),
    "beit": ("BeitForImageClassification", BEIT),
    "beit_bare": ("BeitModel", SHARED | {"use_absolute_position_embeddings": True}),
    "dinov2": ("Dinov2ForImageClassification", {"num_labels": 5, "mlp_ratio": 2}),
    "dinov2_chunks": ("Dinov2Model", {"mlp_ratio": 3}),
    "clip_vision": ("CLIPVisionModel", {"hidden_act": "gelu"}),
    "clip": ("CLIPModel", {}),
}


def configured(kind: str, changes: dict[str, object]) -> transformers.PretrainedConfig:
    family = kind.removesuffix("ForImageClassification").removesuffix("Model")
    if family == "CLIP":
        vision = transformers.CLIPVisionConfig(**SIZES)
        return transformers.CLIPConfig(
            vision_config=vision.to_dict(), text_config=TEXT, projection_dim=3
        )
    sizes = dict(SIZES)
    if family == "Dinov2":
        del sizes["intermediate_size"]
    return getattr(transformers, family + "Config")(**(sizes | changes))


def randomised(tree: dict, generator: np.random.Generator) -> dict:
    """Noise around 0, around 1 for factors."""
    flat = flax.traverse_util.flatten_dict(tree)
    factors = ("scale", "lambda1", "lambda_1", "lambda_2")
    for path, array in flat.items():
        noise = generator.normal(0.05 + (path[-1] in factors), 0.3, np.shape(array))
        flat[path] = jax.numpy.asarray(noise, "float32")
    return flax.traverse_util.unflatten_dict(flat)


def computed(model: transformers.FlaxPreTrainedModel, images: np.ndarray) -> dict[str, np.ndarray]:
    """What a model makes of images: classes or the pooled token, and the tokens."""
    if hasattr(model, "get_image_features"):
        return {"output": np.asarray(model.get_image_features(images))}
    found = model(images)
    if "logits" in found:
        return {"output": np.asarray(found.logits)}
    return {"output": np.asarray(found.pooler_output), "tokens": np.asarray(found[0])}


def write(name: str, kind: str, changes: dict[str, object]) -> None:
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = np.random.default_rng(len(name))
    config = configured(kind, changes)
    model = getattr(transformers, f"Flax{kind}")(config, input_shape=_shape(kind))
    params = randomised(model.params, generator)
    if name == "vit_bfloat16":
        params = model.to_bf16(params)
    flax.serialization.MAX_CHUNK_SIZE = 40 if name == "dinov2_chunks" else 2**30
    size = "2KB" if name == "vit_shards" else "10GB"
    model.save_pretrained(folder, params=params, max_shard_size=size)
    images = generator.normal(size=(2, 3, 12, 12)).astype("float32")
    model.params = jax.tree.map(lambda array: array.astype("float32"), params)
    np.savez(folder / "expected.npz", images=images, **computed(model, images))


def _shape(kind: str) -> object:
    images = (1, 12, 12, 3)
    return ((1, 1), images) if kind == "CLIPModel" else images


def opened(folder: Path, arrays: Path) -> None:
    """Say how far a model of a folder is from what it should compute."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, f"Flax{kind}").from_pretrained(folder)
    expected = np.load(arrays)
    found = computed(model, expected["images"])["output"]
    print(kind, float(np.abs(found - expected["output"]).max()), float(np.abs(found).max()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        opened(*map(Path, sys.argv[1:]))
    else:
        for name, (kind, changes) in CASES.items():
            write(name, kind, changes)
