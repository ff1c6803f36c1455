"""`vitconvert SOURCE MODEL`, from the download to the report."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.packages import timm, transformers, vit_pytorch
from tests.spelling import google_arrays
from vitconvert.demo.demonstration import DIGITS
from vitconvert.formats import open_container

NAME = "vit_tiny_patch16_224"
REPO = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def _random(model, seed=0, std=0.1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std, generator=generator).add_(std / 2)
    return model.eval()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that publishes one timm model."""
    folder = tmp_path / "published"
    model = _random(timm.create_model(NAME))
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with HubServer({REPO: files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        yield server


def test_timm_name_is_downloaded_checked_converted_verified_and_written(hub, run, tmp_path):
    code, out, err = run("timm", NAME, "-o", tmp_path / "out", "-v")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(f"source         {REPO} @ ")
    assert lines[1] == "               sha256 as published: config.json, model.safetensors"
    assert lines[2] == "dialect        timm"
    assert f"architecture {NAME}.augreg_in21k_ft_in1k: num_heads 3" in out
    assert "tensors        152 read, 152 used, 0 ignored" in lines
    assert f"parity         equal to timm {timm.__version__} VisionTransformer" in lines
    assert "opened by      timm: bit-equal" in lines
    assert "opened by      transformers: bit-equal" in lines
    assert lines[-1] == f"output         {tmp_path / 'out'} (timm)"
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["repo"] == REPO
    assert len(record["source"]["revision"]) == 40
    assert record["source"]["verified"] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("typed", [["--token", "hf_secret"], ["--token=hf_secret"]], ids=str)
def test_the_token_is_not_in_the_record(typed, hub, run, tmp_path, monkeypatch):
    arguments = ["timm", NAME, "-o", str(tmp_path / "out"), "--no-verify", *typed]
    monkeypatch.setattr("sys.argv", ["vitconvert", *arguments])
    assert run(*arguments).code == 0
    record = (tmp_path / "out" / "vitconvert.json").read_text()
    assert "hf_secret" not in record
    assert "--no-verify --token" in record
    assert f"vitconvert timm {NAME} -o out --no-verify" in record
    assert str(tmp_path) not in record
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in hub.requests)


def test_a_warm_cache_is_enough_offline(hub, run, tmp_path):
    assert run("timm", NAME, "-o", tmp_path / "one", "--no-verify").code == 0
    assert run("timm", NAME, "-o", tmp_path / "two", "--no-verify", "--offline").code == 0


def test_error_corrupted_download(hub, run, tmp_path):
    hub.faults.corrupt.add("model.safetensors")
    code, _, err = run("timm", NAME, "-o", tmp_path / "out")
    assert code == 1
    assert err.startswith("error: hash-mismatch\n")
    assert not (tmp_path / "out").exists()


def test_error_no_network_names_both_ways_out(hub, run, tmp_path):
    hub.stop()
    code, _, err = run("timm", NAME, "-o", tmp_path / "out")
    assert code == 1
    assert err.startswith(
        f"error: offline\n  {REPO} is not in the cache, and no network answers.\n"
    )
    assert err.endswith(
        "  hint: name the path of a file that you have; `vitconvert timm NAME --no-pretrained` "
        "builds a timm model without its weights.\n"
    )


@pytest.mark.slow
def test_no_pretrained_needs_no_network(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = run("timm", NAME, "--no-pretrained", "-o", tmp_path / "out")
    assert code == 0, err
    assert out.startswith(f"converted      timm:{NAME}, random weights (timm) to timm: ")
    assert timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)


def test_error_misspelt_name(run, tmp_path):
    code, _, err = run("timm", "vit_tny_patch16_224", "--no-pretrained", "-o", tmp_path / "out")
    assert code == 1
    assert err.startswith(
        "error: source-not-found\n"
        "  timm knows no model vit_tny_patch16_224.\n"
        "  hint: did you mean timm:vit_tiny_patch16_224 or "
    )


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "training checkpoint"])
def test_a_local_checkpoint_takes_the_place_of_the_download(wrapped, run, tmp_path):
    model = _random(timm.create_model(NAME, num_classes=5))
    state = {f"module.{k}": v for k, v in model.state_dict().items()} if wrapped else None
    saved = {"state_dict": state, "epoch": 3} if wrapped else model.state_dict()
    torch.save(saved, tmp_path / "mine.pth")
    options = ("--checkpoint", tmp_path / "mine.pth", "-o", tmp_path / "out", "--json")
    code, out, err = run("timm", NAME, *options)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["ok"] and answer["parity"]["ok"]
    assert answer["config"]["num_classes"] == 5
    assert answer["origins"]["num_heads"] == f"architecture {NAME}"
    assert answer["ledger"]["notes"] == [
        f"preprocessing is timm's own for {NAME}; no file states it"
    ]
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        assert torch.equal(vitconvert.load_model(tmp_path / "out")(x), model(x))


def test_error_an_architecture_whose_name_means_another_function(run, tmp_path):
    model = timm.create_model("vit_tiny_patch16_224")
    torch.save(model.state_dict(), tmp_path / "x.pth")
    options = ("--checkpoint", tmp_path / "x.pth", "-o", tmp_path / "out")
    code, _, err = run("timm", "cait_s24_224", *options)
    assert code == 5
    assert err.startswith(
        "error: not-representable\n  'cait_s24_224' is not an architecture that vitconvert knows.\n"
    )


