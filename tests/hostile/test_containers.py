"""Hostile files of weights, one of each kind: a message and an exit code, in 10 s and 1 GiB.

Each case is made in a few lines. Other bytes than a file holds are the worst that could come of
one, so what can be read at all is compared with an independent reader.
"""

import io
import json
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.formats.made import number, tensor, text
from tests.hostile.harness import Answer, call_limited, run_limited
from tests.hostile.mutations import archived
from tests.sampling import sampled
from vitconvert.errors import VitConvertError
from vitconvert.formats import open_container
from vitconvert.formats.torch.pickle_reader import PickleReader

CORRUPT, UNSAFE, SOURCE = "corrupt-file", "unsafe-file", "source-not-found"
GIB = 2**30


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


def in_chunks(path: Path, **options: Any) -> tuple[bytearray, int]:
    """A file with an array in three chunks, and where the tree of them lies."""
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.arange(9.0), chunks=(3,), **options)
    data = bytearray(path.read_bytes())
    return data, data.index(b"TREE\1\0")


ENTRY = 32  # bytes of one in that tree: size, filters, two offsets, address


@pytest.mark.parametrize(
    ("at", "number", "width"),
    [
        (5, 1, 1),  # children that are no nodes
        (6, 65535, 2),  # more of them than there are bytes
        (6, 2, 2),
        (24, 2**32 - 1, 4),  # the size of a chunk
        (24, 23, 4),
        (32, 3, 8),  # two chunks in one place
        (32, 1, 8),
        (48, 2**63, 8),
    ],
)
def test_chunks_of_hdf5_that_are_elsewhere(tmp_path, at, number, width):
    data, tree = in_chunks(tmp_path / "x.h5")
    data[tree + at : tree + at + width] = number.to_bytes(width, "little")
    (tmp_path / "x.h5").write_bytes(data)
    check(call_limited(read_all, tmp_path / "x.h5"), CORRUPT)


def test_chunks_of_hdf5_over_each_other(tmp_path):
    """In a circle, they crash HDF5's library (2.0)."""
    data, tree = in_chunks(tmp_path / "x.h5")
    first = data[tree + 48 : tree + 56]
    for entry in range(3):
        place = tree + 24 + ENTRY * entry + 24
        data[place : place + 8] = first
    (tmp_path / "x.h5").write_bytes(data)
    refused(tmp_path / "x.h5", CORRUPT)


def test_a_chunk_of_hdf5_that_is_shorter_than_it_says(tmp_path):
    """For what it lacks, HDF5's library (2.0) gives memory of the process."""
    for mask, data in ((1, bytes(12)), (0, zlib.compress(bytes(12)))):
        with h5py.File(tmp_path / f"{mask}", "w") as file:
            array = file.create_dataset("a", (9,), "f4", chunks=(9,), compression="gzip")
            array.id.write_direct_chunk((0,), data, filter_mask=mask)
        check(call_limited(read_all, tmp_path / f"{mask}"), CORRUPT)


