"""Goldens of Segment Anything's images, which are padded after they are normalised."""

from dataclasses import replace

import numpy as np
import pytest

from vitconvert.api import record_pixels
from vitconvert.pixel_goldens.check import check
from vitconvert.preprocessing import Preprocessing

SIZE = {"size": {"longest_edge": 48}, "pad_size": {"height": 48, "width": 48}}
STEPS = Preprocessing.from_huggingface({"image_processor_type": "SamImageProcessor", **SIZE})


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return record_pixels(STEPS, tmp_path_factory.mktemp("golden") / "out")


def made(golden, steps):
    return {name: steps.array(golden.folder / name) for name in golden.images}


def test_the_last_step_holds_the_padding(golden):
    wide = golden.images["wide.png"].steps
    _, height, width = wide["cropped"].shape
    assert (height < 48, width) == (True, 48)
    assert wide["normalised"].shape == (3, 48, 48)
    assert not wide["normalised"][:, height:].any()
    assert golden.words["normalised"].endswith("then zeros at the right and below, to 48x48")
    assert check(golden, made(golden, STEPS)).ok


@pytest.mark.parametrize("name", ["middle", "black", "filter"])
def test_a_port_that_pads_or_resizes_otherwise_departs(golden, name):
    theirs = made(golden, STEPS)
    if name == "middle":
        rows = 48 - golden.images["wide.png"].steps["cropped"].shape[1]
        theirs["wide.png"] = np.roll(theirs["wide.png"], rows // 2, axis=1)
    elif name == "black":
        height = golden.images["wide.png"].steps["cropped"].shape[1]
        theirs["wide.png"][:, height:] = -2
    else:
        theirs = made(golden, replace(STEPS, interpolation="bicubic"))
    report = check(golden, theirs)
    assert report.first is not None
    assert report.first[1] == "normalised"
    assert "wide.png" in report.first[0] or name == "filter"
    causes = " ".join(report.causes)
    assert ("bicubic" in causes) == (name == "filter"), causes
