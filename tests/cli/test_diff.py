"""`vitconvert diff A B`."""

import json

import numpy as np
import pytest
import torch

from tests.spelling import google_arrays
from vitconvert.formats import write_safetensors

ARRAYS = {"depth": 11, "heads": 3, "width": 36, "size": 32}


@pytest.fixture
def files(tmp_path):
    """Two of Google's files: in one, a number of q is larger by 2."""
    arrays = google_arrays(**ARRAYS)
    np.savez(tmp_path / "a.npz", **arrays)
    query = "Transformer/encoderblock_4/MultiHeadDotProductAttention_1/query/kernel"
    arrays[query][5, 2, 1] = arrays[query].max() + 2.0
    np.savez(tmp_path / "b.npz", **arrays)
    return tmp_path / "a.npz", tmp_path / "b.npz"


def test_equal_files(files, run):
    code, out, err = run("diff", files[0], files[0])
    assert (code, err) == (0, "")
    assert out == (
        f"a              {files[0]} (google_jax)\n"
        f"b              {files[0]} (google_jax)\n"
        "values         140 of 140 tensors are equal in every bit\n"
        "result         equal\n"
    )
    assert json.loads(run("diff", files[0], files[0], "--json").out)["ok"]


def test_one_number(files, run):
    code, out, err = run("diff", *files)
    assert (code, err) == (3, "")
    count, worst, result = out.splitlines()[2:]
    assert count == "values         139 of 140 tensors are equal in every bit"
    assert worst.startswith("               blocks.4.attn.qkv.weight  max |a-b| ")
    assert worst.endswith(" of max |a|), 1 of 3888 elements, first [25 5]")  # head 2 of 12, dim 1
    assert result == "result         different: 1 tensor"
    answer = json.loads(run("diff", *files, "--json").out)
    assert (answer["ok"], answer["naming"]) == (False, "canonical")
    assert answer["values"]["blocks.4.attn.qkv.weight"]["first"] == [25, 5]


def test_headers_only(files, run):
    code, out, _ = run("diff", *files, "--header", "-q")
    assert (code, out) == (0, "equal, as far as headers show\n")


def test_many_tensors_are_told_shortly(files, run, tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text('[dialect]\nextends = "google_jax"\n[config]\nnorm_eps = 1e-5\n')
    other = {**google_arrays(**{**ARRAYS, "size": 40}, seed=1), "extra": np.ones(2)}
    np.savez(tmp_path / "other.npz", **other)
    table.write_text(table.read_text() + '[ignore]\nextra = "mine"\n')
    code, out, _ = run("diff", files[0], tmp_path / "other.npz", "--table-b", table)
    assert code == 3
    assert (
        "configuration  image_size  32x32 in a (assumed: 16 patches form a square grid), "
        "40x40 in b (assumed: 25 patches form a square grid)\n"
        "               norm_eps  1e-06 in a (weights_map/google_jax.toml), 1e-05 in b "
    ) in out
    assert "shapes         pos_embed  [1 17 36] in a, [1 26 36] in b\n" in out
    assert "               and 127 more; -v lists all\n" in out
    assert (
        "preprocessing  here is a, there is b\n"
        "               image_size is (32, 32) here and (40, 40) there\n"
    ) in out
    assert "ignored in b   extra: mine\n" in out
    assert out.endswith("result         different: configuration, 140 tensors, preprocessing\n")
    assert "more; -v" not in run("diff", *files, "-v").out


def test_tensors_that_are_left_out_of_one_side_or_both(files, run, tmp_path):
    arrays = dict(np.load(files[0]))
    np.savez(tmp_path / "more.npz", **arrays, aux=np.ones((3, 2)))
    more = tmp_path / "more.npz"
    plain = run("diff", files[0], more)
    assert plain.code == 3 and "only in b      aux" in plain.out
    answer = run("diff", files[0], more, "--ignore-b", "aux")
    assert answer.code == 0
    assert "ignored in b   aux: you ignored it (aux)\n" in answer.out
    assert run("diff", more, more, "--ignore", "aux").code == 0
    refused = run("diff", files[0], more, "--ignore", "aux")
    assert refused.code == 2 and f"file       {files[0]}" in refused.err


def test_left_out_of_files_of_no_known_kind(run, tmp_path):
    write_safetensors(tmp_path / "a", {"w": torch.ones(2), "v.x": torch.ones(3)})
    write_safetensors(tmp_path / "b", {"w": torch.ones(2), "v.x": torch.zeros(3)})
    assert run("diff", tmp_path / "a", tmp_path / "b").code == 3
    assert run("diff", tmp_path / "a", tmp_path / "b", "--ignore", "v.*").code == 0


def test_files_of_no_known_kind(run, tmp_path):
    blocks = {f"layer{i}.w": torch.full((2,), float(i)) for i in range(12)}
    write_safetensors(tmp_path / "a", blocks)
    write_safetensors(tmp_path / "b", {"layer0.w": torch.zeros(2).bfloat16()})
    code, out, _ = run("diff", tmp_path / "a", tmp_path / "b")
    assert code == 3
    assert (
        "names          a cannot be read, so the files' own names are compared\n"
        "               error: unknown-dialect\n"
    ) in out
    assert "only in a      layer{i+1}.w  float32 [2]  x 11\n" in out
    assert "dtypes         float32 in a, bfloat16 in b\n" in out
    assert "               layer0.w  the same numbers in other bytes\n" in out
    assert out.endswith("result         different: 12 tensors, by the files' own names\n")


def test_a_hint_names_the_option_of_the_side_that_is_not_read(files, run, tmp_path):
    torch.save({"a": torch.ones(3), "b": torch.ones(4)}, tmp_path / "unknown.pth")
    known, unknown = files[0], tmp_path / "unknown.pth"
    _, out, _ = run("diff", known, unknown)
    assert "for --table-b my.toml" in out and "vitconvert table FILE --like" in out
    _, out, _ = run("diff", unknown, known)
    assert "for --table-a my.toml" in out
    _, out, _ = run("diff", unknown, unknown)
    assert "for --table my.toml" in out


def test_error_a_file_that_is_not_there(files, run, tmp_path):
    code, out, err = run("diff", files[0], tmp_path / "nowhere.npz")
    assert (code, out) == (1, "")
    assert err.startswith("error: source-not-found\n")
