"""Writing: round trips, agreement with other readers, determinism, and no debris."""

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitconvert.errors import UsageError
from vitconvert.formats import (
    Content,
    content_of,
    gguf,
    hdf5,
    msgpack,
    open_container,
    write_safetensors,
)
from vitconvert.formats import safetensors as safetensors_module
from vitconvert.formats.container import ITEM_SIZE
from vitconvert.formats.npz import DTYPES as NPZ_DTYPES
from vitconvert.formats.npz import write_file as write_npz
from vitconvert.formats.torch.writing import write_file as write_torch

Write = Callable[[Path, Mapping[str, torch.Tensor]], str]
SORTED = [write_safetensors, write_npz, gguf.write_file, hdf5.write_hdf5, msgpack.write_file]
every_writer = pytest.mark.parametrize("write", [*SORTED, write_torch])
of_any_name = pytest.mark.parametrize("write", [write_safetensors, write_npz, write_torch])


def _random(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    size = int(np.prod(shape)) * ITEM_SIZE[dtype]
    data = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed))
    if dtype == "bool":
        return (data % 2 == 0).reshape(shape)
    raw = data.to(torch.uint8)
    wanted: torch.dtype = getattr(torch, dtype)
    return raw.view(wanted).reshape(shape) if size else torch.empty(shape, dtype=wanted)