def test_a_chunk_of_hdf5_that_inflates_to_more_than_it_says(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("a", (2**18,), "f4", chunks=(2**18,), compression="gzip")
        data.id.write_direct_chunk((0,), zlib.compress(bytes(2**27), 9))
    answer = call_limited(read_all, tmp_path / "x.h5")
    check(answer, CORRUPT)
    assert answer.peak_mib < 32


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


METHOD, FLAGS, CRC, PACKED, SIZE = (10, "<H"), (8, "<H"), (16, "<I"), (20, "<I"), (24, "<I")
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


def all_deflated(data: bytearray) -> bytearray:
    for place in range(len(names_of(data))):
        struct.pack_into("<H", data, entry(data, place) + METHOD[0], 8)
    return data


def before_its_bytes(place: int, value: int) -> Callable[..., bytearray]:
    """Another byte in what stands before a member."""

    def change(data: bytearray) -> bytearray:
        at = entry(data, 1, b"PK\3\4") + place
        data[at] = value if data[at] != value else 0
        return data

    return change


def again(data: bytearray, more: int = 1) -> bytearray:
    """A plain archive of the same members, the last of them `more` times more."""
    with zipfile.ZipFile(io.BytesIO(data)) as read:
        members = [(name, read.read(name)) for name in read.namelist()]
    return bytearray(archived([*members, *members[-1:] * more]))


def counted(place: int, count: int | None) -> Callable[..., bytearray]:
    """An end with another number of members; None is one too many.

    65,535 stands for a number that a record before the end has; there is none.
    """

    def change(data: bytearray) -> bytearray:
        plain = again(data, 0)
        assert b"PK\6\6" not in plain
        at = plain.rindex(b"PK\5\6") + place
        number = len(names_of(plain)) + 1 if count is None else count
        plain[at : at + 2] = number.to_bytes(2, "little")
        return plain

    return change


LIES: dict[str, Callable[[bytearray], bytearray]] = {
    "deflated": directory(METHOD, 8),
    "a method that is none": directory(METHOD, 99),
    "encrypted": directory(FLAGS, 1, flip=True),
    "another encoding": directory(FLAGS, 0x800, flip=True),
    "packed into 4 bytes": directory(PACKED, 4),
    "4 bytes": directory(SIZE, 4),
    "at the beginning": directory(PLACE, 0),
    "all deflated": all_deflated,
    "other flags before": before_its_bytes(6, 8),
    "another method before": before_its_bytes(8, 8),
    "another name before": before_its_bytes(30, 0x41),
    "one name twice": again,
    **{f"{count} at {place}": counted(place, count)
       for count in (2**16 - 1, 0, None) for place in (8, 10)},
    "bytes before": lambda data: b"PK\3\4 and more" + data,
    "bytes behind": lambda data: data + b"more",
}  # fmt: skip


@pytest.mark.parametrize("archive", [saved, savez])
@pytest.mark.parametrize("lie", sampled(LIES, 5, "slow"))
def test_an_archive_that_lies(tmp_path, archive, lie):
    (tmp_path / "x.npz").write_bytes(LIES[lie](archive(tmp_path / "y.npz")))
    refused(tmp_path / "x.npz", CORRUPT)


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
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_an_array_with_a_wrong_checksum(tmp_path, save, dtype):
    path = tmp_path / "x.npz"
    save(path, a=np.arange(300, dtype=dtype))
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


def as_set(value: bytes) -> bytes:
    return b"cbuiltins\nset\n]" + value + b"a\x85R"


DEEP = 90_000  # Python's own recursion, in C, ends in a crash before that
MOST = 100_000  # opcodes in these tests; the true limit takes seconds
DOUBLING = b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(1, 100))
COLLIDING = [pickle.dumps((2**61 - 1) * k, 2)[2:-1] for k in range(2**10, 2**10 + 40_000)]

