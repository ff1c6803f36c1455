"""Merged logits beside PEFT's own `merge_and_unload`, for adapters that PEFT wrote."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.adapters.writing import VIT, saved, with_adapter
from tests.huggingface.classes import CLASSES, outputs
from tests.packages import peft, timm, torchvision, transformers
from tests.sampling import sampled
from tests.small_models import SMALL_TIMM, randomise_calmly, relative
from vitconvert.api import convert, diff, load_checkpoint, load_model

QV = ["q_proj", "v_proj"]
CASES = {"ViT, classes": VIT, **CLASSES}
PATTERNS = {
    "rank_pattern": {"q_proj": 2},
    "alpha_pattern": {"fc2": 3, r"layers\.1\.attention\.q_proj": 5},
}
TOLERANCE = 2e-5

VARIANTS = {
    "ViT, a new head": ("ViT, classes", {"target_modules": QV, "modules_to_save": ["classifier"]}),
    "ViT, DoRA, a convolution, biases": (
        "ViT, classes",
        {"target_modules": [*QV, "projection", "fc1"], "use_dora": True, "bias": "lora_only"},
    ),
    "ViT, rsLoRA, patterns, all biases": (
        "ViT, classes",
        {"target_modules": [*QV, "fc2"], "use_rslora": True, "bias": "all", **PATTERNS},
    ),
    "DINOv2, a new head": (
        "DINOv2, classes",
        {"target_modules": QV, "modules_to_save": ["classifier"]},
    ),
    "CLIP, both towers": ("CLIP, both towers", {"target_modules": QV}),
    "CLIP, embeddings": (
        "CLIP, projection",
        {"target_modules": [*QV, "position_embedding", "visual_projection", "patch_embedding"]},
    ),
    "CLIP, a new head": (
        "CLIP, classes",
        {"target_modules": QV, "modules_to_save": ["classifier"]},
    ),
    "SigLIP": ("SigLIP", {"target_modules": [*QV, "out_proj"]}),
    "DINOv3": ("DINOv3", {"target_modules": [*QV, "up_proj"]}),
    "BEiT, biases of LoRA": (
        "BEiT, classes",
        {"target_modules": [*QV, "fc1"], "lora_bias": True},
    ),
}


@torch.no_grad()
def _differences(folder, adapter, theirs):
    """Of the merged model from PEFT's, and of the base from it."""
    ours, base = load_model(folder, adapter=adapter), load_model(folder)
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    final, tokens = outputs(theirs, images)
    if final is None:
        final = tokens
        return [relative(model.forward_features(images), final) for model in (ours, base)]
    return [relative(model(images), final) for model in (ours, base)]


@pytest.mark.parametrize("variant", sampled(VARIANTS, 4, "slow"))
def test_merged_as_peft_merges(variant, tmp_path):
    case, config = VARIANTS[variant]
    folder, adapter, theirs = saved(CASES[case].model(), tmp_path, **config)
    merged, base = _differences(folder, adapter, theirs)
    assert merged < TOLERANCE
    assert base > 0.02  # the adapter does something


def test_layers_that_are_said_to_be_transposed_are_not_in_peft_either(tmp_path):
    folder, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["fc1", "fc2"])
    file = adapter / "adapter_config.json"
    said = {**json.loads(file.read_text()), "fan_in_fan_out": True}
    file.write_text(json.dumps(said))
    base = transformers.AutoModelForImageClassification.from_pretrained(folder)
    theirs = peft.PeftModel.from_pretrained(base, adapter)
    assert theirs.peft_config["default"].fan_in_fan_out is False  # it warns, and corrects itself
    merged, base = _differences(folder, adapter, theirs.merge_and_unload().eval())
    assert merged < TOLERANCE
    assert base > 0.02


def _timm(**arguments):
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **{**SMALL_TIMM, "img_size": 32, **arguments})
    return randomise_calmly(model)


def _save_timm(model, folder):
    folder.mkdir(exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "vit.safetensors"
    )
    return folder / "vit.safetensors"


