"""The packages that vitconvert is compared with, each imported when a test first uses it.

Every process that runs tests reads all of their files; torchvision, timm and the models of
transformers would take it many seconds, for tests that mostly run elsewhere or not at all.
"""

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import pytest

# What the extra `test-all` or .ci/run installs, and what of their requirements is used as well.
ONLY_IN_CI = {
    "cv2": (),
    "keras": ("jax",),
    "keras_hub": ("keras", "jax"),
    "mlxim": ("mlx",),
    "ray": ("pandas",),
    "equimo": ("equinox", "jax", "lz4", "loguru"),
    "equinox": ("jax",),
    "jax": (),
    "mmpretrain": ("mmengine", "mmcv", "addict", "yapf", "termcolor"),
}


def is_here(package: str) -> bool:
    """Whether a package of ONLY_IN_CI can be imported."""
    return all(map(find_spec, (package, *ONLY_IN_CI[package])))


def needed(package: str) -> None:
    """Skip the test where a package of ONLY_IN_CI is not installed."""
    if not is_here(package):
        reason = f"{package} is not installed, or not what it needs: .ci/run does so"
        pytest.skip(reason, allow_module_level=True)


class _Package:
    """Stands for a package: `timm.models.VisionTransformer` and `timm.layers` as ever.

    A test that uses one of ONLY_IN_CI is skipped where it is not installed.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Of everything in a file of tests, pytest asks whether it is wrapped, or a mock.
        if name.startswith("_") and name != "__version__":
            raise AttributeError(name)
        if self._name in ONLY_IN_CI:
            needed(self._name)
        package = import_module(self._name)
        if not hasattr(package, name):
            import_module(f"{self._name}.{name}")
        return getattr(package, name)


def keras_in_numpy() -> None:
    """Import Keras to compute in NumPy: an arithmetic of its own, without JAX's seconds.

    KerasHub too, where it is installed, and without TensorFlow, which it would import for text.
    Keras decides once.
    """
    needed("keras")
    os.environ["KERAS_BACKEND"] = "numpy"
    # It finds shapes by computing with memory that nobody wrote to.
    import_module("numpy").seterr(invalid="ignore", over="ignore", divide="ignore")
    absent = [name for name in ("tensorflow", "tensorflow_text") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # as if it were not there
    import_module("torch._dynamo")  # as vitconvert does, before anything imports TensorFlow
    import_module("keras_hub" if is_here("keras_hub") else "keras")
    for name in absent:  # others look whether it is here
        del sys.modules[name]


def mmpretrain_alone() -> None:
    """Import MMPretrain without what reads pictures, and what lists its models.

    OpenCV is large, and model-index installs a package `tests`, which would hide this one.
    """
    needed("mmpretrain")
    unused = ("cv2", "modelindex", "modelindex.load_model_index")
    unused += ("modelindex.models", "modelindex.models.Model")
    stand_ins = {name: MagicMock() for name in unused}
    stand_ins["importlib_metadata"] = import_module("importlib.metadata")
    absent = {name: stand_ins[name] for name in stand_ins.keys() - sys.modules.keys()}
    sys.modules.update(absent)
    with warnings.catch_warnings(action="ignore"):  # of what mmcv-lite leaves out
        import_module("mmpretrain.models")
    for name in absent:  # others look whether they are here
        del sys.modules[name]


bitsandbytes = _Package("bitsandbytes")
cv2 = _Package("cv2")
open_clip = _Package("open_clip")
peft = _Package("peft")
equimo = _Package("equimo")
equinox = _Package("equinox")
gguf = _Package("gguf")
jax = _Package("jax")
keras = _Package("keras")
keras_hub = _Package("keras_hub")
ray = _Package("ray")
segment_anything = _Package("segment_anything")
sklearn = _Package("sklearn")
timm = _Package("timm")
torchao = _Package("torchao")
torchvision = _Package("torchvision")
transformers = _Package("transformers")
vit_pytorch = _Package("vit_pytorch")


def without_noise(stderr: str) -> str:
    """What a program said, without what torch 2.15 logs of torchao's classes.

    transformers imports torchao wherever it is installed.
    """
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if "torch/utils/_pytree.py" not in line)
