"""`vitconvert SOURCE MODEL --dry-run`."""

import json

import numpy as np
import pytest
import torch

from tests.originals.spelling import HEADS, filled, meta_vit
from tests.spelling import google_arrays


@pytest.fixture
def google(tmp_path):
    """Google's file."""
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=11, heads=3, width=36, size=32))
    return tmp_path / "vit.npz"


def test_the_plan_is_told_block_by_block(google, run, tmp_path):
    code, out, err = run("jax", google, "--dry-run", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    mha = "Transformer/encoderblock_{i}/MultiHeadDotProductAttention_1"
    kernels = ", ".join(
        f"{mha}/{name}/kernel : width head dim" for name in ("query", "key", "value")
    )
    lines = out.splitlines()
    assert "target         timm" in lines
    assert "               rename             cls_token : 1 1 width = cls : 1 1 width" in lines
    assert (
        "               layout, structure  blocks.{i}.attn.qkv.weight : (qkv head dim) width = "
        f"cat({kernels})  x 11"
    ) in lines
    assert "tensors        184 read, 184 used, 0 ignored, 140 written" in lines
    assert lines[-3].startswith("bytes          ")
    assert lines[-3].endswith(" rearranged")
    assert lines[-2:] == [
        "files          model.safetensors, config.json, README.md, vitconvert.json",
        "output         nothing was written",
    ]
    assert not (tmp_path / "out").exists()


def test_the_wrapper_that_the_projects_scripts_look_into(run, tmp_path):
    torch.save(filled(meta_vit()), tmp_path / "vit.pth")
    stated = ("--set", f"num_heads={HEADS}", "--dry-run", "-o", tmp_path / "out")
    code, out, _ = run("file", tmp_path / "vit.pth", "--to", "mae", *stated)
    assert code == 0
    assert out.splitlines()[-3:] == [
        "files          model.pt, README.md, vitconvert.json",
        "wrapper        'model' holds the tensors",
        "output         nothing was written",
    ]


def test_every_tensor(google, run, tmp_path):
    code, out, _ = run("jax", google, "--dry-run", "-v", "-o", tmp_path / "out")
    assert code == 0
    assert "  rename             blocks.10.norm1.bias : width = " in out
    assert " x 11" not in out


def test_what_many_tensors_are_ignored_for_is_said_once(google, run, tmp_path):
    with np.load(google) as arrays:
        np.savez(google, **arrays, **{f"aux/{i}": np.zeros(1, np.float32) for i in range(4)})
    plan = ("jax", google, "--ignore", "aux/*", "--dry-run", "-o", tmp_path / "out")
    assert "\n  ignored      4 tensors, aux/0 ... aux/3: you ignored it (aux/*)\n" in run(*plan)[1]
    assert "\n  ignored      aux/2: you ignored it (aux/*)\n" in run(*plan, "-v")[1]


def test_error_the_nearest_of_those_that_lack_the_same_is_the_ecosystems_own(google, run, tmp_path):
    layer = {"pre_logits/kernel": np.ones((36, 36)), "pre_logits/bias": np.ones(36)}
    with np.load(google) as arrays:
        np.savez(google, **arrays, **{k: one.astype(np.float32) for k, one in layer.items()})
    code, _, err = run("jax", google, "--to", "timm", "--dry-run", "-o", tmp_path / "out")
    assert code == 5
    assert "the nearest is timm: timm VisionTransformer" in err


def test_json(google, run, tmp_path):
    code, out, _ = run("jax", google, "--dry-run", "--json", "--to", "hf", "-o", tmp_path / "out")
    answer = json.loads(out)
    assert (code, answer["ok"], answer["streamed"]) == (0, True, True)
    assert len(answer["tensors"]) == 184
    query = "vit.encoder.layer.10.attention.attention.query.weight"
    found = next(tensor for tensor in answer["tensors"] if tensor["name"] == query)
    assert (found["shape"], found["steps"]) == ([36, 36], ["layout"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--dry-run", "--no-verify"])
def test_error_target_that_computes_another_function(flag, google, run, tmp_path):
    code, out, err = run("jax", google, flag, "--to", "torchvision", "-o", tmp_path / "out")
    assert (code, out) == (5, "")
    assert "activation: the weights need gelu_tanh, and there it is gelu" in err
    assert not (tmp_path / "out").exists()


def test_error_output_is_there(google, run, tmp_path):
    code, _, err = run("jax", google, "--dry-run", "-o", tmp_path)
    assert code == 1
    assert err.startswith("error: output-exists\n")
    assert google.is_file()


def test_a_dry_run_may_replace_what_the_conversion_may(google, run, tmp_path):
    output = tmp_path / "out"
    forced = ("--dry-run", "--force", "-o", output)
    assert run("jax", google, "-q", "--no-verify", "-o", output).code == 0
    assert run("jax", google, *forced, "-q").out == "timm\n"
    code, _, err = run("file", output, *forced)
    assert (code, err) == (
        2,
        "error: usage\n"
        "  The output would replace its own source.\n"
        f"  source  {output}\n"
        f"  output  {output}\n"
        "  hint: -o names another directory.\n",
    )
    (output / "mine.txt").write_text("precious")
    for more in ((), ("--dry-run",)):
        code, _, err = run("jax", google, "--force", "-o", output, *more)
        assert (code, err) == (
            1,
            "error: output-exists\n"
            f"  {output} contains what vitconvert did not write, or not so; it is not replaced.\n"
            "  mine.txt\n"
            "  hint: move it elsewhere, or name another directory with -o.\n",
        )
    (output / "mine.txt").unlink()
    assert run("jax", google, "--force", "-q", "--no-verify", "-o", output).code == 0
