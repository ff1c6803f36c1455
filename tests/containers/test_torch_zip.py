"""Reading torch's zip archives without torch: the same as through it, or through it."""

import argparse
import tempfile
import zipfile
import zlib
from collections import OrderedDict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitconvert.containers import Container, open_container
from vitconvert.containers.container import ITEM_SIZE
from vitconvert.containers.torch.through_torch import open_through_torch
from vitconvert.containers.zip_archive import zip_members
from vitconvert.errors import VitConvertError


def _numbers(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, shape, generator=generator).to(getattr(torch, dtype))


@st.composite
def _tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    tensor = _numbers(draw(st.sampled_from(sorted(ITEM_SIZE))), shape, draw(st.integers(0, 99)))
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "parameter"])):
        case "transposed" if len(shape) > 1:
            return tensor.transpose(0, -1)
        case "strided" if shape:
            return tensor[1:].transpose(0, -1)[::2]
        case "expanded":
            return tensor.expand(3, *shape)
        case "parameter":
            return nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
    return tensor


_SHARED = torch.arange(12.0).view(3, 4)
tensors = _tensors() | st.sampled_from([_SHARED, _SHARED.t(), _SHARED[1:, 1], _SHARED.view(-1)])
names = st.sampled_from(["weight", "bias", "blocks.0", "encoder", "epoch", "π", ""])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([torch.float16, torch.bfloat16, torch.Size([2]), torch.device("cpu")])
    | st.sampled_from(
        [np.float64(0.5), np.ones((2, 1)), Path("/runs/1"), datetime(2024, 1, 2), b""]
    )
)
notes = st.recursive(
    scalars | tensors | st.sets(st.integers() | st.text(max_size=2), max_size=3),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.integers(0, 3) | names, inner, max_size=2),
        st.builds(argparse.Namespace, lr=inner, blocks=inner),
    ),
    max_leaves=6,
)
state_dicts = st.dictionaries(names, tensors | scalars, min_size=1, max_size=5) | st.dictionaries(
    names, tensors, min_size=1, max_size=5
).map(OrderedDict)
wrapped = st.dictionaries(
    st.sampled_from(["state_dict_ema", "model", "state_dict", "predictor", "args", "mine"]),
    state_dicts | notes,
    max_size=4,
)


def _told(container: Container) -> object:
    """Everything that a container says, its bytes included: NaNs equal themselves only so."""
    return (
        list(container.manifest.items()),
        container.wrapper,
        repr(container.extras),
        [_raw(container.read(name)) for name in container.manifest],
    )


def _raw(tensor: torch.Tensor) -> list[int]:
    plain = tensor.resolve_conj().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).tolist()


def _outcome(path: Path, *, through_torch: bool, prefer: tuple[str, ...] = ()) -> object:
    try:
        if through_torch:
            return _told(open_through_torch(path, zip_members(path), prefer=prefer))
        return _told(open_container(path, prefer=prefer))
    except VitConvertError as error:
        return str(error)


