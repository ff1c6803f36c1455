"""What `--to openclip` writes: open_clip builds the tower of it, and nothing has to be stated."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitconvert
from tests.conversion.test_opening import VISION, openclip_directory
from tests.packages import open_clip
from tests.sampling import sampled
from vitconvert.conversion.target import choose_without_steps
from vitconvert.errors import NotRepresentable, ParityFailed
from vitconvert.facts.fact import state, strongest
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.project_config import facts_from_config
from vitconvert.programs.opening import open_output
from vitconvert.programs.program import DescribedModel
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import builtin_tables

CLIPA = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
TINY = "vit_tiny_patch16_224"


def written_config(output: Path) -> dict:
    return json.loads((output / "open_clip_config.json").read_text())


def tower_of(output: Path) -> torch.nn.Module:
    """As open_clip builds it of `model_cfg`, with every tensor of the file and no other."""
    tower = open_clip.model._build_vision_tower(**written_config(output)["model_cfg"])
    tensors = load_file(output / "model.safetensors")
    tower.load_state_dict({name.removeprefix("visual."): t for name, t in tensors.items()})
    return tower.eval()


def bare(output: Path) -> Path:
    """The output without what vitconvert says of it."""
    (output / "vitconvert.json").unlink()
    return output


TOWERS = {
    "CLIP": ({}, {}, "openclip"),
    "a QuickGELU": ({}, {"quick_gelu": True}, "openclip"),
    "oblong": ({"image_size": [16, 24], "patch_size": [8, 4]}, {}, "openclip"),
    "a narrow MLP": ({"mlp_ratio": 2.7, "head_width": 24}, {}, "openclip"),
    "LayerScale": ({"ls_init_value": 0.1}, {}, "openclip_tower"),
    "CLIPA": (CLIPA, {}, "openclip"),
    "CLIPA's token": ({"no_ln_pre": True, "final_ln_after_pool": True}, {}, "openclip"),
}


@pytest.mark.parametrize(("vision", "options", "to"), TOWERS.values(), ids=TOWERS)
@torch.no_grad()
def test_open_clip_builds_its_own_tower(vision, options, to, tmp_path):
    source = openclip_directory(tmp_path / "source", **vision)
    told = written_config(source)
    told["model_cfg"] |= options
    told["preprocess_cfg"] = {"mean": [0.1, 0.2, 0.3], "resize_mode": "squash"}
    (source / "open_clip_config.json").write_text(json.dumps(told))
    alone = {"image_only": True, "verify": False}
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out", **alone)
    assert conversion.departures == ()
    ours = vitconvert.load_model(source)
    images = torch.randn(2, 3, *ours.config.image_size)
    assert torch.allclose(tower_of(tmp_path / "out")(images), ours(images), rtol=0, atol=1e-5)
    checkpoint = vitconvert.load_checkpoint(bare(tmp_path / "out"))
    assert checkpoint.config.function() == ours.config.function()
    assert (
        checkpoint.preprocessing.differences(vitconvert.load_checkpoint(source).preprocessing) == ()
    )
    assert checkpoint.preprocessing.mean == (0.1, 0.2, 0.3)
    assert checkpoint.preprocessing.resize == "squash"


def test_a_config_that_open_clip_refuses_is_not_written(tmp_path, monkeypatch):
    source = openclip_directory(tmp_path / "source")
    vitconvert.convert(source, to="vit", output=tmp_path / "ours", verify=False)

    def refuse(*_, **__):
        raise ValueError

    monkeypatch.setattr("open_clip.transformer.VisionTransformer", refuse)
    with pytest.raises(ParityFailed, match="its own class does not take"):
        vitconvert.convert(tmp_path / "ours", to="openclip", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_whole_file_of_a_tower(tmp_path):
    source = openclip_directory(tmp_path / "source")
    alone = {"image_only": True, "verify": False}
    vitconvert.convert(source, to="openclip", output=tmp_path / "out", **alone)
    assert written_config(tmp_path / "out") == {
        "model_cfg": {
            "embed_dim": 20,
            "quick_gelu": False,
            "vision_cfg": VISION | {"mlp_ratio": 4, "pool_type": "tok"},
        },
        "preprocess_cfg": {
            "size": 24,
            "mode": "RGB",
            "mean": [0.48145466, 0.4578275, 0.40821073],
            "std": [0.26862954, 0.26130258, 0.27577711],
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }


def test_an_activation_that_open_clip_has_no_word_for(tmp_path):
    source = openclip_directory(tmp_path / "source")
    with pytest.raises(NotRepresentable, match="has no word for activation = 'gelu_tanh'"):
        vitconvert.convert(
            source,
            to="openclip_tower",
            output=tmp_path / "out",
            overrides={"activation": "gelu_tanh"},
            verify=False,
        )


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 0])
@torch.no_grad()
def test_open_clip_builds_a_model_of_timms_by_its_name(classes, timm_directory, tmp_path):
    source = timm_directory(TINY, num_classes=classes, depth=12)
    conversion = vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    assert conversion.departures == (
        "open_clip converts images that are neither grey nor RGB after resizing",
        "open_clip resize_size is (248, 248) here and (224, 224) there",
    )
    vision = written_config(tmp_path / "out")["model_cfg"]["vision_cfg"]
    assert "tiny_patch16_224" in vision["timm_model_name"]
    ours, images = vitconvert.load_model(source), torch.randn(1, 3, 224, 224)
    assert torch.equal(tower_of(tmp_path / "out")(images), ours(images))
    [_, computed] = open_output(tmp_path / "out", builtin_tables()["openclip_timm"], ours)
    assert computed.consumer.startswith("open_clip") and computed.bit_equal
    config = vitconvert.load_checkpoint(bare(tmp_path / "out")).config
    assert config.function() == ours.config.function()


def test_norms_of_a_model_that_is_told_its_pooling_later(timm_directory, tmp_path):
    """open_clip builds the trunk with its own pooling, whose norm is that of all tokens."""
    source = timm_directory(TINY, num_classes=5, global_pool="avg", depth=12)
    vitconvert.convert(source, to="openclip", output=tmp_path / "normed after", verify=False)
    assert not (tmp_path / "normed after" / "open_clip_config.json").exists()
    arguments = json.loads((source / "config.json").read_text())
    arguments["model_args"]["fc_norm"] = False
    tensors = load_file(source / "model.safetensors")
    moved = {name.replace("fc_norm", "norm"): tensor for name, tensor in tensors.items()}
    save_file(moved, source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text(json.dumps(arguments))
    vitconvert.convert(source, to="openclip", output=tmp_path / "normed before", verify=False)
    cfg = written_config(tmp_path / "normed before")["model_cfg"]["vision_cfg"]
    assert cfg["timm_pool"] == "avg" and tower_of(tmp_path / "normed before")


NAMELESS = {"embed_dim": 30, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "img_size": 48}


@pytest.mark.parametrize("classes", [7, 0])
def test_a_tower_that_has_no_name(classes, timm_directory, tmp_path):
    source = timm_directory(**NAMELESS, num_classes=classes)
    conversion = vitconvert.convert(source, to="openclip", output=tmp_path / "out")
    read, computed = conversion.opened
    assert read.consumer == "safetensors.torch.load_file"
    assert computed.consumer.endswith("TimmModel around timm's VisionTransformer")
    assert computed.bit_equal
    assert not (tmp_path / "out" / "open_clip_config.json").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "model is this one (there is no `open_clip_config.json`)" in card


@pytest.mark.parametrize("changes", [{}, {"num_classes": 0}], ids=["projected", "bare"])
@pytest.mark.parametrize("photographs", [True, False])
@torch.no_grad()
def test_the_example_of_the_card_runs(changes, photographs, tmp_path, monkeypatch):
    source = openclip_directory(tmp_path / "source")
    if not photographs:
        place = "vitconvert.checkpoint.images.stated_preprocessing"
        monkeypatch.setattr(place, lambda *_: None)
    output = tmp_path / "out"
    vitconvert.convert(source, to="openclip", output=output, verify=False, **changes)
    monkeypatch.chdir(output)
    noise = np.random.default_rng(0).integers(0, 256, (61, 75, 3), dtype=np.uint8)
    Image.fromarray(noise).save("photo.jpg")
    results = []
    for block in re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), flags=re.DOTALL):
        scope: dict[str, torch.Tensor] = {}
        exec(compile(block, "README.md", "exec"), scope)
        results.append(scope["output"])
    theirs, ours = results
    assert torch.allclose(theirs, ours, rtol=0, atol=float(2e-5 * ours.abs().max()))


def test_open_clips_transform_makes_the_images(tmp_path):
    source = openclip_directory(tmp_path / "source")
    vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    cfg = open_clip.transform.PreprocessCfg(**written_config(tmp_path / "out")["preprocess_cfg"])
    noise = np.random.default_rng(0).integers(0, 256, (61, 75, 4), dtype=np.uint8)
    transform = open_clip.transform.image_transform_v2(cfg, is_train=False)
    ours = vitconvert.load_checkpoint(source).preprocessing
    for image in (Image.fromarray(noise[..., :3]), Image.fromarray(noise, "RGBA")):
        assert torch.equal(transform(image), ours(image))


PUBLISHED = {
    "ViT-g-14": "openclip",
    "ViT-bigG-14-CLIPA": "openclip_clipa",
    "ViT-B-32-SigLIP2-256": "openclip_timm",
    "PE-Core-T-16-384": "openclip_timm",
    "MobileCLIP2-L-14": "openclip_timm",
    "EVA02-B-16": "openclip_timm_eva_split",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dialect"), PUBLISHED.items())
def test_towers_of_published_sizes_are_built_from_what_is_written(name, dialect):
    """Of their shapes alone: what open_clip makes of the file takes the tensors that go with it."""
    model_cfg = open_clip.get_model_config(name)
    vision = model_cfg["vision_cfg"]
    with torch.device("meta"):
        theirs = open_clip.model._build_vision_tower(model_cfg["embed_dim"], vision)
    shapes = {f"visual.{key}": tuple(t.shape) for key, t in theirs.state_dict().items()}
    recognised = recognise(shapes, None, {"model_cfg": model_cfg})
    row = find_architecture("timm", vision["timm_model_name"]) if "timm" in dialect else {}
    said = facts_from_config(recognised.table, {"model_cfg": model_cfg})
    config = gather_facts(recognised.binding, strongest(said, state(row, "its name"))).config()
    target = choose_without_steps("openclip", DescribedModel(config=config)).target
    assert target.table.name == dialect == recognised.table.name
    with torch.device("meta"):
        tower = open_clip.model._build_vision_tower(**target.their_config["model_cfg"])
    built = {f"visual.{key}": tuple(t.shape) for key, t in tower.state_dict().items()}
    assert built == {a.target: target.plan.shape(a) for a in target.plan.assemblies}


CLIP = {"depth": 2, "embed_dim": 128, "num_heads": 2, "img_size": 64, "num_classes": 20}


def timm_clip(timm_directory, *, bias: bool) -> Path:
    """timm's CLIP projects with a Linear, and fills its bias with zeros."""
    source = timm_directory("vit_base_patch32_clip_224", **CLIP)
    tensors = load_file(source / "model.safetensors")
    if not bias:
        tensors["head.bias"].zero_()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return source


