"""Checkpoints of every format by the names of repositories; and whole directories."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from tests.hostile.harness import call_limited
from tests.sources.conftest import StartHub
from tests.sources.test_hub import fetched
from vitconvert.formats import open_container
from vitconvert.formats.gguf import write_file as write_gguf
from vitconvert.formats.hdf5 import write_hdf5
from vitconvert.sources import locate

TESTS = Path(__file__).parents[1]
Files = Mapping[str, bytes]


def files_below(folder: Path, under: str = "") -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {under + str(path.relative_to(folder)): path.read_bytes() for path in found}


def weights(folder: Path, kind: str) -> bytes:
    """A file with one tensor."""
    tensors = {"layers/a": torch.ones(3)}
    path = folder / "made"
    if kind == "gguf":
        write_gguf(path, tensors)
    else:
        write_hdf5(path, tensors)
    if kind == "keras":
        with zipfile.ZipFile(folder / "made.keras", "w") as archive:
            archive.writestr("config.json", b"{}")
            archive.write(path, "model.weights.h5")
        return (folder / "made.keras").read_bytes()
    return path.read_bytes()


def preset(folder: Path) -> Files:
    """A preset of KerasHub."""
    head = folder / "head"
    write_hdf5(head, {"layers/head": torch.ones(3)})
    others = dict.fromkeys(("config.json", "task.json", "preprocessor.json"), b"{}")
    h5 = {"model.weights.h5": weights(folder, "hdf5"), "task.weights.h5": head.read_bytes()}
    return {**h5, **others, "metadata.json": b"{}"}


def test_formats_of_one_file(start_hub: StartHub, tmp_path: Path) -> None:
    gguf, h5, keras = (weights(tmp_path, kind) for kind in ("gguf", "hdf5", "keras"))
    flax = TESTS / "flax" / "files"
    towers = {"model-Q4_K_M.gguf": b"texts", "mmproj-model-f16.gguf": gguf}
    shards = sorted(path.name for path in (flax / "vit_shards").glob("*.msgpack*"))
    cases: list[tuple[Files, str, list[str]]] = [
        (files_below(flax / "vit"), "msgpack", ["config.json", "flax_model.msgpack"]),
        (files_below(flax / "vit_shards"), "msgpack", ["config.json", *shards]),
        ({"tf_model.h5": h5, "config.json": b"{}"}, "hdf5", ["config.json", "tf_model.h5"]),
        ({"vit.weights.h5": h5, "README.md": b""}, "hdf5", ["vit.weights.h5"]),
        ({"vit.keras": keras}, "keras", ["vit.keras"]),
        (towers, "gguf", ["mmproj-model-f16.gguf"]),
        (preset(tmp_path), "hdf5", ["config.json", "metadata.json", "model.weights.h5", *TASK]),
    ]
    start_hub({f"org/case-{number}": files for number, (files, _, _) in enumerate(cases)})
    for number, (_, form, names) in enumerate(cases):
        found = locate(f"hf:org/case-{number}", quiet=True)
        assert [*found.sha256] == sorted(names) and found.verified == tuple(found.sha256)
        assert found.weights is not None
        with open_container(found.weights) as container:
            assert container.format == form
            assert container.manifest
        assert locate(f"hf:org/case-{number}", quiet=True, offline=True) == found


TASK = ["task.json", "task.weights.h5"]


def read_orbax(path: Path) -> None:
    arrays = load_file(TESTS / "orbax" / "files" / "state.safetensors")
    with open_container(path) as container:
        assert {n: container.read(n).tolist() for n in arrays} == {
            n: array.tolist() for n, array in arrays.items()
        }


@pytest.mark.parametrize("name", ["state", "flax"])
def test_a_directory_of_orbax(start_hub: StartHub, name: str) -> None:
    """Its files are links into the cache there."""
    files = {**files_below(TESTS / "orbax" / "files" / name, "vit/"), "vit.gguf": b"another"}
    server = start_hub({"org/orbax": files})
    folder = "vit" if name == "state" else "vit/state"
    found = locate(f"hf:org/orbax/{folder}", quiet=True)
    assert "vit.gguf" not in fetched(server)
    assert {file for file in files if file.startswith(f"{folder}/")} == set(found.verified)
    assert found.weights is not None
    answer = call_limited(read_orbax, found.weights, seconds=60, mebibytes=4096)
    assert answer.code == 0, answer.err
