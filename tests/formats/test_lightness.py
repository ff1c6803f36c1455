"""Headers are read without torch, so that listing and planning start at once."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vitconvert.formats import write_safetensors
from vitconvert.formats.npz import write_file as write_npz


def _imported(path: Path) -> set[str]:
    program = (
        "import sys, pathlib\n"
        "from vitconvert.formats import open_container\n"
        f"assert open_container(pathlib.Path({str(path)!r})).manifest\n"
        "print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "kind", ["safetensors", "npz", "compressed npz", "torch", "legacy", "pickle"]
)
def test_a_manifest_needs_no_torch_and_no_numpy(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "safetensors":
        write_safetensors(path, {"a": torch.randn(3)})
    elif kind == "npz":
        write_npz(path, {"a": torch.randn(3)})
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"a": np.ones(3)}))
    elif kind in ("torch", "legacy"):
        value = {"model": torch.nn.Linear(3, 2).state_dict(), "epoch": 3}
        torch.save(value, path, _use_new_zipfile_serialization=kind == "torch")
    else:
        with path.open("wb") as file:
            np.savez_compressed(file, a=np.ones(3))
    assert not _imported(path) & {"torch", "numpy", "safetensors"}
