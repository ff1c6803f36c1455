"""What may be added to an output, and what is never mixed into it."""

import dataclasses
import os
import shutil
import time
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from tests.embedding.layouts import (
    contents,
    read_failures,
    read_rows,
    write_folder,
    write_parquet,
    write_tar,
)
from tests.embedding.null_model import NullTask, RunOptions, Sources, embed_null, run, stop
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding import files
from vitconvert.embedding.embedder import Task
from vitconvert.embedding.shards import check
from vitconvert.errors import ConflictingFact, MissingFact, SourceError, UsageError
from vitconvert.inference.options import ComputeOptions


@pytest.fixture
def begun(tmp_path):
    """An output of which a shard is missing, and its source."""
    columns = {"n": pa.array(range(9)), "m": pa.array(range(9))}
    source = write_parquet(tmp_path / "a.parquet", contents(9), columns=columns)
    embed_null(tmp_path / "output", source, keep=["n"])
    next((tmp_path / "output" / "features").iterdir()).unlink()
    return tmp_path / "output", source


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task": NullTask("another")}, "weights"),
        ({"store": "float16"}, "output store"),
        ({"keep": ["m"]}, "source keep"),
        ({"image_column": "image"}, "source image column"),
        ({"recursive": True}, "source recursive"),
    ],
)
def test_another_function_or_source_is_refused_before_any_work(begun, changes, named):
    output, source = begun
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    with pytest.raises(ConflictingFact, match="not mixed") as caught:
        embed_null(output, source, **{"keep": ["n"], **changes})
    assert list(caught.value.evidence) == [named]
    after = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert after == before


def test_another_source_is_refused(begun, tmp_path):
    output, source = begun
    other = shutil.copy(source, tmp_path / "b.parquet")
    for given in ([other], [source, other]):
        with pytest.raises(ConflictingFact, match="not mixed") as caught:
            embed_null(output, *given, keep=["n"])
        assert list(caught.value.evidence) == ["source sources"]


def test_a_list_may_name_others(tmp_path, whole):
    names = sorted(map(str, write_folder(tmp_path / "images", contents(4)).iterdir()))
    assert embed_null(tmp_path / "output", "-", listed=iter(names[1:])).images == 3
    assert embed_null(tmp_path / "output", "-", listed=iter(names)).images == 1
    assert embed_null(tmp_path / "output", "-", listed=iter([*names, names[2]])).images == 1
    assert whole(tmp_path / "output").rows == 5  # a name that is listed twice is two rows


def of_a_model(output, task):
    samples = Sources(given=[str(DIGITS / "samples")])
    return run(task, samples, str(output), RunOptions(shard_rows=4), lambda _event: None)


def test_what_decides_the_numbers_of_a_model(tmp_path):
    import torch

    from vitconvert import load_checkpoint

    preprocessing = load_checkpoint(DIGITS).preprocessing
    task = Task(model=DIGITS)
    assert of_a_model(tmp_path / "output", task).images == 10
    other = dataclasses.replace(preprocessing, mean=(0.3, 0.5, 0.5))
    differing = {
        "computed what": {"computed": "tokens"},
        "computed dtype": {"computing": ComputeOptions(dtype=torch.bfloat16)},
        "preprocessing fast": {"computing": ComputeOptions(fast_preprocessing=True)},
        "preprocessing mean": {"preprocessing": other},
    }
    for named, changes in differing.items():
        with pytest.raises(ConflictingFact) as caught:
            of_a_model(tmp_path / "output", dataclasses.replace(task, **changes))
        assert any(name.startswith(named) for name in caught.value.evidence), named
    rounding = task.with_computing(batch_size=3, threads=1, fast=False)
    assert of_a_model(tmp_path / "output", rounding).known == 10


@pytest.mark.slow
def test_two_spellings_of_one_model_are_one(tmp_path):
    import vitconvert

    for to in ("timm", "hf_vit"):
        vitconvert.convert(DIGITS, to=to, output=tmp_path / to, verify=False)
    preprocessing = vitconvert.load_checkpoint(DIGITS).preprocessing
    tasks = [Task(model=tmp_path / to, preprocessing=preprocessing) for to in ("timm", "hf_vit")]
    assert of_a_model(tmp_path / "output", tasks[0]).images == 10
    assert of_a_model(tmp_path / "output", tasks[1]).known == 10


# Images that are added.


