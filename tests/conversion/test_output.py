"""What vitconvert wrote is known by its record, whatever is in the place of that."""

import json

import pytest

from vitconvert.conversion.output import somebodys, written_in
from vitconvert.formats import hash_file


def _fill(directory, *names):
    for name in names:
        (directory / name).write_text(name)


def _record(directory, *names):
    hashes = {name: hash_file(directory / name) for name in names}
    (directory / "vitconvert.json").write_text(json.dumps({"sha256": hashes}))


def test_a_file_is_ours_by_its_content(tmp_path):
    _fill(tmp_path, "README.md", "model.pt", "config.json", ".hidden")
    (tmp_path / "runs").mkdir()
    _record(tmp_path, "README.md", "model.pt")
    assert somebodys(tmp_path) == [".hidden", "config.json", "runs"]
    (tmp_path / "README.md").write_text("edited!!!")  # as long as before
    assert somebodys(tmp_path) == [".hidden", "README.md", "config.json", "runs"]


def test_a_name_alone_is_anybodys(tmp_path):
    _fill(tmp_path, "thesis.txt", "model.pt", "README.md")
    for record in (
        {"files": ["thesis.txt", "model.pt", "README.md"]},
        {"vitconvert": "0.1.0", "sha256": {"model.pt": "0", "thesis.txt": ""}},
        {"sha256": {"thesis.txt": hash_file(tmp_path / "model.pt"), "../thesis.txt": "0"}},
    ):
        (tmp_path / "vitconvert.json").write_text(json.dumps(record))
        assert {"README.md", "model.pt", "thesis.txt"} <= {*somebodys(tmp_path)}


NO_RECORDS = {
    "empty": "",
    "no JSON": "{",
    "no object": "[]",
    "null": "null",
    "nothing in it": "{}",
    "no list": '{"files": "model.pt"}',
    "an empty list": '{"files": []}',
    "other types": '{"files": ["model.pt", 1]}',
    "names alone": '{"files": ["model.pt"]}',
    "no hashes": '{"vitconvert": "0.1.0", "sha256": {}}',
    "hashes of another type": '{"vitconvert": "0.1.0", "sha256": ["model.pt"]}',
    "numbers": '{"sha256": {"model.pt": 1}}',
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
    assert written_in(tmp_path) == {}


def test_a_record_that_is_a_link_or_a_directory_is_none(tmp_path):
    (tmp_path / "elsewhere").write_text('{"sha256": {"vitconvert.json": "0"}}')
    (tmp_path / "vitconvert.json").symlink_to("elsewhere")
    assert somebodys(tmp_path) == ["elsewhere", "vitconvert.json"]
    (tmp_path / "vitconvert.json").unlink()
    (tmp_path / "vitconvert.json").mkdir()
    assert somebodys(tmp_path) == ["elsewhere", "vitconvert.json"]


def test_no_record(tmp_path):
    assert somebodys(tmp_path) == []
    _fill(tmp_path, "model.pt")
    assert somebodys(tmp_path) == ["model.pt"]
