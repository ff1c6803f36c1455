"""transformers.js, from npm, against goldens of transformers: what departs, and the cause."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from vitconvert.api import check_pixels, record_pixels
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import CLIP, HALVES

PACKAGE = "@huggingface/transformers@4.3.2"
SCRIPT = Path(__file__).with_name("transformers_js.mjs")
DONE = ("convert_rgb", "resize", "rescale", "normalize")
EVERY = {f"do_{step}": True for step in DONE} | {"rescale_factor": 1 / 255}
CONFIGS = {
    "ViTImageProcessor": {
        "size": {"height": 224, "width": 224},
        "resample": 2,
        "image_mean": HALVES[0],
        "image_std": HALVES[1],
    },
    "CLIPImageProcessor": {
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
        "resample": 3,
        "image_mean": CLIP[0],
        "image_std": CLIP[1],
    },
}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script beside its package, which npm installs."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("javascript")
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    command = ["npm", "install", "--prefix", str(folder), *quiet, PACKAGE]
    if subprocess.run(command, check=False, timeout=300).returncode:
        pytest.skip("npm cannot reach its registry")
    return shutil.copy(SCRIPT, folder)


@pytest.mark.coverage
@pytest.mark.parametrize(
    ("kind", "filter_"), [("ViTImageProcessor", "bilinear"), ("CLIPImageProcessor", "bicubic")]
)
def test_where_transformers_js_departs(kind, filter_, script, tmp_path):
    config = {"image_processor_type": kind, **EVERY, **CONFIGS[kind]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    steps = Preprocessing.from_huggingface(config, backend="pil")
    golden = record_pixels(steps, tmp_path / "vit.pixels").folder
    theirs = tmp_path / "theirs.safetensors"
    subprocess.run(
        [shutil.which("node"), script, golden, tmp_path / "config.json", theirs], check=True
    )
    report = check_pixels(golden, theirs)
    decoded = [
        image for (image, step), one in report.compared.items() if step == "decoded" and one.equal
    ]
    assert set(report.golden.images) - set(decoded) == {"alpha.png", "cmyk.jpg", "grey16.png"}
    assert report.within == ("resized", "cropped", "normalised")
    resized, alpha, cmyk, grey16 = report.causes
    how = "without antialias, counted from the corner of pixels, as sharp's affine, rounded"
    assert resized.startswith(f"resized by {filter_} {how} to whole numbers, not as the golden's")
    assert alpha == "alpha.png: transparency is dropped, and the colours beneath show"
    assert cmyk.startswith("cmyk.jpg: unknown")  # libvips converts inks by a colour profile
    assert grey16 == "grey16.png: numbers of 16 bits lose their low byte (>> 8)"
