"""Whatever ends a run, the same run goes on: nothing is lost, doubled, or computed for nothing."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.embedding.killing import SHARD_ROWS
from tests.embedding.layouts import contents, left_over, read_rows, write_folder
from tests.embedding.null_model import NullTask, embed_null, stop
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding.options import TooManyFailures
from vitconvert.errors import OutputExists, UsageError

IN_MEMORY = Path("/dev/shm")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forks")
@pytest.mark.parametrize(
    ("stride", "kills"), [(40, 4), pytest.param(3, 40, marks=pytest.mark.coverage)]
)
def test_killed_at_any_write_fsync_or_rename(tmp_path, stride, kills):
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else tmp_path) as folder:
        command = [sys.executable, "-m", "tests.embedding.killing", folder, str(stride)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert sum(result["kills"] for result in results) >= kills
    assert {result["kind"] for result in results} == {"list", "tree", "tar", "parquet"}
    for result in results:
        assert result["finished"] == 0, (result, done.stderr)
        assert result["whole"], result
        assert result["rows"], result
        assert result["failures"] == 1, result
        assert result["left"] == [], result
        assert 0 <= result["again"] <= (SHARD_ROWS + 3) * result["kills"], result


@pytest.fixture
def room():
    """Lets no file grow beyond so many bytes, as a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 300, 1_000])
def test_a_full_disk_leaves_whole_shards_and_nothing_else(tmp_path, whole, room, size):
    images, output = write_folder(tmp_path / "images", contents(9)), tmp_path / "output"
    room(size)
    with pytest.raises(OSError, match="File too large"):
        embed_null(output, images)
    room(2**30)
    assert left_over(output) == []
    rows = len(read_rows(output))
    assert rows % 3 == 0
    finished = embed_null(output, images)
    assert finished.known == rows
    assert whole(output).rows == 9


def test_an_error_within_a_shard_leaves_none_of_it(tmp_path, whole):
    images, output = write_folder(tmp_path / "images", contents(9)), tmp_path / "output"

    def stop(event):
        if event.what == "images" and output.joinpath("features").is_dir():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_null(output, images, notify=stop)
    assert read_rows(output) == []
    assert left_over(output) == []
    assert (output / "README.md").exists()  # which tells what there will be
    embed_null(output, images)
    assert whole(output).rows == 9


def test_too_many_failures_end_a_run_and_keep_finished_shards(tmp_path, whole):
    images = write_folder(tmp_path / "images", contents(9, bad=[1, 4, 5, 7]))
    output = tmp_path / "output"
    with pytest.raises(TooManyFailures, match="3 images failed, and 2 may"):
        embed_null(output, images, max_errors=2)
    assert len(read_rows(output)) == 2
    finished = embed_null(output, images)
    assert (finished.known, finished.known_failed, finished.failed) == (3, 1, 3)
    assert whole(output).failed == 4


def test_a_shard_of_failures_alone_is_a_shard(tmp_path, whole):
    images = write_folder(tmp_path / "images", contents(6, bad=[3, 4, 5]))
    finished = embed_null(tmp_path / "output", images)
    assert (finished.images, finished.failed, finished.shards) == (6, 3, 2)
    assert whole(tmp_path / "output").shards == 2
    assert embed_null(tmp_path / "output", images).images == 0


def test_one_run_at_a_time(tmp_path):
    images, output = write_folder(tmp_path / "images", contents(6)), tmp_path / "output"
    refused = []

    def another(event):
        if event.what == "shard" and not refused:
            for options in ({}, {"only": (1, 2)}, {"append": True}):
                with pytest.raises(OutputExists, match="Another run"):
                    embed_null(output, images, **options)
                refused.append(options)

    embed_null(output, images, notify=another)
    assert len(refused) == 3


def test_parts_at_once(tmp_path, whole):
    images, output = write_folder(tmp_path / "images", contents(40)), tmp_path / "output"
    others = []  # a part takes images by the hash of their paths: of 40, none is empty

    def another(event):
        if event.what == "shard" and not others:
            with pytest.raises(OutputExists):
                embed_null(output, images, only=(1, 3))
            with pytest.raises(OutputExists):
                embed_null(output, images)
            others.append(embed_null(output, images, only=(2, 3)))

    first = embed_null(output, images, only=(1, 3), notify=another)
    last = embed_null(output, images, only=(3, 3))
    assert first.images + others[0].images + last.images == 40
    assert whole(output).rows == 40


def test_what_runs_left_that_were_killed_is_removed(tmp_path):
    images, output = write_folder(tmp_path / "images", contents(6)), tmp_path / "output"
    embed_null(output, images)
    for run in ("all", "only-1-of-2", "only-2-of-2"):
        (output / "tmp" / run).mkdir()
        (output / "tmp" / run / ".x-01234567.part").touch()
    embed_null(output, images, only=(1, 2))
    assert sorted(left_over(output)) == [".x-01234567.part"] * 2 + [
        "all",
        "only-2-of-2",
    ]
    embed_null(output, images)
    assert left_over(output) == []


def test_what_somebody_else_has_is_left(tmp_path):
    images, output = write_folder(tmp_path / "images", contents(6)), tmp_path / "output"
    (output / "tmp" / "precious").mkdir(parents=True)
    (output / "tmp" / "precious" / "file").touch()
    embed_null(output, images)
    assert (output / "tmp" / "precious" / "file").exists()
    for other in ("notes.txt", "plan/notes.txt"):
        folder = tmp_path / other.replace("/", "-")
        (folder / other).parent.mkdir(parents=True)
        (folder / other).touch()
        with pytest.raises(OutputExists, match="files that vitconvert did not write") as caught:
            embed_null(folder, images)
        assert caught.value.evidence["files"] == other.split("/")[0]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        embed_null(tmp_path / "file", images)


def test_an_output_that_cannot_be_written(tmp_path):
    images = write_folder(tmp_path / "images", contents(6))
    with pytest.raises(UsageError, match="cannot be written"):
        embed_null("/proc/features", images)
    with pytest.raises(UsageError, match="cannot be written"):
        embed_null(tmp_path / ("long" * 100), images)


@pytest.mark.coverage
def test_the_command_goes_on_after_a_kill(tmp_path, whole):
    samples = [path.read_bytes() for path in sorted((DIGITS / "samples").iterdir())]
    write_folder(tmp_path / "images", (samples * 400)[:400], suffix=".png")
    command = [sys.executable, "-m", "vitconvert", "embed", str(DIGITS), "images"]
    command += ["-o", "output", "--shard-rows", "2", "--threads", "1"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "output" / "features"
    while running.poll() is None and len(list(parts.glob("*.parquet"))) < 3:
        time.sleep(0.002)
    running.kill()
    running.communicate(timeout=60)
    there = len(list(parts.glob("*.parquet")))
    assert 3 <= there < 200
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["known"] == 2 * there
    assert events[-1]["images"] == 400 - 2 * there
    assert whole(tmp_path / "output").rows == 400


def test_rows_do_not_depend_on_how_often_a_run_was_interrupted(tmp_path):
    images = write_folder(tmp_path / "images", contents(9))
    embed_null(tmp_path / "once", images)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            embed_null(tmp_path / "often", images, notify=stop)
    log = tmp_path / "log"
    embed_null(tmp_path / "often", images, task=NullTask(log=log))
    assert not log.exists()
    assert read_rows(tmp_path / "often") == read_rows(tmp_path / "once")
