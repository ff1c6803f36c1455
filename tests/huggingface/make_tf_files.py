"""Write tf_files.zip: what transformers 4 saves of its TensorFlow classes, and what they compute.

Run from the repository's root in an environment of its own, which has no vitconvert:

    pip install 'transformers<5' tensorflow tf-keras
    TF_USE_LEGACY_KERAS=1 python tests/huggingface/make_tf_files.py

With a directory that vitconvert wrote for `hf_tf`, it loads that and compares with what the
archive says of the file that it was made of:

    TF_USE_LEGACY_KERAS=1 python tests/huggingface/make_tf_files.py NAME DIRECTORY
"""

import io
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parent / "tf_files.zip"
_SIZES = {
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 12,
    "intermediate_size": 14,
}
_TEXT = {
    "vocab_size": 5,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 3,
}


def models():
    """Name -> a model, and what of its output is kept."""
    import transformers as hf

    labelled = {**_SIZES, "num_labels": 3}
    deep = hf.ViTConfig(**{**labelled, "num_hidden_layers": 11}, hidden_act="gelu_new")
    deit = hf.DeiTConfig(**labelled, layer_norm_eps=1e-3)
    data2vec = hf.Data2VecVisionConfig(
        **labelled, use_relative_position_bias=True, layer_scale_init_value=0.1
    )
    mae = hf.ViTMAEConfig(**_SIZES, mask_ratio=0.0, decoder_hidden_size=4,
                          decoder_num_attention_heads=1, decoder_num_hidden_layers=1,
                          decoder_intermediate_size=4)  # fmt: skip
    clip = hf.CLIPConfig(text_config=_TEXT, vision_config=_SIZES, projection_dim=6)
    return {
        "vit": (hf.TFViTForImageClassification(deep), "logits"),
        "vit_pooler": (hf.TFViTModel(hf.ViTConfig(**_SIZES)), "pooler_output"),
        "deit": (hf.TFDeiTForImageClassification(deit), "logits"),
        "deit_teacher": (hf.TFDeiTForImageClassificationWithTeacher(deit), "logits"),
        "mae": (hf.TFViTMAEForPreTraining(mae), "tokens"),
        "data2vec": (hf.TFData2VecVisionForImageClassification(data2vec), "logits"),
        "clip": (hf.TFCLIPModel(clip), "image_embeds"),
    }


def output(model, images, kept):
    """What a model makes of images."""
    if kept == "tokens":  # nothing is masked, and nothing shuffled
        noise = np.tile(np.arange(4.0), (len(images), 1))
        return model.vit(pixel_values=images, noise=noise).last_hidden_state.numpy()
    if kept == "image_embeds":
        import tensorflow as tf

        return model.get_image_features(tf.constant(images)).numpy()
    return getattr(model(images), kept).numpy()


def randomise(model):
    """All parameters random, and of few bits each, so that the archive is small."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        drawn = rng.normal(0, 0.4, weight.shape) + ("gamma" in weight.name)
        weight.assign(np.round(drawn * 16) / 16)


def main() -> None:
    """Write the archive anew."""
    images = np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype("float32")
    with zipfile.ZipFile(PLACE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("images.npy", npy(images))
        for name, (model, kept) in models().items():
            if name == "clip":
                model({"input_ids": np.array([[1, 2]]), "pixel_values": images})
            elif name != "mae":
                model(images)
            else:
                model(images, noise=np.tile(np.arange(4.0), (2, 1)))
            randomise(model)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder, safe_serialization=name not in ("vit", "data2vec"))
                for file in sorted(Path(folder).iterdir()):
                    archive.write(file, f"{name}/{file.name}")
            archive.writestr(f"{name}/output.npy", npy(output(model, images, kept)))


def npy(array) -> bytes:
    """The file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def check(name: str, directory: str) -> None:
    """Compare what a written directory computes with what the archive says."""
    model, kept = models()[name]
    model, told = type(model).from_pretrained(directory, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"], told
    with zipfile.ZipFile(PLACE) as archive:
        images, wanted = (
            np.load(io.BytesIO(archive.read(n))) for n in ("images.npy", f"{name}/output.npy")
        )
    print(name, np.abs(output(model, images, kept) - wanted).max(), np.abs(wanted).max())


if __name__ == "__main__":
    check(*sys.argv[1:]) if sys.argv[1:] else main()
