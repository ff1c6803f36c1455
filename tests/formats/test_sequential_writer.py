"""Writing on several threads: the same bytes by every way, and errors that are not lost."""

import errno
import fcntl
import os
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from vitconvert import whole
from vitconvert.whole import whole_file

BUFFER = 8192
BODY = os.urandom(11 * BUFFER + 4097)

every_way = pytest.mark.parametrize("read_soon", [True, False], ids=["page cache", "direct"])


@pytest.fixture(autouse=True)
def _small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_BUFFER", BUFFER)
    monkeypatch.setattr(whole, "_WRITE_BACK", 2 * BUFFER)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for time's sake


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
def test_what_is_written_is_there_and_hashed(
    tmp_path: Path, read_soon: bool, step: int, size: int
) -> None:
    told = _write(tmp_path / "x", BODY[:size], step, read_soon)
    assert (tmp_path / "x").read_bytes() == BODY[:size]
    assert told == sha256(BODY[:size]).hexdigest()


@pytest.mark.parametrize("step", [999, 4096, BUFFER + 1])
def test_what_was_read_into_its_room_and_what_was_not_in_turn(tmp_path: Path, step: int) -> None:
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


def test_all_but_the_tail_passes_by_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "probe").open("wb") as probe:
        if not whole._set_direct(probe.fileno(), True):
            pytest.skip("the file system does not write directly")
    seen = _watch(monkeypatch)
    _write(tmp_path / "x")
    assert seen == [(True, BUFFER)] * 11 + [(False, 4097)]
    seen.clear()
    _write(tmp_path / "x", read_soon=True)
    assert seen == [(False, BUFFER)] * 11 + [(False, 4097)]


def test_a_system_or_a_file_system_that_does_not_write_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_error_that_is_no_refusal_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(fcntl, "fcntl", lambda *arguments: 0 if len(arguments) == 2 else fail())
        _write(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_the_disk_begins_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *advice: told.append(advice))
    _write(tmp_path / "x", read_soon=True)
    at_once, advice = 2 * BUFFER, os.POSIX_FADV_DONTNEED
    assert told == [(begin * at_once, at_once, advice) for begin in range(5)]
    monkeypatch.delattr(os, "posix_fadvise")  # not every system has it
    assert _write(tmp_path / "z", read_soon=True) == sha256(BODY).hexdigest()


def test_a_file_system_that_refuses_the_first_direct_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_writes_that_are_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_soon: bool, most: int
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:most]))
    assert _write(tmp_path / "x", read_soon=read_soon) == sha256(BODY).hexdigest()
    assert (tmp_path / "x").read_bytes() == BODY


@every_way
@pytest.mark.parametrize("written", [0, 1, 11])
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_reaches_the_caller_and_no_thread_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_soon: bool, written: int, reason: int
) -> None:
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
def test_no_error_is_lost_where_the_last_buffer_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    count = iter(range(4))

    def fail(_: int, data: memoryview) -> int:
        if next(count) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        _write(tmp_path / "x", BODY[: 4 * BUFFER])


@every_way
def test_an_interrupt_leaves_at_once_and_leaves_nothing(tmp_path: Path, read_soon: bool) -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "x", read_soon=read_soon) as file:
        file.write(BODY)
        raise KeyboardInterrupt
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []
