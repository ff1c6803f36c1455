"""`--adapter` on the command line: converted, planned, compared; its place is not recorded."""

import json

from click.testing import CliRunner

from tests.adapters.writing import saved
from tests.huggingface.classes import LABELS, MLP, _case
from vitconvert.cli import vitconvert as group

VIT = _case("ViTForImageClassification", "ViTConfig", "hf_vit", MLP, LABELS)


def test_from_a_base_and_an_adapter_to_one_model(tmp_path):
    folder, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["q_proj"])
    base, lora, out = str(folder), str(adapter), str(tmp_path / "merged")
    run = CliRunner().invoke
    planned = run(group, ["hf", base, "--adapter", lora, "-o", out, "--dry-run", "--json"])
    plan = json.loads(planned.stdout)
    kinds = {t["name"]: t["steps"] for t in plan["tensors"]}
    assert kinds["vit.encoder.layer.1.attention.attention.query.weight"] == ["lossy"]
    assert kinds["vit.encoder.layer.1.attention.attention.query.bias"] == ["rename"]
    done = run(group, ["hf", base, "--adapter", lora, "-o", out, "--json"])
    assert done.exit_code == 0
    assert json.loads((tmp_path / "merged" / "vitconvert.json").read_text())["command"] == (
        "vitconvert hf base -o merged --adapter adapter --json"
    )
    assert run(group, ["diff", out, base, "--adapter-b", lora]).exit_code == 0
    assert run(group, ["diff", out, base]).exit_code == 3
    assert run(group, ["verify", base, "--adapter", lora]).exit_code == 0
    assert run(group, ["hf", lora, "-o", str(tmp_path / "x")]).exit_code == 1
    assert not (tmp_path / "x").exists()
