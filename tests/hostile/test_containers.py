"""Files of weights that a stranger made: one case of each kind and format, and no more memory."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from tests.formats.made import number, tensor, text
from tests.hostile.harness import Answer, call_limited, run_limited
from tests.hostile.mutations import archived
from vitconvert.errors import CorruptFile
from vitconvert.formats import open_container
from vitconvert.formats.torch.pickle_reader import PickleReader

CORRUPT, UNSAFE, SOURCE = "corrupt-file", "unsafe-file", "source-not-found"


def read_all(path: Path) -> None:
    """Read every tensor of a file."""
    with open_container(path) as container:
        for name in container.manifest:
            container.read(name).sum()


def check(answer: Answer, word: str) -> None:
    """The answer is a message with this word and its exit code, and it came at once."""
    assert "Traceback" not in answer.err, answer.err
    assert answer.err.startswith(f"error: {word}\n"), answer
    assert answer.code == (4 if word == UNSAFE else 1)
    assert len(answer.err) < 10_000
    answer.err.encode()


def check_read(answer: Answer) -> None:
    assert answer.code == 0, answer
    assert not answer.err


def refused(path: Path, word: str) -> None:
    """It is not opened."""
    check(run_limited("inspect", path), word)


# HDF5.


def test_an_array_of_hdf5_that_is_larger_than_the_file(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.ones((2, 3), "f4")
    data, shape = (tmp_path / "x.h5").read_bytes(), struct.pack("<2Q", 2, 3)
    assert shape in data
    far = struct.pack("<2Q", 2**20, 2**20)
    (tmp_path / "x.h5").write_bytes(data.replace(shape, far))
    refused(tmp_path / "x.h5", CORRUPT)


# Zip archives.


def torch_zip(path: Path, data_pkl: bytes, **records: bytes) -> Path:
    """An archive as torch.save writes it, with this pickle and these storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data_pkl)
        archive.writestr("x/version", b"3\n")
        for key, data in records.items():
            archive.writestr(f"x/data/{key.removeprefix('s')}", data)
    return path


def saved(path: Path) -> bytearray:
    """What torch.save makes of two tensors."""
    torch.save({"a": torch.arange(6.0), "b": torch.arange(6.0, 20.0)}, path)
    return bytearray(path.read_bytes())


def savez(path: Path) -> bytearray:
    np.savez(path, a=np.arange(6.0), b=np.arange(9, dtype="f4"))
    return bytearray(path.read_bytes())


METHOD, FLAGS, CRC, PACKED = (10, "<H"), (8, "<H"), (16, "<I"), (20, "<I")
PLACE = (42, "<I")


def entry(data: bytearray, number: int, signature: bytes = b"PK\1\2") -> int:
    """Where the description of a member begins, in the directory or before its bytes."""
    at = -1
    for _ in range(number + 1):
        at = data.index(signature, at + 1)
    return at


def names_of(data: bytearray) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def directory(field: tuple[int, str], value: int, flip: bool = False) -> Callable[..., bytearray]:
    """Another number in what the directory says of the last member that holds numbers."""

    def change(data: bytearray) -> bytearray:
        names = enumerate(names_of(data))
        last = max(i for i, name in names if "/data/" in name or name.endswith(".npy"))
        place = entry(data, last) + field[0]
        before = struct.unpack_from(field[1], data, place)[0] if flip else 0
        struct.pack_into(field[1], data, place, before ^ value)
        return data

    return change


def again(data: bytearray) -> bytearray:
    """A plain archive of the same members, the last of them twice."""
    with zipfile.ZipFile(io.BytesIO(data)) as read:
        members = [(name, read.read(name)) for name in read.namelist()]
    return bytearray(archived([*members, members[-1]]))


LIES: dict[str, Callable[[bytearray], bytearray]] = {
    "deflated": directory(METHOD, 8),
    "a method that is none": directory(METHOD, 99),
    "encrypted": directory(FLAGS, 1, flip=True),
    "packed into 4 bytes": directory(PACKED, 4),
    "at the beginning": directory(PLACE, 0),
    "one name twice": again,
    "bytes before": lambda data: b"PK\3\4 and more" + data,
    "bytes behind": lambda data: data + b"more",
}


@pytest.mark.parametrize("archive", [saved, savez])
@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies(tmp_path, archive, lie):
    path = tmp_path / "x.npz"
    path.write_bytes(LIES[lie](archive(tmp_path / "y.npz")))
    with pytest.raises(CorruptFile):
        read_all(path)


