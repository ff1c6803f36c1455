"""Write vit_keras.zip: what Keras 3 saves of vit-keras' models, and what they compute.

Run from the repository's root in an environment of its own:

    pip install vit-keras tensorflow opencv-python-headless
    python tests/keras_hub/make_vit_keras_files.py

With a file that vitconvert wrote for `vit_keras`, it loads that and compares with what the
archive says of the file that it was made of:

    python tests/keras_hub/make_vit_keras_files.py NAME FILE
"""

import io
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parent / "vit_keras.zip"
LAYERS = {"plain": 11, "pre_logits": 2}


def build(name: str):
    """A small model."""
    sys.modules.setdefault("cv2", types.ModuleType("cv2"))  # it only shows attention with it
    for word in ("INTER_LINEAR", "INTER_AREA"):
        vars(sys.modules["cv2"]).setdefault(word, 0)
    from vit_keras import vit

    return vit.build_model(
        image_size=(16, 24),
        patch_size=8,
        num_layers=LAYERS[name],
        hidden_size=8,
        num_heads=2,
        name="vit",
        mlp_dim=12,
        classes=3,
        representation_size=6 if name == "pre_logits" else None,
    )


def main() -> None:
    """Write the archive anew."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 16, 24, 3)).astype("float32")
    with zipfile.ZipFile(PLACE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("images.npy", npy(images))
        for name in LAYERS:
            model = build(name)
            for weight in model.weights:
                if "float" in weight.dtype:  # of few bits, so that the archive is small
                    drawn = rng.normal(0, 0.4, weight.shape) + ("gamma" in weight.path)
                    weight.assign(np.round(drawn * 16) / 16)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"{name}.weights.h5"
                model.save_weights(file)
                archive.write(file, file.name)
                if name == "pre_logits":
                    model.save(whole := Path(folder) / "whole.h5")
                    archive.write(whole, whole.name)
            archive.writestr(f"{name}.npy", npy(np.array(model(images))))


def npy(array) -> bytes:
    """The file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def check(name: str, file: str) -> None:
    """Compare what a written file computes with what the archive says."""
    model = build(name)
    model.load_weights(file)
    with zipfile.ZipFile(PLACE) as archive:
        images, wanted = (
            np.load(io.BytesIO(archive.read(n))) for n in ("images.npy", f"{name}.npy")
        )
    print(name, np.abs(np.array(model(images)) - wanted).max(), np.abs(wanted).max())


if __name__ == "__main__":
    check(*sys.argv[1:]) if sys.argv[1:] else main()
