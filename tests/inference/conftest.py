"""The photographs of `tests/preprocessing`."""

from tests.preprocessing.conftest import photograph, photographs

__all__ = ["photograph", "photographs"]
