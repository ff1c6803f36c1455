"""Reading what torch saved, without torch: in every form, and as torch reads it."""

import argparse
import json
import tempfile
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.formats.made import rewritten, tensor, text
from vitconvert.errors import CorruptFile, UnsafeFile, VitConvertError
from vitconvert.formats import Container, open_container
from vitconvert.formats.container import ITEM_SIZE


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


def _flat(level: object, keys: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """The tensors of nested dictionaries, by their keys joined with dots."""
    if isinstance(level, dict):
        inner = (_flat(value, (*keys, str(key))) for key, value in level.items())
        return {name: tensor for found in inner for name, tensor in found.items()}
    return {".".join(keys): level} if isinstance(level, torch.Tensor) else {}


@pytest.mark.slow
@settings(max_examples=150)
@given(value=state_dicts | wrapped | notes, prefer=st.sampled_from([(), ("state_dict",)]))
def test_every_form_of_a_file_is_read_as_it_was_saved(value, prefer):
    with tempfile.TemporaryDirectory() as directory:
        forms = ("zip", "legacy", "deflated", "unaligned")
        paths = [Path(directory) / form for form in forms]
        for path, form in zip(paths, forms, strict=True):
            torch.save(value, path, _use_new_zipfile_serialization=form != "legacy")
        rewritten(paths[2], zipfile.ZIP_DEFLATED)
        rewritten(paths[3])
        outcomes = [_outcome(path, prefer) for path in paths]
        assert all(outcome == outcomes[0] for outcome in outcomes)
        if isinstance(outcomes[0], tuple):
            container = open_container(paths[0], prefer=prefer)
            level: Any = value
            for key in container.wrapper:
                level = level[key]
            saved = _flat(level)
            assert list(container.manifest) == list(saved)
            for name, tensor in saved.items():
                assert _raw(container.read(name)) == _raw(tensor)
            assert container.places.keys() == container.manifest.keys()
            _check_places(container)
            _check_places(open_container(paths[1], prefer=prefer))


def _outcome(path: Path, prefer: tuple[str, ...] = ()) -> object:
    try:
        return _told(open_container(path, prefer=prefer))
    except VitConvertError as error:
        return error.fact


def _check_places(container: Container) -> None:
    for name, place in container.places.items():
        read = container.read(name)
        assert not read.requires_grad and read.data_ptr() % read.element_size() == 0
        assert read.stride() == place.strides or 0 in read.shape
        if read.numel():
            with place.path.open("rb") as file:
                file.seek(place.offset)
                assert list(file.read(read.element_size())) == _raw(read.reshape(-1)[:1])


def _state_dict() -> OrderedDict[str, torch.Tensor]:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    return model.state_dict(keep_vars=True)  # with _metadata, and a tensor of no axes


def test_a_state_dict_is_read_where_it_lies(tmp_path):
    state_dict = _state_dict()
    torch.save(state_dict, tmp_path / "x.pth")
    with open_container(tmp_path / "x.pth") as container:
        assert list(container.places) == list(state_dict)
        _check_places(container)
        assert all(torch.equal(container.read(name), t) for name, t in state_dict.items())


def test_names_on_one_storage_read_the_same_memory(tmp_path):
    torch.save({"a": _SHARED, "b": _SHARED[1:]}, tmp_path / "x.pth")
    container = open_container(tmp_path / "x.pth")
    container.read("a").zero_()
    assert not container.read("b").any()


class _Subclass(torch.Tensor):
    pass


def _with_an_attribute() -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(2))
    parameter.note = "kept by nn.Parameter"
    return parameter


@pytest.mark.parametrize(
    ("note", "told"),
    [
        (bytearray(b"ab"), "bytearray"),
        (1j, "complex"),
        (Counter("aab"), {"a": 2, "b": 1}),
        (torch.ones(2, dtype=torch.complex128), "Tensor"),
        (torch.eye(2).to_sparse(), "Tensor"),
        (torch.ones(2, device="meta"), "Tensor"),
        (torch.ones(2, dtype=torch.complex64).conj(), "Tensor"),
        (_with_an_attribute(), "Tensor"),
    ],
)
def test_odd_values_beside_the_weights_are_told(tmp_path, note, told):
    torch.save({"model": {"w": torch.randn(2)}, "beside": note}, tmp_path / "x.pth")
    assert open_container(tmp_path / "x.pth").extras == {"beside": told}


def test_a_subclass_of_a_tensor_is_refused_by_name(tmp_path):
    torch.save({"w": torch.ones(2).as_subclass(_Subclass)}, tmp_path / "x.pth")
    with pytest.raises(UnsafeFile) as error:
        open_container(tmp_path / "x.pth")
    assert error.value.evidence["classes"] == f"{_Subclass.__module__}._Subclass"


