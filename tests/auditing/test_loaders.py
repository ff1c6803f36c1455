"""`vitconvert audit --by`: the libraries' own loaders and users' code, of models of any kind."""

import json
import sys
import venv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import vitconvert
from tests.auditing.models import drawn, llama, own, own_vit, saved_vit
from tests.hub_server import HubServer, use_hub
from tests.packages import open_clip, timm, torchvision, transformers
from vitconvert.auditing.loaders import Loader, parse_loader
from vitconvert.errors import UsageError


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf"])
def test_a_convolutional_network_of_torchvision(audit, name):
    model = drawn(torchvision.models.get_model(name))
    torch.save(model.state_dict(), "net.pth")
    code, printed = audit("net.pth", "--by", f"torchvision:{name}")
    assert code == 0 and len(printed.splitlines()) == 3
    torch.save({n: t for n, t in model.state_dict().items() if "running" not in n}, "net.pth")
    code, printed = audit("net.pth", "--by", f"torchvision:{name}")
    assert code == 3 and "buffers as the class makes them" in printed and "running_" in printed


def test_a_directory_of_timm(audit):
    model = drawn(timm.create_model("resnet10t", num_classes=5))
    timm.models.save_for_hf(model, "net", model_args={"num_classes": 5})
    code, printed = audit("net", "--by", "timm")
    assert code == 0 and "create_model('local-dir:...')" in printed


def detr():
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "num_queries": 5}
    sizes |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    sizes |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    backbone = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24],
        depths=[1, 2],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_labels=3,
        **sizes,
    )
    return transformers.DetrForObjectDetection(config)


def qwen():
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97}
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**sizes, tie_word_embeddings=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("build", [detr, llama, lambda: llama(tied=True), qwen])
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_models_that_are_no_vit(audit, build, shard):
    model = drawn(build())
    model.save_pretrained("model", max_shard_size=shard)
    assert Path("model/model.safetensors.index.json").exists() == (shard == "20KB")
    code, printed = audit("model", "--by", "transformers")
    assert code == 0, printed
    if shard == "20KB":
        assert printed.startswith("model.safetensors.index.json -> ")
        code, printed = audit("model/model.safetensors.index.json", "--by", "transformers")
        assert code == 0, printed


def test_the_file_that_a_loader_reads_of_several(audit, tmp_path):
    file = saved_vit(tmp_path / "vit") / "model.safetensors"
    state = load_file(file)
    torch.save({n: t + 1 for n, t in state.items()}, "vit/pytorch_model.bin")
    code, printed = audit("vit", "--by", "transformers")
    assert code == 0 and printed.startswith("model.safetensors -> ")
    code, printed = audit("vit/pytorch_model.bin", "--by", "transformers")
    assert code == 0 and printed.startswith("pytorch_model.bin -> ")
    Path("vit/pytorch_model.bin").rename("vit/step_3.pth")
    code, printed = audit("vit/step_3.pth", "--by", "transformers")
    assert code == 0 and printed.startswith("step_3.pth -> ")


@pytest.mark.parametrize(
    ("by", "hint"),
    [
        ("timm", "--by timm:NAME, with timm's name of the model, loads a file alone."),
        ("transformers", "put the model's config.json beside the weights."),
    ],
)
def test_a_file_without_the_configuration_that_its_library_needs(audit, tmp_path, by, hint):
    saved_vit(tmp_path / "vit")
    Path("vit/config.json").unlink()
    code, printed = audit("vit/model.safetensors", "--by", by)
    assert code == 2
    assert f"{by} needs a config.json beside model.safetensors." in printed and hint in printed