@pytest.mark.parametrize("listed", [False, True])
def test_only_new_files_are_added(tmp_path, whole, listed):
    folder = write_folder(tmp_path / "images", contents(5))
    output = tmp_path / "output"

    def now(**options):
        names = sorted(map(str, folder.iterdir()))
        return (
            embed_null(output, "-", listed=iter(names), **options)
            if listed
            else embed_null(output, folder, **options)
        )

    now()
    (folder / "0000a.jpg").write_bytes(b"between")
    write_folder(folder, contents(9))
    added = now()
    assert (added.known, added.images, added.shards) == (5, 5, 2)
    assert now(append=True).images == 0
    rows = read_rows(output)
    assert len({row["key"] for row in rows}) == len(rows) == 10
    assert whole(output).shards == 4


def test_relative_names_are_those_of_their_directory(tmp_path, whole, monkeypatch):
    for name in ("a", "b"):
        write_folder(tmp_path / name, [name.encode()])
    monkeypatch.chdir(tmp_path / "a")
    embed_null(tmp_path / "output", "0000.jpg")
    monkeypatch.chdir(tmp_path / "b")
    assert embed_null(tmp_path / "output", "../a/0000.jpg", append=True).images == 0
    assert embed_null(tmp_path / "output", "0000.jpg", append=True).images == 1
    assert len({tuple(row["features"]) for row in read_rows(tmp_path / "output")}) == 2
    whole(tmp_path / "output")


def test_archives_are_added_and_an_interruption_of_that_is_none(tmp_path, whole):
    output = tmp_path / "output"
    images = contents(20)
    old = write_tar(tmp_path / "old.tar", images[:4])
    embed_null(output, old)
    new = write_tar(tmp_path / "new.tar", images[4:8])
    parquet = write_parquet(tmp_path / "new.parquet", images[8:12])

    with pytest.raises(KeyboardInterrupt):
        embed_null(output, old, new, parquet, append=True, notify=stop)
    done = embed_null(output, old, new, parquet, append=True)
    assert (done.known, done.images) == (7, 5)
    assert len(read_rows(output)) == 12
    # What the output was begun with still leads to it.
    assert embed_null(output, old).known == 12
    whole(output)


def test_what_is_added_has_the_same_columns(tmp_path):
    def parquet(name, kind):
        columns = {"n": pa.array(range(3), kind)}
        return write_parquet(tmp_path / name, contents(3), columns=columns)

    output = tmp_path / "output"
    embed_null(output, parquet("a.parquet", pa.int64()), keep=["n"])
    with pytest.raises(ConflictingFact) as caught:
        embed_null(output, parquet("b.parquet", pa.int64()), append=True)
    assert list(caught.value.evidence) == ["source keep"]
    with pytest.raises(UsageError, match="another type"):
        embed_null(output, parquet("c.parquet", pa.float64()), keep=["n"], append=True)
    done = embed_null(output, parquet("b.parquet", pa.int64()), keep=["n"], append=True)
    assert done.images == 3
    with pytest.raises(ConflictingFact) as caught:
        embed_null(
            output, tmp_path / "a.parquet", keep=["n"], task=NullTask("another"), append=True
        )
    assert list(caught.value.evidence) == ["weights"]


def test_parts_are_the_whole(tmp_path, whole):
    images, output = write_folder(tmp_path / "images", contents(14)), tmp_path / "output"
    with pytest.raises(MissingFact, match="no output to add to yet"):
        embed_null(output, images, append=True)
    with pytest.raises(UsageError, match="1 <= K <= N"):
        embed_null(output, images, only=(3, 2))
    done = [embed_null(output, images, only=(k, 4)).images for k in (1, 2, 3)]
    assert "the last run did not finish" in check(str(output)).problems
    done.append(embed_null(output, images, only=(4, 4)).images)
    # A part takes images by the hash of their paths, and pytest's folder is another every time.
    assert sum(done) == 14 and max(done) < 14
    assert whole(output).rows == 14
    assert embed_null(output, images, only=(9, 9)).images == 0
    assert embed_null(output, images).known == 14
    whole(output)


def test_an_output_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "output" / "plan").mkdir(parents=True)
    (tmp_path / "output" / "plan" / "plan.json").write_text('{"version": 1}')
    images = write_folder(tmp_path / "images", contents(2))
    for work in (
        lambda: embed_null(tmp_path / "output", images),
        lambda: check(str(tmp_path / "output")),
    ):
        with pytest.raises(ConflictingFact, match="An earlier version of vitconvert") as caught:
            work()
        assert "finish it with that version" in caught.value.hint


