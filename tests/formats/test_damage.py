"""Every prefix of a file, and every byte of it changed: an answer or an error, never a crash."""

import argparse
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vitconvert.errors import CorruptFile, VitConvertError
from vitconvert.formats import open_container, write_safetensors
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.gguf import write_file as write_gguf
from vitconvert.formats.msgpack import write_file
from vitconvert.formats.npz import write_file as write_npz


def _sample(directory: Path, kind: str) -> bytes:
    path = directory / "sample"
    tensors = {"a": torch.randn(3, 2), "b.c": torch.randn(2).to(torch.bfloat16)}
    checkpoint = {"model": tensors, "args": argparse.Namespace(lr=0.1), "epoch": 3}
    match kind.split():
        case ["safetensors"]:
            write_safetensors(path, tensors, metadata={"format": "pt"})
        case ["npz", *_]:
            write_npz(path, tensors)
        case ["msgpack"]:
            write_file(path, tensors)
        case ["gguf"]:
            write_gguf(path, tensors, Surroundings(config={"a": 1}))
        case ["pickle"]:
            arrays = {"a": tensors["a"].numpy(), "b.c": tensors["b.c"].float().numpy()}
            path.write_bytes(pickle.dumps({"model": arrays, "epoch": 3}))
        case ["torch", "legacy"]:
            torch.save(checkpoint, path, _use_new_zipfile_serialization=False)
        case ["torch", *_]:
            torch.save(checkpoint, path)
    if kind.endswith("deflated"):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    return path.read_bytes()


KINDS = ["safetensors", "npz", "npz deflated", "torch", "torch legacy", "torch deflated"]
KINDS += ["msgpack", "gguf", "pickle"]


def _read_all(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # an earlier mapping may look at the old file
    path.write_bytes(data)
    with open_container(path) as container:
        for name in container.manifest:
            container.read(name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_prefix_is_an_error(tmp_path: Path, kind: str) -> None:
    data = _sample(tmp_path, kind)
    _read_all(tmp_path / "whole", data)
    for size in range(len(data)):
        with pytest.raises(VitConvertError):
            _read_all(tmp_path / "cut", data[:size])


def _changed(data: bytes) -> Iterator[bytes]:
    for at, byte in enumerate(data):
        yield data[:at] + bytes([byte ^ (0x01, 0x80, 0xFF)[at % 3]]) + data[at + 1 :]


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_byte_is_an_answer_or_an_error(tmp_path: Path, kind: str) -> None:
    refused = 0
    for damaged in _changed(_sample(tmp_path, kind)):
        try:
            _read_all(tmp_path / "damaged", damaged)
        except VitConvertError:
            refused += 1
    assert refused


def test_the_whole_message_for_an_archive_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "vit.npz"
    path.write_bytes(_sample(tmp_path, "npz")[:300])
    with pytest.raises(CorruptFile) as error:
        open_container(path)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  The file begins as a zip archive, but its directory, at the end, cannot be read.\n"
        f"  file    {path}\n"
        "  reason  File is not a zip file\n"
        "  found   300 bytes\n"
        "  The file is probably truncated.\n"
        "  hint: download it again."
    )
