"""The front door: small, sorted, and light to open."""

import inspect
import subprocess
import sys

import pytest

import vitconvert
from vitconvert import api
from vitconvert.arguments import options_of
from vitconvert.checkpoint import ReadOptions

_COMMAND = "from vitconvert.cli import main\ntry: main({})\nexcept SystemExit: pass"
HEAVY = ("torch", "timm", "transformers", "torchvision", "huggingface_hub", "numpy", "PIL")


def test_exported_names_are_sorted_and_importable():
    assert vitconvert.__all__ == sorted(vitconvert.__all__)
    for name in vitconvert.__all__:
        assert getattr(vitconvert, name) is getattr(api, name)
    assert set(vitconvert.__all__) <= set(dir(vitconvert))


def test_the_front_door_hides_what_it_is_built_of():
    with pytest.raises(AttributeError, match="no attribute 'read_checkpoint'"):
        vitconvert.read_checkpoint  # noqa: B018


def test_how_to_read_is_stated_once():
    said = inspect.signature(vitconvert.load_checkpoint).parameters
    assert list(said) == ["source", *options_of(ReadOptions)]
    assert (said["ignore"].default, said["rescue"].annotation) == ((), bool)
    assert all(f" {name}" in vitconvert.load_checkpoint.__doc__ for name in said)


def test_error_unknown_name():
    with pytest.raises(AttributeError, match="module 'vitconvert' has no attribute 'lod_model'"):
        vitconvert.lod_model  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "import vitconvert",
        _COMMAND.format(["--help"]),
        _COMMAND.format(["list", "-q"]),
    ],
    ids=["import", "help", "list"],
)
def test_nothing_heavy_is_imported(statement):
    code = f"{statement}\nimport sys\nprint('HEAVY', [m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_headers_are_inspected_without_torch(tmp_path):
    code = (
        "import sys, vitconvert\n"
        "vitconvert.inspect(sys.argv[1])\n"
        "print([m for m in ('torch', 'timm', 'transformers') if m in sys.modules])"
    )
    import numpy as np

    np.savez(tmp_path / "x.npz", **{"embedding/kernel": np.zeros((2, 2, 3, 4), np.float32)})
    command = [sys.executable, "-c", code, str(tmp_path / "x.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
