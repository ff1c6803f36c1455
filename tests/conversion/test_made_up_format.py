"""A file format that nobody uses: one module and one entry of the list, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitconvert.toml_files import tables_dir

# Lines of name, dtype, shape and elements, after a first line that says what this is.
MODULE = '''
"""hext: tensors as lines of hexadecimal digits."""

import torch

from vitconvert.formats import Container, TensorInfo, bytes_of
from vitconvert.atomic_write import atomic_file

READER = "hext.load"
EXAMPLE = 'import hext\\n\\ntensors = hext.load("model.hext")'
MAGIC = b"hext 1\\n"


def load(path):
    lines = [line.split("|") for line in path.read_text().splitlines()[1:]]
    return {
        name: (dtype, tuple(map(int, shape.split())), bytes.fromhex(data))
        for name, dtype, shape, data in lines
    }


def open_file(path, *_):
    found = load(path)

    def read(name):
        dtype, shape, data = found[name]
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
        return flat.view(shape)

    return Container(
        path=path,
        files=(path,),
        format="hext",
        manifest={n: TensorInfo(dtype=d, shape=shape) for n, (d, shape, _) in found.items()},
        reader=read,
        release=found.clear,
    )


def write_file(path, contents, _surroundings):
    with atomic_file(path) as file:
        file.write(MAGIC)
        for name, content in contents.items():
            data = b"".join(bytes(chunk) for chunk in content.chunks())
            shape = " ".join(map(str, content.info.shape))
            file.write(f"{name}|{content.info.dtype}|{shape}|{data.hex()}\\n".encode())
    return file.sha256


def read_plainly(path, _wrapper):
    for name, (_, shape, data) in load(path).items():
        yield name, shape, data
'''
TABLE = """
[dialect]
title      = "An invented project"
source     = "this test"
extends    = "timm"
ecosystem  = "invented"
container  = "hext"
program    = "scripts"
named_only = true
"""
# In a process of its own: tables are read once.
PROGRAM = """
import sys
from pathlib import Path

from vitconvert import file_formats as formats
from vitconvert import toml_files

place, source = Path(sys.argv[1]), Path(sys.argv[2])
toml_files._PACKAGE = place
entry = formats.Format(
    name="hext",
    module="hext",
    suffixes=(".hext",),
    standard=("hext_model.hext",),
    begins=lambda start: start.startswith(b"hext "),
    output="model.hext",
)
formats.FORMATS = (*formats.FORMATS, entry)

import torch
import vitconvert
from vitconvert.formats import open_container, weights_in
from vitconvert.sources.choosing import choose_weights
from vitconvert.sources.references import looks_like_path

torch.set_num_threads(1)
stated = {"num_heads": 3, "norm_eps": 1e-6}
out = place / "out"
conversion = vitconvert.convert(source, to="invented", output=out, overrides=stated)
# Written under the format's own name, and proved by its plain reader.
assert "model.hext" in conversion.sha256, conversion.sha256
assert conversion.opened[0].summary() == "hext.load: every tensor as it was written"
# Shown in the card.
assert 'tensors = hext.load("model.hext")' in (out / "README.md").read_text()
# Recognised by its first bytes, whatever its name is.
(out / "model.hext").rename(place / "anything")
with open_container(place / "anything") as container:
    assert container.format == "hext"
# Found by its suffix and its standard name, in directories and repositories alike.
(place / "anything").rename(out / "vit.hext")
assert weights_in(out).name == "vit.hext"
assert choose_weights("org/repo", ["vit.hext", "README.md"]) == "vit.hext"
assert choose_weights("org/repo", ["hext_model.hext", "other.npz"]) == "hext_model.hext"
assert looks_like_path("vit.hext")
# Read: the same numbers as before.
before = vitconvert.load_checkpoint(source, overrides=stated)
after = vitconvert.load_checkpoint(out, overrides=stated)  # the record is of another name
assert after.tensors.keys() == before.tensors.keys()
assert all(torch.equal(tensor, after.tensors[name]) for name, tensor in before.tensors.items())
# Named in messages.
(place / "x").write_bytes(b"something else")
try:
    open_container(place / "x")
except vitconvert.VitConvertError as error:
    assert "hext" in error.hint, error.hint
"""


@pytest.mark.slow
def test_a_made_up_format_needs_its_module_and_its_entry(timm_directory, tmp_path: Path) -> None:
    arguments = {"embed_dim": 30, "depth": 2, "num_heads": 3, "mlp_ratio": 2, "num_classes": 5}
    source = timm_directory(**arguments, img_size=48) / "model.safetensors"
    shutil.copytree(tables_dir(), tmp_path / "weights_map")
    (tmp_path / "weights_map" / "invented.toml").write_text(TABLE)
    (tmp_path / "hext.py").write_text(MODULE)
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, source],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
    )
    assert not run.returncode, run.stderr
