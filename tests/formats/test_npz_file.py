"""Reading npz: agreement with numpy, and a corpus of hostile archives."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.formats.made import Canary
from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats import TensorInfo, open_container, zip_archive


def _npy(descr: str, shape: str, data: bytes, version: bytes = b"\1\0") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = len(header).to_bytes(4 if version == b"\2\0" else 2, "little")
    return b"\x93NUMPY" + version + length + header + data


def _npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_wrote(tmp_path, save):
    generator = np.random.default_rng(0)
    arrays = {
        "Transformer/encoderblock_0/query/kernel": generator.normal(size=(6, 3, 2)).astype("f4"),
        "head/kernel": np.asfortranarray(generator.normal(size=(5, 3))),
        "fortran/deep": np.asfortranarray(generator.normal(size=(2, 3, 5)).astype("f4")),
        "big_endian": generator.normal(size=(3, 2)).astype(">f4"),
        "half": generator.normal(size=3).astype("f2"),
        "step": np.array(12345),
        "flag": np.array([True, False]),
        "none": np.empty((0, 3), "f4"),
        "unsigned": np.array([65535, 3], ">u2"),
        "µ/bias": generator.normal(size=7).astype("f4"),
    }
    path = tmp_path / "vit.npz"
    save(path, **arrays)

    with open_container(path) as container:
        assert container.format == "npz"
        assert list(container.manifest) == list(arrays)
        assert container.manifest["big_endian"] == TensorInfo(dtype="float32", shape=(3, 2))
        for name, array in arrays.items():
            read = container.read(name)
            assert tuple(read.shape) == array.shape
            np.testing.assert_array_equal(read.numpy(), array)
            assert container.manifest[name].shape == array.shape
            assert f"torch.{container.manifest[name].dtype}" == str(read.dtype)


@pytest.mark.parametrize("descr", ["|V2", "<V2"])
def test_opaque_two_byte_elements_are_bfloat16(tmp_path, descr):
    wanted = torch.randn(3, 2).to(torch.bfloat16)
    data = bytes(wanted.view(-1).view(torch.uint8))
    read = open_container(_npz(tmp_path / "x", {"a.npy": _npy(descr, "(3, 2)", data)})).read("a")
    assert read.dtype == torch.bfloat16
    assert torch.equal(read, wanted)


def test_headers_of_version_2_and_of_python_2_are_read(tmp_path):
    data = np.arange(6, dtype="<f4").tobytes()
    members = {
        "two.npy": _npy("<f4", "(2, 3)", data, version=b"\2\0"),
        "long.npy": _npy("<f4", "(2L, 3L)", data),
    }
    with open_container(_npz(tmp_path / "x", members)) as container:
        assert container.read("two").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert container.read("long").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_arrays_of_text_are_set_aside(tmp_path):
    np.savez(tmp_path / "x.npz", weight=np.ones(3), note=np.array("hello"))
    container = open_container(tmp_path / "x.npz")
    assert list(container.manifest) == ["weight"]
    assert container.extras == {"note": "array of text (<U5)"}


def test_object_arrays_are_refused_and_not_executed(tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "evil.npz"
    np.savez(path, weight=np.ones(3), evil=np.array([Canary(canary)], dtype=object))
    with pytest.raises(UnsafeFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: unsafe-file\n"
        "  'evil' holds Python objects, not numbers.\n"
        f"  file  {path}\n"
        "  Reading such an array runs whatever code its pickle asks for.\n"
        "  hint: save the arrays inside it one by one, with numpy.savez."
    )
    assert error.value.exit_code == 4
    assert not canary.exists()
    np.load(path, allow_pickle=True)["evil"]
    assert canary.exists()  # the canary sings where it is let


def test_a_bare_npy_of_objects_is_not_opened(tmp_path):
    np.save(tmp_path / "dict.npy", {"a": np.ones(3)}, allow_pickle=True)
    with pytest.raises(CorruptFile, match=r"single \.npy array"):
        open_container(tmp_path / "dict.npy")


def test_a_bomb_is_refused_before_it_inflates(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros(4 * 2**20, "f8"))  # 32 MiB in 32 KB
    size, inflated = path.stat().st_size, 8 * 4 * 2**20 + 128
    monkeypatch.setattr(zip_archive, "FREE_INFLATION", inflated - 1000 * size)
    assert open_container(path).manifest["a"].shape == (4 * 2**20,)
    monkeypatch.setattr(zip_archive, "FREE_INFLATION", inflated - 1000 * size - 1)
    with pytest.raises(UnsafeFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: unsafe-file\n"
        "  The archive would take far more memory than the file has bytes.\n"
        f"  file       {path}\n"
        f"  on disk    {size:,} bytes\n"
        f"  in memory  {inflated:,} bytes\n"
        f"  limit      {inflated - 1:,} bytes\n"
        "  Weights hardly compress; a file like this is made to exhaust memory."
    )


def test_a_bomb_that_declares_a_small_size_is_found_out(tmp_path):
    data = _npy("<f4", "(1000000,)", bytes(4_000_000))
    path = _npz(tmp_path / "x", {"a.npy": data}, zipfile.ZIP_DEFLATED)
    lie = path.read_bytes().replace(
        len(data).to_bytes(4, "little"), (len(data) - 4_000_000 + 400).to_bytes(4, "little")
    )
    path.write_bytes(lie.replace(b"(1000000,)", b"(100,)    "))
    with pytest.raises(CorruptFile):
        open_container(path).read("a")


def test_a_header_that_asks_for_terabytes_is_refused_before_allocating(tmp_path):
    path = _npz(tmp_path / "x.npz", {"a.npy": _npy("<f4", "(1000000, 1000000)", bytes(8))})
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  'a' does not have the size that its header declares.\n"
        f"  file      {path}\n"
        "  shape     [1000000, 1000000]\n"
        "  declared  4,000,000,000,000 bytes\n"
        "  found     8 bytes"
    )


NO_NUMBERS = "'a' has a header that does not describe an array of numbers."


@pytest.mark.parametrize(
    ("member", "fact"),
    [
        (_npy("<f4", "(3,)", bytes(16)), "'a' does not have the size that its header declares."),
        (_npy("<f4", "(-1,)", b""), "'a' has an axis of negative length."),
        (_npy("<f4", "(0, 9223372036854775808)", b""), "'a' has a shape that no memory can hold."),
        (_npy("<f4", "(True,)", bytes(4)), "'a' has a shape that is not a list of whole numbers."),
        (_npy("<f4", "(1.5,)", bytes(4)), "'a' has a shape that is not a list of whole numbers."),
        (_npy("<f4", "(0x" + "f" * 9000 + ",)", bytes(8)), "'a' has a shape that no memory can"),
        (_npy("<f4", "(" + "9" * 5000 + ",)", bytes(8)), NO_NUMBERS),
        (_npy("<f4", "(2**62,)", bytes(8)), NO_NUMBERS),
        (_npy("<f4", "(2,), 'more': 1", bytes(8)), NO_NUMBERS),
        (_npy("<f4L,", "(2,)", bytes(8)), NO_NUMBERS),
        (_npy("<f4", "[3]", bytes(12)), NO_NUMBERS),
        (_npy("<f4", "__import__('os').getpid()", bytes(12)), NO_NUMBERS),
        (_npy("<f4", "(" * 300 + ")" * 300, bytes(12)), NO_NUMBERS),
        (_npy("<f4", "-" * 9000 + "1", bytes(12)), NO_NUMBERS),
        (_npy("<f4", r"'\d'", bytes(12)), NO_NUMBERS),
        (_npy("f4, f4", "(3,)", bytes(24)), NO_NUMBERS),
        (_npy("<f4", " " * 20_000 + "(3,)", bytes(12)), "The header of 'a' is longer"),
        (_npy("<c16", "(1,)", bytes(16)), "'a' has a dtype that is not read here."),
        (_npy("<M8", "(1,)", bytes(8)), "'a' has a dtype that is not read here."),
        (_npy("|V3", "(1,)", bytes(3)), "'a' has a dtype that is not read here."),
        (_npy("<f4", "(3,)", bytes(12), b"\3\0"), "'a' is not a .npy array of version 1 or 2."),
        (b"\x93NUMPY\1\0", "'a' is not a .npy array of version 1 or 2."),
        (b"", "'a' is not a .npy array of version 1 or 2."),
        (pickle.dumps({"a": 1}), "'a' is not a .npy array of version 1 or 2."),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_hostile_arrays(tmp_path, member, fact, method):
    with pytest.raises(CorruptFile) as error:
        open_container(_npz(tmp_path / "x", {"a.npy": member}, method))
    assert error.value.fact.startswith(fact)


def test_other_compressions_and_foreign_members_are_refused(tmp_path):
    array = _npy("<f4", "(1,)", bytes(4))
    with pytest.raises(CorruptFile, match="compressed in a way"):
        open_container(_npz(tmp_path / "x", {"a.npy": array}, zipfile.ZIP_BZIP2))
    with pytest.raises(CorruptFile, match=r"'b\.txt' in this npz is not an array"):
        open_container(_npz(tmp_path / "y", {"a.npy": array, "b.txt": b"hello"}))
