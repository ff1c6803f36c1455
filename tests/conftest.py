"""What holds for every test.

A process that only hands tests out to others reads this file too: it needs no torch.
"""

import os
from importlib.util import find_spec

import pytest

# Keras decides once, whoever imports it first: packages look into those that are installed.
os.environ["KERAS_BACKEND"] = "numpy"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tensors are tiny, and other tests run beside."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def keras_in_numpy() -> None:
    """For tests that let KerasHub compute."""
    if find_spec("keras_hub") is None:
        pytest.skip("pip install --no-deps keras-hub, as .ci/run does")
    from tests import packages

    packages.keras_in_numpy()
