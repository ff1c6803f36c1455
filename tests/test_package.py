"""The front door: small, sorted, and light to open."""

import importlib
import subprocess
import sys

import pytest

import vitconvert

_COMMAND = "from vitconvert.cli import main\ntry: main({})\nexcept SystemExit: pass"
HEAVY = ("torch", "timm", "transformers", "torchvision", "huggingface_hub", "numpy", "PIL")


def test_exported_names_are_sorted_and_importable():
    assert vitconvert.__all__ == sorted(vitconvert.__all__)
    assert set(vitconvert._HOMES) == set(vitconvert.__all__)
    for name in vitconvert.__all__:
        home = importlib.import_module(f"vitconvert.{vitconvert._HOMES[name]}")
        assert getattr(vitconvert, name) is getattr(home, name)
    assert set(vitconvert.__all__) <= set(dir(vitconvert))


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
