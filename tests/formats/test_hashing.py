import hashlib
import shutil
import subprocess

import pytest

from vitconvert.formats import hash_file
from vitconvert.formats.hashing import git_blob_hash


def test_hash_of_a_file_larger_than_one_chunk(tmp_path):
    body = bytes(range(251)) * 40_000
    (tmp_path / "weights").write_bytes(body)
    assert hash_file(tmp_path / "weights") == hashlib.sha256(body).hexdigest()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("body", [b"", b"{}\n", bytes(range(256)) * 3])
def test_blob_hash_is_the_one_git_computes(tmp_path, body):
    path = tmp_path / "file"
    path.write_bytes(body)
    command = ["git", "hash-object", "--no-filters", str(path)]
    git = subprocess.run(command, capture_output=True, text=True, check=True)
    assert git_blob_hash(path) == git.stdout.strip()