@pytest.mark.slow
def test_open_clip(audit, tmp_path):
    """A configuration of its own, and a file whose parts are whole, lost and of another model."""
    sizes = {"image_size": 32, "layers": 3, "width": 36, "head_width": 12, "patch_size": 8}
    text = {"context_length": 12, "vocab_size": 97, "width": 20, "heads": 2, "layers": 2}
    config = {"embed_dim": 28, "vision_cfg": sizes, "text_cfg": text}
    (tmp_path / "audited_vit.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "audited_vit.json")
    model = drawn(open_clip.create_model("audited_vit"))
    state = model.state_dict()
    torch.save({"state_dict": state}, "clip.pt")
    code, printed = audit("clip.pt", "--by", "open_clip:audited_vit")
    assert code == 0, printed
    assert f"by open_clip {open_clip.__version__}, create_model('audited_vit'" in printed
    state["visual.class_embedding"] = state["visual.class_embedding"] * 0
    save_file({n: t.contiguous() for n, t in state.items()}, "clip.safetensors")
    by = own("""
def load(path):
    import open_clip
    model = open_clip.create_model("audited_vit", pretrained="clip.pt")
    return model
""")
    code, printed = audit("clip.safetensors", "--by", by)
    assert code == 3 and "visual.class_embedding" in printed


def test_a_repository_of_the_hub(audit, tmp_path, monkeypatch):
    file = saved_vit(tmp_path / "vit") / "model.safetensors"
    files = {one.name: one.read_bytes() for one in file.parent.iterdir()}
    state = load_file(file)
    renamed = {n.replace("query.bias", "q_bias"): t for n, t in state.items()}
    broken = files | {"model.safetensors": save(renamed, {"format": "pt"})}
    with HubServer({"org/vit": files, "org/broken": broken}) as server:
        use_hub(monkeypatch, server, tmp_path)
        code, printed = audit("hf:org/vit", "--by", "transformers")
        assert code == 0 and f"{len(state)} of {len(state)} parameters" in printed
        code, printed = audit("hf:org/broken", "--by", "transformers")
        assert code == 3 and "q_bias" in printed


@pytest.mark.parametrize(
    ("code", "way"),
    [
        ("def load(path):\n    return {'step': 3, 'model': made(path)}", "['model']"),
        ("def load(path):\n    return made(path), None, len", "[0]"),
        (
            "class load:\n    def __init__(self, path):\n        self.other = torch.nn.ReLU()\n"
            "        self.net = made(path)",
            ".net",
        ),
        ("def load():\n    return made('vit.pth')", ""),
        ("def load(*, device='cpu'):\n    return made('vit.pth')", ""),
    ],
)
def test_what_a_function_returns_and_takes(audit, code, way):
    torch.save(own_vit(), "vit.pth")
    made = """
def made(path):
    model = build()
    model.load_state_dict(torch.load(path))
    return model

"""
    by = own(made + code)
    ended, printed = audit("vit.pth", "--by", by)
    assert ended == 0, printed
    note = f"note: audited is {way} of what the loader returned"
    assert (note in printed) == bool(way)


def test_no_such_loader(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    Path("ours.py").write_text(
        "number = 3\ndef none(path):\n    return 7\ndef bad(path):\n    1 / 0\n"
    )
    for by, said in (
        ("transfomers", "did you mean transformers?"),
        ("open_clip", "write open_clip:NAME"),
        ("transformers:ViTForNothing", "has no class ViTForNothing"),
        ("timm:no_such_model", "timm has no model no_such_model"),
        ("torchvision:no_such", "torchvision has no model no_such"),
        ("absent.module:load", "absent.module cannot be imported"),
        ("absent.py:load", "There is no file absent.py"),
        ("ours:absent", "ours has no absent"),
        ("ours:number", "ours:number cannot be called"),
        ("ours:none", "The loader returned no model"),
    ):
        code, printed = audit("vit/model.safetensors", "--by", by)
        assert code == 2 and said in printed, (by, printed)
        assert len(printed.splitlines()) <= 6
    code, printed = audit("vit", "--by", "ours:bad")
    assert code == 1 and "ZeroDivisionError" in printed
    assert audit("absent", "--by", "transformers")[0] == 1
    assert audit("vit")[0] == 2


def test_no_such_interpreter(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    code, printed = audit("vit", "--by", "transformers", "--python", "absent/bin/python")
    assert code == 2 and "absent/bin/python is no Python that can be run" in printed
    broken = Path("broken")
    broken.write_text("#!/bin/sh\necho no libpython\nexit 127\n")
    broken.chmod(0o755)
    code, printed = audit("vit", "--by", "transformers", "--python", "./broken")
    assert code == 2 and "did not get as far as loading (exit code 127)" in printed
    assert "no libpython" in printed


def test_loaders_by_name_in_python(tmp_path):
    saved_vit(tmp_path / "vit", "ViTModel")
    by = "transformers:ViTForImageClassification"
    audit = vitconvert.audit_load(by, tmp_path / "vit", allow=["classifier.*"])
    assert audit.complete and audit.allowed == ("classifier.weight", "classifier.bias")
    assert not vitconvert.audit_load(by, tmp_path / "vit").complete
    with pytest.raises(UsageError, match="no state dict"):
        vitconvert.audit_load(by, {})
    with pytest.raises(UsageError, match="loaders by name alone"):
        vitconvert.audit_load(lambda: None, {}, python="python")
    assert parse_loader("a.b:c.d") == Loader(library="", name="a.b:c.d")


def test_what_to_install_names_the_interpreter(audit):
    """That of a new environment, which has no timm."""
    venv.create("bare", with_pip=False)
    python = Path("bare/Scripts/python.exe" if sys.platform == "win32" else "bare/bin/python")
    saved_vit("vit")
    code, printed = audit("vit", "--by", "timm", "--python", str(python))
    assert code == 2
    assert printed.endswith(f"  hint: {python.absolute()} -m pip install timm\n")