def test_hf_directory(run, tmp_path):
    config = transformers.ViTConfig(
        hidden_size=30, num_hidden_layers=11, num_attention_heads=3, intermediate_size=50,
        image_size=24, patch_size=8, num_labels=4, num_channels=1,
    )  # fmt: skip
    _random(transformers.ViTForImageClassification(config)).save_pretrained(tmp_path / "hf")
    sizes = ("--image-size", "24x36", "--patch-size", "6")
    code, out, err = run("hf", tmp_path / "hf", "-o", tmp_path / "out", "-v", *sizes)
    assert code == 0, err
    assert "dialect        hf_vit" in out
    assert "patches resized from 8x8 to 6x6 pixels" in out
    assert "positions resampled from 3x3 to 4x6 patches (bicubic)" in out
    assert "norm_eps 1e-12" in out
    assert "opened by      transformers: the output, bit-equal to the changed model" in out
    assert "not for        timm: timm has no architecture with these fixed parts; norm_eps" in out


def test_jax_file(run, tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=11, heads=3, width=36, size=32))
    code, out, err = run("jax", tmp_path / "vit.npz", "-o", tmp_path / "out", "-v")
    assert code == 0, err
    for part in ("dialect        google_jax", "activation gelu_tanh", "equal to timm"):
        assert part in out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_args"]["act_layer"] == "gelu_tanh"


def test_lucidrains_file(run, tmp_path):
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 36, "depth": 2}
    model = _random(vit_pytorch.ViT(heads=3, mlp_dim=40, dim_head=20, **sizes))
    torch.save(model.state_dict(), tmp_path / "vit.pt")
    asked = ("--set", "num_heads=3", "-o", tmp_path / "out")
    code, out, err = run("lucidrains", tmp_path / "vit.pt", *asked)
    assert code == 0, err
    (assumed,) = re.findall("^assumed +(.*)$", out, re.MULTILINE)
    assert "patch_size 8x8, in_channels 3 (a patch of 192 values is square)" in assumed.split("; ")
    assert "equal to vit-pytorch" in out
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        ours, theirs = vitconvert.load_model(tmp_path / "out")(x), model(x)
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())


@pytest.mark.slow
def test_torchvision_file_named_as_torchvision_names_it(run, tmp_path):
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 16, 12, 12, 768, 3072, num_classes=3)
    # Of wide layers with larger weights, rounding alone comes near the tolerance of float32.
    torch.save(_random(model, std=0.02).state_dict(), tmp_path / "vit_b_16-0123abcd.pth")
    code, out, err = run("torchvision", tmp_path / "vit_b_16-0123abcd.pth", "-o", tmp_path / "out")
    assert code == 0, err
    assert "the file name begins with vit_b_16" in out
    assert "equal to torchvision" in out


def test_file_recognises_what_it_is_given(run, tmp_path):
    torch.save(_random(timm.create_model(NAME)).state_dict(), tmp_path / "mystery.bin")
    code, _, err = run("file", tmp_path / "mystery.bin", "-o", tmp_path / "out")
    assert code == 1
    assert err == (
        "error: missing-fact\n"
        "  The file does not say everything that decides the function.\n"
        "  dialect  timm (weights_map/timm.toml)\n"
        "  num_heads  q has 192 rows, and the number of heads is unknown; released ViTs "
        "of width 192 have 3\n"
        "  hint: --set num_heads=... states it.\n"
    )
    answer = run("file", tmp_path / "mystery.bin", "--set", "num_heads=3", "-o", tmp_path / "out")
    assert answer.code == 0


@pytest.mark.parametrize(
    ("flags", "code", "word"), [([], 1, "source-not-found"), (["--nope"], 2, "usage")]
)
def test_json_tells_errors_on_stdout(flags, code, word, run, tmp_path):
    answer = run("file", tmp_path / "nowhere.npz", "--json", *flags)
    assert (answer.code, answer.err) == (code, "")
    assert json.loads(answer.out)["error"]["code"] == word


def test_no_classes_are_not_all_classes(run, tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=2, heads=3, width=36, size=32))
    code, _, err = run("jax", tmp_path / "vit.npz", "--classes", "", "-o", tmp_path / "out")
    assert code == 2
    assert "classes = [''] must be a list of classes" in err


@pytest.mark.parametrize("setting", ["num_heads", "=3", "num_heads="])
def test_error_setting_without_a_value(setting, run, tmp_path):
    Path(tmp_path / "x.npz").write_bytes(b"")
    code, _, err = run("file", tmp_path / "x.npz", "--set", setting, "-o", tmp_path / "out")
    assert code == 2
    assert "is not FIELD=VALUE" in err


def test_error_unknown_field(run, tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=2, heads=3, width=36, size=32))
    code, _, err = run("jax", tmp_path / "vit.npz", "--set", "num_head=3", "-o", tmp_path / "out")
    assert code == 2
    assert "'num_head' is not a field of ViTConfig." in err
    assert "did you mean 'num_heads' or" in err


def test_scan_stacks_the_blocks_of_big_vision(run, tmp_path):
    asked = ["--set", "activation=gelu_tanh", "--no-verify", "-q", "--scan", "-o", tmp_path / "out"]
    assert run("file", DIGITS, "--to", "big_vision", *asked).code == 0
    with open_container(tmp_path / "out" / "model.npz") as container:
        names = [name for name in container.manifest if name.endswith("LayerNorm_0/scale")]
        assert [container.manifest[name].shape for name in names] == [(4, 48)]
    refused = run("file", DIGITS, "--to", "timm", *asked, "--force")
    assert refused.code == 2
    assert "timm has no stacked blocks." in refused.err
