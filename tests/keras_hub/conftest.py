"""KerasHub computes in NumPy."""

import pytest


@pytest.fixture(scope="package", autouse=True)
def in_numpy(keras_in_numpy: None) -> None:
    """In all tests here."""
