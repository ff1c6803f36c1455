"""`--adapter` on the command line: converted, planned, compared; its place is not recorded."""

import json

import pytest

from tests.adapters.writing import VIT, saved


@pytest.mark.filterwarnings("ignore")  # PEFT 0.21 calls what transformers 5.23 deprecates
def test_from_a_base_and_an_adapter_to_one_model(run, tmp_path):
    base, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["q_proj"])
    out = tmp_path / "merged"
    planned = run("hf", base, "--adapter", adapter, "-o", out, "--dry-run", "--json")
    kinds = {tensor["name"]: tensor["steps"] for tensor in json.loads(planned.out)["tensors"]}
    assert kinds["vit.encoder.layer.1.attention.attention.query.weight"] == ["lossy"]
    assert kinds["vit.encoder.layer.1.attention.attention.query.bias"] == ["rename"]
    assert run("hf", base, "--adapter", adapter, "-o", out).code == 0
    record = json.loads((out / "vitconvert.json").read_text())
    assert record["command"] == "vitconvert hf base -o merged --adapter adapter"
    assert run("diff", out, base, "--adapter-b", adapter).code == 0
    assert run("diff", out, base).code == 3
    assert run("verify", base, "--adapter", adapter).code == 0


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_alone_is_told_its_command(run, tmp_path):
    _, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["q_proj"])
    config = adapter / "adapter_config.json"
    # No folder is called so where the command runs, and no repository anywhere.
    elsewhere = json.loads(config.read_text()) | {"base_model_name_or_path": "base-of-flowers"}
    for said in (config.read_text(), json.dumps(elsewhere)):
        config.write_text(said)
        answer = run("hf", adapter, "-o", tmp_path / "x")
        assert answer.code == 1
        assert f"hint: `vitconvert hf BASE --adapter {adapter}` merges the two" in answer.err
        assert not (tmp_path / "x").exists()
    config.write_text(json.dumps(elsewhere | {"base_model_name_or_path": str(tmp_path)}))
    told = run("inspect", adapter).out
    assert f"hint: `vitconvert convert {adapter}` merges it into {tmp_path}, as do" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_export_says_what_was_merged(run, tmp_path):
    base, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["q_proj"])
    asked = ("--to", "pt2", "-o", tmp_path / "vit.pt2", "--no-verify")
    assert (
        "\nnote           merged the LoRA adapter adapter: "
        in run("export", base, "--adapter", adapter, *asked).out
    )
