"""Write vit_keras_2.zip: what Keras 2 saves of vit-keras' models, and what they compute.

Run from the repository's root in an environment of its own:

    pip install 'vit-keras<0.2' tensorflow tf-keras
    TF_USE_LEGACY_KERAS=1 python tests/keras_hub/make_vit_keras_2_files.py

With a file that vitconvert wrote for `vit_keras_2`, it loads that, by order and by names, and
compares with what the archive says of the file that it was made of:

    TF_USE_LEGACY_KERAS=1 python tests/keras_hub/make_vit_keras_2_files.py NAME FILE
"""

import io
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parent / "vit_keras_2.zip"
LAYERS = {"weights": 11, "whole": 2}


def build(name: str):
    """A small model; of the second, all is saved, its optimizer too."""
    for missing in ("cv2", "tensorflow_addons"):  # not needed, or not made any more
        sys.modules.setdefault(missing, types.ModuleType(missing))
    vars(sys.modules["tensorflow_addons"])["activations"] = types.SimpleNamespace(gelu=None)
    from vit_keras import vit

    return vit.build_model(
        image_size=16,
        patch_size=8,
        num_layers=LAYERS[name],
        hidden_size=8,
        num_heads=2,
        name="vit",
        mlp_dim=12,
        classes=3,
        dropout=0.1,
        activation="linear",
        representation_size=6 if name == "whole" else None,
    )


def randomised(model):
    """All parameters random, and of few bits each, so that the archive is small."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        drawn = rng.normal(0, 0.4, weight.shape) + ("gamma" in weight.name)
        weight.assign(np.round(drawn * 16) / 16)
    return model


def main() -> None:
    """Write the archive anew."""
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype("float32")
    with zipfile.ZipFile(PLACE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("images.npy", npy(images))
        for name in LAYERS:
            model = build(name)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"{name}.h5"
                if name == "whole":
                    model.compile("sgd", "mse")
                    model.fit(images, np.zeros((2, 3)), verbose=0)
                    randomised(model).save(file)
                else:
                    randomised(model).save_weights(file)
                archive.write(file, file.name)
            archive.writestr(f"{name}.npy", npy(model(images).numpy()))


def npy(array) -> bytes:
    """The file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def check(name: str, file: str) -> None:
    """Compare what a written file computes with what the archive says."""
    with zipfile.ZipFile(PLACE) as archive:
        images, wanted = (
            np.load(io.BytesIO(archive.read(n))) for n in ("images.npy", f"{name}.npy")
        )
    for by_name in (False, True):
        model = build(name)
        model.load_weights(file, by_name=by_name)
        print(name, by_name, np.abs(model(images).numpy() - wanted).max(), np.abs(wanted).max())


if __name__ == "__main__":
    check(*sys.argv[1:]) if sys.argv[1:] else main()
