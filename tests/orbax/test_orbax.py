"""Directories that orbax-checkpoint wrote of a ViT's arrays are read as the arrays themselves.

tensorstore starts threads, so that each test that reads with it is a process of its own.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import vitconvert
from tests.hostile.harness import call_limited, run_limited
from vitconvert.errors import SourceError
from vitconvert.formats import open_container, weights_in
from vitconvert.formats.orbax import unwrapped

FILES = Path(__file__).parent / "files"
STATED = {"num_heads": 3, "image_size": (12, 12)}


def passes(function: Any, *arguments: Any) -> None:
    answer = call_limited(function, *arguments, seconds=60, mebibytes=4096)
    assert answer.code == 0, answer.err


def read_state() -> None:
    place = FILES / "state"
    assert weights_in(place) == place / "_METADATA"
    arrays = load_file(FILES / "state.safetensors")
    with open_container(place / "_METADATA") as read:
        assert read.format == "orbax"
        assert read.wrapper == ("params",)
        assert read.extras == {"opt_state": "2 values", "step": "1 value", "name": "1 value"}
        assert sorted(read.manifest) == sorted(arrays)
        for name, array in arrays.items():
            found = read.read(name).numpy()
            assert found.dtype == array.dtype and np.array_equal(found, array), name


def test_every_array_of_a_training_state():
    passes(read_state)


def read_tree(place: Path, wrapper: tuple[str, ...], notes: int) -> None:
    arrays = load_file(FILES / "state.safetensors")
    with open_container(place / "_METADATA") as read:
        assert (read.wrapper, read.extras, len(read.notes)) == (wrapper, {}, notes)
        assert sorted(read.manifest) == sorted(arrays)
        assert all(np.array_equal(read.read(name).numpy(), arrays[name]) for name in arrays)


def test_what_the_newest_interface_keeps_as_zarr_3():
    passes(read_tree, FILES / "flax" / "state", ("params",), 0)


def test_the_state_of_a_model_of_nnx():
    """Flax's newer modules put a variable around each array."""
    passes(read_tree, FILES / "nnx", (), 1)


def compute() -> None:
    ours = vitconvert.load_model(FILES / "state", overrides=STATED).eval()
    with np.load(FILES / "output.npz") as known, torch.no_grad():
        found = ours(torch.from_numpy(known["images"])).numpy()
        assert np.abs(found - known["output"]).max() < 2e-6 * np.abs(known["output"]).max()


def test_it_computes_the_model_that_was_saved():
    passes(compute)


def read_few(place: Path) -> None:
    with open_container(place / "_METADATA") as read:
        assert read.wrapper == () and read.extras == {"scalar": "scalar"}
        found = {name: read.read(name) for name in read.manifest}
    if place.name == "zarr3":  # each of several chunks
        assert torch.equal(found.pop("rows"), torch.arange(24.0).reshape(4, 6))
        assert torch.equal(found.pop("zeros"), torch.zeros(4, 4, dtype=torch.float16))
    assert found.keys() == {"encoder/half", "number", "flags", "float8"}
    assert torch.equal(found["encoder/half"], torch.arange(7).to(torch.bfloat16))
    assert found["number"].item() == 2.5 and found["number"].shape == ()
    assert found["flags"].tolist() == [True, False]
    assert found["float8"].dtype == torch.float8_e4m3fn
    assert found["float8"].float().tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["few", "zarr3"])
def test_folders_and_dtypes(name):
    passes(read_few, FILES / name)


def test_the_command_line(tmp_path):
    stated = ["--set", "num_heads=3", "--set", "image_size=12"]
    answer = run_limited("inspect", FILES / "state", *stated, seconds=60, mebibytes=4096)
    assert answer.code == 0, answer
    assert "orbax" in answer.out and "dialect        google_jax" in answer.out


def test_a_step_of_a_manager(tmp_path):
    shutil.copytree(FILES / "few", tmp_path / "5" / "default")
    with pytest.raises(SourceError, match="name a folder that holds some: default"):
        weights_in(tmp_path / "5")
    assert weights_in(tmp_path / "5" / "default").name == "_METADATA"


def test_which_of_several_branches_holds_the_weights():
    keys = [("params", "params", "a"), ("ema", "a"), ("ema", "b", "c"), ("step",)]
    leaves = dict.fromkeys(keys, "jax.Array")
    wrapper, found, beside = unwrapped(leaves, ())
    assert (wrapper, found) == (("params", "params"), {"a": "params.params.a"})
    assert beside == {"ema": "2 values", "step": "1 value"}
    wrapper, found, beside = unwrapped(leaves, ("ema",))
    assert (wrapper, found) == (("ema",), {"a": "ema.a", "b/c": "ema.b.c"})
    assert beside == {"params": "1 value", "step": "1 value"}
