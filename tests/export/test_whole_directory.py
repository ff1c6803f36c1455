"""Outputs appear whole or not at all: under SIGKILL, a full disk, and two writers at once."""

import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from vitconvert.errors import OutputExists, UsageError
from vitconvert.export import whole_directory as module
from vitconvert.export.whole_directory import whole_directory

# Replaces a directory and kills itself at the moment with the number that is asked for.
WRITER = """
import os, pathlib, signal, sys
from vitconvert.export import whole_directory as module

path, last, exchange = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
moments = 0

def moment():
    global moments
    if moments == last:
        os.kill(os.getpid(), signal.SIGKILL)
    moments += 1

def watched(owner, name):
    function = getattr(owner, name)
    def call(*arguments, **options):
        moment()
        result = function(*arguments, **options)
        moment()
        return result
    setattr(owner, name, call)

for name in ("rename", "mkdir"):
    watched(module.Path, name)
for name in ("fsync", "close"):
    watched(os, name)
watched(module.shutil, "rmtree")
if not exchange:
    module._exchange = lambda one, other: False
with module.whole_directory(path, overwrite=True) as directory:
    moment()
    for name in ("a", "b"):
        (directory / name).write_text("new")
        moment()
moment()
print(moments)
"""


def run_writer(path, last, exchange):
    command = [sys.executable, "-c", WRITER, str(path), str(last), str(exchange)]
    return subprocess.run(command, capture_output=True, text=True)


def write(path, text="new", **options):
    with whole_directory(path, **{"overwrite": True} | options) as directory:
        for name in ("a", "b"):
            (directory / name).write_text(text)


def content(path):
    return {file.name: file.read_text() for file in path.iterdir()}


OLD, NEW = {"a": "old", "b": "old"}, {"a": "new", "b": "new"}


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "in two steps"])
def test_killed_at_any_moment_it_leaves_the_old_or_the_new_and_a_rerun_cleans(tmp_path, exchange):
    path = tmp_path / "out"
    write(path, "old")
    moments = int(run_writer(path, -1, exchange).stdout)
    assert moments > 15
    seen = []
    for number in range(moments):
        write(path, "old")
        assert run_writer(path, number, exchange).returncode == -signal.SIGKILL
        if exchange or path.exists():  # between two renames there is nothing for a moment
            seen.append(content(path))
            assert seen[-1] in (OLD, NEW)
        with pytest.raises(KeyboardInterrupt), whole_directory(path, overwrite=True):
            raise KeyboardInterrupt  # a rerun that fails puts back what had been taken away
        assert content(path) in (OLD, NEW)
        assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert OLD in seen
    assert NEW in seen


@pytest.mark.parametrize("place", ["work", "work/deep", ".", "/"])
def test_no_directory_goes_that_nobody_can_mean(place, tmp_path, monkeypatch):
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    with pytest.raises(UsageError) as caught:
        write(tmp_path / place)
    assert str(caught.value) == (
        "error: usage\n"
        "  The output would take the place of the current directory, or of your home.\n"
        f"  output  {(tmp_path / place).resolve()}\n"
        f"  in it   {tmp_path / 'work' / 'deep'}\n"
        "  hint: -o names a new directory."
    )
    assert Path.cwd().is_dir()


def test_of_two_writers_the_first_to_finish_wins_and_nothing_is_mixed(tmp_path):
    path = tmp_path / "out"
    with (
        pytest.raises(OutputExists, match="is there already, and not empty"),
        whole_directory(path, overwrite=False) as directory,
    ):
        (directory / "slow").write_text("1")
        write(path, overwrite=False)
        assert (directory / "slow").exists()  # the other did not take it for remains
    assert content(path) == NEW
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_many_writers_that_may_replace_each_other(tmp_path):
    path = tmp_path / "out"
    texts = [str(number) * 1000 for number in range(8)]
    threads = [threading.Thread(target=write, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(path)
    assert found["a"] == found["b"]
    assert found["a"] in texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_names_that_are_patterns(tmp_path):
    path = tmp_path / "[ab]*"
    other = tmp_path / ".a-0.vitconvert-part"
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
        patch.setattr("vitconvert.export.whole_directory._exchange", lambda *_: False)
        write(path)
    assert caught.value.filename == str(path)
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_what_was_there_returns_where_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    path, fresh = tmp_path / "out", tmp_path / "fresh"
    write(path, "old")
    rename = Path.rename

    def fail_for_the_new(self, target):
        if self.name.endswith(".vitconvert-part"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    monkeypatch.setattr(module, "_exchange", lambda *_: False)
    for place in (path, fresh):
        with pytest.raises(OSError, match="Input/output error"):
            write(place)
    assert content(path) == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_where_the_system_cannot_swap_there_are_two_steps(tmp_path, monkeypatch):
    path = tmp_path / "out"
    write(path, "old")
    monkeypatch.setattr(sys, "platform", "sunos5")
    write(path)
    assert content(path) == NEW
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("locked", [False, True], ids=["unlocked", "locked"])
def test_a_new_directory_that_another_process_cleaned_is_made_again(tmp_path, monkeypatch, locked):
    lock, cleaned = module._locked, []

    @contextmanager
    def cleaned_once(directory):
        with lock(directory) if locked else nullcontext():
            if not cleaned:
                cleaned.append(directory)
                directory.rmdir()
            with nullcontext() if locked else lock(directory):
                yield

    monkeypatch.setattr(module, "_locked", cleaned_once)
    write(tmp_path / "out")
    assert len(cleaned) == 1
    assert content(tmp_path / "out") == NEW
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