def test_a_parameter_with_an_attribute_is_a_weight(tmp_path):
    torch.save({"w": _with_an_attribute()}, tmp_path / "x.pth")
    assert open_container(tmp_path / "x.pth").read("w").tolist() == [1, 1]


def _changed(**records: bytes) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """What changes records of an archive."""
    return lambda m: {name: records.get(name.rpartition("/")[2], data) for name, data in m.items()}


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({}, None),
        ({"version": b"2\n"}, None),
        ({"byteorder": b"big"}, "The numbers of this archive are big-endian"),
        ({"byteorder": b"odd"}, "The numbers of this archive are big-endian"),
        ({"version": b"99\n"}, "The archive has no data.pkl and no version that torch reads"),
    ],
)
def test_an_archive_out_of_the_ordinary(tmp_path, changes, fact):
    path = tmp_path / "x.pth"
    torch.save(_state_dict(), path)
    expected = _outcome(path)
    rewritten(path, change=_changed(**changes), aligned=True)
    outcome = _outcome(path)
    assert outcome == expected if fact is None else str(outcome).startswith(fact)


def test_a_changed_pickle_is_read_as_torch_reads_it_or_refused(tmp_path):
    checkpoint = {
        "model": {"a": _SHARED, "b": nn.Parameter(_SHARED.t()), "c": _numbers("uint16", (3,), 0)},
        "note": [{1, 2}, 0.5],
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
        try:
            container = open_container(path)
        except VitConvertError:
            continue
        read += 1
        level: Any = torch.load(path, "cpu", weights_only=True)
        for key in container.wrapper:
            level = level[key]
        found = {name: _raw(container.read(name)) for name in container.manifest}
        assert found == {name: _raw(tensor) for name, tensor in _flat(level).items()}
    assert read > 50


def _pickled(path: Path, data: bytes) -> Path:
    """A checkpoint with this pickle."""
    torch.save({"a": torch.ones(1)}, path)
    rewritten(path, change=_changed(**{"data.pkl": data}), aligned=True)
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
        b"\x80\x02}q\0(X\1\0\0\0ah\0u.",  # a dictionary in itself
        b"\x80\x02" + b"}]s.",
        b"",
    ],
)
def test_a_hostile_pickle_is_refused(tmp_path, data):
    with pytest.raises((CorruptFile, UnsafeFile)):
        open_container(_pickled(tmp_path / "x.pth", data))


# An enumeration of torchao as Python 3.11.0 to 3.11.3 pickles its members; others pickle the value.
MEMBER = (
    b"c__builtin__\ngetattr\nctorchao.quantization.quant_primitives\nMappingType\n"
    + text(b"SYMMETRIC")
    + b"\x86R"
)
TENSOR = tensor((1,), length=1)
QUANTISED = (
    b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
    b"ctorchao.quantization\nInt8Tensor\n(Nctorch\nfloat32\nt}(" + text(b"qdata") + TENSOR
    + text(b"mapping_type") + MEMBER + text(b"bits") + b"K\x08" + text(b"zero") + b"NutR"
)  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
def test_members_of_torchaos_enumerations_are_described(tmp_path, legacy):
    data = b"\x80\x02}(" + text(b"b") + TENSOR + text(b"w") + QUANTISED
    data += text(b"note") + MEMBER + b"u."
    path = tmp_path / "x.pth"
    if legacy:
        torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
        facts, numbers = path.read_bytes().split(b"\x80\x02}q\x00X\1\0\0\0a", 1)
        path.write_bytes(facts + data + b"\x80\x02](" + text(b"0") + b"e." + numbers[-12:])
    else:
        _pickled(path, data)
    with open_container(path) as container:
        assert container.read("w.qdata").tolist() == [1]
        assert container.extras["note"] == "MappingType"
        assert json.loads(str(container.extras["w.torchao"])) == {
            "_type": "Int8Tensor",
            "_data": {"mapping_type": "MappingType", "bits": 8, "zero": None, "dtype": "float32"},
        }


@pytest.mark.parametrize(
    "owner", [b"cos\nsystem\n", b"cbuiltins\nint\n", b"ctorch\nfloat32\n", b"X\1\0\0\0a"]
)
def test_error_an_attribute_of_anything_else(tmp_path, owner):
    data = b"\x80\x02}(" + text(b"w") + TENSOR + text(b"a") + MEMBER.replace(
        b"ctorchao.quantization.quant_primitives\nMappingType\n", owner
    ) + b"u."  # fmt: skip
    with pytest.raises(UnsafeFile) as error:
        open_container(_pickled(tmp_path / "x.pth", data))
    assert "builtins.getattr" in error.value.evidence["classes"]
