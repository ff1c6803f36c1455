"""Sound files of msgpack and GGUF, and their own packages as readers of what becomes of them."""

import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import msgpack
import numpy as np
import torch

from vitconvert.formats import equinox as our_equinox
from vitconvert.formats import gguf as our_gguf
from vitconvert.formats import msgpack as our_msgpack
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.gguf import DTYPES, OTHERWISE, PACKED

Told = tuple[tuple[str, ...], dict[str, tuple[str, tuple[int, ...], bytes]]]


def msgpack_files(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, bytes]]:
    """A tree, and the same as the weights of a training state."""
    tree = {name.replace(".", "/"): tensor for name, tensor in tensors.items()}
    state = {f"params/{name}": tensor for name, tensor in tree.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        our_msgpack.write_file(path, tree)
        plain = path.read_bytes()
        our_msgpack.write_file(path, {**state, "step": tensors["d"]})
        return [("x", plain), ("x", path.read_bytes())]


def gguf_files(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, bytes]]:
    said = {"clip": {"eps": 1e-5, "use": True, "count": 3, "mean": [0.5, 0.25], "name": "x"}}
    with tempfile.TemporaryDirectory() as folder:
        our_gguf.write_file(Path(folder) / "x", tensors, Surroundings(config=said))
        return [("x", (Path(folder) / "x").read_bytes())]


_PAIRS = ("prenorm", "norm", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
_BLOCK = [*(f"{layer}.{end}" for layer in _PAIRS for end in ("weight", "bias")), "ls1.gamma"]
LEAVES = ["patch_embed.proj.weight", "patch_embed.proj.bias", "global_pos_embed.weight"]
LEAVES += ["cls_token", "reg_tokens", "norm.weight", "norm.bias", "blocks.0.ls2.gamma"]
LEAVES += [f"blocks.0.{leaf}" for leaf in _BLOCK]


def equinox_files() -> list[tuple[str, bytes]]:
    """The leaves of equimo's class with one block, and its arguments beside them."""
    said = {"depths": [1], "patch_size": 2, "num_heads": [1], "num_classes": 0}
    said |= {"init_values": 1.0, "ffn_layer": "mlp"}
    tensors = {leaf: torch.randn(2, 1 + number % 3) for number, leaf in enumerate(LEAVES)}
    config = {**our_equinox.DEFAULTS, **said, "depth": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.eqx"
        our_equinox.write_file(path, tensors, Surroundings(config=config))
        arguments = json.dumps({"model_config": said}).encode()
        return [(path.name, path.read_bytes()), ("metadata.json", arguments)]


def read_equinox(path: Path, ours: tuple[tuple[str, ...], Any]) -> Told:
    """The leaves that have axes, by NumPy, in the names that vitconvert gives them."""
    arrays = []
    with path.with_name("weights.eqx").open("rb") as file:
        while file.peek():
            arrays.append(np.load(file, allow_pickle=False))
    leaves = [(str(a.dtype), a.shape, a.tobytes()) for a in arrays if a.shape]
    return ours[0], dict(zip(ours[1], leaves, strict=True))


def read_msgpack(path: Path, ours: tuple[tuple[str, ...], Any]) -> Told:
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for name, value in _leaves(_unpacked(path.read_bytes()), ()):
        assert name not in found
        found[name] = value
    begin = "".join(f"{key}/" for key in ours[0])
    branch = {n.removeprefix(begin): v for n, v in found.items() if n.startswith(begin)}
    return ours[0], branch


class _Array(tuple):  # type: ignore[type-arg]
    """What an extension of Flax holds."""


def _hook(code: int, data: bytes) -> Any:
    return _Array(_unpacked(data)) if code in (1, 3) else None


_unpacked = functools.partial(msgpack.unpackb, ext_hook=_hook)


def _leaves(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, _Array):
        shape, dtype, data = tree
        text = dtype if isinstance(dtype, str) else dtype.decode()
        yield "/".join(keys), (text, tuple(shape), data)
    elif isinstance(tree, dict | list):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(branch, (*keys, str(key)))


def read_gguf(path: Path, _: object) -> Told:
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        kind, shape = tensor.tensor_type, tuple(int(n) for n in reversed(tensor.shape))
        name, dtype = tensor.name, DTYPES.get(kind.name, "uint8")
        if kind.name not in DTYPES:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            name = f"{name}.{PACKED.get(kind.name, OTHERWISE)}"
            shape = (*shape[:-1], shape[-1] // elements, size)
        found[name] = (dtype, shape, tensor.data.tobytes())
    return (), found
