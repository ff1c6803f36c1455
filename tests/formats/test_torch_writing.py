"""Torch checkpoints written without torch: torch's own bytes."""

import io
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vitconvert.formats import (
    Content,
    Surroundings,
    TensorInfo,
    content_of,
    one_buffer,
    open_container,
)
from vitconvert.formats.container import ITEM_SIZE
from vitconvert.formats.torch.writing import write_archive

_ID = b"serialization_id"


def _written(tensors: dict[str, torch.Tensor], **around: Any) -> bytes:
    file = io.BytesIO()
    contents = {name: content_of(name, tensor) for name, tensor in tensors.items()}
    write_archive(file, contents, one_buffer(), Surroundings(**around))
    return file.getvalue()


def _tensors() -> dict[str, torch.Tensor]:
    axes = {f"blocks.{i}.weight": torch.randn(tuple(range(1, i % 6 + 1))) for i in range(90)}
    dtypes = {name: torch.randn(3, 2).to(getattr(torch, name)) for name in ITEM_SIZE}
    sizes = {"b": torch.randn(256), "h": torch.randn(65_536), "none": torch.empty(2, 0, 3)}
    return axes | dtypes | sizes | {"π": torch.tensor(3)}


@pytest.mark.parametrize("beside", [{}, {"epoch": 0, "batches": 70_000}], ids=["", "beside"])
@pytest.mark.parametrize("wrapper", ["", "model"])
@pytest.mark.parametrize(
    "make",
    [
        _tensors,
        lambda: {"one": torch.randn(3)},
        lambda: {f"{i}": torch.zeros(1) for i in range(1001)},  # in two batches
    ],
    ids=["many", "one", "a thousand"],
)
def test_the_bytes_are_those_of_torch_save_but_for_half_of_the_id(make, wrapper, beside):
    tensors = make()
    file = io.BytesIO()
    torch.save({wrapper: tensors, **beside} if wrapper else tensors, file)
    ours, theirs = _written(tensors, wrapper=wrapper, extras=beside), file.getvalue()
    assert len(ours) == len(theirs)
    differing = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    identity = theirs.index(b"PK\7\x08", theirs.index(_ID)) - 40
    descriptor = range(identity + 40 + 4, identity + 40 + 8)  # the CRC of the id,
    entry = theirs.rindex(b"PK\1\2")  # which stands in the directory too
    assert {*differing} <= {
        *range(identity, identity + 20),
        *descriptor,
        *range(entry + 16, entry + 20),
    }


@pytest.mark.parametrize("computed", [False, True])
def test_torch_maps_what_we_write(tmp_path, computed):
    tensors = _tensors()
    (tmp_path / "x.pt").write_bytes(_written(tensors))
    from torch.utils.serialization import config

    with config.patch("load.calculate_storage_offsets", computed):
        read = torch.load(tmp_path / "x.pt", weights_only=True, mmap=True)
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name].shape == tensor.shape
        assert torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (read[name], tensor)))
        assert read[name].data_ptr() % 64 == 0 or not tensor.numel()


def test_chunks_of_any_size_give_the_same_bytes():
    tensors = {"a": torch.randn(7, 3), "b": torch.randn(5).half()}
    chunked = {}
    for name, tensor in tensors.items():
        content = content_of(name, tensor)
        (whole,) = content.chunks(one_buffer())
        chunked[name] = Content(
            info=content.info,
            chunks=lambda _, whole=whole: (whole[at : at + 5] for at in range(0, len(whole), 5)),
        )
    file = io.BytesIO()
    write_archive(file, chunked, one_buffer())
    assert file.getvalue() == _written(tensors)


class _Sparse(io.FileIO):
    """A file in which what is long, and zero, takes no space."""

    def write(self, data: bytes | memoryview) -> int:
        length = memoryview(data).nbytes
        return super().write(data) if length < 2**20 else bool(self.seek(length, 1)) * length


def test_more_than_32_bits_count(tmp_path, monkeypatch):
    crc32 = zlib.crc32  # whose work on zeros would take seconds
    monkeypatch.setattr(
        zlib, "crc32", lambda data, crc=0: crc32(data, crc) if len(data) < 2**20 else 0
    )
    zeros, size = memoryview(bytes(2**24)), 2**32 + 2**24

    def chunks(_: object) -> Iterator[memoryview]:
        return iter([zeros] * (size // len(zeros)))

    long = Content(info=TensorInfo(dtype="uint8", shape=(size,)), chunks=chunks)
    short = torch.randn(3)
    path = tmp_path / "x.pt"
    with _Sparse(path, "w") as file:
        write_archive(file, {"a": long, "b": content_of("b", short), "c": long}, one_buffer())
    monkeypatch.undo()
    read = torch.load(path, weights_only=True, mmap=True)
    assert read["a"].shape == read["c"].shape == (size,)
    assert torch.equal(read["b"], short)
    with open_container(path) as container:
        assert container.manifest["c"].shape == (size,)
        assert container.places["c"].offset > size
        assert torch.equal(container.read("b"), short)


def test_writing_needs_no_torch(tmp_path):
    program = (
        "import pathlib, sys\n"
        "from vitconvert.formats import Content, TensorInfo, open_container\n"
        "from vitconvert.formats.torch.writing import write_file as write_torch\n"
        "info = TensorInfo(dtype='bfloat16', shape=(2, 3))\n"
        f"path = pathlib.Path({str(tmp_path / 'x.pt')!r})\n"
        "write_torch(path, {'a': Content(info=info, chunks=lambda _: [memoryview(bytes(12))])})\n"
        "assert open_container(path).manifest == {'a': info}\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
