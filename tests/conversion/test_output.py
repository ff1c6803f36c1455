"""Outputs appear whole or not at all, and replace nothing that vitconvert did not write."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from vitconvert.conversion.output import atomic_output, somebodys, written_in
from vitconvert.errors import OutputExists, UsageError
from vitconvert.formats import hash_file

FILES = ("a", "b", "deep/c")


def record_of(text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"sha256": dict.fromkeys(FILES, digest)})


def write(path, text="new", **options):
    with atomic_output(path, **{"overwrite": True} | options) as directory:
        (directory / "deep").mkdir()
        for name in FILES:
            (directory / name).write_text(text)
        (directory / "vitconvert.json").write_text(record_of(text))


def content(path):
    files = (f for f in path.rglob("*") if f.is_file() and f.name != "vitconvert.json")
    return {f.relative_to(path).as_posix(): f.read_text() for f in files}


OLD, NEW = dict.fromkeys(FILES, "old"), dict.fromkeys(FILES, "new")


@pytest.mark.parametrize("place", ["work", "work/deep", ".", "/"])
def test_no_directory_goes_that_nobody_can_mean(place, tmp_path, monkeypatch):
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    with pytest.raises(UsageError) as caught:
        write(tmp_path / place)
    assert str(caught.value) == (
        "error: usage\n"
        "  The output would replace the current directory or your home directory.\n"
        f"  output  {(tmp_path / place).resolve()}\n"
        f"  in it   {tmp_path / 'work' / 'deep'}\n"
        "  hint: -o names a new directory."
    )
    assert Path.cwd().is_dir()


def test_names_that_are_patterns(tmp_path):
    path = tmp_path / "[ab]*"
    other = tmp_path / ".vitconvert-a.part"
    other.mkdir()
    write(path)
    assert content(path) == NEW
    assert other.exists()


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.rename"])
def test_a_failure_leaves_what_was_there(tmp_path, failing, monkeypatch):
    path = tmp_path / "out"
    write(path, "old")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as caught:
        patch.setattr(failing, fail)
        write(path)
    assert caught.value.filename == str(path)
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_what_was_there_returns_where_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    path, fresh = tmp_path / "out", tmp_path / "fresh"
    write(path, "old")
    rename = Path.rename

    def fail_for_the_new(self, target):
        if content(self) == NEW:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    for place in (path, fresh):
        with pytest.raises(OSError, match="Input/output error"):
            write(place)
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_file_stays_that_is_where_the_directory_would_be(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="The output must be a directory"):
        write(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_place_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="The output cannot be written") as error:
        write(tmp_path / "file" / "out")
    assert error.value.evidence["reason"] in ("Not a directory", "File exists")


def add_file(path):
    path.joinpath("mine").write_text("precious")


def a_link_by_the_name_of_a_directory(path):
    path.joinpath("deep").rename(path.parent / "kept")
    path.joinpath("deep").symlink_to(path.parent / "kept")


def instead_of_a_listed_file(put):
    def add(path):
        path.joinpath("a").unlink()
        put(path.joinpath("a"))

    return add


ADDED = {
    "a file": (add_file, "mine"),
    "a directory": (lambda path: path.joinpath("mine").mkdir(), "mine"),
    "a link": (lambda path: path.joinpath("mine").symlink_to("a"), "mine"),
    "a file deeper": (lambda path: path.joinpath("deep/mine").write_text("x"), "deep/mine"),
    "a link by the name of a directory": (a_link_by_the_name_of_a_directory, "deep"),
    "a link by a listed name": (instead_of_a_listed_file(lambda a: a.symlink_to("b")), "a"),
    "a directory by a listed name": (instead_of_a_listed_file(Path.mkdir), "a"),
}


@pytest.mark.parametrize(("add", "name"), ADDED.values(), ids=ADDED)
def test_what_somebody_put_into_an_output_stays_there(tmp_path, add, name):
    path = tmp_path / "out"
    write(path, "old")
    add(path)
    with pytest.raises(OutputExists) as caught, atomic_output(path, overwrite=True):
        raise AssertionError("it is refused before anything is written")
    assert str(caught.value) == (
        "error: output-exists\n"
        f"  {path} contains what vitconvert did not write, or not so; it is not replaced.\n"
        f"  {name}\n"
        "  hint: move it elsewhere, or name another directory with -o."
    )
    assert path.joinpath("b").read_text() == "old"
    assert path.joinpath(name).exists()
    assert {entry.name for entry in tmp_path.iterdir()} - {"kept"} == {"out"}


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_directory_of_somebody_is_refused_by_the_names_in_it(tmp_path, overwrite):
    for number in range(12):
        tmp_path.joinpath(f"thesis-{number:02}.tex").write_text("precious")
    with pytest.raises(OutputExists) as caught:
        write(tmp_path, overwrite=overwrite)
    assert caught.value.details == (
        *(f"thesis-{number:02}.tex" for number in range(10)),
        "and 2 more",
    )
    assert len(list(tmp_path.iterdir())) == 12


@pytest.mark.parametrize("before", ["nothing", "an output"])
def test_through_a_link_its_target_is_written_and_nothing_is_left_beside(tmp_path, before):
    disk, link = tmp_path / "disk", tmp_path / "links" / "out"
    link.parent.mkdir()
    link.symlink_to("../disk/out")
    (disk / "out").mkdir(parents=True)
    if before == "an output":
        write(disk / "out", "old")
    write(link, overwrite=before == "an output")
    assert link.is_symlink()
    assert content(disk / "out") == NEW
    assert [entry.name for entry in disk.iterdir()] == ["out"]
    assert [entry.name for entry in link.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("target", ["nowhere", "out"], ids=["dangling", "circular"])
def test_a_link_to_what_is_not_there(tmp_path, target):
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "out")
    assert str(caught.value) == (
        "error: usage\n"
        "  The output is a link to something that does not exist.\n"
        f"  output    {tmp_path / 'out'}\n"
        f"  leads to  {target}\n"
        "  hint: create the directory that it leads to, or name another with -o."
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_link_to_a_file_and_one_to_a_directory_of_somebody(tmp_path):
    (tmp_path / "home").mkdir()
    add_file(tmp_path / "home")
    (tmp_path / "out").symlink_to("home/mine")
    (tmp_path / "link").symlink_to("home")
    for name, error in (("out", UsageError), ("link", OutputExists)):
        with pytest.raises(error, match=r"must be a directory|did not write"):
            write(tmp_path / name)
    assert (tmp_path / "home" / "mine").read_text() == "precious"


# What vitconvert wrote is known by its record, whatever is in the place of that.


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


def gigabytes(path):
    with path.open("wb") as file:
        file.truncate(8 << 30)


def a_link(path):
    (path.parent / "elsewhere").write_text('{"sha256": {"vitconvert.json": "0"}}')
    path.symlink_to("elsewhere")


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
    "gigabytes": gigabytes,
    "a link": a_link,
    "a directory": Path.mkdir,
}


@pytest.mark.parametrize("content", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_lists_nothing(content, tmp_path):
    assert somebodys(tmp_path) == []
    _fill(tmp_path, "model.pt")
    assert somebodys(tmp_path) == ["model.pt"]
    record = tmp_path / "vitconvert.json"
    if callable(content):
        content(record)
    else:
        record.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert written_in(tmp_path) == {}
    assert {*somebodys(tmp_path)} - {"elsewhere"} == {"model.pt", "vitconvert.json"}
