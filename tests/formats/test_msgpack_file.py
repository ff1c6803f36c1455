"""Reading and writing msgpack: agreement with the package that Flax uses, and hostile trees."""

import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from vitconvert.errors import CorruptFile, MissingPackage, UsageError
from vitconvert.formats import TensorInfo, content_of, open_container
from vitconvert.formats import msgpack as msgpack_module
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.msgpack import read_plainly, write_file


def array(values: Any, dtype: str = "") -> msgpack.ExtType:
    """As flax.serialization writes an array."""
    values = np.asarray(values)
    inside = (values.shape, dtype or values.dtype.name, values.tobytes())
    return msgpack.ExtType(1, msgpack.packb(inside, use_bin_type=True))


def packed(path: Path, tree: Any) -> Path:
    path.write_bytes(tree if isinstance(tree, bytes) else msgpack.packb(tree, use_bin_type=True))
    return path


def test_reads_what_the_package_wrote(tmp_path):
    whole = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    parts = {str(i): array(part) for i, part in enumerate(np.array_split(whole.ravel(), 3))}
    chunked = {"__msgpack_chunked_array__": True, "shape": {"0": 3, "1": 4}, "chunks": parts}
    half = torch.randn(2, 3).bfloat16()
    tree = {
        "tree": {
            "layer": {"kernel": array(whole), "large": chunked},
            "half": array(half.view(torch.int16).numpy(), "bfloat16"),
            "none": array(np.zeros((0, 2), "float16")),
        },
        "step": msgpack.ExtType(3, array(np.int32(-7)).data),
        "epoch": -70_000,
        "rate": 0.5,
        "name": "run",
        "done": True,
        "rest": None,
        "list": [1, array([True, False])],
        "wave": msgpack.ExtType(2, msgpack.packb((1.0, 2.0))),
    }
    path = packed(tmp_path / "x", tree)
    with open_container(path) as container:
        assert container.format == "msgpack"
        assert container.manifest == {
            "tree/layer/kernel": TensorInfo(dtype="float32", shape=(3, 4)),
            "tree/layer/large": TensorInfo(dtype="float32", shape=(3, 4)),
            "tree/half": TensorInfo(dtype="bfloat16", shape=(2, 3)),
            "tree/none": TensorInfo(dtype="float16", shape=(0, 2)),
            "step": TensorInfo(dtype="int32", shape=()),
            "list/1": TensorInfo(dtype="bool", shape=(2,)),
        }
        assert container.extras == {
            "epoch": -70_000,
            "rate": 0.5,
            "name": "run",
            "done": True,
            "rest": None,
            "list/0": 1,
            "wave": "a complex number",
        }
        assert container.extras["done"] is True
        assert np.array_equal(container.read("tree/layer/kernel").numpy(), whole)
        assert np.array_equal(container.read("tree/layer/large").numpy(), whole)
        assert torch.equal(container.read("tree/half"), half)
        assert container.read("step").item() == -7


def test_heads_that_the_package_does_not_read_alone(tmp_path):
    lengths = (1, 2, 4, 8, 16, 17, 256, 2**16)
    tree: dict[str, Any] = {str(n): msgpack.ExtType(2, b"x" * n) for n in lengths}
    wanted = dict.fromkeys(tree, "a complex number")
    tree |= {"bytes": b"x" * 2**16, "long": "x" * 10_001, "short": "x" * 10_000, "rate": 0.5}
    wanted |= {"bytes": "bytes", "long": "text", "short": "x" * 10_000, "rate": 0.5}
    with open_container(packed(tmp_path / "x", tree)) as container:
        assert container.extras == wanted


def test_the_weights_of_a_training_state(tmp_path):
    """As flax.training writes `checkpoint_0`, with averaged weights of somebody's own."""
    weights = {"params": {"layer": array([1.0, 2.0])}}
    state = {"params": weights, "ema": {"layer": array([3.0, 4.0])}, "step": 5}
    path = packed(tmp_path / "x", state | {"opt_state": {"0": {"mu": array([0.0])}}})
    with open_container(path) as container:
        assert container.wrapper == ("params", "params")
        assert container.read("layer").tolist() == [1, 2]
        assert container.extras == {"ema": "1 arrays", "step": 5, "opt_state": "1 arrays"}
    with open_container(path, prefer=("ema",)) as container:
        assert container.wrapper == ("ema",)
        assert container.read("layer").tolist() == [3, 4]


