"""KerasHub in NumPy: an arithmetic of its own, without the seconds that JAX takes to compile.

And without TensorFlow, which it would import for text.
"""

import os
import sys

import pytest


@pytest.fixture(scope="package", autouse=True)
def numpy_alone():
    """Keras decides once, when it is imported."""
    os.environ["KERAS_BACKEND"] = "numpy"
    absent = ("tensorflow", "tensorflow_text")
    missing = [name for name in absent if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))
    yield
    for name in missing:
        del sys.modules[name]
