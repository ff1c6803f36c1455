"""Reading safetensors: agreement with the library, and a corpus of hostile headers."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from vitconvert.errors import CorruptFile
from vitconvert.formats import TensorInfo, open_container


def _file(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _entry(shape: list[int], begin: object, end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_library_wrote(tmp_path):
    tensors = {
        "norm.weight": torch.randn(5),
        "patches": torch.randn(3, 2, 1, 2).to(torch.bfloat16),
        "half": torch.randn(3).half(),
        "mask": torch.tensor([True, False, True]),
        "steps": torch.tensor(7),
        "none": torch.empty(0, 3),
        "eighth": torch.randn(3).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})

    with open_container(path) as container:
        assert container.format == "safetensors"
        assert container.files == (path,)
        assert container.metadata == {"format": "pt"}
        assert container.manifest["patches"] == TensorInfo(dtype="bfloat16", shape=(3, 2, 1, 2))
        assert container.manifest.keys() == tensors.keys()
        for name, tensor in tensors.items():
            read = container.read(name)
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert bytes(read.view(-1).view(torch.uint8)) == bytes(
                tensor.view(-1).view(torch.uint8)
            )


def test_unaligned_tensors_are_read_too(tmp_path):
    floats = torch.randn(2)
    header = {"a": _entry([3], 0, 3, "U8"), "b": _entry([2], 3, 11)}
    data = bytes([1, 2, 3]) + bytes(floats.view(torch.uint8))
    container = open_container(_file(tmp_path / "x", header, data))
    assert torch.equal(container.read("b"), floats)
    assert container.read("b").data_ptr() % 4 == 0


def test_a_file_cut_short_says_how_many_bytes_were_expected(tmp_path):
    path = _file(tmp_path / "model.safetensors", {"a": _entry([512], 0, 2048)}, bytes(1000))
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    expected = path.stat().st_size + 1048
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The file is truncated.\n"
        f"  file      {path}\n"
        f"  expected  {expected:,} bytes\n"
        f"  found     {expected - 1048:,} bytes\n"
        "  hint: download it again."
    )


def test_a_tensor_that_does_not_fill_its_bytes_is_named(tmp_path):
    path = _file(tmp_path / "model.safetensors", {"a.b": _entry([3, 2], 0, 20)}, bytes(20))
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  'a.b' does not fill the bytes that the header gives it.\n"
        f"  file          {path}\n"
        "  dtype         F32\n"
        "  shape         [3, 2]\n"
        "  needs         24 bytes\n"
        "  data_offsets  [0, 20]"
    )


TWICE = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    ("header", "size", "fact"),
    [
        (b"{'a': 1}", 1, "The header is not valid JSON."),
        (b'{"\xff": 1}', 1, "The header is not valid JSON."),
        (b"{" + TWICE + b"," + TWICE + b"}", 1, "The header is not valid JSON."),
        ({"a": _entry([2], 0, 8), "b": _entry([2], 4, 12)}, 12, "'b' overlaps another."),
        ({"a": _entry([2], 0, 8), "b": _entry([1], 9, 13)}, 13, "'b' leaves a hole before it."),
        ({"a": _entry([1], 4, 8)}, 8, "'a' leaves a hole before it."),
        ({"a": _entry([0], -4, -4)}, 0, "'a' overlaps another."),
        ({"a": _entry([2], 0, 8)}, 11, "3 bytes follow the last tensor."),
        ({}, 1, "1 bytes follow the last tensor."),
        ({"a": _entry([-1, -2], 0, 8)}, 8, "'a' has an axis of negative length."),
        ({"a": _entry([2**62, 4, 2], 0, 8)}, 8, "'a' has a shape that no memory can hold."),
        ({"a": _entry([0, 2**63], 0, 0)}, 0, "'a' has a shape that no memory can hold."),
        ({"a": _entry([1] * 33, 0, 4)}, 4, "'a' has a shape that no memory can hold."),
        ({"a": _entry([True], 0, 4)}, 4, "'a' has a shape that is not a list of whole numbers."),
        ({"a": _entry([2], 0, 8, "F4")}, 8, "'a' has a dtype that is not read here."),
        ({"a": {"dtype": "F32"}}, 0, "In the header, 'a' does not have just dtype, shape and"),
        ({"a": _entry([1], "0", "4")}, 4, "'a' does not fill the bytes that the header gives it."),
        ({"__metadata__": {"epoch": 3}}, 0, "The __metadata__ of the header is not a mapping of"),
    ],
)
def test_hostile_headers(tmp_path, header, size, fact):
    with pytest.raises(CorruptFile) as error:
        open_container(_file(tmp_path / "x", header, bytes(size)))
    assert error.value.fact.startswith(fact)


@pytest.mark.parametrize(
    ("text", "length", "fact"),
    [
        (b"{" + b" " * 50, 400, "The file is truncated."),
        (b"{}", 100_000_001, "The file has no known format."),
    ],
)
def test_headers_of_another_length(tmp_path, text, length, fact):
    (tmp_path / "x").write_bytes(length.to_bytes(8, "little") + text + b"\0")
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x")
    assert error.value.fact == fact


def test_a_file_without_tensors_is_a_file(tmp_path):
    assert dict(open_container(_file(tmp_path / "x", {})).manifest) == {}
