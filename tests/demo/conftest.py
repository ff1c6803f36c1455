import pytest

from vitconvert.demo import Demonstration, demonstrate


@pytest.fixture(scope="session")
def demonstration() -> Demonstration:
    return demonstrate()
