"""What vitconvert wrote is known by its record, whatever is in the place of that."""

import json

import pytest

from vitconvert.export.written import somebodys, written_in


def _fill(directory, *names):
    for name in names:
        (directory / name).write_text("")


def test_a_record_lists_the_files(tmp_path):
    listed = ["README.md", "model.pt", "vitconvert.json"]
    (tmp_path / "vitconvert.json").write_text(json.dumps({"vitconvert": "1", "files": listed}))
    _fill(tmp_path, "README.md", "model.pt", "config.json", ".hidden")
    (tmp_path / "runs").mkdir()
    assert somebodys(tmp_path) == [".hidden", "config.json", "runs"]


def test_records_of_earlier_versions_list_the_weights(tmp_path):
    record = {"vitconvert": "0.1.0", "sha256": {"model-1.safetensors": "0", "index.json": "1"}}
    (tmp_path / "vitconvert.json").write_text(json.dumps(record))
    names = ("model-1.safetensors", "index.json", "README.md")
    _fill(tmp_path, *names, "config.json", "open_clip_config.json", "preprocessor_config.json")
    assert somebodys(tmp_path) == []
    _fill(tmp_path, "model.safetensors")
    assert somebodys(tmp_path) == ["model.safetensors"]


NO_RECORDS = {
    "empty": "",
    "no JSON": "{",
    "no object": "[]",
    "null": "null",
    "nothing in it": "{}",
    "no list": '{"files": "model.pt"}',
    "an empty list": '{"files": []}',
    "other types": '{"files": ["model.pt", 1]}',
    "weights beside a damaged list": '{"files": 1, "vitconvert": "0", "sha256": {"model.pt": "0"}}',
    "of another program": '{"sha256": {"model.pt": "0"}}',
    "no weights": '{"vitconvert": "0.1.0", "sha256": {}}',
    "weights of another type": '{"vitconvert": "0.1.0", "sha256": ["model.pt"]}',
    "deep": "[" * 100_000,
    "deep inside": '{"files": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a long number": '{"files": ' + "1" * 5000 + "}",
    "not UTF-8": b'{"files": ["\xff"]}',
}


@pytest.mark.parametrize("content", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_lists_nothing(content, tmp_path):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "vitconvert.json").write_bytes(data)
    _fill(tmp_path, "model.pt")
    assert somebodys(tmp_path) == ["model.pt", "vitconvert.json"]


def test_a_record_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "vitconvert.json").open("wb") as file:
        file.truncate(8 << 30)
    assert written_in(tmp_path) == frozenset()


def test_a_record_that_is_a_link_or_a_directory_is_none(tmp_path):
    (tmp_path / "elsewhere").write_text('{"files": ["elsewhere"]}')
    (tmp_path / "vitconvert.json").symlink_to("elsewhere")
    assert somebodys(tmp_path) == ["elsewhere", "vitconvert.json"]
    (tmp_path / "vitconvert.json").unlink()
    (tmp_path / "vitconvert.json").mkdir()
    assert somebodys(tmp_path) == ["elsewhere", "vitconvert.json"]


def test_no_record(tmp_path):
    assert somebodys(tmp_path) == []
    _fill(tmp_path, "model.pt")
    assert somebodys(tmp_path) == ["model.pt"]
