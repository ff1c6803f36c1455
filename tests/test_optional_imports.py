"""The core works without the optional features: their folders are absent from a copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitconvert.demo.demonstration import DIGITS

ROOT = Path(__file__).parents[1]
OPTIONAL = (
    *("auditing", "demo", "drafting", "embedding", "inference", "pictures", "pixel_goldens"),
    "runtimes",
    "testing",
)

PYTHON = """
import vitconvert
checkpoint = vitconvert.load_checkpoint("digits")
vitconvert.load_model(checkpoint)
assert vitconvert.inspect("digits").dialect
vitconvert.convert(checkpoint, to="hf", output="converted")
assert vitconvert.verify("converted", against=checkpoint, images="image.png").ok
assert vitconvert.diff("converted", "digits")
"""
COMMANDS = """
from vitconvert.cli import vitconvert
for command in (
    *(f"{verb} --help" for verb in "export table demo".split()),
    "--help",
    "list",
    "inspect digits",
    "file digits --to timm -o out",
    "verify digits",
    "golden digits -o digits.golden",
):
    print("##", command, flush=True)
    assert not vitconvert.main(command.split(), standalone_mode=False)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A folder with the core alone, its tables and the tiny ViT's files."""
    folder = tmp_path_factory.mktemp("core")
    absent = shutil.ignore_patterns("__pycache__", *OPTIONAL)

    def ignored(place, names):  # rooms, and not modules of the front doors, have these names
        return absent(place, names) if place == str(ROOT / "vitconvert") else {"__pycache__"}

    shutil.copytree(ROOT / "vitconvert", folder / "vitconvert", ignore=ignored)
    assert not any((folder / "vitconvert" / name).exists() for name in OPTIONAL)
    (folder / "weights_map").symlink_to(ROOT / "weights_map")
    shutil.copytree(DIGITS, folder / "digits")
    shutil.copy(next(DIGITS.rglob("*.png")), folder / "image.png")
    return folder


@pytest.mark.parametrize("script", [PYTHON, COMMANDS], ids=["python", "command line"])
def test_the_core_works_without_optional_features(core, script):
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=core,
        env=os.environ | {"PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
