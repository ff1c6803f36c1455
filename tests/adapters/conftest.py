import pytest


def pytest_collection_modifyitems(items):
    """PEFT 0.21 calls what transformers 5.23 deprecates, and warns of models without a name."""
    for item in items:
        if "tests/adapters" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
