"""Folders and outputs of `embed -o DIR` that somebody made to do harm.

What is no regular file is not opened, no link in an output is followed, and what was damaged there
is told, never taken for work that is done.
"""

import json
import os
import shutil

import pytest

from tests.embedding.layouts import contents, write_folder
from tests.embedding.null_model import embed_null
from tests.hostile.harness import call_limited, run_limited
from vitconvert.demo.demonstration import DIGITS

PART = "part-000001.parquet"


def embed(photos, *options):
    command = ("embed", DIGITS, "photos", "-o", "output", *options)
    answer = run_limited(*command, cwd=photos.parent, seconds=30)
    assert "Traceback" not in answer.err, answer.err
    return answer


def resume(place, output):
    """The run again, which has a shard to compute."""
    answer = call_limited(embed_null, output, place / "photos", seconds=20)
    assert "Traceback" not in answer.err, answer.err
    return answer


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Eight images, of which one is none, and what a run made of them."""
    place = tmp_path_factory.mktemp("finished")
    embed_null(place / "output", write_folder(place / "photos", contents(8, bad=[4])))
    return place


@pytest.fixture
def output(finished, tmp_path):
    """A copy of what the run made, without its last shard, to be tampered with."""
    shutil.copytree(finished / "output", tmp_path / "output")
    sorted((tmp_path / "output" / "features").iterdir())[2].unlink()
    return tmp_path / "output"


@pytest.fixture
def photos(tmp_path):
    shutil.copytree(DIGITS / "samples", tmp_path / "photos")
    return tmp_path / "photos"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.parquet"])
def test_a_pipe_among_images_is_not_waited_for(photos, name):
    os.mkfifo(photos / name)
    answer = embed(photos)
    assert answer.code == 1
    assert "not a regular file" in answer.err
    assert name in answer.err
    (photos / name).unlink()
    assert embed(photos).code == 0


def test_links_and_pipes_among_images_cost_one_image_each(photos):
    (photos / "self.png").symlink_to("self.png")
    (photos / "gone.png").symlink_to("nowhere")
    (photos / "zero.png").symlink_to("/dev/zero")
    os.mkfifo(photos / "pipe.png")
    answer = embed(photos, "--json")
    last = json.loads(answer.out.splitlines()[-1])
    assert (answer.code, last["images"], last["failed"]) == (1, 14, 4)
    answer = run_limited("predict", DIGITS, "photos", "--json", cwd=photos.parent)
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert (answer.code, len(found)) == (1, 14), answer.err
    assert sum(image.get("error") is not None for image in found) == 4


# Outputs.


def linked(path, elsewhere):
    """Moves what is there elsewhere, and links to it."""
    if path.exists():
        shutil.move(path, elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


def piped(path, _elsewhere):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path, _elsewhere):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


STRANGERS = {
    **dict.fromkeys(("features", "failed", "finished", "tmp", "tmp/output.lock"), linked),
    **dict.fromkeys(("tmp/all", f"features/{PART}", f"failed/{PART}"), linked),
    **dict.fromkeys(("README.md", "vitconvert.json", "finished/all.json"), linked),
    **{f"{name} ": piped for name in ("tmp/output.lock", "tmp/all.lock", "finished/all.json")},
    **{f"{name} ": piped for name in ("vitconvert.json", f"features/{PART}", "README.md")},
    "vitconvert.json  ": endless,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
def test_links_and_pipes_in_an_output_are_refused(finished, output, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    STRANGERS[name](output / name.strip(), elsewhere)
    before = sorted(elsewhere.rglob("*"))
    answer = resume(finished, output)
    assert "Something else than a file or a folder is in the output" in answer.err
    assert name.strip() in answer.err
    assert sorted(elsewhere.rglob("*")) == before


DAMAGES = {
    "failures that are none": lambda output: (output / "failed" / PART).write_bytes(b"garbage"),
    "a shard of one byte": lambda output: (output / "features" / PART).write_bytes(b"1"),
    "a shard of another": lambda output: shutil.copy(
        output / "features" / PART.replace("1.", "0."), output / "features" / PART
    ),
    "deep JSON": lambda output: (output / "vitconvert.json").write_text("[" * 100_000),
    "a record that is none": lambda output: (output / "vitconvert.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_output_is_told_and_not_taken_for_finished(finished, output, damage):
    DAMAGES[damage](output)
    answer = resume(finished, output)
    assert answer.err.startswith("error: ") or "abandoned=1" in answer.out, answer
