"""Write scenic/NAME.msgpack and .npz: tiny ViViTs of Scenic's own class, with what they compute.

Run from the repository's root, in an environment of its own, with google-research/scenic 4a38d47:

    pip install 'flax==0.12.8' 'jax==0.10.2' ml_collections immutabledict scipy
    PYTHONPATH=scenic python tests/flax/make_scenic.py

With a file of vitconvert's and one of these .npz as arguments, it computes the file instead.
"""

import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import flax
import jax
import ml_collections
import numpy as np


def stand_in(name: str, **contents: object) -> None:
    """A module in the place of one that is not needed."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(contents)


stand_in("tensorflow")
stand_in("tensorflow.io", gfile=None)
stand_in("scenic.common_lib", video_utils=None, debug_utils=None)
base_models = "scenic.model_lib.base_models"
others = {name: MagicMock() for name in ("base_model", "model_utils")}
stand_in(base_models, classification_model=MagicMock(ClassificationModel=object), **others)
stand_in(f"{base_models}.classification_model", ClassificationModel=object)
stand_in(f"{base_models}.multilabel_classification_model", MultiLabelClassificationModel=object)

from scenic.projects.vivit.model import ViViT  # noqa: E402

PLACE = Path(__file__).parent / "scenic"
CLIPS = {"token": (1, 5, 8, 12, 1), "gap": (1, 8, 8, 8, 3)}  # of 5, one frame is left over
CASES = {
    "token": {"classifier": "token"},
    "gap": {"classifier": "gap", "representation_size": 7},
}


def made(classifier: str, representation_size: int | None = None) -> ViViT:
    return ViViT(
        num_classes=3,
        hidden_size=12,
        num_layers=11,
        num_heads=3,
        mlp_dim=10,
        representation_size=representation_size,
        patches=ml_collections.ConfigDict({"size": (4, 4, 2)}),
        temporal_encoding_config=ml_collections.ConfigDict({"method": "3d_conv"}),
        attention_config=ml_collections.ConfigDict({"type": "spacetime"}),
        classifier=classifier,
    )


def write(name: str) -> None:
    model, generator = made(**CASES[name]), np.random.default_rng(len(name))
    clips = generator.normal(0, 1, CLIPS[name]).astype("float32")
    empty = model.init(jax.random.key(0), clips, train=False)["params"]
    flat = flax.traverse_util.flatten_dict(empty)
    for path, array in flat.items():
        noise = generator.normal(0.05 + (path[-1] == "scale"), 0.3, np.shape(array))
        flat[path] = np.asarray(noise, "float32")
    params = flax.traverse_util.unflatten_dict(flat)
    with jax.default_matmul_precision("highest"):
        output = model.apply({"params": params}, clips, train=False)
    # As training saves it, today and until 2021.
    states = {
        "token": {"optimizer": {"target": params, "state": {"step": 3}}, "global_step": 3},
        "gap": {"params": params, "opt_state": {"0": {}}, "global_step": 3, "metadata": None},
    }
    content = flax.serialization.msgpack_serialize(states[name])
    (PLACE / f"{name}.msgpack").write_bytes(content)
    np.savez(PLACE / f"{name}.npz", clips=clips, output=np.asarray(output))


if __name__ == "__main__":
    if sys.argv[1:]:
        file, kept = sys.argv[1:]
        params = flax.serialization.msgpack_restore(Path(file).read_bytes())
        both = np.load(kept)
        with jax.default_matmul_precision("highest"):
            found = made(**CASES[Path(kept).stem]).apply(
                {"params": params}, both["clips"], train=False
            )
        print("largest difference", np.abs(np.asarray(found) - both["output"]).max())
    else:
        PLACE.mkdir(exist_ok=True)
        for case in CASES:
            write(case)
