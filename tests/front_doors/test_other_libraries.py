"""Models of every library but transformers, asked about image files from both sides."""

import json
import os
import subprocess
import sys

import pytest

import vitconvert
from tests.front_doors import (
    of_keras_hub,
    of_mmpretrain,
    of_open_clip,
    of_segment_anything,
    of_timm,
    of_torchvision,
)
from tests.front_doors.images import write_images
from tests.front_doors.judge import EQUAL, judged
from tests.packages import needed

HERE = {
    "timm": of_timm.DOORS,
    "open_clip": of_open_clip.DOORS,
    "torchvision": of_torchvision.DOORS,
}
OFTEN = {
    *(("timm", name) for name in ("vit, depth 11, oblong", "vit, border", "vit, grey", "eva")),
    *(("open_clip", name) for name in ("own, oblong, within", "clipa, silent", "a file, by name")),
    ("torchvision", "vit"),
}
NARROW = {  # what is resized within the model's size has no width
    ("open_clip", "own, within"),
    ("open_clip", "own, oblong, within"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "name"),
    [
        pytest.param(
            library,
            name,
            marks=() if (library, name) in OFTEN else pytest.mark.coverage,
        )
        for library, doors in HERE.items()
        for name in doors
    ],
)
def test_numbers_are_those_of_the_front_door(library, name, tmp_path):
    door = HERE[library][name]
    images = write_images(tmp_path / "images", door.exact)
    found = judged(door, tmp_path / "model", images)
    assert found.keys() == images.keys()
    assert {kind: str(v) for kind, v in found.items() if not v.agrees} == {}
    refused = {kind for kind, v in found.items() if v.difference is None}
    assert refused == ({"narrow.png"} if (library, name) in NARROW else set())


def alone(module, name, *packages):
    """The differences of a door, by kind of image; None where both refuse it."""
    for package in packages:
        needed(package)
    command = [sys.executable, "-m", "tests.front_doors.ask_alone", module, name]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    differences = json.loads(line)
    assert len(differences) > 15
    return differences


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "packages"),
    [
        pytest.param(
            module, name, packages, marks=() if "depth 11" in name else pytest.mark.coverage
        )
        for module, doors, packages in (
            ("of_segment_anything", of_segment_anything.DOORS, ("cv2",)),
            ("of_mmpretrain", of_mmpretrain.DOORS, ("cv2", "mmpretrain")),
        )
        for name in doors
    ],
)
def test_opencv_opens_the_images(module, name, packages):
    differences = alone(module, name, *packages)
    assert {k: d for k, d in differences.items() if isinstance(d, str) or (d or 0) > EQUAL} == {}
    refused = {kind for kind, difference in differences.items() if difference is None}
    assert refused == {"float.tif"}  # which OpenCV cannot open


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name == "vit, bicubic" else pytest.param(name, marks=pytest.mark.coverage)
        for name in of_keras_hub.DOORS
    ],
)
def test_keras_hub_on_jax(name):
    """In a process of its own: Keras decides once what computes, and NumPy clips otherwise."""
    differences = alone("of_keras_hub", name, "keras_hub", "jax")
    assert {k: d for k, d in differences.items() if d is None or d > of_keras_hub.TIES} == {}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize(("library", "name"), [("timm", "vit, border"), ("open_clip", "own")])
def test_verify_reads_files_as_the_library_does(library, name, tmp_path):
    images = write_images(tmp_path / "images", (48, 48))
    HERE[library][name].write(tmp_path / "model")
    report = vitconvert.verify(
        tmp_path / "model", images=list(images.values()), dtypes=["float32"], batch=1
    )
    assert report.ok, report.summary()
    assert "preprocessing: bit-equal pixels" in report.notes