def test_options_that_make_no_sense(tmp_path):
    for options in ({"shard_rows": 0}, {"store": "int8"}, {"engine": "spark"}):
        with pytest.raises(UsageError):
            embed_null(tmp_path / "output", tmp_path, **options)


@pytest.mark.parametrize("url", ["file://", "file://features", "file://host/features"])
def test_a_url_without_a_place_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    images = write_folder(tmp_path / "images", contents(2))
    for given in ([url, images], [tmp_path / "output", url]):
        with pytest.raises(UsageError, match=r"not (a place|name a path)"):
            embed_null(*given)
    assert {path.name for path in tmp_path.iterdir()} <= {"images", "output"}


def test_a_store_without_a_network_is_told_soon(tmp_path, monkeypatch):
    from pyarrow import fs

    if not hasattr(fs, "GcsFileSystem"):
        pytest.skip("pyarrow without Google's client")
    monkeypatch.setattr(files, "_PATIENCE", 1)
    images = write_folder(tmp_path / "images", contents(2))
    begin = time.monotonic()
    with pytest.raises(SourceError, match="The store cannot be reached"):
        embed_null("gs://anonymous@bucket/f?endpoint_override=127.0.0.1:9&scheme=http", images)
    assert time.monotonic() - begin < 10


def test_failed_images_alone_are_computed_again(tmp_path, whole):
    images = write_folder(tmp_path / "images", contents(9, bad=[1, 5]))
    embed_null(tmp_path / "output", images)
    (images / "0001.jpg").write_bytes(b"mended")
    for images_again, failed in ((2, 1), (1, 1)):
        done = embed_null(tmp_path / "output", images, retry_failed=True)
        assert (done.images, done.failed) == (images_again, failed)
        assert [row["key"] for row in read_failures(tmp_path / "output")] == [f"{images}/0005.jpg"]
    assert len({row["key"] for row in read_rows(tmp_path / "output")}) == 8
    (images / "0005.jpg").write_bytes(b"mended")
    assert embed_null(tmp_path / "output", images).images == 0
    assert embed_null(tmp_path / "output", images, retry_failed=True).failed == 0
    assert read_failures(tmp_path / "output") == []
    assert whole(tmp_path / "output").rows == 9


def test_a_shard_ends_after_about_a_minute(tmp_path, monkeypatch):
    begun = time.monotonic()
    images = write_folder(tmp_path / "images", contents(9))

    def later(event):
        monkeypatch.setattr(time, "monotonic", lambda: begun + 25 * len(told))
        told.append(event)

    told = []
    done = embed_null(tmp_path / "output", images, notify=later, shard_rows=1000)
    assert 2 <= done.shards <= 5
    assert len(read_rows(tmp_path / "output")) == 9


def test_a_compressed_tar_is_read_once(tmp_path):
    def read_so_far():
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    images = [os.urandom(2**20) for _ in range(16)]
    source = write_tar(tmp_path / "a.tar.gz", images, mode="w:gz")
    before = read_so_far()
    embed_null(tmp_path / "output", source)
    assert read_so_far() - before < 1.5 * source.stat().st_size


@pytest.mark.parametrize("done", [1, 4, 7, 10])
def test_an_interrupt_keeps_what_is_computed(done, tmp_path, whole):
    """Of a shard that was not full, too: the same command computes only the rest."""
    images = write_folder(tmp_path / "images", contents(10, bad=[2]))

    class Interrupted(NullTask):
        def answers(self, pictures):
            yield from islice(super().answers(pictures), done)
            raise KeyboardInterrupt

    events = []
    with pytest.raises(KeyboardInterrupt):
        embed_null(tmp_path / "output", images, task=Interrupted(), notify=events.append)
    assert sum(event.images for event in events if event.what == "shard") == done
    assert len(read_rows(tmp_path / "output")) == done - (done > 2)
    finished = embed_null(tmp_path / "output", images)
    assert (finished.known, finished.images) == (done, 10 - done)
    embed_null(tmp_path / "at once", images)
    once, twice = (read_rows(tmp_path / name) for name in ("at once", "output"))
    by_key = lambda row: row["key"]  # noqa: E731
    assert sorted(once, key=by_key) == sorted(twice, key=by_key)
    whole(tmp_path / "output")
