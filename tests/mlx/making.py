"""mlx-image's VisionTransformer, tiny, and files of it."""

from pathlib import Path

import numpy as np

from tests.packages import needed

SIZES = {"image_size": 24, "patch_size": 8, "num_heads": 3, "hidden_dim": 36, "mlp_dim": 50}
SIZES |= {"num_layers": 11, "num_classes": 7}


def _is_factor(name: str, array) -> bool:
    return name.endswith("weight") and array.ndim == 1


def made(**changes):
    """Their class, every number random."""
    needed("mlxim")
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlxim.model.vit.vit import VisionTransformer

    model = VisionTransformer(**SIZES | changes).eval()
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.normal(
            0.05 + (name.endswith("weight") and array.ndim == 1), 0.2, array.shape
        )
        for name, array in tree_flatten(model.parameters())
    }
    model.load_weights([(name, mx.array(a.astype(np.float32))) for name, a in arrays.items()])
    return model


def saved(path: Path, model) -> Path:
    from mlx.utils import tree_flatten
    from mlxim.model._utils import save_weights

    save_weights(dict(tree_flatten(model.parameters())), str(path))
    return path
