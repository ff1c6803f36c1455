"""equimo's models, narrow and random, as equimo saves them."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.packages import equimo, equinox, jax

SIZES: dict[str, Any] = {"dim": 24, "num_heads": 2, "depths": [2]}
# As equimo's registry has them (vit.py), narrow.
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"patch_size": 8, "num_classes": 5, "depths": [1, 2]},
    "dinov2_vits14_reg": {"patch_size": 8, "num_classes": 0},
    "dinov2_vitg14": {"patch_size": 8, "num_classes": 2, "global_pool": "token"},
    "siglip2_vitb16_224": {"patch_size": 8, "num_classes": 3},
    "dinov3_vitb16_pretrain_lvd1689m": {"patch_size": 8, "num_classes": 3},
    "dinov3_vits16plus_pretrain_lvd1689m": {"patch_size": 8},
}


def model_of(variant: str, size: int = 24) -> tuple[Any, dict[str, Any]]:
    """equimo's model, every array random, and its arguments."""
    base, own = equimo.models.vit._VIT_REGISTRY[variant]
    arguments = {**base, **own, **SIZES, **MODELS[variant], "img_size": size}
    model = equimo.models.VisionTransformer(**arguments, key=jax.random.PRNGKey(0))
    rng = np.random.default_rng(3)

    def random(leaf: Any) -> Any:
        return jax.numpy.asarray(rng.normal(0, 0.3, leaf.shape).astype("float32"))

    arrays, rest = equinox.partition(model, equinox.is_array)
    return equinox.combine(jax.tree_util.tree_map(random, arrays), rest), arguments


def saved(variant: str, folder: Path, size: int = 24, *, packed: bool = False) -> Any:
    """The model, as equimo saves it."""
    model, arguments = model_of(variant, size)
    equimo.io.save_model(folder, model, arguments, compression=packed)
    return model
