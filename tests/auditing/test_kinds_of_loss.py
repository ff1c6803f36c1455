"""`vitconvert audit`: what is lost of a model, by kind."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.auditing.models import drawn, own, own_vit, saved_vit
from tests.packages import timm, torchvision, transformers
from vitconvert.cli import main


def test_a_whole_load_is_three_lines(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    code, printed = audit("vit", "--by", "transformers")
    count = len(load_file("vit/model.safetensors"))
    version = transformers.__version__
    assert code == 0
    assert printed.splitlines() == [
        f"model.safetensors -> ViTForImageClassification, by transformers {version}",
        f"{count} of {count} parameters hold the file's numbers",
        "in the file, in no parameter: nothing",
    ]
    code, printed = audit("vit", "--by", "transformers", "-q")
    assert printed == f"{count} of {count} parameters hold the file's numbers\n"


def test_renamed_biases(audit, tmp_path):
    file = saved_vit(tmp_path / "vit") / "model.safetensors"
    state = load_file(file)
    renamed = {n.replace("query.bias", "q_bias"): t for n, t in state.items()}
    save_file(renamed, file, {"format": "pt"})
    assert sum("q_bias" in name for name in renamed) == 11
    code, printed = audit("vit", "--by", "transformers")
    assert code == 3
    assert f"{len(state) - 11} of {len(state)} parameters" in printed
    (line,) = [one for one in printed.splitlines() if "q_bias" in one and "said" not in one]
    assert "{0..10}" in line and line.endswith("q_bias")
    assert "likely cause: the class gives them other names than the file" in printed
    assert "the loader said: " in printed
    told = json.loads(audit("vit", "--by", "transformers", "--json")[1])
    (loss,) = told["losses"]
    assert told["ok"] is False and loss["kind"] == "renamed" and len(loss["parameters"]) == 11


def test_a_head_that_the_class_adds(audit, tmp_path):
    saved_vit(tmp_path / "vit", "ViTModel")
    by = ("vit", "--by", "transformers:ViTForImageClassification")
    code, printed = audit(*by)
    assert code == 3
    assert "newly initialized; nothing in the file: 2" in printed
    assert "--allow 'classifier.*'" in printed
    code, printed = audit(*by, "--allow", "classifier.*")
    assert code == 0 and "2 allowed to be new" in printed
    assert audit(*by, "--allow", "head.*")[0] == 3


def test_another_size(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    config = json.loads(Path("vit/config.json").read_text())
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(5)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(5)}
    Path("vit/config.json").write_text(json.dumps(config))
    # Which raises; in a process of its own, whose log no other test has turned elsewhere.
    code, printed = audit("vit", "--by", "transformers", "--python", sys.executable)
    assert code == 1 and "The loader raised" in printed and "classifier" in printed
    assert len(printed[printed.index("error:") :].splitlines()) < 9
    by = own("""
def load(path):
    import transformers
    return transformers.ViTForImageClassification.from_pretrained(
        path, ignore_mismatched_sizes=True)
""")
    code, printed = audit("vit", "--by", by)
    assert code == 3 and "as initialised; in the file with another size: 2" in printed
    assert "  classifier.weight: (5, 24), and in the file (7, 24)" in printed


def test_a_prefix_that_the_file_lacks(audit):
    torch.save(own_vit(), "vit.pth")
    by = own("""
def load(path):
    whole = torch.nn.ModuleDict({"backbone": build()})
    whole.load_state_dict(torch.load(path), strict=False)
    return whole