def _raw(tensor: torch.Tensor) -> bytes:
    """The bytes of the elements: NaNs of random bits equal themselves only so."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@every_writer
def test_each_chunk_is_good_until_the_next(write, tmp_path):
    """As those are that come from another file, of more than 1 MiB, through one buffer."""
    tensor = torch.randn(70, 33)
    data = tensor.numpy().tobytes()

    def chunks():
        buffer = memoryview(bytearray(64))
        for begin in range(0, len(data), 64):
            part = data[begin : begin + 64]
            buffer[: len(part)] = part
            yield buffer[: len(part)]

    write(tmp_path / "x", {"a.b": Content(info=content_of("a.b", tensor).info, chunks=chunks)})
    with open_container(tmp_path / "x") as container:
        assert torch.equal(container.read("a.b"), tensor)


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
).filter("__metadata__".__ne__)  # which safetensors cannot hold
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors_of = {
    write_safetensors: sorted(ITEM_SIZE),
    write_npz: sorted(NPZ_DTYPES.values()),
    write_torch: sorted(ITEM_SIZE),
}


@of_any_name
@settings(max_examples=60)
@given(data=st.data())
def test_round_trip(write, data):
    specification = data.draw(
        st.dictionaries(
            names | st.sampled_from(["../../x", "/etc/passwd", "a.npy", "π/µ", "a\\b"]),
            st.tuples(st.sampled_from(tensors_of[write]), shapes, st.integers(0, 99)),
            min_size=1,
            max_size=5,
        )
    )
    tensors = {name: _random(*drawn) for name, drawn in specification.items()}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "weights"
        write(path, tensors)
        with open_container(path) as container:
            assert container.manifest.keys() == tensors.keys()
            for name, tensor in tensors.items():
                read = container.read(name)
                assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
                assert _raw(read) == _raw(tensor)
        assert [entry.name for entry in Path(directory).iterdir()] == ["weights"]


@every_writer
def test_tensors_are_views_that_outlive_their_container_and_spare_the_file(tmp_path, write):
    path = tmp_path / "x"
    wanted = torch.randn(2**18 + 1)  # of an npz, smaller arrays are compared with their checksum
    write(path, {"a": torch.randn(3), "b": wanted})
    before = path.read_bytes()
    with open_container(path) as container:
        first, read = container.read("b"), container.read("b")
    assert torch.equal(read, wanted) and read.data_ptr() % read.element_size() == 0
    first.zero_()
    assert not read.any() or write is msgpack.write_file  # which aligns nothing: read is a copy
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="closed container"):
        container.read("b")


def test_safetensors_are_byte_for_byte_those_of_the_library(tmp_path):
    tensors = {"b.w": torch.randn(3, 5), "a": torch.randn(7).half(), "é": torch.tensor(3.0)}
    tensors["step"] = torch.tensor(7)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    write_safetensors(tmp_path / "ours", tensors, metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_library_reads_our_safetensors(tmp_path):
    tensors = {dtype: _random(dtype, (3, 1), 5) for dtype in ITEM_SIZE}
    write_safetensors(tmp_path / "x", tensors)
    read = safetensors.torch.load_file(tmp_path / "x")
    assert {name: (t.dtype, _raw(t)) for name, t in read.items()} == {
        name: (t.dtype, _raw(t)) for name, t in tensors.items()
    }


def test_arrays_of_an_npz_are_numpys_own_and_can_be_mapped(tmp_path):
    dtypes = [dtype for dtype in tensors_of[write_npz] if dtype != "bfloat16"]
    tensors = {f"é{dtype}": _random(dtype, (3, 5), 0) for dtype in dtypes}
    bf16 = torch.randn(3).to(torch.bfloat16)
    write_npz(tmp_path / "x.npz", {**tensors, "bf16": bf16})
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["bf16"].dtype == np.dtype("V2")
        assert arrays["bf16"].tobytes() == _raw(bf16)
    with (
        open_container(tmp_path / "x.npz") as container,
        zipfile.ZipFile(container.path) as archive,
    ):
        for name, tensor in tensors.items():
            wanted = io.BytesIO()
            np.lib.format.write_array(wanted, tensor.numpy(), version=(1, 0))
            assert archive.read(f"{name}.npy") == wanted.getvalue()
            assert container.places[name].offset % 64 == 0


def test_torch_reads_our_checkpoint_and_a_view_does_not_bring_its_whole_storage(tmp_path):
    big = torch.randn(10_000, 3)
    parameter = torch.nn.Parameter(torch.randn(2))
    write_torch(tmp_path / "x.pth", {"w": big[5:7], "t": big[:2].t(), "p": parameter})
    read = torch.load(tmp_path / "x.pth", weights_only=True)
    assert torch.equal(read["w"], big[5:7])
    assert torch.equal(read["t"], big[:2].t())
    assert (tmp_path / "x.pth").stat().st_size < 5_000
    assert type(read["p"]) is torch.Tensor


@every_writer
def test_one_element_of_a_column_is_written(tmp_path, write):
    column = torch.arange(6.0).view(2, 3)[1:, 2]
    write(tmp_path / "x", {"a": column, "b": torch.ones(()).expand(1)})
    container = open_container(tmp_path / "x")
    assert (container.read("a").tolist(), container.read("b").tolist()) == ([5], [1])


@pytest.mark.parametrize("write", SORTED)
def test_the_same_tensors_give_the_same_bytes_in_any_order(tmp_path, write):
    tensors = {"b": torch.randn(3), "a": torch.randn(2, 5), "c": torch.tensor(1)}
    write(tmp_path / "x", tensors)
    write(tmp_path / "y", {name: tensors[name].clone() for name in reversed(tensors)})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


@every_writer
@pytest.mark.posix
def test_a_full_disk_leaves_nothing(tmp_path, write):
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises((OSError, RuntimeError)):
            write(tmp_path / "x", {"a": torch.randn(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


@every_writer
@pytest.mark.parametrize(
    ("tensors", "fact"),
    [
        ({3: torch.ones(1)}, "A tensor has a name that is not text."),
        ({"\ud800": torch.ones(1)}, "A tensor has a name that is not valid Unicode."),
        ({"a": torch.ones(1, dtype=torch.complex128)}, "'a' has a dtype that"),
        ({"a": torch.ones(1, device="meta")}, "'a' has no plain numbers to write"),
        ({"a": torch.eye(3).to_sparse()}, "'a' has no plain numbers to write"),
    ],
)
def test_what_cannot_be_written(tmp_path, write, tensors, fact):
    with pytest.raises(UsageError) as error:
        write(tmp_path / "x", tensors)
    assert error.value.fact.startswith(fact)
    assert list(tmp_path.iterdir()) == []


def test_what_one_format_cannot_hold(tmp_path):
    one = torch.ones(1)
    for name in ("a\0b", "a" * 65_532):
        with pytest.raises(UsageError, match="name that npz cannot hold"):
            write_npz(tmp_path / "x", {name: one})
    with pytest.raises(UsageError, match="dtype that is not written to npz files"):
        write_npz(tmp_path / "x", {"a": one.to(torch.float8_e5m2)})
    with pytest.raises(UsageError, match="__metadata__"):
        write_safetensors(tmp_path / "x", {"__metadata__": one})
    with pytest.raises(UsageError, match="text to text"):
        write_safetensors(tmp_path / "x", {"a": one}, metadata={"epoch": 3})


def test_a_header_that_readers_would_refuse(tmp_path, monkeypatch):
    write_safetensors(tmp_path / "x", {"a": torch.ones(1)})
    header = (tmp_path / "x").read_bytes()[8:-4].rstrip()
    monkeypatch.setattr(safetensors_module, "LONGEST_HEADER", len(header))
    write_safetensors(tmp_path / "x", {"a": torch.ones(1)})
    with pytest.raises(UsageError, match="do not fit a safetensors header"):
        write_safetensors(tmp_path / "y", {"aa": torch.ones(1)})
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@every_writer
def test_the_hash_that_is_told_is_of_the_file(tmp_path, write):
    tensors = {"large": torch.randn(1200, 1000), "small": torch.ones(3), "empty": torch.ones(0, 2)}
    told = write(tmp_path / "x", tensors)
    assert told == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()
