"""What is told of a tower: photographs, layers, the card, the record; and what works with it."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers as t
from tests.small_models import randomise_calmly, small_timm
from tests.towers.families import FAMILIES, TEXT, VISION, save
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import AmbiguousDialect

CLIP_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 24},
    "crop_size": {"height": 24, "width": 24},
}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A LLaVA in shards, and in a file the same tower by itself."""
    folder = tmp_path_factory.mktemp("released")
    model = FAMILIES["llava"].model()
    save(model, folder / "llava", shard="12KB")
    save(model.model.vision_tower, folder / "clip")
    return folder


@pytest.fixture
def llava(released, tmp_path):
    return shutil.copytree(released / "llava", tmp_path / "llava")


def notes_on(folder):
    return vitconvert.load_checkpoint(folder).ledger.notes


def test_the_layer_that_the_language_model_reads_is_told(llava):
    told = (
        "the larger model reads layer -2 of this ViT, without its class token; here is the ViT's "
    )
    assert told + "own output" in notes_on(llava)
    assert told + "own output" in vitconvert.inspect(llava).notes
    config = json.loads((llava / "config.json").read_text())
    config |= {"vision_feature_layer": [-2, -5], "vision_feature_select_strategy": "full"}
    (llava / "config.json").write_text(json.dumps(config))
    told = "the larger model reads layers -2, -5 of this ViT, with its class token; here is the"
    assert any(note.startswith(told) for note in notes_on(llava))


def test_embed_tells_it_until_a_layer_is_named(llava, run, tmp_path):
    (llava / "preprocessor_config.json").write_text(json.dumps(CLIP_PROCESSOR))
    told = "note: the larger model reads layer -2 of this ViT, without its class token; here is"
    shown = run("embed", llava, DIGITS / "samples/3.png", "-o", tmp_path / "a.npz")
    assert shown.code == 0 and told in shown.err and "; --layer N and --pool cls, mean" in shown.err
    into = run("embed", llava, DIGITS / "samples/3.png", "-o", tmp_path / "shards")
    assert into.code == 0 and told in into.err
    how = ("--layer", "-2", "--pool", "patches")
    shown = run("embed", llava, DIGITS / "samples/3.png", "-o", tmp_path / "b.npz", *how)
    assert "note:" not in shown.err


def test_the_features_that_llava_reads(llava):
    (llava / "preprocessor_config.json").write_text(json.dumps(CLIP_PROCESSOR))
    image = DIGITS / "samples/3.png"
    how = {"layer": -2, "pool": "patches", "fast": False}
    [found] = vitconvert.embed(llava, image, **how)
    theirs = t.LlavaForConditionalGeneration.from_pretrained(llava)
    pixels = vitconvert.load_checkpoint(llava).preprocessing(image)[None]
    with torch.inference_mode():
        tower = theirs.model.vision_tower(pixels, output_hidden_states=True)
    torch.testing.assert_close(found.features, tower.hidden_states[-2][0, 1:])


def test_of_llavas_own_code_too(tmp_path):
    config = {"mm_vision_select_layer": -2, "mm_vision_select_feature": "patch"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = randomise_calmly(t.CLIPVisionModel(t.CLIPVisionConfig(**VISION)))
    start = "model.vision_tower.vision_tower.vision_model."
    tensors = {start + name: tensor for name, tensor in model.state_dict().items()}
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(3, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    stated = {"num_heads": 3, "activation": "quick_gelu"}
    notes = vitconvert.load_checkpoint(tmp_path, overrides=stated).ledger.notes
    assert any("layer -2 of this ViT, without its class token" in note for note in notes)


@pytest.mark.parametrize(
    ("file", "wrapped"),
    [("preprocessor_config.json", False), ("processor_config.json", True)],
)
def test_photographs_are_prepared_by_the_processor_beside_it(llava, file, wrapped):
    whole = {"processor_class": "LlavaProcessor", "image_processor": CLIP_PROCESSOR}
    (llava / file).write_text(json.dumps(whole if wrapped else CLIP_PROCESSOR))
    found = vitconvert.load_checkpoint(llava).preprocessing
    photograph = Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 31, 3), "uint8"))
    processor = t.CLIPImageProcessor(**{k: v for k, v in CLIP_PROCESSOR.items() if "type" not in k})
    wanted = processor(photograph, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(found(photograph), wanted)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"image_processor_type": "LlavaNextImageProcessor"},
            "Images processed by LlavaNextImageProcessor are not supported",
        ),
        ({"do_pad": True}, "do_pad of CLIPImageProcessor is not supported."),
        ({"crop_size": 224}, "the larger model's gives 224x224 pixels, and the ViT reads 24x24"),
    ],
)
def test_a_preparation_that_is_not_read_is_unknown_and_told(llava, changes, told):
    (llava / "preprocessor_config.json").write_text(json.dumps(CLIP_PROCESSOR | changes))
    checkpoint = vitconvert.load_checkpoint(llava)
    assert checkpoint.preprocessing is None
    unknown = [n for n in checkpoint.ledger.notes if n.startswith("preprocessing is unknown")]
    assert len(unknown) == 1 and told in unknown[0]