@pytest.mark.parametrize("dora", [False, True])
def test_a_fused_qkv_and_a_convolution_of_timm(dora, tmp_path):
    model = _timm(depth=11)
    base = _save_timm(model, tmp_path)
    adapted = with_adapter(
        model, target_modules=["qkv", "proj", "fc1"], modules_to_save=["head"], use_dora=dora
    )
    adapted.save_pretrained(tmp_path / "adapter")
    images = torch.randn(2, 3, 32, 32)
    theirs = adapted.merge_and_unload().eval()
    ours = load_model(base, adapter=tmp_path / "adapter", overrides={"num_heads": 3})
    with torch.no_grad():
        assert relative(ours(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize("within", [False, True])
def test_attention_of_torchvision_whose_projection_peft_adds_twice(within, tmp_path):
    """PEFT 0.21 merges `out_proj` with the layer around it, and once more by itself."""
    torch.manual_seed(3)
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 11, "num_heads": 3}
    model = torchvision.models.VisionTransformer(**sizes, hidden_dim=36, mlp_dim=50, num_classes=5)
    torch.save(randomise_calmly(model).state_dict(), tmp_path / "base.pth")
    adapted = with_adapter(model, target_modules=["self_attention"])
    adapted.save_pretrained(tmp_path / "adapter")
    torch.save(adapted.state_dict(), tmp_path / "both.pth")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        unmerged = adapted(images)
    theirs = adapted.merge_and_unload().eval()
    stated = {"overrides": {"num_heads": 3}}
    if within:
        ours = load_model(tmp_path / "both.pth", lora_scale=2, **stated)
    else:
        ours = load_model(tmp_path / "base.pth", adapter=tmp_path / "adapter", **stated)
    with torch.no_grad():
        assert relative(theirs(images), unmerged) < TOLERANCE  # so it was trained
        assert relative(ours(images), unmerged) < TOLERANCE


class OwnClassifier(nn.Module):
    """A ViT of timm without a head, and a head of somebody's own."""

    def __init__(self, head):
        super().__init__()
        sizes = {**SMALL_TIMM, "img_size": 32, "num_classes": 0}
        self.backbone = timm.create_model("vit_tiny_patch16_224", **sizes)
        self.fc = head

    def forward(self, images):
        return self.fc(self.backbone(images))


@pytest.mark.parametrize("sequence", [False, True])
def test_a_head_of_the_users_own_is_replaced_with_the_adapters(sequence, tmp_path):
    torch.manual_seed(3)
    width = SMALL_TIMM["embed_dim"]
    head = nn.Linear(width, 7)
    model = randomise_calmly(OwnClassifier(nn.Sequential(nn.Dropout(), head) if sequence else head))
    torch.save(model.state_dict(), tmp_path / "own.pt")
    adapted = with_adapter(model, target_modules=["qkv"], modules_to_save=["fc"])
    adapted.save_pretrained(tmp_path / "adapter")
    stated = {"overrides": {"num_heads": 3}}
    ours = load_model(tmp_path / "own.pt", adapter=tmp_path / "adapter", **stated)
    base, images = load_model(tmp_path / "own.pt", **stated), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs = adapted.merge_and_unload().eval()(images)
        assert relative(ours(images), theirs) < TOLERANCE
        assert relative(base(images), theirs) > 0.02


def _of_nine_birds(tensors, config):
    tensors |= {"classifier.weight": torch.randn(9, 36), "classifier.bias": torch.randn(9)}
    config["id2label"] = {str(i): f"bird {i}" for i in range(9)}
    config["label2id"] = {f"bird {i}": i for i in range(9)}
    return tensors


def _without_head(tensors, config):
    config |= {"architectures": ["ViTModel"], "id2label": {}}
    return {k.removeprefix("vit."): v for k, v in tensors.items() if "classifier" not in k}


@pytest.mark.parametrize("before", [_of_nine_birds, _without_head])
def test_a_head_for_other_classes_has_no_names_of_the_base(before, tmp_path):
    folder, adapter, theirs = saved(
        VIT.model(), tmp_path, target_modules=QV, modules_to_save=["classifier"]
    )
    config = json.loads((folder / "config.json").read_text())
    tensors = before(load_file(folder / "model.safetensors"), config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    named = load_checkpoint(folder).labels
    assert (named[8] if named else "") == ("bird 8" if before is _of_nine_birds else "")
    checkpoint = load_checkpoint(folder, adapter=adapter)
    assert checkpoint.config.num_classes == 7
    assert checkpoint.labels is None
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        ours = load_model(checkpoint)(images)
        assert relative(ours, theirs(pixel_values=images).logits) < TOLERANCE
    assert convert(checkpoint, output=tmp_path / "merged").parity.ok


# What modules were called in transformers 4, and are in 5.
RENAMED_IN_5 = [
    ("attention.q_proj", "attention.attention.query"),
    ("attention.v_proj", "attention.attention.value"),
    ("vit.layers.", "vit.encoder.layer."),
]


def _in_the_names_of_4(adapter, renamed):
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    for new, old in renamed:
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["target_modules"] = ["query", "value"] if "query" in str(list(tensors)) else QV
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return tensors


def test_an_adapter_of_transformers_4_where_peft_fails_with_5(tmp_path):
    folder, adapter, theirs = saved(VIT.model(), tmp_path, target_modules=QV)
    _in_the_names_of_4(adapter, RENAMED_IN_5)
    model = transformers.ViTForImageClassification.from_pretrained(folder)
    with pytest.raises(Exception, match=r"No modules were targeted|not found in the base model"):
        peft.PeftModel.from_pretrained(model, adapter)
    merged, _ = _differences(folder, adapter, theirs)
    assert merged < TOLERANCE


def test_an_adapter_of_transformers_4_where_peft_computes_the_base_with_5(tmp_path):
    case = CLASSES["CLIP"]
    folder, adapter, theirs = saved(case.model(), tmp_path, target_modules=QV)
    marks = ("base_model.model.encoder.", "base_model.model.vision_model.encoder.")
    tensors = _in_the_names_of_4(adapter, [marks])
    loaded = peft.PeftModel.from_pretrained(type(theirs).from_pretrained(folder), adapter)
    base = type(theirs).from_pretrained(folder)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        silent = outputs(loaded.merge_and_unload().eval(), images)[0]
        assert torch.equal(silent, outputs(base.eval(), images)[0])
    merged, _ = _differences(folder, adapter, theirs)
    assert merged < TOLERANCE
    # The same by hand, of one module.
    name = "encoder.layers.1.self_attn.v_proj"
    down, up = (tensors[f"{marks[1]}{name[8:]}.lora_{side}.weight"] for side in "AB")
    weight = base.get_submodule(name).weight.double() + 2.0 * up.double() @ down.double()
    ours = load_checkpoint(folder, adapter=adapter).tensors["blocks.1.attn.qkv.weight"]
    assert torch.equal(ours[-len(weight) :], weight.float())


def test_a_base_in_names_of_timm_under_an_adapter_in_names_of_transformers(tmp_path):
    folder, adapter, theirs = saved(
        VIT.model(), tmp_path, target_modules=[*QV, "fc2"], modules_to_save=["classifier"]
    )
    checkpoint = load_checkpoint(folder)
    respelled = tmp_path / "timm.safetensors"
    save_file({k: v.contiguous() for k, v in checkpoint.tensors.items()}, respelled)
    stated = {"num_heads": 3, "norm_eps": 1e-12}
    ours = load_model(respelled, adapter=adapter, dialect="timm", overrides=stated)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        assert relative(ours(images), theirs(pixel_values=images).logits) < TOLERANCE


def test_converted_with_its_proof(tmp_path):
    folder, adapter, _ = saved(VIT.model(), tmp_path, target_modules=QV, bias="lora_only")
    done = convert(folder, adapter=adapter, output=tmp_path / "merged")
    assert done.parity and done.parity.ok
    assert [opened.why_not for opened in done.opened] == [None]
    merged, effect = done.ledger.changed
    assert merged.startswith("merged the LoRA adapter adapter: rank 4, scale 2, 4 modules")
    assert "rounding once errs by up to" in effect
    assert diff(tmp_path / "merged", folder, reading_b={"adapter": adapter}).equal
    assert not diff(tmp_path / "merged", folder).equal
    record = (tmp_path / "merged" / "vitconvert.json").read_text()
    assert "adapter_model.safetensors" in record
    assert str(tmp_path) not in record
    (parity, *_), (opened,) = done.proof.parity_lines(), done.proof.opened_lines()
    assert parity.startswith("the source with its adapter merged: equal to")
    assert opened.endswith("to the source with its adapter merged")
    told = "the sum of weights and adapter: the reference was given the merged weights"
    assert told in done.parity.not_tested


def test_half_precision_is_rounded_once(tmp_path):
    folder, adapter, _ = saved(VIT.model(), tmp_path, target_modules=QV)
    file = folder / "model.safetensors"
    halved = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(halved, file, metadata={"format": "pt"})
    lora = load_file(adapter / "adapter_model.safetensors")
    start = "base_model.model.vit.layers.0.attention.q_proj.lora_"
    change = 2.0 * lora[f"{start}B.weight"].double() @ lora[f"{start}A.weight"].double()
    key = "vit.encoder.layer.0.attention.attention.query.weight"
    checkpoint = load_checkpoint(folder, adapter=adapter)
    wanted = (halved[key].double() + change).bfloat16()
    assert torch.equal(checkpoint.weights.read(key), wanted)


def test_the_tower_of_a_larger_model_and_an_adapter_for_all_of_it(tmp_path):
    vision = CLASSES["CLIP"].model()
    base, adapter = {}, {}
    for name, tensor in vision.state_dict().items():
        base[f"vision_tower.vision_model.{name}"] = tensor.clone()
    base["language_model.model.layers.0.self_attn.q_proj.weight"] = torch.randn(6, 6)
    adapted = with_adapter(vision, target_modules=QV)
    (tmp_path / "base").mkdir()
    save_file(base, tmp_path / "base" / "model.safetensors")
    vision_config = {**vision.config.to_dict(), "model_type": "clip_vision_model"}
    config = {"model_type": "llava", "vision_config": vision_config}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config, default=str))
    adapted.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    # In memory, the towers of transformers 5 stand under `model.`.
    outer = "base_model.model.model."
    for name, tensor in load_file(file).items():
        adapter[f"{outer}vision_tower.{name.removeprefix('base_model.model.')}"] = tensor
    for side, shape in (("A", (4, 6)), ("B", (6, 4))):
        name = f"{outer}language_model.layers.0.self_attn.q_proj.lora_{side}.weight"
        adapter[name] = torch.randn(shape)
    save_file(adapter, file)
    theirs = adapted.merge_and_unload().eval()
    merged, changed = _differences(tmp_path / "base", tmp_path / "adapter", theirs)
    assert merged < TOLERANCE < changed
    checkpoint = load_checkpoint(tmp_path / "base", adapter=tmp_path / "adapter")
    assert "1 tensor not of it: outside the vision encoder" in checkpoint.ledger.changed[0]
