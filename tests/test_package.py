"""The front door: small, sorted, and light to open."""

import doctest
import inspect
import re
import shutil
import subprocess
import sys

import pytest
import torch

import vitconvert
from vitconvert import api
from vitconvert.arguments import options_of
from vitconvert.checkpoint import ReadOptions
from vitconvert.demo.demonstration import DIGITS

_COMMAND = "from vitconvert.cli import main\ntry: main({})\nexcept SystemExit: pass"
PUBLIC = [n for n in vitconvert.__all__ if inspect.isfunction(getattr(vitconvert, n))]
HEAVY = ("torch", "timm", "transformers", "torchvision", "huggingface_hub", "numpy", "PIL")


def test_exported_names_are_sorted_and_importable():
    assert vitconvert.__all__ == sorted(vitconvert.__all__)
    for name in vitconvert.__all__:
        assert getattr(vitconvert, name) is getattr(api, name)
    assert [n for n in dir(vitconvert) if not n.startswith("__")] == vitconvert.__all__


def test_the_front_door_hides_what_it_is_built_of():
    with pytest.raises(AttributeError, match="no attribute 'read_checkpoint'"):
        vitconvert.read_checkpoint  # noqa: B018


def test_how_to_read_is_stated_once():
    said = inspect.signature(vitconvert.load_checkpoint).parameters
    assert list(said) == ["source", *options_of(ReadOptions)]
    assert (said["ignore"].default, said["rescue"].annotation) == ((), bool)
    assert all(f" {name}" in vitconvert.load_checkpoint.__doc__ for name in said)


@pytest.mark.parametrize("name", PUBLIC)
def test_help_says_everything_of_a_function(name):
    function = getattr(vitconvert, name)
    signature, text = inspect.signature(function), inspect.getdoc(function)
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    for argument, one in signature.parameters.items():
        assert one.kind is not one.VAR_KEYWORD
        assert one.annotation is not one.empty
        assert re.search(rf"^ {{4}}(\w+, )*{argument}(, \w+)*: ", arguments, re.M), argument
    assert ("\nReturns:" in text) == (signature.return_annotation is not None)
    assert "\nRaises:" in text
    assert max(map(len, text.splitlines())) <= 100


def test_options_of_a_dataclass_are_explained_where_the_docstring_says_nothing():
    text = inspect.getdoc(vitconvert.convert)
    assert "    allow: Names of steps that the target may need: they keep" in text
    assert "    lora_scale: lora_alpha / r, where no adapter_config.json says it.\n" in text
    assert (
        "    ignore: Leave tensors out, such as 'aux_head.*'. In Python: ['aux_head.*'].\n" in text
    )
    assert "how:" not in text and "repeated" not in text


@pytest.mark.parametrize("name", [*PUBLIC, "Embedder"])
def test_the_example_of_a_function_runs(name, tmp_path, monkeypatch):
    shutil.copytree(DIGITS, tmp_path / "my-vit")
    shutil.move(tmp_path / "my-vit/samples", tmp_path / "photos")
    torch.save(vitconvert.load_model(DIGITS).state_dict(), tmp_path / "team.pth")
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(vitconvert, name))
    example = doctest.DocTestParser().get_doctest(
        text, {"vitconvert": vitconvert, "torch": torch}, name, None, None
    )
    assert example.examples
    doctest.DebugRunner().run(example)


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
