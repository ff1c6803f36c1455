"""Pixels against open_clip's own transform."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

from tests.packages import open_clip
from tests.preprocessing.test_timm import awkward_files
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.preprocessing import Preprocessing

MODES = ["shortest", "longest", "squash"]
COLOURS = {"mean": (0.1, 0.5, 0.9), "std": (0.3, 0.2, 0.7)}


def openclip_transform(cfg: dict[str, Any], size: int | list[int]) -> Callable[..., torch.Tensor]:
    return open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**cfg, size=size), is_train=False
    )


def from_openclip(cfg: dict[str, Any], size: int | list[int]) -> Preprocessing:
    both = (size, size) if isinstance(size, int) else (size[0], size[1])
    return Preprocessing.from_openclip(cfg, image_size=both)


@pytest.mark.parametrize("size", [48, [48, 33], [33, 48]], ids=str)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
@pytest.mark.parametrize("mode", MODES)
def test_every_openclip_pipeline_is_pixel_equal(photographs, mode, interpolation, size):
    cfg = {"resize_mode": mode, "interpolation": interpolation, **COLOURS}
    ours, theirs = from_openclip(cfg, size), openclip_transform(cfg, size)
    for image in photographs:
        assert torch.equal(ours(image), theirs(image)), image.size
    assert from_openclip(ours.to_openclip(), size).differences(ours) == ()


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize(
    ("mode", "size"), [("shortest", 32), ("squash", 32), ("longest", 32), ("longest", [20, 44])]
)
def test_files_of_every_kind_are_resized_and_padded_as_they_are(tmp_path, photograph, mode, size):
    """Only what comes out is converted to RGB: a palette is padded with its first colour."""
    cfg = {"resize_mode": mode}
    ours, theirs = from_openclip(cfg, size), openclip_transform(cfg, size)
    early = Preprocessing.from_dict({**ours.to_dict(), "backend": "torchvision"})
    otherwise = []
    for path in awkward_files(tmp_path, photograph):
        with Image.open(path) as image:
            wanted, plain = theirs(image), image.mode in ("L", "RGB")
        assert torch.equal(ours(path), wanted), path.name
        assert plain or torch.equal(ours(path, fast=True), wanted), path.name
        if not torch.equal(early(path), wanted):
            otherwise.append(path.stem)
    assert {"alpha", "palette"} <= set(otherwise)
    # timm pads whatever the file is with the mean colour.
    assert mode == "longest" or "grey" not in otherwise


def test_a_silent_cfg_means_openclips_defaults(photographs):
    theirs = openclip_transform({}, 224)
    ours = from_openclip({"mean": None, "interpolation": ""}, 224)
    assert all(torch.equal(ours(image), theirs(image)) for image in photographs)


def test_other_words_and_colours_are_refused():
    with pytest.raises(ConflictingFact, match="'middle' is not one of shortest, squash, longest"):
        from_openclip({"resize_mode": "middle"}, 48)
    with pytest.raises(NotRepresentable, match=r"fill_color = 127 is not supported; 0 is\."):
        from_openclip({"resize_mode": "longest", "fill_color": 127}, 48)
    assert from_openclip({"fill_color": 127}, 48).resize == "shortest"


def test_what_openclip_cannot_say_comes_near():
    timm = Preprocessing.from_timm({"input_size": (3, 48, 48), "interpolation": "lanczos"})
    there = from_openclip(timm.to_openclip(), 48)
    assert [said.partition(" ")[0] for said in timm.differences(there)] == [
        "interpolation",
        "resize_size",
        "backend",
    ]
    scaled = Preprocessing.from_dict(
        {**timm.to_dict(), "rescale_factor": 1 / 127.5, "backend": "transformers_pil"}
    )
    assert scaled.to_openclip()["mean"] == [v / 2 for v in timm.mean]
