"""What a file is, by its first bytes, and what is said of files that are something else."""

import sys
import zipfile

import numpy as np
import pytest
import torch

from vitconvert.errors import CorruptFile, MissingPackage, SourceError
from vitconvert.formats import open_container, write_safetensors
from vitconvert.formats.npz import write_file as write_npz
from vitconvert.formats.torch.writing import write_file as write_torch


@pytest.mark.parametrize(
    ("write", "found"),
    [(write_safetensors, "safetensors"), (write_npz, "npz"), (write_torch, "torch")],
)
def test_the_suffix_does_not_matter(tmp_path, write, found):
    write(tmp_path / "weights.txt", {"a": torch.randn(3)})
    assert open_container(tmp_path / "weights.txt").format == found


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("content", "fact", "hint"),
    [
        (b"", "The file is empty.", "download it again."),
        (LFS, "This is a Git LFS pointer, not the weights.", "run `git lfs pull`."),
        (b"\n<!DOCTYPE html>", "This is an HTML or XML page.", "check its address"),
        (b"\x89HDF\r\n\x1a\n" + bytes(9), "h5py cannot read this file.", ""),
        (b"lmgg\1\0\0\0", "This is an old ggml file.", "made from"),
        (b"\x1f\x8b\x08\0", "This is compressed with gzip.", "unpack it first."),
        (b"\x08\x07\x12\x07pytorch", "This is an ONNX graph.", "exported from"),
        (bytes(257) + b"ustar\0", "This is a tar archive.", "unpack it first."),
        (b"\x93NUMPY\1\0", "This is a single .npy array without a name.", "numpy.savez"),
        (b"hello", "The file has no known format.", "safetensors, torch (.pth, "),
        (b"\x80", "The file has no known format.", "safetensors, torch (.pth, "),
        (b'{"architectures": []}', "This is a JSON file without a weight_map", "name the file"),
        (b"{", "The index of shards is not valid JSON.", ""),
    ],
)
def test_foreign_files_are_named(tmp_path, content, fact, hint):
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "model.bin")
    assert error.value.fact.startswith(fact)
    assert hint in (error.value.hint or "")


def test_the_whole_message_for_a_git_lfs_pointer(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(LFS)
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  This is a Git LFS pointer, not the weights.\n"
        f"  file    {path}\n"
        "  begins  76 65 72 73 69 6f 6e 20 68 74 74 70 73 3a 2f 2f\n"
        "  hint: run `git lfs pull`."
    )


def test_a_torchscript_archive_without_its_pickle_is_damaged(tmp_path):
    path = tmp_path / "clip.pt"
    with zipfile.ZipFile(path, "w") as archive:  # the members that torch.jit.save writes
        for name in ("data.pkl", "constants.pkl", "code/__torch__/clip.py", "data/0"):
            archive.writestr(f"clip/{name}", b"")
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The pickle of this TorchScript archive is damaged.\n"
        f"  file    {path}\n"
        "  reason  pickle exhausted before seeing STOP\n"
        "  hint: download it again."
    )


def test_another_zip_archive_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("vit.safetensors", b"")
    with pytest.raises(CorruptFile) as error:
        open_container(tmp_path / "x.zip")
    assert error.value.evidence["members"] == "vit.safetensors"


def test_a_missing_file_suggests_its_neighbours(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SourceError) as error:
        open_container(tmp_path / "modle.safetensors")
    assert str(error.value) == (
        "error: source-not-found\n"
        "  There is no such file.\n"
        f"  file  {tmp_path / 'modle.safetensors'}\n"
        "  hint: nearest names there: model.safetensors."
    )


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(SourceError, match="directory, not a weights file"):
        open_container(tmp_path)
    with pytest.raises(SourceError, match="no such file"):
        open_container(tmp_path / "nowhere" / "x")
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(SourceError, match="cannot be read"):
        open_container(tmp_path / "x" / "y")


@pytest.mark.parametrize(
    ("package", "form", "content"),
    [
        ("h5py", "HDF5", b"\x89HDF\r\n\x1a\n"),
        ("gguf", "GGUF", b"GGUF\3\0\0\0"),
        ("tensorstore", "the arrays of Orbax", b'{"tree_metadata": {}}'),
    ],
)
def test_error_without_the_package_of_a_format(tmp_path, monkeypatch, package, form, content):
    (tmp_path / "x").write_bytes(content)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as error:
        open_container(tmp_path / "x")
    assert str(error.value) == (
        "error: missing-package\n"
        f"  {package}, which reads and writes {form}, is not installed.\n"
        f"  file  {tmp_path / 'x'}\n"
        f"  hint: pip install {package}"
    )


def test_leaves_of_equinox_without_names_are_told_as_such(tmp_path):
    """Of another class than equimo's: several arrays, one after another, and no metadata.json."""
    with (tmp_path / "model.eqx").open("wb") as file:
        for shape in ((3, 5), (4,)):
            np.save(file, np.ones(shape, np.float32))
    with pytest.raises(CorruptFile, match="leaves of an Equinox model") as error:
        open_container(tmp_path / "model.eqx")
    assert "metadata.json" in error.value.hint and "numpy.savez" in error.value.hint
    np.save(tmp_path / "one.npy", np.ones((3, 5)))
    with pytest.raises(CorruptFile, match="a single"):
        open_container(tmp_path / "one.npy")