@pytest.mark.parametrize("to", sampled(["openclip", "hf"], 2, "slow"))
def test_timms_clip_goes_with_its_projection_and_comes_back(to, timm_directory, tmp_path):
    source = timm_clip(timm_directory, bias=False)
    plan = vitconvert.plan_conversion(source, to=to)
    assert plan.guards == ("head.bias is zero",)
    there = vitconvert.convert(source, to=to, output=tmp_path / "there")
    assert [change.partition(":")[0] for change in there.ledger.changed] == [
        "norm-after-pooling",
        "drop-head-bias",
    ]
    assert there.opened[-1].relative < 2e-6
    back = vitconvert.convert(tmp_path / "there", to="timm", output=tmp_path / "back")
    assert all(opened.bit_equal for opened in back.opened)
    before, after = (load_file(d / "model.safetensors") for d in (source, tmp_path / "back"))
    assert before.keys() == {name.replace("fc_norm", "norm") for name in after}
    for name, tensor in after.items():
        assert torch.equal(before[name.replace("fc_norm", "norm")], tensor), name


def test_a_projection_with_a_bias_is_refused(timm_directory, tmp_path):
    source = timm_clip(timm_directory, bias=True)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    largest = load_file(source / "model.safetensors")["head.bias"].abs().max().item()
    assert str(error.value) == (
        "error: not-representable\n"
        "  The target's head is a projection without bias, and this one has a bias.\n"
        "  tensor    head.bias\n"
        "  not zero  20 of 20 values\n"
        f"  largest   {largest:.3g}"
    )
    assert not (tmp_path / "out").exists()
