"""Files appear whole or not at all, and with their hash: full disks, kills, interrupts."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from vitconvert.atomic_write import atomic_directory, atomic_file, atomic_files
from vitconvert.errors import OutputExists, UsageError

BODY = os.urandom(300_001)
MINE = b"somebody's thesis"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _write(path: Path, body: bytes = BODY, step: int = 1000) -> str:
    with atomic_file(path) as file:
        for begin in range(0, len(body), step):
            assert file.tell() == begin
            part = bytearray(body[begin : begin + step])
            assert file.write(memoryview(part)) == len(part)
            part[:] = bytes(len(part))  # what was given may change
    return file.sha256


@pytest.mark.parametrize("step", [999, 100_000, 400_000])
@pytest.mark.parametrize("size", [0, 1, 4096, len(BODY)])
def test_what_is_written_is_there_and_hashed(tmp_path, step, size):
    told = _write(tmp_path / "x", BODY[:size], step)
    assert (tmp_path / "x").read_bytes() == BODY[:size]
    assert told == sha256(BODY[:size]).hexdigest()


def test_permissions_are_those_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        _write(tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_an_interrupt_leaves_nothing_and_no_thread(tmp_path):
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "x") as file:
        file.write(BODY)
        raise KeyboardInterrupt
    assert threading.active_count() == before
    assert names(tmp_path) == []


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_what_was_there(tmp_path, failing, monkeypatch):
    (tmp_path / "x").write_bytes(MINE)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="No space"):
        _write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == MINE
    assert names(tmp_path) == ["x"]


def test_places_where_no_file_can_be(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="is a directory"):
        _write(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        _write(tmp_path / "nowhere" / "x")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError) as error:
        _write(tmp_path / "x")
    assert str(error.value) == (
        "error: usage\n"
        "  The output cannot be written.\n"
        f"  output  {tmp_path / 'x'}\n"
        "  reason  Permission denied"
    )


def test_long_names_are_written_too(tmp_path):
    name = "ü" * 120  # 240 bytes of 255
    _write(tmp_path / name)
    assert names(tmp_path) == [name]


def test_what_appeared_meanwhile_is_asked_about(tmp_path):
    path = tmp_path / "x"

    def check(found: Path) -> None:
        if found.exists():
            raise OutputExists("It is there.")

    with pytest.raises(OutputExists), atomic_file(path, check=check) as file:
        file.write(b"new")
        path.write_bytes(MINE)
    assert path.read_bytes() == MINE and names(tmp_path) == ["x"]


def test_several_files_move_together_and_the_named_one_last(tmp_path, monkeypatch):
    moved: list[str] = []
    replace = Path.replace

    def noted(self: Path, to: Path) -> Path:
        moved.append(to.name)
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", noted)
    with atomic_files(tmp_path / "a.onnx", lambda _: None) as draft:
        draft.write_bytes(b"graph")
        draft.with_name("a.onnx.data").write_bytes(b"weights")
        assert names(tmp_path) != ["a.onnx"]
    assert names(tmp_path) == ["a.onnx", "a.onnx.data"] and moved[-1] == "a.onnx"


KILLED = """
import os, signal, sys
from pathlib import Path
from vitconvert.atomic_write import atomic_directory, atomic_file, atomic_files
path = Path(sys.argv[1])
with (
    atomic_file(path) as file,
    atomic_files(path, print) as draft,
    atomic_directory(path.with_name("out"), lambda _: None) as folder,
):
    file.write(b"half")
    draft.write_bytes(b"half")
    (folder / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.posix
def test_a_killed_process_leaves_hidden_names_alone(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "x.toml"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert all(name.startswith(".") and name.endswith(".part") for name in names(tmp_path))
    assert len(names(tmp_path)) == 3


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no such file system here")
def test_error_a_file_system_that_makes_no_folders():
    with (
        pytest.raises(UsageError, match="cannot be written"),
        atomic_directory(Path("/proc/out"), lambda _: None),
    ):
        raise AssertionError("nothing can be written there")
