"""The photographs of `tests/preprocessing`."""

import pytest
import torch

from tests.preprocessing.conftest import photograph, photographs

__all__ = ["photograph", "photographs"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
