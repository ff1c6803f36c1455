"""Sharded checkpoints: an index, its shards, and every way they can disagree."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict

from vitconvert.errors import CorruptFile, SourceError, UnsafeFile
from vitconvert.formats import (
    TensorInfo,
    open_container,
    split,
    weights_in,
    write_safetensors,
)
from vitconvert.formats.npz import write_file as write_npz
from vitconvert.formats.torch.writing import write_file as write_torch

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def _index(directory: Path, weight_map: object) -> Path:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 20}, "weight_map": weight_map}))
    return path


def _shards(directory: Path) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.randn(3), "b": torch.randn(2), "c": torch.randn(1)}
    write_safetensors(directory / FIRST, {"a": tensors["a"]}, metadata={"format": "pt"})
    write_safetensors(directory / SECOND, {"b": tensors["b"], "c": tensors["c"]})
    return tensors


def test_shards_read_as_one(tmp_path):
    tensors = _shards(tmp_path)
    index = _index(tmp_path, {"c": SECOND, "a": FIRST, "b": SECOND})
    with open_container(index) as container:
        assert container.path == index
        assert container.files == (index, tmp_path / FIRST, tmp_path / SECOND)
        assert (container.format, container.metadata) == ("safetensors", {"format": "pt"})
        assert container.manifest.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(container.read(name), tensor)


def test_reads_the_shards_that_the_hub_client_writes(tmp_path):
    tensors = {f"blocks.{i}.weight": torch.randn(7, 5) for i in range(6)}
    save_torch_state_dict(tensors, tmp_path, max_shard_size=300)
    container = open_container(weights_in(tmp_path))
    assert len(container.files) == 1 + 3
    assert container.metadata["format"] == "pt"
    assert container.manifest.keys() == tensors.keys()
    assert all(torch.equal(container.read(name), tensors[name]) for name in tensors)


def test_torch_shards_read_as_one(tmp_path):
    write_torch(tmp_path / "1.bin", {"a": torch.ones(3)})
    write_torch(tmp_path / "2.bin", {"b": torch.zeros(3)})
    container = open_container(_index(tmp_path, {"a": "1.bin", "b": "2.bin"}))
    assert container.format == "torch"
    assert container.read("b").tolist() == [0, 0, 0]


def test_shards_are_unwrapped_by_preference(tmp_path):
    for name, key in (("1.bin", "a"), ("2.bin", "b")):
        checkpoint = {"model": {key: torch.ones(3)}, "model_ema": {key: torch.zeros(3)}}
        torch.save(checkpoint, tmp_path / name)
    container = open_container(_index(tmp_path, {"a": "1.bin", "b": "2.bin"}), prefer=("model",))
    assert container.wrapper == ("model",)
    assert container.read("b").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("most", "files"),
    [
        (None, {"x.bin": "abc"}),
        (24, {"x.bin": "abc"}),
        (16, {1: "ab", 2: "c"}),
        (4, {1: "a", 2: "b", 3: "c"}),
    ],
)
def test_tensors_are_split_in_order_of_their_names(most, files):
    infos = dict.fromkeys("bca", TensorInfo(dtype="float32", shape=(2,)))
    wanted = {
        f"x-{key:05}-of-{len(files):05}.bin" if isinstance(key, int) else key: sorted(names)
        for key, names in files.items()
    }
    assert {file: sorted(names) for file, names in split("x.bin", infos, most).items()} == wanted


def test_missing_shards_are_listed(tmp_path):
    _shards(tmp_path)
    (tmp_path / SECOND).unlink()
    index = _index(tmp_path, {"a": FIRST, "b": SECOND, "c": SECOND})
    with pytest.raises(SourceError) as error:
        open_container(index)
    assert str(error.value) == (
        "error: source-not-found\n"
        "  1 of 2 shards are missing.\n"
        f"  index  {index}\n"
        f"  {SECOND}\n"
        "  hint: download them into the same directory."
    )


def test_every_disagreement_is_listed(tmp_path):
    _shards(tmp_path)
    write_safetensors(tmp_path / FIRST, {"a": torch.randn(3), "b": torch.randn(2)})
    index = _index(tmp_path, {"a": FIRST, "b": SECOND, "lost": FIRST})
    with pytest.raises(CorruptFile) as error:
        open_container(index)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The index and its shards contradict each other.\n"
        f"  index     {index}\n"
        "  problems  3\n"
        f"  lost is not in {FIRST}\n"
        f"  b is in {FIRST} and in {SECOND}\n"
        f"  c is in {SECOND} but not in the index\n"
        "  hint: download the index and all shards from one revision."
    )


OUTSIDE = ("../x", "/etc/passwd", "a/../../x", "..\\x", "C:\\x", "\\\\host\\x", "C:x")
# ShardedH5IOStore: groups of arrays, of which one may be in two files.
KERAS = {"/layers/a/vars": "m_0.weights.h5", "/layers/b/vars": ["m_0.weights.h5", "m_1.weights.h5"]}


@pytest.mark.parametrize(
    ("weight_map", "error", "fact"),
    [
        *(({"a": shard}, UnsafeFile, "outside its own directory") for shard in OUTSIDE),
        *((no_map, CorruptFile, "without a weight_map") for no_map in ({}, [], "x", None)),
        *(({"a": shard}, CorruptFile, "names no shard for 'a'") for shard in (3, None, "")),
        ({"a": "model.safetensors.index.json"}, CorruptFile, "names another index"),
        ({"a": "1", "b": "2"}, CorruptFile, "different formats or wrappers"),
        (KERAS, SourceError, "of a Keras model's weights in several files"),
    ],
)
def test_error_an_index(tmp_path, weight_map, error, fact):
    (tmp_path / "model").mkdir()
    write_safetensors(tmp_path / "x", {"a": torch.ones(1)})
    write_npz(tmp_path / "model" / "1", {"a": torch.ones(3)})
    write_torch(tmp_path / "model" / "2", {"b": torch.ones(3)})
    with pytest.raises(error, match=fact):
        open_container(_index(tmp_path / "model", weight_map))
