"""Write files/flax and files/nnx: what orbax-checkpoint saves of Flax's trees by its own defaults.

Run from the repository's root after `make_files`, where orbax-checkpoint, flax and safetensors are
installed (0.12.8, 0.12.8 and 0.8.0 wrote these):

    python -m tests.orbax.make_flax_files

The newest interface keeps arrays as zarr 3, the one before as zarr 2.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx, traverse_util
from orbax.checkpoint.experimental import v1
from safetensors.numpy import load_file

FILES = Path(__file__).parent.resolve() / "files"


def main() -> None:
    """Write the directories anew."""
    for name in ("flax", "nnx"):
        shutil.rmtree(FILES / name, ignore_errors=True)
    arrays = {
        tuple(name.split("/")): jnp.asarray(array)
        for name, array in load_file(FILES / "state.safetensors").items()
    }
    tree: Any = traverse_util.unflatten_dict(arrays)
    v1.save(FILES / "flax", {"params": tree})
    state = nnx.State(traverse_util.unflatten_dict({k: nnx.Param(a) for k, a in arrays.items()}))
    with ocp.StandardCheckpointer() as writer:
        writer.save(FILES / "nnx", state)
    for file in FILES.rglob("commit_success.txt"):
        file.unlink()  # it says where this was


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of JAX