@pytest.mark.parametrize("most", [2**30, 16])
def test_the_package_reads_what_is_written(tmp_path, monkeypatch, most):
    monkeypatch.setattr(msgpack_module, "_CHUNK", most)
    tensors = {
        "b/layer/kernel": torch.randn(3, 5, 2),
        "b/layer/bias": torch.randn(7).bfloat16(),
        "a" * 40: torch.tensor(3),
        **{f"c/{index:02}": torch.tensor([index]) for index in range(20)},
        "d" * 300: torch.zeros(200, 2, dtype=torch.uint8),
        "empty": torch.empty(2, 0),
    }
    contents = {name: content_of(name, tensor) for name, tensor in tensors.items()}
    write_file(tmp_path / "x", contents, Surroundings())
    theirs = {name: (shape, data) for name, shape, data in read_plainly(tmp_path / "x", "")}
    assert theirs.keys() == tensors.keys()
    with open_container(tmp_path / "x") as container:
        for name, tensor in tensors.items():
            assert torch.equal(container.read(name), tensor), name
            data = b"".join(bytes(part) for part in contents[name].chunks())
            assert theirs[name] == (tuple(tensor.shape), data)


def test_writes_the_bytes_that_flax_does(tmp_path):
    """flax.serialization.to_bytes packs such a tree with the package."""
    names = ["x" * length for length in (31, 32, 255, 256, 2**16)]
    tree: dict[str, Any] = {name: torch.arange(3) for name in names}
    for count in (15, 16):
        tree[f"map {count}"] = {f"{i:05}": torch.zeros(0) for i in range(count)}
    sizes = (1, 127, 128, 255, 256, 2**16 - 1, 2**16)
    tree["size"] = {f"{size:05}": torch.zeros(size, dtype=torch.uint8) for size in sizes}
    tree["shape"] = {"far": torch.empty(0, 2**32), "many": torch.ones((1,) * 17)}
    tree = dict(sorted(tree.items()))
    flat = {
        name if leaf is None else f"{name}/{leaf}": tensor
        for name, branch in tree.items()
        for leaf, tensor in (branch.items() if isinstance(branch, dict) else [(None, branch)])
    }
    contents = {name: content_of(name, tensor) for name, tensor in reversed(flat.items())}
    write_file(tmp_path / "x", contents, Surroundings())
    wanted = msgpack.packb(tree, default=lambda tensor: array(tensor.numpy()))
    assert (tmp_path / "x").read_bytes() == wanted


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a/b/c")])
def test_a_name_that_is_a_branch_too_is_refused(tmp_path, names):
    contents = {name: content_of(name, torch.zeros(1)) for name in names}
    with pytest.raises(UsageError, match="a part of it names another tensor"):
        write_file(tmp_path / "x", contents, Surroundings())
    assert not (tmp_path / "x").exists()


def deep(levels: int) -> bytes:
    return b"\x81\xa1a" * levels + b"\xc0"


def of_three(*parts: Any) -> dict[str, Any]:
    """A large array of three numbers in these parts."""
    chunks = {str(index): array(part) for index, part in enumerate(parts)}
    return {"a": {"__msgpack_chunked_array__": True, "shape": {"0": 3}, "chunks": chunks}}


LARGE = msgpack.packb(((2**62, 8), "float32", b""))
TWICE = b"\x82\xa1a\x01\xa1a\x02"
HOSTILE: dict[str, tuple[Any, str]] = {
    "the same key twice": (TWICE, "more than once"),
    "a branch and a leaf": (b"\x82\xa1a\x81\xa1b\x01\xa1a\x02", "more than once"),
    "one name by two ways": ({"a": {"b": 1}, "a/b": 2}, "more than once"),
    "a key that is a number": (b"\x82\xa1a\x01\x07\x02", "cannot read this file"),
    "four billion entries": (b"\xdf\xff\xff\xff\xff\xa1a\x01", "truncated"),
    "bytes behind the tree": (b"\x81\xa1a\x01\x02", "cannot read this file"),
    "no such memory": ({"a": msgpack.ExtType(1, LARGE)}, "no memory can hold"),
    "elements that are missing": (
        {"a": msgpack.ExtType(1, msgpack.packb(((3,), "float32", b"\0" * 8)))},
        "not have the size",
    ),
    "elements that are too many": (
        {"a": msgpack.ExtType(1, array([1.0]).data + b"\0")},
        "cannot read this file",
    ),
    "an unknown dtype": (
        {"a": msgpack.ExtType(1, msgpack.packb(((1,), "object", b"\0" * 8)))},
        "dtype that is not read",
    ),
    "parts that are missing": (of_three(), "do not make up"),
    "a part that is missing": (of_three([1.0], [2.0]), "do not make up"),
    "parts of two dtypes": (of_three([1.0], np.zeros(2, "float32")), "do not make up"),
    "a key that is no Unicode": (b"\x82\xa1a\x01\xa1\xff\x01", "cannot read this file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_trees(tmp_path, case):
    tree, said = HOSTILE[case]
    with pytest.raises(CorruptFile) as error:
        open_container(packed(tmp_path / "x", tree))
    assert said in error.value.fact
    assert len(str(error.value)) < 1000


def test_error_the_package_is_missing(tmp_path, monkeypatch):
    path = packed(tmp_path / "x", {"a": array([1.0])})
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(MissingPackage, match="pip install msgpack"):
        open_container(path)
