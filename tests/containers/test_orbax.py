"""Directories of Orbax, written by Orbax: with its database of files and without, Zarr 2 and 3."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitconvert
from tests.spelling import google_arrays
from vitconvert.containers import open_container, weights_in
from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function that saves a tree."""
    import jax
    import orbax.checkpoint as orbax

    folder = tmp_path_factory.mktemp("orbax")

    def write(name: str, tree, **options) -> Path:
        tree = jax.tree.map(jax.numpy.asarray, tree)
        handler = orbax.PyTreeCheckpointHandler(**options)
        orbax.Checkpointer(handler).save(folder / name, tree)
        return folder / name

    return write


@pytest.fixture(scope="module")
def vit(written) -> Path:
    """Google's ViT in a training state; names as Flax nests them."""
    arrays = google_arrays(depth=2, heads=3, width=12, size=24)
    tree: dict = {}
    for name, array in arrays.items():
        *keys, last = name.split("/")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = np.asarray(array)
    return written("vit", {"params": tree, "opt_state": [{"mu": np.ones(3)}], "step": np.int32(7)})


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_reads_what_orbax_wrote(written, ocdbt, zarr3):
    import jax.numpy as jnp

    kernel = np.random.default_rng(0).normal(size=(3, 5, 2)).astype("float32")
    tree = {"layer": {"kernel": kernel, "bias": jnp.asarray([0.5, 2], "bfloat16")}, "step": 3}
    path = written(f"{ocdbt}{zarr3}", tree, use_ocdbt=ocdbt, use_zarr3=zarr3)
    with open_container(weights_in(path)) as container:
        assert container.format == "orbax"
        assert set(container.manifest) == {"layer/kernel", "layer/bias", "step"}
        assert np.array_equal(container.read("layer/kernel").numpy(), kernel)
        assert torch.equal(container.read("layer/bias"), torch.tensor([0.5, 2]).bfloat16())
        assert container.read("step").item() == 3


def test_a_model_is_read_from_a_training_state(vit, tmp_path):
    checkpoint = vitconvert.load_checkpoint(vit)
    assert checkpoint.dialect == "google_jax"
    container = checkpoint.weights.container
    assert container.wrapper == ("params",)
    assert container.extras == {"opt_state": "1 arrays", "step": "1 arrays"} | {
        name: kind for name, kind in container.extras.items() if kind == "nothing"
    }
    arrays = google_arrays(depth=2, heads=3, width=12, size=24)
    np.savez(tmp_path / "m.npz", **{name: np.asarray(array) for name, array in arrays.items()})
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        expected = vitconvert.load_model(tmp_path / "m.npz")(images)
        assert torch.equal(vitconvert.load_model(vit)(images), expected)


def test_what_is_missing_or_damaged(vit, tmp_path):
    for number, file in enumerate(sorted(vit.rglob("*"))):
        if not file.is_file() or file.name not in ("_METADATA", "manifest.ocdbt"):
            continue
        for name, change in (("cut", lambda data: data[: len(data) // 2]), ("gone", None)):
            copy = tmp_path / f"{number}{name}"
            shutil.copytree(vit, copy)
            place = copy / file.relative_to(vit)
            place.write_bytes(change(place.read_bytes())) if change else place.unlink()
            if file.parent == vit:  # those of processes were merged into one
                with pytest.raises(VitConvertError):
                    vitconvert.load_checkpoint(copy)


def edited(vit: Path, copy: Path, edit) -> Path:
    shutil.copytree(vit, copy)
    said = json.loads((copy / "_METADATA").read_text())
    edit(said["tree_metadata"])
    (copy / "_METADATA").write_text(json.dumps(said))
    return copy / "_METADATA"


def rename(tree, *keys):
    entry = next(entry for entry in tree.values() if "kernel" in str(entry))
    entry["key_metadata"] = [{"key": key, "key_type": 2} for key in keys]


HOSTILE = {
    "a name twice": (lambda tree: tree.update(x=next(iter(tree.values()))), "twice"),
    "an array that is not there": (lambda tree: rename(tree, "nowhere"), "cannot be read"),
    "a way out": (lambda tree: rename(tree, "..", "x"), "describes no value"),
    "no keys": (lambda tree: rename(tree), "describes no value"),
    "no entry": (lambda tree: tree.update(x=3), "describes no value"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_metadata(vit, tmp_path, case):
    edit, said = HOSTILE[case]
    with pytest.raises(CorruptFile, match=said):
        open_container(edited(vit, tmp_path / "copy", edit))


def test_zeros_that_fill_the_memory(written, tmp_path):
    path = written("small", {"a": np.ones(3, "float32")}, use_ocdbt=False, use_zarr3=False)
    said = json.loads((path / "a" / ".zarray").read_text())
    (path / "a" / ".zarray").write_text(json.dumps(said | {"shape": [2**40], "chunks": [2**40]}))
    with pytest.raises(UnsafeFile, match="far larger"):
        open_container(path / "_METADATA")