def test_of_a_model_of_two_towers_too(tmp_path):
    vision, text = dict(VISION), dict(TEXT)
    config = t.MetaClip2Config(vision_config=vision, text_config=text, projection_dim=20)
    save(randomise_calmly(t.MetaClip2Model(config)), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Tiles"}')
    checkpoint = vitconvert.load_checkpoint(tmp_path)
    assert checkpoint.preprocessing is None
    assert any("preprocessing is unknown" in note for note in checkpoint.ledger.notes)


def test_a_conversion_tells_whose_tower_it_is(llava, tmp_path):
    (llava / "preprocessor_config.json").write_text(json.dumps(CLIP_PROCESSOR))
    done = vitconvert.convert(llava, to="timm", output=tmp_path / "out")
    assert done.parity is not None and done.parity.ok
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["tower"] == {
        "prefix": "vision_tower.",
        "section": "vision_config",
        "model": "LlavaForConditionalGeneration",
    }
    index = json.loads((llava / "model.safetensors.index.json").read_text())["weight_map"]
    shards = {shard for name, shard in index.items() if name.startswith("vision_tower.")}
    assert shards < set(index.values())
    beside = {"config.json", "preprocessor_config.json", "model.safetensors.index.json"}
    assert set(record["source"]["sha256"]) == shards | beside
    card = (tmp_path / "out" / "README.md").read_text()
    assert "of a larger model: vision_tower (LlavaForConditionalGeneration)" in card
    assert "reads layer -2 of this ViT" in card
    assert card.count("outside the vision encoder vision_tower") == 1
    back = vitconvert.load_checkpoint(tmp_path / "out")
    assert back.tower is None
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        ours, theirs = (vitconvert.load_model(source)(images) for source in (back, llava))
    assert torch.equal(ours, theirs)


def test_inspect_groups_what_is_outside(llava, run):
    code, text, _ = run("inspect", llava)
    assert code == 0
    assert text.count("outside the vision encoder") == 1
    assert "vision encoder vision_tower (LlavaForConditionalGeneration)" in text
    told = json.loads(run("inspect", llava, "--json").out)
    assert told["tower"]["prefix"] == told["prefix"] == "vision_tower."
    assert len(told["ignored"]) > 3


def test_a_fine_tuned_tower_differs_from_the_released_one_where_it_was_tuned(released, llava):
    same = vitconvert.diff(llava, released / "clip")
    assert same.equal
    for shard in llava.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            if name == "vision_tower.encoder.layers.1.mlp.fc1.bias":
                tensors[name] += 0.5
        save_file(tensors, shard, metadata={"format": "pt"})
    other = vitconvert.diff(llava, released / "clip")
    assert not other.equal
    assert list(other.values or ()) == ["blocks.1.mlp.fc1.bias"]


SIDES = ("featurizer", "fused_featurizer")


@pytest.fixture
def two(tmp_path):
    """A file of two ViTs, with the model of each; to take one, it has to be named."""
    models = [randomise_calmly(small_timm(img_size=24, num_classes=n)) for n in (5, 7)]
    tensors = {
        f"vision_backbone.{side}.{name}": tensor
        for side, model in zip(SIDES, models, strict=True)
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors | {"language_model.norm.weight": torch.ones(4)}, tmp_path / "two.safetensors")
    return tmp_path / "two.safetensors", models


@torch.no_grad()
def test_python_and_the_command_line_take_a_tower(two, run):
    file, models = two
    images = torch.randn(2, 3, 24, 24)
    for side, model in zip(SIDES, models, strict=True):
        reading = {"tower": f"vision_backbone.{side}", "overrides": {"num_heads": 3}}
        assert torch.equal(vitconvert.load_model(file, **reading)(images), model(images))
        assert vitconvert.inspect(file, **reading).tower.prefix == f"vision_backbone.{side}."
        assert vitconvert.plan_conversion(file, to="hf", **reading)
        assert vitconvert.verify(file, **reading).ok
        respelled = vitconvert.convert_state_dict(load_file(file), to="vit", **reading)
        assert torch.equal(respelled["head.weight"], model.head.weight)
        alone = file.parent / f"{side}.safetensors"
        save_file(model.state_dict(), alone)
        same = vitconvert.diff(file, alone, reading_a=reading, overrides=reading["overrides"])
        assert same.equal
    flags = ["--set", "num_heads=3", "--tower"]
    assert run("inspect", file, *flags[:2]).code == 1
    assert run("inspect", file, *flags, "vision_backbone.none").code == 2
    assert run("inspect", file, *flags, "vision_backbone.featurizer").code == 0
    with pytest.raises(AmbiguousDialect):
        vitconvert.convert_state_dict(load_file(file), to="vit", overrides={"num_heads": 3})