@settings(max_examples=150, deadline=None)
@given(value=state_dicts | wrapped | notes, prefer=st.sampled_from([(), ("state_dict",)]))
def test_the_same_as_through_torch(value: object, prefer: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.pth"
        torch.save(value, path)
        expected = _outcome(path, through_torch=True, prefer=prefer)
        assert _outcome(path, through_torch=False, prefer=prefer) == expected
        if not isinstance(expected, str):
            container = open_container(path, prefer=prefer)
            assert container.places.keys() == container.manifest.keys()  # torch took no part
            _check_places(container)


def _check_places(container: Container) -> None:
    for name, place in container.places.items():
        read = container.read(name)
        assert read.stride() == place.strides or 0 in read.shape
        if read.numel():
            with place.path.open("rb") as file:
                file.seek(place.offset)
                assert list(file.read(read.element_size())) == _raw(read.reshape(-1)[:1])


def _state_dict() -> OrderedDict[str, torch.Tensor]:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    return model.state_dict(keep_vars=True)  # with _metadata, and a tensor of no axes


def test_a_state_dict_is_read_where_it_lies(tmp_path: Path) -> None:
    state_dict = _state_dict()
    torch.save(state_dict, tmp_path / "x.pth")
    with open_container(tmp_path / "x.pth") as container:
        assert list(container.places) == list(state_dict)
        _check_places(container)
        assert all(torch.equal(container.read(name), t) for name, t in state_dict.items())


def test_names_on_one_storage_read_the_same_memory(tmp_path: Path) -> None:
    torch.save({"a": _SHARED, "b": _SHARED[1:]}, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    container.read("a").zero_()
    assert not container.read("b").any()


class _Subclass(torch.Tensor):
    pass


def _with_an_attribute() -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(2))
    parameter.note = "kept by nn.Parameter"  # type: ignore[attr-defined]
    return parameter


@pytest.mark.parametrize(
    "note",
    [
        bytearray(b"ab"),
        1j,
        torch.ones(2, dtype=torch.complex128),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(),
        _with_an_attribute(),
        torch.ones(2).as_subclass(_Subclass),
    ],
)
def test_what_is_not_known_here_goes_through_torch(tmp_path: Path, note: object) -> None:
    path = tmp_path / "x.pth"
    torch.save({"model": {"w": torch.randn(2), "note": note}, "beside": note}, path)
    assert _outcome(path, through_torch=False) == _outcome(path, through_torch=True)
    torch.save({"model": {"w": torch.randn(2)}, "beside": note}, path)
    assert _outcome(path, through_torch=False) == _outcome(path, through_torch=True)


def _rewritten(path: Path, how: int = zipfile.ZIP_STORED, **changes: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = how
            # Aligned, as torch writes it.
            padding = -(archive.fp.tell() + 34 + len(name)) % 64  # type: ignore[union-attr]
            entry.extra = b"\xff\xff" + padding.to_bytes(2, "little") + bytes(padding)
            archive.writestr(entry, changes.get(name.rpartition("/")[2], data))


@pytest.mark.parametrize(
    ("changes", "through_torch"),
    [
        ({}, False),
        ({"how": zipfile.ZIP_DEFLATED}, True),
        ({"byteorder": b"big"}, True),
        ({"byteorder": b"odd"}, True),
        ({"version": b"2\n"}, True),
        ({"version": b"99\n"}, True),
    ],
)
def test_an_archive_out_of_the_ordinary_goes_through_torch(
    tmp_path: Path, changes: dict[str, Any], through_torch: bool
) -> None:
    path = tmp_path / "x.pth"
    torch.save(_state_dict(), path)
    _rewritten(path, **changes)
    outcome = _outcome(path, through_torch=False)
    assert outcome == _outcome(path, through_torch=True)
    if not isinstance(outcome, str):
        assert bool(open_container(path).places) is not through_torch


def test_a_changed_pickle_is_read_as_torch_reads_it_or_through_torch(tmp_path: Path) -> None:
    checkpoint = {
        "model": {"a": _SHARED, "b": nn.Parameter(_SHARED.t()), "c": _numbers("uint16", (3,), 0)},
        "args": argparse.Namespace(lr=0.1),
        "note": [{1, 2}, np.float64(0.5)],
    }
    torch.save(checkpoint, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    begin = data.index(b"\x80\x02")
    end = data.index(b"PK\7\x08")
    crc = zlib.crc32(data[begin:end]).to_bytes(4, "little")
    read = 0
    for at in range(begin, end):
        changed = data[:at] + bytes([data[at] ^ (1, 2, 0x80, 0xFF)[at % 4]]) + data[at + 1 :]
        path = tmp_path / str(at)
        path.write_bytes(changed.replace(crc, zlib.crc32(changed[begin:end]).to_bytes(4, "little")))
        if not isinstance(outcome := _outcome(path, through_torch=False), str):
            read += 1
            assert outcome == _outcome(path, through_torch=True)
    assert read > 50


def _pickled(path: Path, data: bytes) -> Path:
    """A checkpoint with this pickle."""
    torch.save({"a": torch.ones(1)}, path)
    _rewritten(path, **{"data.pkl": data})
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.",
        b"\x80\x02c__builtin__\neval\nX\x01\0\0\0001\x85R.",
        b"\x80\x02cpathlib\nPosixPath\ncos\nsystem\nX\x04\0\0\0true\x85R\x85R.",
        b"\x80\x02}X\1\0\0\0acnumpy\ndtype\n)R(cbuiltins\nexec\nX\1\0\0\0001\x85Rtbs.",
        b"\x80\x02cpathlib\nPosixPath.touch\n)R.",
        b"\x80\x02cnumpy\nload\nX\1\0\0\0x\x85R.",
        b"\x80\x02ccollections\ndeque\n)\x81K\1a.",
        b"\x80\x02}r\xff\xff\xff\xff.",  # the largest memo that can be asked for
        b"\x80\x02" + b"\x85" * 9 + b".",
        b"\x80\x02" + b"(" * 10_000 + b".",
        b"\x80\x02)" + b"\x85" * 10_000 + b".",
        b"\x80\x02}q\0(X\1\0\0\0ah\0u.",  # a dictionary in itself
        b"\x80\x02]q\0h\0a.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02" + b"}]s.",
        b"",
    ],
)
def test_a_hostile_pickle_is_refused_as_through_torch(tmp_path: Path, data: bytes) -> None:
    path = _pickled(tmp_path / "x.pth", data)
    refusal = _outcome(path, through_torch=False)
    assert isinstance(refusal, str)
    assert refusal == _outcome(path, through_torch=True)