def test_members_of_torch_whose_names_differ_in_capitals(tmp_path):
    torch_zip(tmp_path / "x.pt", state(tensor(key=b"a")), sa=bytes(16), sA=bytes(16))
    refused(tmp_path / "x.pt", CORRUPT)


def test_an_archive_with_two_directories(tmp_path):
    """zipfile takes the one before the end; others the one that the end points to."""
    data = saved(tmp_path / "x.pt")
    other = bytes(data[data.index(b"PK\1\2") : data.index(b"PK\6\6")])
    locator = data.index(b"PK\6\7")
    record = bytes(data[locator - 56 : locator])
    begin = data.index(b"PK\1\2")
    hidden = other + record[:48] + struct.pack("<Q", begin) + data[locator:]
    moved = bytearray(data[:begin] + hidden[: len(other) + 56] + data[begin:])
    at = moved.rindex(b"PK\6\6")
    struct.pack_into("<Q", moved, at + 48, begin + len(other) + 56)
    struct.pack_into("<Q", moved, moved.rindex(b"PK\6\7") + 8, begin + len(other))
    (tmp_path / "x.pt").write_bytes(moved)
    refused(tmp_path / "x.pt", CORRUPT)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_array_with_a_wrong_checksum(tmp_path, save):
    path = tmp_path / "x.npz"
    save(path, a=np.arange(300, dtype="f4"))
    data = bytearray(path.read_bytes())
    crc = struct.unpack_from("<I", data, entry(data, 0) + CRC[0])[0]
    for at in (entry(data, 0) + 16, entry(data, 0, b"PK\3\4") + 14):
        struct.pack_into("<I", data, at, crc ^ 1)
    path.write_bytes(data)
    with pytest.raises(zipfile.BadZipFile):
        dict(np.load(path))
    check(call_limited(read_all, path), CORRUPT)


def test_a_pickle_with_a_wrong_checksum(tmp_path):
    data = saved(tmp_path / "x.pt")
    data[data.index(b"X\1\0\0\0a") + 5] = ord("c")  # another name of a tensor
    (tmp_path / "x.pt").write_bytes(data)
    refused(tmp_path / "x.pt", CORRUPT)


# Pickles.


def state(value: bytes, *, beside: bytes = b"", name: bytes = b"a") -> bytes:
    """The pickle of a state dict with one tensor, and what lies beside it."""
    return b"\x80\2}" + beside + text(name) + value + b"s."


def legacy(path: Path, data_pkl: bytes, storages: bytes, keys: list[str] | None = None) -> Path:
    """A file as torch.save wrote before 1.6."""
    facts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    head = b"".join(pickle.dumps(fact, 2) for fact in facts)
    keys = ["0"] if keys is None else keys
    path.write_bytes(head + data_pkl + pickle.dumps(keys, 2) + storages)
    return path


STORAGE = struct.pack("<q", 4) + bytes(16)


def in_both_formats(tmp_path: Path, pickled: Callable[[bytes], bytes]) -> list[Path]:
    return [
        torch_zip(tmp_path / "zip.pt", pickled(b""), s0=bytes(16)),
        legacy(tmp_path / "legacy.pt", pickled(b"N"), STORAGE),
    ]


def test_the_pickles_of_these_tests_are_as_torch_writes(tmp_path):
    for path in in_both_formats(tmp_path, lambda more: state(tensor(more=more))):
        check_read(call_limited(read_all, path))
        assert torch.load(path, weights_only=True)["a"].tolist() == [0] * 4


def beside(value: bytes) -> Callable[[bytes], bytes]:
    """A pickle with a tensor, and with a value under another key."""
    return lambda more: state(tensor(more=more), beside=text(b"note") + value + b"s")


MOST = 100_000  # opcodes in these tests; the true limit takes seconds
DOUBLING = b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(1, 100))