PICKLES: dict[str, tuple[Callable[[bytes], bytes], str | None]] = {
    # nothing of these is hashed or made, so they are read, and their kind is told
    "tuples nested deeply in a set": (beside(as_set(b")" + b"\x85" * DEEP)), None),
    "tuples that double in a set": (beside(as_set(b")" + b"q\1h\1\x86" * 60)), None),
    "sets nested deeply": (
        beside(b"cbuiltins\nset\n(]" * 5_000 + b"N" + b"atR" * 5_000),
        None,
    ),
    "lists nested deeply": (beside(b"]" * 10_000 + b"a" * 9_999), None),
    "a list in itself": (beside(b"]q\1h\1a"), None),
    "two gigabytes of zeros": (
        beside(b"cbuiltins\nbytearray\n" + number(2 * GIB) + b"\x85R"),
        None,
    ),
    "a megabyte of bytes, again and again": (
        beside(
            text(b"a" * 2**20) + b"q\1]("
            + (b"c_codecs\nencode\nh\1" + text(b"latin1") + b"\x86R") * 1500 + b"e\x86"
        ),
        None,
    ),
    "a long size, again and again": (
        beside(
            b"(" + b"N" * 80_000 + b"tq\1](" + b"ctorch\nSize\nh\1\x85R" * 4_000 + b"e\x86"
        ),
        None,
    ),
    "lists that double": (beside(b"(]q\1" + DOUBLING + b"t"), None),
    # walked through and counted once, and not for each of the lists around
    "many lists around one": (
        beside(b"(](" + b"]" * 30_000 + b"eq\1" + b"]h\1a" * 10**4 + b"t"),
        None,
    ),
    "many lists around tensors": (
        lambda more: beside(
            b"(](" + tensor(more=more) + b"q\2" + b"h\2" * 30_000 + b"eq\1"
            + b"]h\1a" * 10**4 + b"t"
        )(more),
        None,
    ),
    # these cannot be
    "tuples nested deeply as a key": (lambda more: b"\x80\2})" + b"\x85" * DEEP + b"Ns.", CORRUPT),
    "tuples that double as a key": (
        lambda more: b"\x80\2})" + b"q\1h\1\x86" * 60 + b"Ns.",
        CORRUPT,
    ),
    "keys with one hash": (beside(b"}(" + b"N".join(COLLIDING) + b"Nu"), CORRUPT),
    "a key of a megabyte": (beside(b"}" + text(b"k" * 2**20) + b"Ns"), CORRUPT),
    "a tensor as a key": (lambda more: b"\x80\2}" + tensor(more=more) + b"Ns.", CORRUPT),
    "dictionaries nested deeply": (
        lambda more: b"\x80\2" + (b"}" + text(b"k")) * 9_999 + tensor(more=more) + b"s" * 9_999
        + b".",
        CORRUPT,
    ),
    "more values than are read": (beside(b"]" + b"Na" * MOST), CORRUPT),
    "a name with half a surrogate": (
        lambda more: state(tensor(more=more), name=b"\xed\xa0\x80"),
        CORRUPT,
    ),
    "a long name in many": (
        lambda more: b"\x80\2}" + text(b"k" * 10_000) + b"}("
        + b"".join(text(b"%d" % i) + b"N" for i in range(30_000)) + b"us"
        + text(b"a") + tensor(more=more) + b"s.",
        CORRUPT,
    ),
    "more marks than are read": (lambda more: b"\x80\2" + b"(" * 10 * MOST, CORRUPT),
    "a text of four gigabytes": (lambda more: b"\x80\2X\xff\xff\xff\xffa.", CORRUPT),
    "an integer of two hundred digits": (
        lambda more: state(tensor(shape=(2**600,), more=more)),
        CORRUPT,
    ),
    "a shape of shapes": (
        lambda more: state(tensor(more=more).replace(b"(" + number(4), b"()" + b"q\1h\1\x86" * 60)),
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
    "a million names of one storage": (
        lambda more: b"\x80\2}" + text(b"a") + tensor(shape=(2**20,), strides=(0,), more=more)
        + b"q\1s(" + b"".join(text(b"%d" % i) + b"h\1" for i in range(100)) + b"u.",
        UNSAFE,
    ),
    "an attribute of an attribute": (
        lambda more: state(
            b"ctorch._tensor\n_rebuild_from_type_v2\nq\1(h\1ctorch\nTensor\n" * 10_000
        ),
        CORRUPT,
    ),
    "a call of a function": (
        lambda more: state(b"cos\nsystem\n" + text(b"true") + b"\x85R"),
        UNSAFE,
    ),
    "a thousand classes": (
        lambda more: b"\x80\2" + b"".join(b"cevil\n%s%d\n" % (b"x" * 200, i) for i in range(1000)),
        UNSAFE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sampled(PICKLES, 5, "slow"))
def test_pickles(tmp_path, case, monkeypatch):
    monkeypatch.setattr(PickleReader, "most_opcodes", MOST)
    pickled, word = PICKLES[case]
    zipped, old = in_both_formats(tmp_path, pickled)
    for answer in (call_limited(read_all, old), run_limited("inspect", zipped)):
        if word is None:
            assert not answer.err, answer
            assert answer.code in (0, 1)  # `inspect` says that this is no ViT
        else:
            check(answer, word)


@pytest.mark.slow
def test_a_pickle_with_more_values_than_memory_ends_in_time(tmp_path):
    refused(torch_zip(tmp_path / "x.pt", b"\x80\2" + b"}" * 10**7, s0=bytes(16)), CORRUPT)


def test_one_text_is_not_told_in_a_million_places(tmp_path):
    notes = b"](" + text(b"word " * 10**5) + b"q\1" + b"h\1" * 10**5 + b"e"
    for path in in_both_formats(tmp_path, beside(notes)):
        answer = call_limited(lambda path: len(str(open_container(path).extras)), path)
        assert int(answer.out) < 2 * 10**6


def test_a_legacy_file_without_its_storages_is_truncated(tmp_path):
    path = legacy(tmp_path / "x.pt", state(tensor(more=b"N")), b"", keys=[])
    check(call_limited(read_all, path), CORRUPT)
    for storages in (b"", STORAGE[:8], STORAGE[:-1], struct.pack("<q", 5) + bytes(20)):
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


@pytest.mark.slow
def test_a_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**26},)}}"
        archive.writestr("a.npy", npy(header, bytes(2**28)))
    refused(tmp_path / "x.npz", UNSAFE)


