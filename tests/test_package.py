"""The front door: small, sorted, and light to open."""

import dataclasses
import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

import vitconvert
from vitconvert import api
from vitconvert.arguments import options_of
from vitconvert.checkpoint import ReadArguments, ReadOptions
from vitconvert.conversion.options import ConvertArguments, WriteArguments, WriteOptions
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding.embedder import EmbedderArguments
from vitconvert.embedding.options import DatasetArguments, RunArguments, RunOptions
from vitconvert.inference.options import (
    ComputeArguments,
    ComputeOptions,
    EmbedArguments,
    FeatureArguments,
    FeatureOptions,
)

ROOT = Path(__file__).parents[1]

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


GROUPS = {
    ReadArguments: (ReadOptions,),
    WriteArguments: (WriteOptions,),
    ConvertArguments: (WriteOptions, ReadOptions),
    FeatureArguments: (FeatureOptions,),
    ComputeArguments: (ComputeOptions,),
    EmbedArguments: (FeatureOptions, ComputeOptions),
    RunArguments: (RunOptions,),
    DatasetArguments: (FeatureOptions, ComputeOptions, RunOptions),
    EmbedderArguments: (FeatureOptions, ComputeOptions, ReadOptions),
}
NOT_OF_EMBEDDERS = {"runtime"}


@pytest.mark.parametrize("arguments", GROUPS)
def test_arguments_are_the_options_of_their_dataclasses(arguments):
    written = {
        field.name: getattr(field.type, "__forward_arg__", field.type)
        for kind in GROUPS[arguments]
        for field in dataclasses.fields(kind)
        if field.name in options_of(kind)
    }
    if arguments is EmbedderArguments:
        written = {name: of for name, of in written.items() if name not in NOT_OF_EMBEDDERS}
    typed = {n: getattr(t, "__forward_arg__", t) for n, t in arguments.__annotations__.items()}
    assert typed == written
    assert arguments.__optional_keys__ == written.keys()


@pytest.mark.parametrize("name", [n for n in vitconvert.__all__ if n.endswith("Arguments")])
def test_help_says_everything_of_arguments(name):
    arguments = getattr(vitconvert, name)
    text = inspect.getdoc(arguments)
    for (kind,) in [GROUPS[arguments]]:
        for option, one in options_of(kind).items():
            said = " ".join(text.partition(f"\n    {option}: ")[2].split())
            assert said.startswith(one.doc)
    assert max(map(len, text.splitlines())) <= 100


def test_help_says_what_an_argument_is_by_default():
    text = " ".join(inspect.getdoc(vitconvert.ComputeArguments).split())
    assert "batch_size: How many images to compute at once. Default: 8." in text


@pytest.mark.parametrize("name", [*PUBLIC, "Embedder"])
def test_help_says_everything_of_a_function(name):
    function = getattr(vitconvert, name)
    signature, text = inspect.signature(function), inspect.getdoc(function)
    described = text.partition("Args:\n")[2].partition("\n\n")[0]
    for argument, one in signature.parameters.items():
        assert one.annotation is not one.empty
        entry = re.search(rf"^ {{4}}(\w+, )*{argument}(, \w+)*: ([^\n]|\n {{8}})*", described, re.M)
        assert entry, argument
        if one.kind is one.VAR_KEYWORD:
            (arguments,) = get_args(one.annotation)
            lists = {n for n in GROUPS if n.__name__ in vitconvert.__all__}
            of = {n.__name__ for n in lists if set(GROUPS[n]) <= set(GROUPS[arguments])}
            assert of == set(re.findall(r"\w+Arguments", entry[0]))
    if name != "Embedder":
        assert ("\nReturns:" in text) == (signature.return_annotation is not None)
    assert "\nRaises:" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.slow
def test_a_type_checker_knows_the_options(tmp_path):
    """What mypy says of a user's file: the lines with a mistake, and no other."""
    wrong = (
        'vitconvert.load_model("a", imgsize=3)',
        'vitconvert.load_model("a", overrides=3)',
        'vitconvert.load_checkpoint("a", lora_scale="big")',
        'vitconvert.convert("a", to="hf", output="b", max_shard=3)',
        'vitconvert.convert("a", to="hf", output="b", ignore=3)',
        'vitconvert.predict("a", "b.png", batchsize=3)',
        'vitconvert.embed("a", "b.png", layer="last")',
        'vitconvert.embed_dataset("a", "b", "c", shard_rows="many")',
        'vitconvert.diff("a", "b", reading_a={"dialekt": "timm"})',
        'vitconvert.Embedder("a", runtime="torch")',
        'vitconvert.verify("a", layers={"x": "y"})',
        "vitconvert.verify(len)",
        'vitconvert.check_golden(len, "a.golden", seed=3)',
    )
    right = (
        'vitconvert.load_model("a", image_size=3)',
        'vitconvert.load_model("a", overrides={"num_heads": 3}, mean=0.5, std=[0.5, 0.4, 0.3])',
        'vitconvert.convert("a", to="hf", output="b", max_shard_size="5GB", ignore=["head.*"])',
        'vitconvert.predict("a", "b.png", batch_size=3, dtype="auto")',
        'vitconvert.embed("a", "b.png", layer=-2, fast=False)',
        'vitconvert.embed_dataset("a", "b", "c", shard_rows=9, reading={"dialect": "timm"})',
        'vitconvert.diff("a", "b", reading_a={"dialect": "timm"}, rescue=True)',
        'vitconvert.Embedder("a", threads=2, pool="cls", tower="vision")',
        'vitconvert.verify("a", against="b", dequantise="float32")',
        'vitconvert.compare(len, "a", table="team.toml")',
        'vitconvert.check_golden(len, "a.golden", layers={"x": "y"})',
    )
    file = tmp_path / "theirs.py"
    file.write_text("\n".join(["import vitconvert", *wrong, *right]) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"]
    command += ["--cache-dir", tmp_path / "cache", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    errors = re.findall(r"theirs\.py:(\d+): error: .*\[(\S+)\]", done.stdout)
    assert {int(line) for line, _ in errors} == set(range(2, 2 + len(wrong))), done.stdout


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
