"""Files appear whole or not at all, and with their hash: full disks, kills, two writers."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from vitconvert import whole
from vitconvert.errors import UsageError
from vitconvert.whole import whole_file

BUFFER = 8192
BODY = os.urandom(11 * BUFFER + 4097)
MINE = b"somebody's thesis"

every_way = pytest.mark.parametrize("read_soon", [True, False], ids=["page cache", "direct"])


@pytest.fixture(autouse=True)
def _small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_BUFFER", BUFFER)
    monkeypatch.setattr(whole, "_WRITE_BACK", 2 * BUFFER)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def _write(path: Path, body: bytes = BODY, step: int = 1000, read_soon: bool = False) -> str:
    with whole_file(path, read_soon=read_soon) as file:
        for begin in range(0, len(body), step):
            assert file.tell() == begin
            part = bytearray(body[begin : begin + step])
            assert file.write(memoryview(part)) == len(part)
            part[:] = bytes(len(part))  # what was given may change
    return file.sha256


@every_way
@pytest.mark.parametrize("step", [999, BUFFER, 10 * BUFFER + 1])
@pytest.mark.parametrize("size", [0, 1, 4096, BUFFER, 4 * BUFFER, 5 * BUFFER + 4096, len(BODY)])
def test_what_is_written_is_there_and_hashed(tmp_path, read_soon, step, size):
    told = _write(tmp_path / "x", BODY[:size], step, read_soon)
    assert (tmp_path / "x").read_bytes() == BODY[:size]
    assert told == sha256(BODY[:size]).hexdigest()


@pytest.mark.parametrize("step", [999, 4096, BUFFER + 1])
def test_what_was_read_into_its_room_and_what_was_not_in_turn(tmp_path, step):
    (source := tmp_path / "source").write_bytes(BODY)
    with source.open("rb", buffering=0) as opened, whole_file(tmp_path / "x") as file:
        while read := opened.readinto(room := file.room()[:step]):
            file.write(room[:read])
            file.write(opened.read(step))
    assert (tmp_path / "x").read_bytes() == BODY
    assert file.sha256 == sha256(BODY).hexdigest()


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Every write to come: whether it was direct, and how long."""
    write, seen = os.write, []

    def watched(descriptor: int, data: memoryview) -> int:
        seen.append((_is_direct(descriptor), len(data)))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    return seen


def test_all_but_the_tail_passes_by_the_page_cache(tmp_path, monkeypatch):
    with (tmp_path / "probe").open("wb") as probe:
        if not whole._set_direct(probe.fileno(), True):
            pytest.skip("the file system does not write directly")
    seen = _watch(monkeypatch)
    _write(tmp_path / "x")
    assert seen == [(True, BUFFER)] * 11 + [(False, 4097)]
    seen.clear()
    _write(tmp_path / "x", read_soon=True)
    assert seen == [(False, BUFFER)] * 11 + [(False, 4097)]


def test_a_system_or_a_file_system_that_does_not_write_directly(tmp_path, monkeypatch):
    def refuse(_: int, command: int, __: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", refuse)
        assert _write(tmp_path / "x") == sha256(BODY).hexdigest()
    monkeypatch.delattr(os, "O_DIRECT")
    assert _write(tmp_path / "y") == sha256(BODY).hexdigest()
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes() == BODY


def test_the_disk_begins_before_the_end(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *advice: told.append(advice))
    _write(tmp_path / "x", read_soon=True)
    at_once, advice = 2 * BUFFER, os.POSIX_FADV_DONTNEED
    assert told == [(begin * at_once, at_once, advice) for begin in range(5)]
    monkeypatch.delattr(os, "posix_fadvise")  # not every system has it
    assert _write(tmp_path / "z", read_soon=True) == sha256(BODY).hexdigest()


def test_a_file_system_that_refuses_the_first_direct_write(tmp_path, monkeypatch):
    write, refused = os.write, []

    def refuse(descriptor: int, data: memoryview) -> int:
        if _is_direct(descriptor):
            refused.append(len(data))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    assert _write(tmp_path / "x") == sha256(BODY).hexdigest()
    assert (tmp_path / "x").read_bytes() == BODY
    assert len(refused) < 2


@every_way
@pytest.mark.parametrize("most", [4096, 1000])
def test_writes_that_are_cut_short(tmp_path, monkeypatch, read_soon, most):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:most]))
    assert _write(tmp_path / "x", read_soon=read_soon) == sha256(BODY).hexdigest()
    assert (tmp_path / "x").read_bytes() == BODY