# safetensors.


def st_file(path: Path, header: bytes | dict[str, object], data: bytes = b"") -> Path:
    text_ = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text_)) + text_ + data)
    return path


F4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
ODD = [
    None, 1, 1.5, True, "F32", "\ud800", [], {}, [None], [[1]], {"a": 1}, -1, 2**63, 2**4000,
    [0, 4, 4], [False, 4], [0.0, 4.0], [-4, 0], ["0", "4"], [2**63, 2**63 + 4],
]  # fmt: skip


@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets", None, "__metadata__"])
def test_a_header_of_other_types(tmp_path, field):
    for number_, value in enumerate(ODD):
        if (field, value) in [("dtype", "F32"), ("shape", []), ("__metadata__", {})]:
            continue
        header: dict[str, object] = {"a": F4 | {field: value}} if field else {"a": value}
        if field == "__metadata__":
            header = {"a": F4, field: value}
        path = st_file(tmp_path / str(number_), header, bytes(4))
        if number_ % 5 == 0:  # the others in this process, for speed
            refused(path, CORRUPT)
        else:
            check(_in_this_process(path), CORRUPT)


def _in_this_process(path: Path) -> Answer:
    with pytest.raises(VitConvertError) as error:
        read_all(path)
    return Answer(error.value.exit_code, "", f"{error.value}\n", 0, 0)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":' + b"[" * 10**6,
        b'{"a":{"dtype":' + b"[" * 900 + b"]" * 900 + b',"shape":[1],"data_offsets":[0,4]}}',
        b'{"a":' + b"9" * 10**6 + b"}",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"a":"\\ud800"}}',
        b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":[' + b"[],[]," * 5 * 10**5 + b"1]}",
        b"{" + b" " * 10**7,
        b"{}" * 2,
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_headers_of_safetensors(tmp_path, header):
    refused(st_file(tmp_path / "x.safetensors", header, bytes(4)), CORRUPT)


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
        (b'{"weight_map":' * 10**5, CORRUPT),
        (b'{"weight_map":{"a":"' + b"x" * 300 + b'"}}', SOURCE),
        (b'{"weight_map":{"a":"x\\u0000y"}}', SOURCE),
        (b'{"weight_map":{"a":"\\ud800"}}', CORRUPT),
        (b'{"weight_map":{"a":"\\ud800"', CORRUPT),
        (b'{"weight_map":{"a":"/dev/zero"}}', UNSAFE),
        (b'{"weight_map":{"a":"fifo"}}', SOURCE),
        (b'{"weight_map":{"a":"."}}', SOURCE),
        (b'{"weight_map":{"a":"shard.safetensors","b":"shard.safetensors"}}', CORRUPT),
        (b'{"weight_map":{"a":"shard.safetensors","a":"shard.safetensors"}}', CORRUPT),
        (b'{"weight_map":{"a":"shard.safetensors"},"x":' + b"9" * 5000 + b"}", CORRUPT),
        (b"{" + b" " * 100, CORRUPT),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_an_index(tmp_path, content, word):
    os.mkfifo(tmp_path / "fifo")
    refused(index(tmp_path, content), word)


def test_an_index_of_eight_gigabytes_of_nothing(tmp_path):
    path = index(tmp_path, b"{")
    os.truncate(path, 8 * GIB)
    refused(path, CORRUPT)
    refused_folder(tmp_path, CORRUPT)


