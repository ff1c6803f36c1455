import pytest
import torch

from vitconvert.demo import Demonstration, demonstrate


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def demonstration() -> Demonstration:
    return demonstrate()
