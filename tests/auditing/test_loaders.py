"""`vitconvert audit`: loads that lose weights, by the libraries' own loaders and by users' code."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import vitconvert
from benchmarks.upstream import install
from tests.hub_server import HubServer, use_hub
from tests.packages import open_clip, timm, torchvision, transformers
from vitconvert.auditing.loaders import Loader, parse_loader
from vitconvert.cli import main
from vitconvert.errors import UsageError

SIZES = {"hidden_size": 24, "num_hidden_layers": 11, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "image_size": 32, "patch_size": 8}
OURS = """
import torch, timm

SIZES = dict(img_size=32, patch_size=8, embed_dim=24, depth=11, num_heads=3, num_classes=7)

def build():
    return timm.models.VisionTransformer(**SIZES)
"""


@pytest.fixture
def audit(capsys, tmp_path, monkeypatch):
    """Runs the verb in a folder of its own: the exit code and what is printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        sys.modules.pop("ours", None)
        capsys.readouterr()  # of what saved the model
        with pytest.raises(SystemExit) as ended:
            main(["audit", *map(str, words)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return run


def drawn(model, seed=0):
    """A model of which every tensor of fractions is random."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return model


def saved_vit(folder, kind="ViTForImageClassification"):
    config = transformers.ViTConfig(**SIZES, num_labels=7)
    drawn(getattr(transformers, kind)(config)).save_pretrained(folder)
    return folder


def own(text):
    Path("ours.py").write_text(OURS + text)
    return "ours.py:load"


def own_vit():
    torch.manual_seed(1)
    Path("build.py").write_text(OURS)
    return drawn(
        timm.models.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=24, depth=11, num_heads=3, num_classes=7
        )
    ).state_dict()


def test_a_whole_load_is_three_lines(audit, tmp_path):
    saved_vit(tmp_path / "vit")
    code, printed = audit("vit", "--by", "transformers")
    count = len(load_file("vit/model.safetensors"))
    version = transformers.__version__
    assert code == 0
    assert printed.splitlines() == [
        f"model.safetensors -> ViTForImageClassification, by transformers {version}",
        f"{count} of {count} parameters hold what the file has for them",
        "of the file, in no parameter: nothing",
    ]
    code, printed = audit("vit", "--by", "transformers", "-q")
    assert printed == f"{count} of {count} parameters hold what the file has for them\n"


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
    assert "likely cause: the class calls them otherwise than the file does" in printed
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
    assert code == 3 and "as initialised; the file has another size: 2" in printed
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
    assert len(said) == 4 and said[:3] == told[:3]
    assert said[3] == f"the loader said: and {len(told) - 3} more (-v lists all)"
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
    assert code == 3 and "hold what the file has for others: 44" in printed
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


def llama(tied=False):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 11}
    sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=tied)
    return transformers.LlamaForCausalLM(config)


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


@pytest.mark.slow
def test_another_interpreter(audit, tmp_path, monkeypatch):
    """Tied weights, what is on the meta device, and a user's function come back the same."""
    drawn(llama(tied=True)).save_pretrained("llama")
    for by in ("transformers", "ours:load", "ours:meta"):
        Path("ours.py").write_text("""
import torch, transformers

def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)

def meta(path):
    model = load(path)
    model.lm_head = torch.nn.Linear(24, 97, bias=False, device="meta")
    return (model,)
""")
        here = audit("llama", "--by", by)
        there = audit("llama", "--by", by, "--python", sys.executable)
        assert here == there
        assert here[0] == (3 if by == "ours:meta" else 0)
        assert ("on the meta device" in here[1]) == (by == "ours:meta")


@pytest.fixture(scope="session")
def releases(tmp_path_factory):
    """Folders with releases of transformers and what they require, made once."""
    made = {}

    def folder(release):
        if release not in made:
            made[release] = tmp_path_factory.mktemp("release")
            install(f"transformers=={release}", made[release])
        return made[release]

    return folder


SAVE_VIDEOMAE = """
import torch, transformers
sizes = dict(image_size=32, patch_size=8, num_frames=4, tubelet_size=2, hidden_size=48)
sizes |= dict(num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, num_labels=5)
model = transformers.VideoMAEForVideoClassification(transformers.VideoMAEConfig(**sizes))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_()
model.save_pretrained("videomae")
"""


@pytest.mark.slow
def test_videomae_of_transformers_4_loses_biases_in_5(audit, releases, monkeypatch):
    """transformers 48675; whole in 4.57.1 and in the release that is installed."""

    def by_release(release):
        folder = releases(release)
        monkeypatch.setenv("PYTHONPATH", os.fspath(folder))
        return "--python", sys.executable

    by_release("4.57.1")
    Path("save.py").write_text(SAVE_VIDEOMAE)
    assert os.system(f"{sys.executable} save.py") == 0  # noqa: S605
    code, printed = audit("videomae", "--by", "transformers", *by_release("4.57.1"))
    assert code == 0 and "51 of 51" in printed and "by transformers 4.57.1" in printed
    code, printed = audit("videomae", "--by", "transformers", *by_release("5.10.1"))
    assert code == 3 and "45 of 54 parameters" in printed and "transformers 5.10.1" in printed
    attention = "videomae.encoder.layer.{0..2}.attention.attention"
    assert f"  {attention}.query.bias: the file has {attention}.q_bias" in printed.splitlines()
    assert f"  {attention}.value.bias: the file has {attention}.v_bias" in printed.splitlines()
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ vitconvert audit videomae .*\n((?:.+\n)+?)```", readme, re.M)
    assert printed.startswith(shown)
    code, printed = audit("videomae", "--by", "transformers")
    assert code == 0, printed


SAVE_VERDICTS = """
import torch, transformers

def saved(model, name):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(name)

sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
stages = dict(hidden_sizes=[8, 16, 20, 24], num_attention_heads=[1, 2, 2, 3], num_labels=5)
config = transformers.SegformerConfig(**stages, depths=[1, 2, 1, 1], decoder_hidden_size=20)
saved(transformers.SegformerForSemanticSegmentation(config), "segformer")
text = transformers.ChineseCLIPTextConfig(**sizes, vocab_size=97)
vision = transformers.ChineseCLIPVisionConfig(**sizes, image_size=32, patch_size=8)
config = dict(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=12)
saved(transformers.ChineseCLIPModel(transformers.ChineseCLIPConfig(**config)), "chinese_clip")
text = dict(sizes, num_key_value_heads=1, head_dim=8, vocab_size=97, num_experts=4)
text |= dict(num_experts_per_tok=2, moe_intermediate_size=12, pad_token_id=None)
vision = dict(depth=2, hidden_size=24, num_heads=3, intermediate_size=40, out_hidden_size=24)
vision |= dict(num_position_embeddings=16, deepstack_visual_indexes=[0], patch_size=4)
config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision)
saved(transformers.Qwen3VLMoeForConditionalGeneration(config), "qwen")
"""


@pytest.mark.slow
def test_files_of_other_releases(audit, releases, monkeypatch):
    """Norms 1 and 2 that become `before` and `after`, a padding row set to zero, experts."""

    def by_release(release):
        monkeypatch.setenv("PYTHONPATH", os.fspath(releases(release)))
        return "--python", sys.executable

    here = by_release("5.0.0")
    Path("save.py").write_text(SAVE_VERDICTS)
    assert os.system(f"{sys.executable} save.py") == 0  # noqa: S605
    for model in ("segformer", "qwen"):
        code, printed = audit(model, "--by", "transformers", *here)
        assert code == 0, printed
    code, printed = audit("segformer", "--by", "transformers")
    assert code == 0, printed
    code, printed = audit("chinese_clip", "--by", "transformers")
    assert code == 3 and "some numbers were replaced by one, and the file has others: 1" in printed
    words = "text_model.embeddings.word_embeddings.weight"
    assert f"  {words}: 24 numbers were replaced by 0, in row 0 of 97, of {words}" in printed
    assert f"--allow '{words}'" in printed
    assert audit("chinese_clip", "--by", "transformers", "--allow", words)[0] == 0