# Files that are none, or change.


def refused_folder(folder: Path, word: str) -> None:
    check(run_limited("inspect", folder), word)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.pth", "model.npz", "pytorch_model.bin"]
)
def test_a_folder_with_nothing_but_holes(tmp_path, name):
    (tmp_path / name).touch()
    refused_folder(tmp_path, CORRUPT)
    os.truncate(tmp_path / name, 8 * GIB)
    refused_folder(tmp_path, CORRUPT)
    check(call_limited(read_all, tmp_path / name), CORRUPT)


@pytest.mark.parametrize("start", ["safetensors", "legacy", "zip"])
def test_eight_gigabytes_of_nothing_after_a_beginning(tmp_path, start):
    path = tmp_path / "model.pth"
    if start == "safetensors":
        st_file(path, {"a": F4}, bytes(4))
    elif start == "zip":
        saved(path)
    else:
        legacy(path, b"\x80\2c", b"")
    os.truncate(path, 8 * GIB)
    refused(path, CORRUPT)


def test_links_that_lead_nowhere_or_to_themselves(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("nowhere")
    (tmp_path / "model.pth").symlink_to("model.pth")
    refused_folder(tmp_path, SOURCE)
    for name in ("model.safetensors", "model.pth"):
        refused(tmp_path / name, SOURCE)


def test_a_folder_that_links_to_itself(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("again", "again.safetensors", "config.json", "vitconvert.json"):
        (folder / name).symlink_to(folder, target_is_directory=True)
    refused_folder(folder, SOURCE)
    saved(folder / "model.pth")
    check(run_limited("verify", folder), SOURCE)  # a config.json that is a folder
    (folder / "config.json").unlink()
    (folder / "vitconvert.json").unlink()
    assert run_limited("inspect", folder).code == 1  # which is no ViT
    asked = ("file", folder, "-o", folder / "again" / "again")
    check(run_limited(*asked), "output-exists")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.pth"])
def test_what_is_no_file(tmp_path, kind, name, monkeypatch):
    path = tmp_path / name
    monkeypatch.chdir(tmp_path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)  # a short name, because a socket's must be
    refused(path, SOURCE)


@pytest.mark.parametrize("name", ["x" * 300 + ".pth", "a/" * 3000 + "x.pth", "\ud800.pth", "\0"])
def test_names_that_no_file_has(tmp_path, name):
    check(call_limited(read_all, tmp_path / name), SOURCE)


def megabytes(path: Path, form: str) -> None:
    """A file with more than is read at once."""
    if form == "safetensors":
        header = {"dtype": "F32", "shape": [2**20], "data_offsets": [0, 2**22]}
        st_file(path, {"a": header}, bytes(2**22))
    elif form == "npz":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(2**20))
    else:
        in_zip = form == "zip"
        torch.save({"a": torch.zeros(2**20)}, path, _use_new_zipfile_serialization=in_zip)


@pytest.mark.parametrize("form", ["safetensors", "npz", "zip", "legacy"])
@pytest.mark.parametrize("size", [0, 5000])
def test_a_file_that_is_cut_while_it_is_open(tmp_path, form, size):
    path = tmp_path / "x"
    megabytes(path, form)

    def cut_and_read() -> None:
        container = open_container(path)
        os.truncate(path, size)
        container.read("a").sum()

    answer = call_limited(cut_and_read)
    check(answer, CORRUPT)
    assert "became shorter" in answer.err


# What went wrong elsewhere with honest tensors.


def test_tensors_with_steps_are_compared(tmp_path):
    torch.save({"a": torch.arange(10.0)[::2]}, tmp_path / "a.pth")
    torch.save({"a": torch.arange(0.0, 10.0, 2)}, tmp_path / "b.pth")
    answer = run_limited("diff", tmp_path / "a.pth", tmp_path / "b.pth")
    assert answer.code == 0, answer
    torch.save({"a": torch.arange(10.0)[1::2]}, tmp_path / "b.pth")
    assert run_limited("diff", tmp_path / "a.pth", tmp_path / "b.pth").code == 3
