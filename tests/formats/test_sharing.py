"""Sharing blocks, by a kernel that is played here: same bytes, shared, refused or failing."""

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from vitconvert.formats import whole_file as whole_file_module
from vitconvert.formats.whole_file import whole_file

BUFFER = 8192
BODY = os.urandom(9 * BUFFER + 100)
Range = tuple[int, int, int]
"""Offset in the source, length, offset in the target."""


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """What was shared so far; it is copied in truth."""
    ranges = []

    def ioctl(target: int, request: int, numbers: bytes) -> int:
        assert request == 0x4020940D
        source, offset, length, begin = struct.unpack("=q3Q", numbers)
        if offset % 4096 or length % 4096 or begin % 4096 or not length:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        flags = fcntl.fcntl(target, fcntl.F_GETFL)
        fcntl.fcntl(target, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        assert os.pwrite(target, os.pread(source, length, offset), begin) == length
        fcntl.fcntl(target, fcntl.F_SETFL, flags)
        ranges.append((offset, length, begin))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(whole_file_module, "_BUFFER", BUFFER)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for time's sake
    return ranges


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(BODY)
    return tmp_path / "source"


def _copy(source: Path, target: Path, begin: int, head: bytes, read_soon: bool = False) -> str:
    """Write a head, and the source from a place on."""
    with source.open("rb") as opened, whole_file(target, read_soon=read_soon) as file:
        file.write(head)
        offset = opened.seek(begin)
        while read := opened.readinto(room := file.room(source, offset)[:5000]):
            file.write(room[:read])
            offset += read
    return file.sha256


@pytest.mark.parametrize("read_soon", [True, False], ids=["page cache", "direct"])
@pytest.mark.parametrize("begin", [0, 4096, 1000])
def test_buffers_that_agree_with_the_source_modulo_a_block_are_shared(
    tmp_path: Path, source: Path, shared: list[Range], begin: int, read_soon: bool
) -> None:
    head = os.urandom(4096 + begin % 4096)
    told = _copy(source, tmp_path / "x", begin, head, read_soon)
    assert (tmp_path / "x").read_bytes() == head + BODY[begin:]
    assert told == sha256(head + BODY[begin:]).hexdigest()
    moved = len(head) - begin
    ends = range(BUFFER, len(head + BODY) - begin - BUFFER + 1, BUFFER)
    assert shared == [(at - moved, BUFFER, at) for at in ends]


def test_what_does_not_agree_is_written(tmp_path: Path, source: Path, shared: list[Range]) -> None:
    _copy(source, tmp_path / "x", 0, b"12345678")
    assert (tmp_path / "x").read_bytes() == b"12345678" + BODY
    assert shared == []


def test_a_buffer_from_several_places_or_from_another_part_of_a_block_is_written(
    tmp_path: Path, source: Path, shared: list[Range]
) -> None:
    (tmp_path / "other").write_bytes(BODY)
    with source.open("rb") as opened, whole_file(tmp_path / "x") as file:

        def add(path: Path, offset: int, length: int) -> None:
            opened.seek(offset)
            file.write(file.room(path, offset)[: opened.readinto(file.room(path, offset)[:length])])

        add(source, 100, 8192)  # no block
        add(source, 0, 4096)
        add(source, 8192, 4096)  # a gap
        add(source, 0, 4096)
        add(tmp_path / "other", 4096, 4096)  # the right place of another file
        add(source, 0, 4096)
        file.write(BODY[4096:8192])  # from nowhere
        file.write(BODY[:4096])
        add(source, 4096, 4096)
        add(source, 0, 4096)
        add(source, 4096, 4096)
        file.write(b"")
    assert shared == [(0, BUFFER, 5 * BUFFER)]
    assert (tmp_path / "x").read_bytes() == (
        BODY[100:8292] + BODY[:4096] + BODY[8192:12288] + BODY[:BUFFER] * 4
    )


def _failing(reason: int, calls: list[int]) -> Callable[[int, int, bytes], int]:
    def ioctl(*_: object) -> int:
        calls.append(reason)
        raise OSError(reason, os.strerror(reason))

    return ioctl


@pytest.mark.parametrize(
    "reason", ["EOPNOTSUPP", "ENOTTY", "EXDEV", "EINVAL", "ENOSYS", "EPERM"], ids=str
)
def test_who_refuses_is_not_asked_again(
    tmp_path: Path, source: Path, shared: None, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", _failing(getattr(errno, reason), calls))
    assert _copy(source, tmp_path / "x", 0, b"") == sha256(BODY).hexdigest()
    assert (tmp_path / "x").read_bytes() == BODY
    assert len(calls) == 1


def test_other_systems_are_not_asked(
    tmp_path: Path, source: Path, shared: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    _copy(source, tmp_path / "x", 0, b"")
    assert (tmp_path / "x").read_bytes() == BODY
    assert shared == []


def test_a_disk_that_fails_is_an_error(
    tmp_path: Path, source: Path, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", _failing(errno.EIO, []))
    with pytest.raises(OSError, match="Input/output error"):
        _copy(source, tmp_path / "x", 0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