PICKLES: dict[str, tuple[Callable[[bytes], bytes], str | None]] = {
    # nothing of these is hashed or made, so they are read, and their kind is told
    "a list in itself": (beside(b"]q\1h\1a"), None),
    "two gigabytes of zeros": (
        beside(b"cbuiltins\nbytearray\n" + number(2**31) + b"\x85R"),
        None,
    ),
    "lists that double": (beside(b"(]q\1" + DOUBLING + b"t"), None),
    # these cannot be
    "tuples that double as a key": (
        lambda more: b"\x80\2})" + b"q\1h\1\x86" * 60 + b"Ns.",
        CORRUPT,
    ),
    "a tensor as a key": (lambda more: b"\x80\2}" + tensor(more=more) + b"Ns.", CORRUPT),
    "more values than are read": (beside(b"]" + b"Na" * MOST), CORRUPT),
    "a text of four gigabytes": (lambda more: b"\x80\2X\xff\xff\xff\xffa.", CORRUPT),
    "an integer of two hundred digits": (
        lambda more: state(tensor(shape=(2**600,), more=more)),
        CORRUPT,
    ),
    "a storage described in two ways": (
        lambda more: b"\x80\2}" + text(b"a") + tensor(more=more) + b"s" + text(b"b")
        + tensor(kind=b"IntStorage", more=more) + b"s.",
        CORRUPT,
    ),
    "a storage of negative length": (lambda more: state(tensor(length=-4, more=more)), CORRUPT),
    "a storage longer than its record": (
        lambda more: state(tensor(length=400, shape=(400,), more=more)),
        CORRUPT,
    ),
    "a storage shorter than its record": (
        lambda more: state(tensor(length=3, shape=(3,), more=more)),
        CORRUPT,
    ),
    "a storage that is not there": (lambda more: state(tensor(key=b"7", more=more)), CORRUPT),
    "a tensor beyond its storage": (lambda more: state(tensor(offset=1, more=more)), CORRUPT),
    "a tensor before its storage": (
        lambda more: state(tensor(strides=(-1,), offset=3, more=more)),
        CORRUPT,
    ),
    "a terabyte of one number": (
        lambda more: state(tensor(shape=(2**38,), strides=(0,), more=more)),
        UNSAFE,
    ),
    "a call of a function": (
        lambda more: state(b"cos\nsystem\n" + text(b"true") + b"\x85R"),
        UNSAFE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PICKLES)
def test_pickles(tmp_path, case, monkeypatch):
    monkeypatch.setattr(PickleReader, "most_opcodes", MOST)
    pickled, word = PICKLES[case]
    for path in in_both_formats(tmp_path, pickled):
        answer = call_limited(read_all, path)
        if word is None:
            check_read(answer)
        else:
            check(answer, word)


def test_a_legacy_file_without_its_storages_is_truncated(tmp_path):
    path = legacy(tmp_path / "x.pt", state(tensor(more=b"N")), b"", keys=[])
    check(call_limited(read_all, path), CORRUPT)
    for storages in (STORAGE[:-1], struct.pack("<q", 5) + bytes(20)):
        path = legacy(tmp_path / "x.pt", state(tensor(more=b"N")), storages)
        refused(path, CORRUPT)


def test_a_legacy_file_that_gives_a_storage_twice(tmp_path):
    path = legacy(tmp_path / "x.pt", state(tensor(more=b"N")), 2 * STORAGE, keys=["0", "0"])
    refused(path, CORRUPT)


# npz.


def npy(header: str, data: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (2, 3)])
def test_arrays_in_fortran_order_of_every_rank(tmp_path, shape):
    array = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape, order="F")
    header = f"{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}}}"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", npy(header, array.tobytes("F")))
    assert np.load(tmp_path / "x.npz")["a"].shape == shape
    assert np.array_equal(open_container(tmp_path / "x.npz").read("a").numpy(), array)


# safetensors.


def st_file(path: Path, header: bytes | dict[str, object], data: bytes = b"") -> Path:
    text_ = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text_)) + text_ + data)
    return path


F4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


# An index of shards.


def index(tmp_path: Path, text_: bytes) -> Path:
    st_file(tmp_path / "shard.safetensors", {"a": F4}, bytes(4))
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(text_)
    return path


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'{"weight_map":' + b"[" * 10**6, CORRUPT),
        (b'{"weight_map":{"a":"x\\u0000y"}}', SOURCE),
        (b'{"weight_map":{"a":"/dev/zero"}}', UNSAFE),
        (b'{"weight_map":{"a":"../shard.safetensors"}}', UNSAFE),
        (b'{"weight_map":{"a":"shard.safetensors","b":"shard.safetensors"}}', CORRUPT),
        (b'{"weight_map":{"a":"shard.safetensors","a":"shard.safetensors"}}', CORRUPT),
        (b'{"weight_map":{"a":"\\ud800"', CORRUPT),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_an_index(tmp_path, content, word):
    refused(index(tmp_path, content), word)


def test_tensors_with_steps_are_compared(tmp_path):
    torch.save({"a": torch.arange(10.0)[::2]}, tmp_path / "a.pth")
    torch.save({"a": torch.arange(0.0, 10.0, 2)}, tmp_path / "b.pth")
    answer = run_limited("diff", tmp_path / "a.pth", tmp_path / "b.pth")
    assert answer.code == 0, answer
    torch.save({"a": torch.arange(10.0)[1::2]}, tmp_path / "b.pth")
    assert run_limited("diff", tmp_path / "a.pth", tmp_path / "b.pth").code == 3
