"""What holds for every test.

A process that only hands tests out to others reads this file too: it needs no torch.
"""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tensors are tiny, and other tests run beside."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def keras_in_numpy() -> None:
    """For tests that let KerasHub compute."""
    from tests import packages

    packages.keras_in_numpy()
