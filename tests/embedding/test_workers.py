"""Shards of images that processes prepared are those of threads, from each kind of source."""

import multiprocessing
import pickle

import numpy as np
import pytest
import torch

import vitconvert
from tests.embedding.layouts import read_failures, read_rows, write_parquet, write_tar
from tests.embedding.test_embedder import (
    PREPROCESSING,
    directory,
    embedder,
    files,
    photograph,
    photographs,
)
from vitconvert.embedding.embedder import Task
from vitconvert.embedding.options import RunOptions
from vitconvert.embedding.run import run
from vitconvert.embedding.sources import Sources
from vitconvert.errors import SourceError, UsageError
from vitconvert.inference import batches
from vitconvert.inference.options import ComputeOptions

__all__ = ["directory", "files", "photograph", "photographs"]  # fixtures


def computed(directory, source, output, workers, **options):
    computing = ComputeOptions(workers=workers, batch_size=3, fast=False)
    task = Task(model=str(directory), preprocessing=PREPROCESSING, computing=computing)
    how = RunOptions(shard_rows=4, **options)
    done = run(task, Sources(given=[str(source)]), str(output), how, lambda _event: None)
    return done, read_rows(output), read_failures(output)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "tar", "parquet"])
def test_rows_and_failures_are_the_same_from_each_kind_of_source(tmp_path, directory, files, kind):
    contents = [path.read_bytes() for path in files] * 3
    contents[4] = b"no image"
    if kind == "folder":
        source = tmp_path / "folder"
        source.mkdir()
        for number, content in enumerate(contents):
            (source / f"{number:02}.png").write_bytes(content)
    else:
        write = {"tar": write_tar, "parquet": write_parquet}[kind]
        source = write(tmp_path / f"source.{kind}", contents)
    done, rows, failures = computed(directory, source, tmp_path / "threads", 0)
    assert (done.images, done.failed) == (len(contents), 1) and len(failures) == 1
    again, our_rows, our_failures = computed(directory, source, tmp_path / "processes", 2)
    assert (again.images, again.failed, again.shards) == (done.images, 1, done.shards)
    assert our_rows == rows and our_failures == failures
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_what_is_known_starts_no_process(tmp_path, directory, files, monkeypatch):
    computed(directory, files[0].parent, tmp_path / "out", 0)

    def never(*_arguments, **_options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(batches, "prepared_by_processes", never)
    done, *_ = computed(directory, files[0].parent, tmp_path / "out", 2)
    assert done.known == len(files) and done.images == 0


@pytest.mark.slow
def test_an_embedder_takes_workers_wherever_it_is_sent(directory, files):
    plain = embedder(directory, fast=False)
    sent = pickle.loads(pickle.dumps(embedder(directory, fast=False, workers=2)))
    images = [*files, files[0].read_bytes(), lambda: files[1].read_bytes(), "none.png"]
    ours, theirs = list(sent.stream(images)), plain(images)
    assert type(ours.pop()) is type(theirs.pop()) is SourceError
    assert np.array_equal(np.stack(ours), np.stack(theirs))
    assert sent.identity == plain.identity


def test_a_call_of_an_embedder_starts_processes_only_if_they_are_asked_for(
    directory, files, monkeypatch
):
    asked = []

    def note(running, *_arguments, **_options):
        asked.append(running.options.workers)
        return 0

    monkeypatch.setattr(batches, "_workers", note)
    ready = embedder(directory, threads=1)
    ready(files)
    list(ready.stream(files))
    embedder(directory, threads=1, workers=2)(files)
    assert asked == [0, None, 2]


def test_error_no_workers_of_ray(tmp_path, directory, files):
    with pytest.raises(UsageError, match="Nobody computes without workers of Ray"):
        computed(directory, files[0].parent, tmp_path / "out", 0, engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [-1, 1.5, "two", True])
def test_error_workers_are_a_whole_number(directory, workers):
    with pytest.raises(UsageError):
        vitconvert.Embedder(directory, workers=workers)


def test_torch_has_its_threads_afterwards(directory, files):
    before = torch.get_num_threads()
    list(vitconvert.embed(directory, files, PREPROCESSING, batch_size=2))
    assert torch.get_num_threads() == before
