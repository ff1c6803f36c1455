"""`embed` and `predict` into a directory: what a user sees, may ask for, and may not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from vitconvert.cli import scale, shard_progress
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding.shards import check
from vitconvert.inference import batches

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Ten images in a folder, of which two are none."""
    shutil.copytree(DIGITS / "samples", tmp_path / "photos")
    for name in ("3", "8"):
        (tmp_path / "photos" / f"{name}.png").write_text("meow")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FEATURES = "features (48,) float32: class token after the final norm"
EVERYTHING = ("embed", DIGITS, "photos", "-o", "features", "--shard-rows", 4)


@pytest.mark.parametrize("verb", ["embed", "predict"])
def test_the_help_has_each_option_once_under_a_heading(run, verb):
    _, text, _ = run(verb, "--help")
    headings = re.findall(r"^(\S.*):$", text, flags=re.MULTILINE)
    assert headings[:2] == ["What comes out", scale.Scaled.heading] and len(headings) == 7
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, flags=re.MULTILINE)
    assert len(options) == len(set(options)) > 35
    assert options[-1] == "--help"


def test_lines_where_there_is_no_terminal(run, workplace, monkeypatch):
    assert run(*EVERYTHING) == (
        1,
        "",
        f"10 images in 3 shards; 2 of them failed, see failed/\n{FEATURES}\n",
    )
    assert run(*EVERYTHING) == (
        1,
        "",
        "10 images are there already, 2 of which failed\n"
        "nothing left to compute; 2 failed before\n",
    )
    monkeypatch.setattr(shard_progress, "_SECONDS", 0)
    _, _, err = run(*EVERYTHING[:-1], 3, "-o", "again")
    lines = err.splitlines()
    assert len(lines) == 12
    assert re.fullmatch(r"4 of 10 images, \d+\.\d a second, 1 failed", lines[3])


def test_quiet_tells_only_of_what_went_wrong(run, workplace):
    assert run(*EVERYTHING, "-q") == (
        1,
        "",
        "10 images in 3 shards; 2 of them failed, see failed/\n",
    )
    for name in ("3", "8"):
        (workplace / "photos" / f"{name}.png").unlink()
    assert run(*EVERYTHING, "-q", "-o", "good") == (0, "", "")