@every_way
@pytest.mark.parametrize("written", [0, 1, 11])
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_reaches_the_caller_and_no_thread_stays(
    tmp_path, monkeypatch, read_soon, written, reason
):
    write, left = os.write, [written]

    def fail(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(reason, os.strerror(reason))
        left[0] -= 1
        return write(descriptor, data)

    before = threading.active_count()
    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(reason)):
        patch.setattr(os, "write", fail)
        _write(tmp_path / "x", read_soon=read_soon)
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", range(4))
def test_no_error_is_lost_where_the_last_buffer_is_full(tmp_path, monkeypatch, failing):
    count = iter(range(4))

    def fail(_: int, data: memoryview) -> int:
        if next(count) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        _write(tmp_path / "x", BODY[: 4 * BUFFER])


@every_way
def test_an_interrupt_leaves_at_once_and_leaves_nothing(tmp_path, read_soon):
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "x", read_soon=read_soon) as file:
        file.write(BODY)
        raise KeyboardInterrupt
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_those_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        _write(tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_what_was_there(tmp_path, failing, monkeypatch):
    (tmp_path / "x").write_bytes(MINE)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(failing, fail)
    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == MINE
    assert names(tmp_path) == ["x"]


def test_places_where_no_file_can_be(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="is a directory"):
        _write(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        _write(tmp_path / "nowhere" / "x")
    open_ = os.open

    def refuse(path: Path, flags: int, *mode: int, **where: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_(path, flags, *mode, **where)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError) as error:
        _write(tmp_path / "x")
    assert str(error.value) == (
        "error: usage\n"
        "  The output cannot be written.\n"
        f"  output  {tmp_path / 'x'}\n"
        "  reason  Permission denied"
    )


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("links", [True, False])
def test_what_may_be_replaced_is(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(PermissionError))
    path = tmp_path / "x"
    asked: list[Path] = []
    path.write_bytes(b"old")
    with whole_file(path, check=asked.append) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and asked == [path] and names(tmp_path) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from vitconvert.whole import whole_file, whole_files
path = Path(sys.argv[1])
with whole_file(path) as file, whole_files(path, print) as draft:
    draft.write_bytes(b"half")
    draft.with_name("x.onnx.data").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_remains_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    path = tmp_path / "x.toml"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(MINE)
    (tmp_path / f".vitconvert-{'0' * 16}.part").symlink_to(elsewhere)
    (tmp_path / ".vitconvert-mine.part").write_bytes(MINE)
    os.mkfifo(tmp_path / f".vitconvert-{'1' * 16}.part")
    with_folder = tmp_path / f".vitconvert-{'2' * 16}.part" / "photos"
    with_folder.mkdir(parents=True)
    (with_folder / "mine.jpg").write_bytes(MINE)
    stay = {name for name in names(tmp_path) if not is_remains(name)}
    in_use, descriptor = whole._begin(tmp_path / "x", tmp_path)
    with whole_file(path, check=print) as file:
        file.write(b"new")
    os.close(descriptor)
    assert set(names(tmp_path)) == {*stay, "x.toml", in_use.name}
    assert elsewhere.read_bytes() == (with_folder / "mine.jpg").read_bytes() == MINE


def is_remains(name: str) -> bool:
    digits = name.removeprefix(".vitconvert-").removesuffix(".part")
    return len(digits) == 16 and len(set(digits)) > 1


def test_a_name_that_another_process_sweeps_at_once_is_not_used(tmp_path, monkeypatch):
    """Between the making and the locking, somebody removes it as remains."""
    flock = fcntl.flock
    swept: list[Path] = []

    def slow(descriptor: int, how: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        flock(descriptor, how)

    monkeypatch.setattr("fcntl.flock", slow)
    path, descriptor = whole._begin(tmp_path / "x", tmp_path)
    os.close(descriptor)
    assert swept and path not in swept and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no such file system here")
def test_error_a_file_system_that_makes_no_folders():
    def nothing(_):
        pass

    place = Path("/proc/out")
    with (
        pytest.raises(UsageError, match="cannot be written"),
        whole.whole_directory(place, nothing, nothing),
    ):
        raise AssertionError("nothing can be written there")
