"""Files larger than memory: what needs their headers alone works, and so do single tensors."""

import json
import os
import sys
from math import prod
from pathlib import Path

import pytest
import timm
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import vitconvert
from vitconvert.formats import open_container

pytestmark = [
    pytest.mark.posix,
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its memory"),
]

WIDTH, HEADS = 12288, 96


def _shapes() -> dict[str, tuple[int, ...]]:
    """Of a ViT of timm with more bytes than this machine has."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    depth = memory // (12 * WIDTH**2 * 4) + 2
    with torch.device("meta"):
        model = timm.models.VisionTransformer(
            embed_dim=WIDTH, depth=depth, num_heads=HEADS, num_classes=5
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert 4 * sum(map(prod, shapes.values())) > memory
    return shapes


def _safetensors(path: Path) -> None:
    header, end = {}, 0
    for name, shape in _shapes().items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)  # a hole, which takes no room


def _torch_zip(path: Path) -> None:
    shapes = _shapes()
    with FakeTensorMode():
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(tensors, path)


@pytest.mark.parametrize("write", [_safetensors, _torch_zip])
def test_a_file_larger_than_memory(write, tmp_path):
    path = tmp_path / "model.bin"
    write(path)
    stated = {"num_heads": HEADS, "norm_eps": 1e-6}
    assert vitconvert.inspect(path).dialect == "timm"
    assert "model.safetensors" in vitconvert.plan_conversion(path, to="hf", overrides=stated).files
    with open_container(path) as container:
        assert container.read("cls_token").shape == (1, 1, WIDTH)
