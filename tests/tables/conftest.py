"""One thread, since these tests are many and small; and a table of one's own."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine"):
        file = tmp_path / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write