def test_lines_of_json(run, workplace):
    code, out, err = run(*EVERYTHING, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert [event["what"] for event in events if event["what"] != "images"] == [
        *("begun", "shard", "shard", "shard", "finished")
    ]
    counted = [event for event in events if event["what"] == "images"]
    assert sum(event["images"] for event in counted) == 10
    assert sum(event["failed"] for event in counted) == 2
    last = events[-1]
    assert (last["images"], last["failed"], last["shards"]) == (10, 2, 3)


def test_a_bar_on_a_terminal(run, workplace, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, out, err = run(*EVERYTHING)
    assert (code, out) == (1, "")
    begin, *drawn, last = err.split("\r")
    assert begin == "reading the model ...\n"
    assert last == f"10 images in 3 shards; 2 of them failed, see failed/\n{FEATURES}\n"
    assert any("0/10 [" in text for text in drawn)
    assert drawn[-1].strip() == ""  # the bar is gone


def test_more_failures_than_are_allowed_end_the_run(run, workplace):
    code, _, err = run(*EVERYTHING, "--max-errors", 1)
    assert code == 1
    assert err.endswith(
        "error: too-many-failures\n"
        "  2 images failed, and 1 may.\n"
        "  hint: finished shards are kept; failed/ says why images of theirs failed.\n"
    )
    assert check("features").shards == 2
    assert run(*EVERYTHING, "--max-errors", 2).code == 1
    assert check("features").whole


def test_shards_are_said_to_be_kept_only_if_there_are_some(run, workplace, monkeypatch):
    (workplace / "photos" / "0.png").write_text("meow")
    _, _, err = run(*EVERYTHING, "--max-errors", 0)
    assert err.endswith("hint: --max-errors allows more, and failed/ then says why they did.\n")

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vitconvert.embedding.shards.write_shard", interrupted)
        code, _, err = run(*EVERYTHING)
        assert code == 130
        assert "no shard was finished: the same command begins again.\n" in err
    assert run(*EVERYTHING).code == 1
    sorted((workplace / "features" / "features").iterdir())[0].unlink()
    monkeypatch.setattr("vitconvert.embedding.shards.write_shard", interrupted)
    assert "finished shards are kept" in run(*EVERYTHING).err


def test_images_that_failed_are_computed_again_if_asked(run, workplace):
    run(*EVERYTHING)
    shards = sorted((workplace / "features" / "features").iterdir())
    before = [path.stat().st_mtime_ns for path in shards]
    shutil.copy(workplace / "photos" / "2.png", workplace / "photos" / "3.png")
    code, _, err = run(*EVERYTHING, "--retry-failed")
    assert code == 1 and err.splitlines() == [
        "10 images are there already, 2 of which failed",
        "2 images in 1 shard; 1 of them failed, see failed/",
        FEATURES,
    ]
    assert [path.stat().st_mtime_ns for path in shards] == before
    report = check("features")
    assert report.whole and (report.rows, report.failed) == (9, 1)


def test_error_only_a_folder_with_folders_is_searched_deeper(run, workplace):
    (workplace / "deep/er").mkdir(parents=True)
    hint = "  hint: --recursive looks into sub-folders too.\n"
    for options, source, said in (((), "deep", hint), (("-r",), "deep", ""), ((), "photso", "")):
        assert run("embed", DIGITS, source, *options, "-o", "features") == (
            1,
            "",
            f"error: source-not-found\n  There are no images here.\n  source  {source}\n{said}",
        )


def test_error_an_option_of_directories_without_one(run, workplace):
    options = {
        "--shard-rows": 3,
        "--store": "float16",
        "--keep": "label",
        "--image-column": "image",
        "--only": "1/2",
        "--max-errors": 3,
        "--engine": "local",
        "--address": "x:1",
        "--cpus-per-worker": 1,
        "--gpus-per-worker": 0,
    }
    for verb, output in (("embed", ("-o", "x.npz")), ("embed", ()), ("predict", ())):
        for option, value in options.items():
            if (verb, option) == ("predict", "--store"):
                continue
            code, out, err = run(verb, DIGITS, "photos", *output, option, value)
            assert (code, out) == (2, "")
            assert err == (
                "error: usage\n"
                f"  {option} is for a directory of Parquet files.\n"
                f"  output  {output[-1] if output else 'stdout'}\n"
                "  hint: -o features/ names one.\n"
            )
        for flag in ("--plan", "--append"):
            assert f"{flag} is for a directory" in run(verb, DIGITS, "photos", *output, flag).err
        archive = run(verb, DIGITS, "photos", "a/train.tar.gz", *output)
        assert (archive.code, archive.out) == (2, "")
        assert "\n  a/train.tar.gz is for a directory of Parquet files.\n" in archive.err
    assert sorted(path.name for path in workplace.iterdir()) == ["photos"]


def test_error_a_directory_is_not_replaced(run, workplace):
    code, _, err = run(*EVERYTHING, "--force")
    assert code == 2
    assert err == (
        "error: usage\n"
        "  --force replaces a file; a directory goes on where it was.\n"
        "  output  features\n"
        "  hint: remove the directory, or name another with -o.\n"
    )


@pytest.mark.slow
def test_another_runtime_computes_a_directory(run, workplace, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))
    assert run(*EVERYTHING).code == 1
    named = ("--runtime", "onnxruntime")
    code, _, err = run(*EVERYTHING, *named, "-o", "others")
    assert code == 1 and err.startswith("the model is exported once for ONNX Runtime")
    torchs, others = (pq.read_table(f"{name}/features") for name in ("features", "others"))
    assert torchs.column("key").equals(others.column("key"))
    assert not torchs.equals(others)
    torchs, others = (np.array(table.column("features").to_pylist()) for table in (torchs, others))
    assert abs(torchs - others).max() < 2e-5 * abs(torchs).max()
    assert run(*EVERYTHING, *named, "--append").code == 1  # an output is of no one runtime


def test_error_an_exported_file_is_no_runtime(run, workplace):
    code, _, err = run(*EVERYTHING, "--runtime", "vit.onnx")
    assert code == 2 and "given as the model: `vitconvert predict vit.onnx photos/`" in err


def test_error_another_runtime_computes_in_float32(run, workplace):
    code, _, err = run(*EVERYTHING, "--runtime", "onnxruntime", "--no-fast")
    assert code == 2 and "--runtime onnxruntime computes in float32 on the CPU" in err
    assert not (workplace / "features").exists()


@pytest.mark.parametrize("option", ["--address", "--cpus-per-worker", "--gpus-per-worker"])
def test_error_an_option_of_ray_without_ray(run, workplace, option):
    code, _, err = run(*EVERYTHING, option, 1)
    assert (code, err) == (2, f"error: usage\n  {option} is for --engine ray.\n")


@pytest.fixture
def threads(monkeypatch):
    """How many threads each pool has, and torch where a batch is computed."""
    used = []

    class Pool(batches.ThreadPoolExecutor):
        def __init__(self, count, **options):
            used.append(count)
            super().__init__(count, **options)

    def started(*arguments):
        used.append(torch.get_num_threads())
        return start(*arguments)

    start = batches._start_batch
    monkeypatch.setattr(batches, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(batches, "_start_batch", started)
    before = torch.get_num_threads()
    yield used
    torch.set_num_threads(before)


@pytest.mark.parametrize("output", ["features", "x.npz"])
@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_bounded(run, workplace, threads, output, count):
    assert run("embed", DIGITS, "photos", "-o", output, "--threads", count, "-q").code == 1
    assert threads[0] == count and len(threads) > 1
    # Where several threads compute batches, torch has one in each.
    assert set(threads[1:]) <= {1, count}


def started(*arguments, **options):
    """The command line in a process of its own, which can be interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "vitconvert", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_lines_that_are_written_stay_after_an_interrupt(workplace):
    output = workplace / "x.jsonl"
    alone = ("--batch-size", 1, "--threads", 1)
    with started("embed", DIGITS, "-", "-o", output, *alone, stdin=subprocess.PIPE) as process:
        process.stdin.write("photos/0.png\n" * 20)
        process.stdin.flush()
        # All are written but two that threads prepare, and none waits in a buffer for more.
        end = time.monotonic() + 60
        while not output.exists() or output.read_text().count("\n") < 18:
            assert process.poll() is None and time.monotonic() < end
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "\ninterrupted\n")
    assert process.returncode == 130
    lines = output.read_text().splitlines()
    assert len(lines) == 18
    assert all(len(json.loads(line)["features"]) for line in lines)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(run, workplace):
    for number in range(300):
        shutil.copy(DIGITS / "samples" / "0.png", workplace / "photos" / f"more-{number}.png")
    everything = ("embed", DIGITS, "photos", "-o", "features", "--shard-rows", 2, "--threads", 1)
    with started(*everything, "--json") as process:
        for line in process.stdout:
            if json.loads(line)["what"] == "shard":
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == (
        "finished shards are kept: the same command goes on with the others.\n\ninterrupted\n"
    )
    done = check("features").shards
    assert 0 < done < 155
    _, out, _ = run(*everything, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (events[0]["known"], events[-1]["images"]) == (2 * done, 310 - 2 * done)
    assert check("features").whole


@pytest.mark.slow
def test_workers_prepare_images_for_files_and_directories(run, workplace):
    """Their lines are those of threads, and errors are reported as usual."""
    for verb in ("predict", "embed"):
        ours, theirs = (run(verb, DIGITS, "photos", "--workers", n) for n in (2, 0))
        assert ours == theirs and ours.code == 1 and ours.out.count("\n") > 6
    assert run(*EVERYTHING, "--workers", 2)[::2] == run(*EVERYTHING, "-o", "others")[::2]
    ours, theirs = (pq.read_table(f"{name}/features") for name in ("features", "others"))
    assert ours.equals(theirs)
