"""Disks that fail or are full, and sources that shrink, while something is read or written."""

import errno
import io
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.hostile.harness import Answer, call_limited, run_limited
from tests.sampling import sampled
from vitconvert.cli import main
from vitconvert.conversion import convert as export
from vitconvert.demo.demonstration import DIGITS

SAMPLE = DIGITS / "samples" / "3.png"
FAILING = Path("/proc/self/mem")  # a regular file of Linux, whose first page cannot be read: EIO
on_linux = pytest.mark.skipif(not FAILING.exists(), reason="it needs a file that cannot be read")


# Some targets need other bytes in another order, and one of those another activation.
TARGETS = {
    "timm": ("--to", "timm"),
    "hf": ("--to", "hf"),
    "google_jax": ("--to", "google_jax", "--set", "activation=gelu_tanh"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DIGITS, tmp_path / "source"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused(answer: Answer, word: str, *said: str) -> None:
    assert answer.err.startswith(f"error: {word}\n"), answer
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert all(part in answer.err for part in said), answer.err


# Reading


@on_linux
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vitconvert.json"])
def test_a_file_that_cannot_be_read(name, source, tmp_path):
    (source / name).unlink()
    (source / name).symlink_to(FAILING)
    for asked in (("predict", source, SAMPLE), ("file", source, "-o", tmp_path / "out")):
        refused(run_limited(*asked), "source-not-found", "Input/output error", name)
    assert names_in(tmp_path) == ["source"]


@on_linux
def test_a_table_that_cannot_be_read():
    asked = ("verify", DIGITS, "--table", FAILING)
    refused(run_limited(*asked), "table-error", "Input/output error")


@on_linux
def test_an_image_that_cannot_be_read():
    answer = run_limited("predict", DIGITS, "-q", FAILING, SAMPLE)
    refused(answer, "source-not-found", "Input/output error")
    assert answer.out == f"{SAMPLE}\t3\n"


class _Damaged(io.FileIO):
    """A file with a bad sector behind its first 300,000 bytes."""

    def readinto(self, buffer: bytearray) -> int:
        if self.tell() + len(buffer) > 300_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        return super().readinto(buffer)


@pytest.mark.parametrize("to", ["timm", "hf", "google_jax"])
def test_a_bad_sector_in_the_weights(to, source, tmp_path):
    plain = Path.open

    def opened(path: Path, *args: object, **kwargs: object) -> object:
        if path.name == "model.safetensors" and args[:1] == ("rb",) and kwargs:
            return _Damaged(path)
        return plain(path, *args, **kwargs)

    def convert() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", opened)
            main(["file", str(source), *TARGETS[to], "-o", str(tmp_path / "out"), "--no-verify"])

    refused(call_limited(convert), "error", "Input/output error", "hint: the disk fails")
    assert names_in(tmp_path) == ["source"]


# Writing

WRITES = {
    "convert": ("file", DIGITS, "--to", "timm", "-o", "out", "--force", "--no-verify"),
    "convert in parts": ("file", DIGITS, "--to", "hf", "-o", "out", "--force", "--no-verify",
                         "--max-shard-size", "90KB"),
        "embed lines": ("embed", DIGITS, *[SAMPLE] * 9, "-o", "out.jsonl", "--force"),
    "verify": ("verify", DIGITS, "--report", "out.html", "--force"),
}  # fmt: skip


def earlier(folder: Path, asked: tuple[object, ...]) -> dict[str, bytes]:
    """An earlier output, and what is in it."""
    folder.mkdir()
    assert run_limited(*asked, cwd=folder).code == 0
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("what", sampled(WRITES, 4, "slow"))
def test_a_disk_that_refuses_leaves_the_earlier_output(what, number, tmp_path):
    before = earlier(tmp_path / "place", WRITES[what])
    plain = os.write

    def write(descriptor: int, data: bytes) -> int:
        if descriptor > 2:
            raise OSError(number, os.strerror(number))
        return plain(descriptor, data)

    def run() -> None:
        os.chdir(tmp_path / "place")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", write)
            main([str(word) for word in WRITES[what]])

    refused(call_limited(run), "error", os.strerror(number))
    after = {str(p): p.read_bytes() for p in (tmp_path / "place").rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.parametrize("size", [1000, 5000, 100_000])
@pytest.mark.parametrize("what", sampled(WRITES, 4, "slow"))
def test_files_that_may_not_grow(what, size, tmp_path):
    """The system itself refuses, whichever file it is: weights, an index, a card, a record."""
    before = earlier(tmp_path / "place", WRITES[what])

    def run() -> None:
        os.chdir(tmp_path / "place")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        main([str(word) for word in WRITES[what]])

    answer = call_limited(run)
    after = {str(p): p.read_bytes() for p in (tmp_path / "place").rglob("*") if p.is_file()}
    if answer.code:
        refused(answer, "error", "File too large")
        assert after == before
    else:
        assert all(len(content) <= size for content in after.values())
        assert after.keys() == before.keys()


@pytest.mark.parametrize("size", [100, 1500, 4000])
def test_lines_that_a_disk_has_no_room_for_are_not_cut(size, tmp_path):
    """A new file of features keeps the lines that fit."""
    asked = ("embed", DIGITS, *[SAMPLE] * 9, "-o", "out.jsonl")

    def run() -> None:
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        main([str(word) for word in asked])

    refused(call_limited(run), "error", "File too large")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    assert all(json.loads(line)["features"] and line.endswith(b"\n") for line in lines)
    assert len(lines) == size // 1100


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
@pytest.mark.parametrize("what", sampled(WRITES, 4, "slow"))
def test_outputs_have_the_permissions_that_the_umask_grants(what, mask, tmp_path):
    def run() -> None:
        os.chdir(tmp_path)
        os.umask(mask)
        main([str(word) for word in WRITES[what]])

    assert call_limited(run).code == 0
    written = [path for path in tmp_path.rglob("*") if path.name != "source"]
    assert written
    for path in written:
        everything = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == everything & ~mask, path


# Sources that shrink


def shrinking_at(step: str, weights: Path, asked: list[str]) -> Answer:
    """A conversion of which somebody cuts the weights before one of its steps."""
    plain: Callable[..., object] = getattr(export, step)

    def shrinking(*args: object, **kwargs: object) -> object:
        os.truncate(weights, 5000)
        return plain(*args, **kwargs)

    def convert() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, step, shrinking)
            main(asked)

    return call_limited(convert)


@pytest.mark.parametrize("step", ["choose_target", "write_weights", "write_card"])
@pytest.mark.parametrize("to", sampled(TARGETS, 3, "slow"))
def test_weights_that_shrink_while_they_are_moved(to, step, source, tmp_path):
    """Moving reads, and does not map: a message, whatever the target, and never a signal."""
    asked = ["file", str(source), *TARGETS[to], "-o", str(tmp_path / "out"), "--no-verify"]
    answer = shrinking_at(step, source / "model.safetensors", asked)
    refused(answer, "hash-mismatch", "model.safetensors was changed since it was opened.")
    assert names_in(tmp_path) == ["source"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["contents_for", "_opened", "write_card"])
def test_weights_that_shrink_while_they_are_compared(step, source, tmp_path):
    """Models that are compared have mapped weights: the system may end the process (SIGBUS)."""
    weights, out = source / "model.safetensors", tmp_path / "out"
    whole = weights.read_bytes()
    asked = ["file", str(source), "--to", "timm", "-o", str(out)]
    answer = shrinking_at(step, weights, asked)
    if answer.code != -signal.SIGBUS:
        refused(answer, "hash-mismatch", "model.safetensors was changed since it was opened.")
        assert names_in(tmp_path) == ["source"]
    assert not out.exists()
    weights.write_bytes(whole)
    assert run_limited(*asked, "--no-verify").code == 0
    assert names_in(tmp_path) == ["out", "source"]  # what was left is swept


def test_an_image_that_shrinks(tmp_path):
    Image.effect_noise((300, 300), 90).save(tmp_path / "noise.png")
    os.truncate(tmp_path / "noise.png", 9000)
    answer = run_limited("predict", DIGITS, "-q", tmp_path / "noise.png", SAMPLE)
    refused(answer, "corrupt-file", "noise.png")
    assert answer.out == f"{SAMPLE}\t3\n"
