"""One thread, since these tests are many and small; and a table of one's own."""

import pytest


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine"):
        file = tmp_path / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write