""")
    code, printed = audit("vit.pth", "--by", by)
    assert code == 3 and "0 of " in printed
    assert "likely cause: names in the model begin with 'backbone.'" in printed
    assert "what to do:   load {'backbone.' + name: tensor" in printed
    assert "the loader said nothing of this" in printed
    assert len(printed.splitlines()) < 24


def test_a_prefix_of_a_directory_of_transformers(audit, tmp_path):
    file = saved_vit(tmp_path / "vit") / "model.safetensors"
    state = {f"module.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(state, file, {"format": "pt"})
    code, printed = audit("vit", "--by", "transformers")
    assert code == 3 and f"0 of {len(state)} parameters" in printed
    assert "names in the file begin with 'module.' (torch DataParallel" in printed
    said = [line for line in printed.splitlines() if line.startswith("the loader said")]
    whole = audit("vit", "--by", "transformers", "-v")[1]
    told = [line for line in whole.splitlines() if line.startswith("the loader said")]
    assert len(said) == 3 and said == told[:3]
    assert f"\n({len(told) - 3} more lines of the loader: -v lists them)" in printed
    with pytest.raises(SystemExit) as ended:
        main(["convert", "vit", "--to", "hf", "-o", "clean", "-q"])
    assert not ended.value.code
    assert audit("clean", "--by", "transformers")[0] == 0


def test_no_loader_is_named(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    for checkpoint in ("vit", "vit/model.safetensors"):
        code, printed = audit(checkpoint)
        assert code == 2 and len(printed.splitlines()) <= 5
        assert "timm, open_clip, torchvision" in printed
        assert "--by transformers, whose class ViTForImageClassification" in printed
    torch.save(own_vit(), "vit.pth")
    code, printed = audit("vit.pth")
    assert code == 2 and "timm, open_clip" in printed and "config.json" not in printed


@pytest.mark.slow
def test_data_parallel(audit):
    """torch's prefix: timm takes it off, and torchvision's users get nothing."""
    model = drawn(torchvision.models.get_model("resnet18"))
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state}, "resnet.pth")
    code, printed = audit("resnet.pth", "--by", "torchvision:resnet18")
    assert code == 3 and "0 of 102 parameters" in printed
    assert "names in the file begin with 'module.' (torch DataParallel and Distr" in printed
    assert "load {name.removeprefix('module.'): tensor" in printed
    model = drawn(timm.create_model("resnet10t"))
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state}, "timm.pth")
    code, printed = audit("timm.pth", "--by", "timm:resnet10t")
    assert code == 0, printed


def test_keys_and_queries_exchanged(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    by = own("""
def load(path):
    import transformers
    model = transformers.ViTForImageClassification.from_pretrained(path)
    state = model.state_dict()
    swap = {"query": "key", "key": "query", "q_proj": "k_proj", "k_proj": "q_proj"}
    mixed = {".".join(swap.get(w, w) for w in n.split(".")): t for n, t in state.items()}
    return transformers.ViTForImageClassification.from_pretrained(
        None, config=model.config, state_dict=mixed)
""")
    code, printed = audit("vit", "--by", by)
    assert code == 3 and "hold the file's numbers for others: 44" in printed
    assert "likely cause: k and q are exchanged" in printed


def test_averaged_weights_beside_the_model(audit):
    model = drawn(timm.create_model("resnet10t"))
    averaged = drawn(timm.create_model("resnet10t"), seed=1).state_dict()
    torch.save({"state_dict": model.state_dict(), "state_dict_ema": averaged}, "both.pth")
    code, printed = audit("both.pth", "--by", "timm:resnet10t")
    assert code == 0 and ", state_dict.*: all " in printed and "note" not in printed
    Path("ours.py").write_text("""
import torch, timm

def load(path, key="state_dict"):
    model = timm.create_model("resnet10t")
    model.load_state_dict(torch.load(path)[key])
    return model

def mixed(path):
    model, averaged = load(path), load(path, "state_dict_ema")
    model.fc = averaged.fc
    return model
""")
    code, printed = audit("both.pth", "--by", "ours:load")
    assert code == 0 and "note: state_dict_ema.* are averaged weights" in printed
    code, printed = audit("both.pth", "--by", "ours:mixed")
    assert code == 3 and "fc.bias: holds state_dict_ema.fc.bias, while most" in printed


def test_quantised(audit):
    """Codes of bitsandbytes that code takes for weights, without their scales."""
    weight = torch.randn(48, 24)
    scale = weight.abs().amax(1)
    codes = (weight * 127 / scale[:, None]).round().to(torch.int8)
    state = {
        "fc.weight": codes,
        "fc.SCB": scale,
        "fc.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    state["norm.weight"] = torch.rand(24)
    save_file(state, "model.safetensors")
    Path("ours.py").write_text("""
import torch
from safetensors.torch import load_file

def build():
    return torch.nn.ModuleDict(dict(fc=torch.nn.Linear(24, 48, bias=False),
        norm=torch.nn.RMSNorm(24)))

def load(path):
    model = build()
    model.load_state_dict({n: t.float() for n, t in load_file(path).items()}, strict=False)
    return model

def scaled(path):
    model, state = load(path), load_file(path)
    model.fc.weight.data = state["fc.weight"] * state["fc.SCB"][:, None] / 127
    return model
""")
    code, printed = audit("model.safetensors", "--by", "ours:scaled")
    assert code == 0, printed
    code, printed = audit("model.safetensors", "--by", "ours:load")
    assert code == 3 and "quantised" in printed
