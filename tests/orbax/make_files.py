"""Write files/: what orbax-checkpoint saves of a training state, and of a tree of a few arrays.

Run from the repository's root, where orbax-checkpoint is installed (0.12.8 wrote these):

    python -m tests.orbax.make_files

Not in the tests themselves: JAX and tensorstore start threads, after which no other test may fork.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import torch
from safetensors.numpy import save_file

import vitconvert
from tests.small_models import randomise, tiny_config
from vitconvert.model import ViT

FILES = Path(__file__).parent / "files"
STATED = {"num_heads": 3, "norm_eps": 1e-6, "activation": "gelu_tanh"}


def vit() -> ViT:
    """The model that is saved."""
    torch.manual_seed(0)
    sizes = {"image_size": (12, 12), "depth": 11, "embed_dim": 6, "head_dim": 2, "mlp_dim": 5}
    return randomise(ViT(tiny_config(activation="gelu_tanh", **sizes))).eval()


def arrays_of(model: ViT) -> dict[str, Any]:
    """Its arrays, as Google's code names them."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "vit.pt", Path(folder) / "out"
        torch.save(model.state_dict(), file)
        vitconvert.convert(file, to="google_jax_linen", output=out, overrides=STATED)
        with np.load(out / "model.npz") as arrays:
            return dict(arrays)


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    """The tree whose keys the names of arrays join."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *outer, last = name.split("/")
        level = tree
        for key in outer:
            level = level.setdefault(key, {})
        level[last] = array
    return tree


def write(name: str, tree: Any, chunk_bytes: int | None = None, **options: Any) -> None:
    """Save a tree in a directory of files/."""
    asked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as writer:
        writer.save(FILES.resolve() / name, tree, save_args=asked)
    (FILES / name / "commit_success.txt").unlink()  # it says where this was


def main() -> None:
    """Write the files anew."""
    shutil.rmtree(FILES, ignore_errors=True)
    arrays = arrays_of(vit())
    moments = {name: np.zeros(3, "f4") for name in ("mu", "nu")}
    state = {"params": nested(arrays), "opt_state": [moments, None], "step": np.int32(3)}
    write("state", {**state, "name": "x"})
    few = {
        "encoder": {"half": jnp.arange(7, dtype=jnp.bfloat16)},
        "number": np.array(2.5, "f8"),
        "flags": np.array([True, False]),
        "float8": jnp.arange(3).astype(jnp.float8_e4m3fn),
        "scalar": 3,
    }
    write("few", few, use_ocdbt=False)
    cut = {"rows": np.arange(24, dtype="f4").reshape(4, 6), "zeros": np.zeros((4, 4), "f2"), **few}
    write("zarr3", cut, chunk_bytes=24, use_ocdbt=False, use_zarr3=True)
    save_file(arrays, FILES / "state.safetensors")
    model = vit()
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        np.savez(FILES / "output.npz", images=images.numpy(), output=model(images).numpy())


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of JAX
