"""Every prefix of a file, and every byte of it changed: an answer or an error, never a crash.

The files, and who else reads them, are those of `tests/hostile/fuzz.py`.
"""

import pytest
import torch

from tests.hostile.fuzz import judge
from tests.hostile.kinds import kind, prepare
from vitconvert.errors import CorruptFile
from vitconvert.formats import open_container

# HDF5's library crashes on some of its own; the others are compared with another reader, if any.
CONTAINERS = ["safetensors", "npz", "torch", "legacy", "pickle", "torchscript", "msgpack", "gguf"]
CONTAINERS += ["equinox"]
each = pytest.mark.parametrize("name", CONTAINERS)
some_and_all = pytest.mark.parametrize(
    "most", [250, pytest.param(10**6, marks=pytest.mark.coverage)], ids=["some", "all"]
)
# pickletools decodes texts of Python 2 by their escapes.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")


def places(data, most):
    return range(0, len(data), -(-len(data) // most))


@each
@some_and_all
def test_every_prefix_is_an_error(name, most, tmp_path):
    prepare(name, tmp_path)
    place, base = kind(name).bases[0]
    assert judge(name, tmp_path, place, base, base) == "equal"
    for size in places(base, most):
        assert judge(name, tmp_path, place, base, base[:size]) == "refused", size


@each
@some_and_all
def test_every_changed_byte_is_an_answer_or_an_error(name, most, tmp_path):
    refused = 0
    for place, base in kind(name).bases:
        prepare(name, tmp_path)
        for at in places(base, most):
            other = bytes([base[at] ^ (0x01, 0x80, 0xFF)[at % 3]])
            verdict = judge(name, tmp_path, place, base, base[:at] + other + base[at + 1 :])
            assert verdict in ("refused", "equal"), (at, verdict)
            refused += verdict == "refused"
    assert refused


def test_the_whole_message_for_an_archive_cut_short(tmp_path):
    path = tmp_path / "vit.npz"
    path.write_bytes(kind("npz").bases[0][1][:300])
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


def test_a_legacy_file_that_ends_within_the_length_of_an_empty_storage_is_truncated(tmp_path):
    path = tmp_path / "vit.pt"
    torch.save({"e": torch.empty(2, 0)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    open_container(path)
    for missing in range(1, 9):
        path.write_bytes(whole[:-missing])
        with pytest.raises(CorruptFile, match="truncated"):
            open_container(path)
