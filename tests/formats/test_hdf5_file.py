"""Reading and writing HDF5: agreement with h5py, and files that lead elsewhere."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch

from tests.sampling import sampled
from vitconvert.errors import (
    CorruptFile,
    UnsafeFile,
    UsageError,
)
from vitconvert.formats import bytes_of, open_container, zip_archive
from vitconvert.formats.hdf5 import read_plainly, write_hdf5


def arrays_of_every_kind() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    numbers = {
        f"layers/block_{i}/vars/{j}": generator.normal(size=(i % 3 + 1, 2)).astype(dtype)
        for i in range(60)
        for j, dtype in enumerate(("f4", "f8", "f2"))
    }
    whole = {f"whole/{kind}": generator.integers(0, 99, 5).astype(kind) for kind in ("i8", "u1")}
    return numbers | whole | {"step": np.array(7), "none": np.empty((0, 3), "f4")}


@pytest.mark.parametrize("oldest", ["earliest", "v108", "v110"])
def test_reads_what_h5py_wrote(tmp_path, oldest):
    path, arrays = tmp_path / "x", arrays_of_every_kind()
    with h5py.File(path, "w", libver=(oldest, "latest")) as file:
        for name, array in arrays.items():
            file[name] = array
        file["flag"] = np.array([True, False])
        file["half"] = np.array([1.5, -2], ml_dtypes.bfloat16)
        file["words"] = ["some", "text"]
        file.attrs["layer_names"] = ["a"]
    with open_container(path) as container:
        assert container.format == "hdf5"
        assert container.extras == {"words": "array of text or arrays of changing length"}
        assert container.manifest.keys() == {*arrays, "flag", "half"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(container.read(name).numpy(), array, strict=True)
        assert container.read("flag").tolist() == [True, False]
        assert container.read("half").tolist() == [1.5, -2]
        assert container.read("half").dtype == torch.bfloat16
        assert all(container.places[name].path == path for name in arrays)


FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "compression_opts": 9, "shuffle": True, "fletcher32": True},
    {"shuffle": True},
    {"fletcher32": True},
]


@pytest.mark.parametrize("oldest", sampled(["earliest", "v108", "v110"], 3, "slow"))
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_reads_arrays_in_chunks(tmp_path, oldest, filters):
    """One chunk, many with cut edges, more than a node of a tree or a page of a list has."""
    generator = np.random.default_rng(1)
    sizes = [((5, 7), (5, 7)), ((5, 7), (2, 3)), ((1, 2, 3, 11), (1, 1, 2, 4)), ((2500,), (1,))]
    arrays = {
        f"{number}/{kind}": (generator.normal(scale=99, size=shape).astype(kind), chunk)
        for number, (shape, chunk) in enumerate(sizes)
        for kind in ("f4", "u1", "f2", "f8")
    }
    with h5py.File(tmp_path / "x", "w", libver=(oldest, "latest")) as file:
        for name, (array, chunk) in arrays.items():
            file.create_dataset(name, data=array, chunks=chunk, **filters)
        half = np.arange(33).astype(ml_dtypes.bfloat16)
        file.create_dataset("half", data=half, chunks=(10,), **filters)
        file["plain"] = np.arange(3)
    with open_container(tmp_path / "x") as container:
        assert container.places.keys() == {"plain"}
        for name, (array, _) in arrays.items():
            np.testing.assert_array_equal(container.read(name).numpy(), array, strict=True)
        assert container.read("half").tolist() == list(range(33))


def test_reads_chunks_that_are_shuffled_after_their_checksum(tmp_path):
    """What is left over behind whole numbers is not shuffled."""
    with h5py.File(tmp_path / "x", "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((3,))
        settings.set_fletcher32()
        settings.set_shuffle()
        space, kind = h5py.h5s.create_simple((5,)), h5py.h5t.IEEE_F64LE
        dataset = h5py.h5d.create(file.id, b"a", kind, space, settings)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(5.0))
    with open_container(tmp_path / "x") as container:
        assert container.read("a").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("oldest", ["earliest", "v110"])
def test_a_filter_that_was_left_out_of_a_chunk(tmp_path, oldest):
    with h5py.File(tmp_path / "x", "w", libver=(oldest, "latest")) as file:
        data = file.create_dataset("a", (4,), "f4", chunks=(2,), shuffle=True, compression="gzip")
        data[2:] = [5, 6]
        data.id.write_direct_chunk((0,), np.array([3, 4], "f4").tobytes(), filter_mask=3)
    with open_container(tmp_path / "x") as container:
        assert container.read("a").tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("oldest", ["earliest", "v110"])
@pytest.mark.parametrize(
    "filters",
    [{"compression": "gzip"}, {"compression": "gzip", "fletcher32": True}, {"fletcher32": True}],
)
def test_error_a_chunk_that_is_damaged(tmp_path, oldest, filters):
    with h5py.File(tmp_path / "x", "w", libver=(oldest, "latest")) as file:
        file.create_dataset("a", data=np.arange(50.0), chunks=(30,), **filters)
        place = file["a"].id.get_chunk_info(1).byte_offset
    data = bytearray((tmp_path / "x").read_bytes())
    data[place + 9] ^= 255
    (tmp_path / "x").write_bytes(data)
    with (
        open_container(tmp_path / "x") as container,
        pytest.raises(CorruptFile, match="h5py cannot read this file"),
    ):
        container.read("a")


def test_h5py_reads_what_is_written(tmp_path):
    dtypes = ("float64", "float32", "float16", "bfloat16", "int64", "int8", "uint16")
    tensors = {
        f"layers/block_{i}/vars/{dtype}": torch.randn(3, i).to(getattr(torch, dtype))
        for i in range(40)
        for dtype in dtypes
    } | {"step": torch.tensor(3.5)}
    write_hdf5(tmp_path / "x", tensors)
    found = {name: (shape, data) for name, shape, data in read_plainly(tmp_path / "x", "")}
    assert found == {n: (tuple(t.shape), bytes_of(t).tobytes()) for n, t in tensors.items()}
    with open_container(tmp_path / "x") as container:
        assert all(torch.equal(container.read(name), t) for name, t in tensors.items())
        assert all(place.offset % 64 == 0 for place in container.places.values())
    with h5py.File(tmp_path / "x") as file:  # Keras reads bfloat16 by this
        half = file["layers/block_2/vars/bfloat16"]
        assert half.attrs["dtype"] == "bfloat16"
        read = np.array(half, dtype=ml_dtypes.bfloat16).astype("f4")
    assert read.tolist() == tensors["layers/block_2/vars/bfloat16"].tolist()


@pytest.mark.parametrize("names", [["a", "a/b"], ["a//b"], ["/a"], ["."], ["x" * 2000], ["a\0b"]])
def test_error_names_that_hdf5_cannot_hold(tmp_path, names):
    with pytest.raises(UsageError, match="a name that HDF5 cannot hold"):
        write_hdf5(tmp_path / "x", dict.fromkeys(names, torch.ones(1)))
    assert not any(tmp_path.iterdir())


def soft(file: h5py.File, _: Path) -> None:
    file["a"] = h5py.SoftLink("/b")


def circle(file: h5py.File, _: Path) -> None:
    file.create_group("a")["a"] = file["/"]


def external_link(file: h5py.File, folder: Path) -> None:
    file["a"] = h5py.ExternalLink(str(folder / "secret"), "/x")


def external_numbers(file: h5py.File, folder: Path) -> None:
    file.create_dataset("a", (3,), "f4", external=[(str(folder / "secret"), 0, 12)])


def view(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "secret"), "x", (3,))
    file.create_virtual_dataset("a", layout)


def two_names(file: h5py.File, _: Path) -> None:
    file["a"] = np.ones(3)
    file["b"] = file["a"]


def half_written(file: h5py.File, _: Path) -> None:
    file.create_dataset("a", (4,), "f4", chunks=(2,))[:2] = 1


def chunks_unwritten(file: h5py.File, _: Path) -> None:
    file.create_dataset("a", (2**50,), "f4", chunks=(2,))


def records(file: h5py.File, _: Path) -> None:
    file["a"] = np.zeros(3, [("x", "f4"), ("y", "i4")])


def unwritten(file: h5py.File, _: Path) -> None:
    file.create_dataset("a", (2**50,), "f4")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(zip_archive, "FREE_INFLATION", 0)
    monkeypatch.setattr(zip_archive, "MOST_INFLATION", 100)
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", data=np.zeros(2**18), chunks=(2**18,), compression="gzip")
    with pytest.raises(UnsafeFile, match=r"Its arrays would take far more memory than the file"):
        open_container(tmp_path / "x")


@pytest.mark.parametrize(
    ("make", "error", "fact"),
    [
        (soft, UnsafeFile, "'a' in this HDF5 file is a link to something else."),
        (external_link, UnsafeFile, "'a' in this HDF5 file is a link to something else."),
        (external_numbers, UnsafeFile, "The numbers of 'a' are in another file."),
        (view, UnsafeFile, "The numbers of 'a' are in another file."),
        (circle, CorruptFile, "Its names are longer than those of weights."),
        (two_names, CorruptFile, "'b' overlaps 'a'."),
        (half_written, CorruptFile, "Not all numbers of 'a' were ever written."),
        (chunks_unwritten, CorruptFile, "Not all numbers of 'a' were ever written."),
        (unwritten, CorruptFile, "Not all numbers of 'a' were ever written."),
        (records, CorruptFile, "'a' has a type that is not read here."),
    ],
)
@pytest.mark.parametrize("oldest", ["earliest", "v110"])
def test_error_what_leads_elsewhere_or_is_not_numbers(tmp_path, make, error, fact, oldest):
    with h5py.File(tmp_path / "secret", "w") as file:
        file["x"] = np.ones(3, "f4")
    with h5py.File(tmp_path / "x", "w", libver=(oldest, "latest")) as file:
        make(file, tmp_path)
    with pytest.raises(error) as caught:
        open_container(tmp_path / "x")
    assert caught.value.fact.startswith(fact)


def test_what_h5py_decompresses_or_swaps_is_read(tmp_path):
    numbers = {
        "lzf": np.arange(1000.0),
        "scaled": np.arange(9),
        "swapped": np.arange(5, dtype=">f4"),
    }
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("lzf", data=numbers["lzf"], compression="lzf")
        file.create_dataset("scaled", data=numbers["scaled"], chunks=(9,), scaleoffset=4)
        file["swapped"] = numbers["swapped"]
    with open_container(tmp_path / "x") as container:
        for name, array in numbers.items():
            assert container.read(name).tolist() == array.tolist()


def test_error_a_filter_that_h5py_lacks(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", data=np.zeros(10**4), compression="gzip")
    data = (tmp_path / "x").read_bytes()
    deflate = struct.pack("<4H", 1, 8, 1, 1) + b"deflate"
    assert data.count(deflate) == 1
    (tmp_path / "x").write_bytes(data.replace(deflate, struct.pack("<H", 32015) + deflate[2:]))
    with pytest.raises(CorruptFile, match="which h5py lacks here") as error:
        open_container(tmp_path / "x")
    assert error.value.hint.startswith("h5repack")


def test_a_file_that_the_process_has_open_is_read(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file["a"] = np.arange(3.0)
        file.flush()
        with open_container(tmp_path / "x") as container:
            assert container.read("a").tolist() == [0, 1, 2]
    with h5py.File(tmp_path / "x") as _, open_container(tmp_path / "x") as container:
        assert container.read("a").tolist() == [0, 1, 2]


@pytest.mark.parametrize("before", [4, 60])
def test_error_arrays_that_share_bytes(tmp_path, before):
    with h5py.File(tmp_path / "x", "w") as file:
        file["a"], file["b"] = np.ones((2, 8), "f4"), np.ones((3, 5), "f4")
    with open_container(tmp_path / "x") as container:
        first, second = (container.places[name].offset for name in "ab")
    data = (tmp_path / "x").read_bytes()
    old, new = (struct.pack("<QQ", place, 60) for place in (second, first + before))
    assert data.count(old) == 1
    (tmp_path / "x").write_bytes(data.replace(old, new))
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x")
    assert error.value.fact == "'b' overlaps 'a'."


def test_the_task_beside_a_backbone_is_read_along(tmp_path):
    backbone, task = tmp_path / "model.weights.h5", tmp_path / "task.weights.h5"
    write_hdf5(backbone, {"layers/a/vars/0": torch.ones(3)})
    write_hdf5(task, {"layers/dense/vars/0": torch.zeros(2)})
    with open_container(backbone) as container:
        assert container.files == (backbone, task)
        assert container.read("layers/dense/vars/0").tolist() == [0, 0]
        assert container.read("layers/a/vars/0").tolist() == [1, 1, 1]
        assert container.notes
    with open_container(task) as container:
        assert list(container.manifest) == ["layers/dense/vars/0"]
    write_hdf5(task, {"layers/a/vars/0": torch.zeros(2)})
    with pytest.raises(CorruptFile, match="Two files of these weights have 'layers/a/vars/0'"):
        open_container(backbone)


def test_names_lose_the_model_that_all_of_them_have(tmp_path):
    names = ["vit/tf_model_2/vit/a:0", "head/tf_model_2/head/b:0"]
    write_hdf5(tmp_path / "x", dict.fromkeys(names, torch.ones(1)))
    with open_container(tmp_path / "x") as container:
        assert set(container.manifest) == {"vit/a:0", "head/b:0"}
        assert "tf_model_2" in container.notes[0]
    write_hdf5(tmp_path / "x", dict.fromkeys([*names, "head/other/head/c:0"], torch.ones(1)))
    with open_container(tmp_path / "x") as container:
        assert "vit/tf_model_2/vit/a:0" in container.manifest


def keras_archive(path: Path, config: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    write_hdf5(path.with_suffix(".h5"), {"layers/a/vars/0": torch.arange(3)})
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("config.json", config)
        archive.write(path.with_suffix(".h5"), "model.weights.h5")
    return path


def test_a_keras_file_is_its_weights_and_its_configuration(tmp_path):
    with open_container(keras_archive(tmp_path / "x.keras", b'{"class_name": "A"}')) as container:
        assert container.format == "keras"
        assert container.config == {"class_name": "A"}
        assert container.read("layers/a/vars/0").tolist() == [0, 1, 2]
        place = container.places["layers/a/vars/0"]
        assert place.path == tmp_path / "x.keras"
        assert place.path.read_bytes()[place.offset :][:24] == np.arange(3).tobytes()


@pytest.mark.parametrize(
    ("config", "method", "fact"),
    [
        (b"{", zipfile.ZIP_STORED, "config.json in the archive is not valid JSON."),
        (b"{}", zipfile.ZIP_DEFLATED, "The weights in this Keras file are compressed, so they"),
    ],
)
def test_error_keras_files(tmp_path, config, method, fact):
    path = keras_archive(tmp_path / "x.keras", config, method)
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert error.value.fact.startswith(fact)


@pytest.mark.parametrize("mode", ["r", "a", "w"])
def test_a_file_that_the_same_program_has_open(mode, tmp_path):
    path, wanted = tmp_path / "x.h5", np.arange(30_000, dtype="<f4").reshape(300, 100)
    with h5py.File(path, "w") as file:
        file["a"] = wanted
    with h5py.File(path, mode) as file:
        if mode != "r":
            file.clear()
            wanted = wanted + 1
            file.create_dataset("a", data=wanted, chunks=(7, 100))
        with open_container(path) as container:
            assert np.array_equal(container.read("a").numpy(), wanted)
        assert np.array_equal(file["a"], wanted)
