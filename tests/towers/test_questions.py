"""What is no tower, not one tower or not all of a tower is asked about or refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers as t
from tests.small_models import randomise_calmly, small_timm
from tests.towers.families import FAMILIES, LANGUAGE, VISION, internvl, save
from vitconvert.errors import (
    AmbiguousDialect,
    NotRepresentable,
    TensorMismatch,
    UsageError,
)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return save(FAMILIES["llava"].model(), tmp_path_factory.mktemp("llava"), shard="1GB")


def test_a_tower_without_one_of_its_tensors_is_refused_by_its_name(llava, tmp_path):
    tensors = load_file(llava / "model.safetensors")
    del tensors["vision_tower.pre_layrnorm.weight"]
    (tmp_path / "config.json").write_text((llava / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(tmp_path)
    assert "norm_pre.weight" in str(error.value)
    assert vitconvert.inspect(tmp_path).problem is not None


def two_towers(tmp_path, *, broken=False):
    """As Prismatic has them: DINOv2 and SigLIP by timm."""
    first = small_timm(init_values=1e-5, num_classes=0).state_dict()
    second = small_timm(class_token=False, global_pool="avg", num_classes=0).state_dict()
    if broken:
        del first["norm.weight"]
    tensors = {f"vision_backbone.featurizer.{n}": v for n, v in first.items()}
    tensors |= {f"vision_backbone.fused_featurizer.{n}": v for n, v in second.items()}
    tensors["language_model.model.norm.weight"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("broken", [False, True])
def test_two_towers_are_a_question_even_if_one_is_incomplete(tmp_path, broken):
    file = two_towers(tmp_path, broken=broken)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(file)
    assert str(error.value) == (
        "error: ambiguous-dialect\n"
        "  This file holds several ViTs.\n"
        "  vision_backbone.featurizer.        timm, a larger model\n"
        "  vision_backbone.fused_featurizer.  timm, OpenVLA\n"
        "  hint: name one: --tower vision_backbone.featurizer or --tower "
        "vision_backbone.fused_featurizer (in Python, tower=)."
    )


def test_the_tower_that_is_named_is_taken(tmp_path):
    file = two_towers(tmp_path)
    stated = {"overrides": {"num_heads": 3, "image_size": "32x24"}}
    first = vitconvert.load_checkpoint(file, tower="vision_backbone.featurizer", **stated)
    second = vitconvert.load_checkpoint(file, tower="vision_backbone.fused_featurizer.", **stated)
    assert first.config.layer_scale and not second.config.layer_scale
    assert first.config.class_token and not second.config.class_token


def test_a_prefix_that_nothing_has_is_told_with_those_that_are_there(llava):
    with pytest.raises(UsageError) as error:
        vitconvert.load_checkpoint(llava, tower="vision_towr")
    assert str(error.value) == (
        "error: usage\n"
        "  No tensor begins with 'vision_towr.'.\n"
        "  beginnings  vision_tower\n"
        "  hint: --tower takes one of these, or any other that names begin with."
    )


def test_a_tower_of_another_function_is_refused_though_its_names_fit(llava, tmp_path):
    config = json.loads((llava / "config.json").read_text())
    config["vision_config"]["model_type"] = "vilt"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(llava / "model.safetensors")
    with pytest.raises(vitconvert.VitConvertError) as error:
        vitconvert.load_checkpoint(tmp_path)
    assert "vilt" in str(error.value)


def test_norms_of_whole_queries_are_of_the_blocks_kind(tmp_path):
    """transformers always makes RMS norms with an eps of 1e-6 of them; all released ones are so."""
    folder = save(randomise_calmly(internvl(use_qk_norm=True)), tmp_path / "layer")
    with pytest.raises(vitconvert.VitConvertError) as error:
        vitconvert.load_checkpoint(folder)
    assert "q_whole_norm.bias" in str(error.value)
    other = internvl(use_qk_norm=True, norm_type="rms_norm", layer_norm_eps=1e-5)
    with pytest.raises(NotRepresentable, match="norm_eps") as error:
        vitconvert.load_checkpoint(save(randomise_calmly(other), tmp_path / "eps"))
    assert "InternVLVisionAttention norms q and k with this eps" in str(error.value)


def test_a_table_of_ones_own_may_identify_such_a_model(tmp_path):
    folder = save(randomise_calmly(t.ViTModel(t.ViTConfig(**VISION))), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "yolos"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(NotRepresentable, match="This is YOLOS"):
        vitconvert.load_checkpoint(folder)
    table = tmp_path / "mine.toml"
    identify = '[config_json.identify]\nmodel_type = "yolos"\n'
    table.write_text(f'[dialect]\nextends = "hf_vit_pooler"\ntitle = "mine"\n{identify}')
    assert vitconvert.load_checkpoint(folder, table=table).dialect == "mine"


def test_a_tower_under_a_prefix_that_nobody_knows_can_be_named(tmp_path):
    """Video-LLaVA has two CLIPs, under prefixes of its own."""
    vision, text = t.CLIPVisionConfig(**VISION), t.LlamaConfig(**LANGUAGE)
    config = t.VideoLlavaConfig(vision_config=vision, text_config=text)
    model = randomise_calmly(t.VideoLlavaForConditionalGeneration(config))
    folder = save(model, tmp_path)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(folder)
    assert "--tower image_tower or --tower video_tower" in error.value.hint
    images = torch.randn(2, 3, 24, 24)
    for tower in ("image_tower", "video_tower"):
        ours = vitconvert.load_model(folder, tower=tower)
        with torch.no_grad():
            theirs = model.model.get_submodule(tower)(images).pooler_output
            assert torch.equal(ours(images), theirs)


OTHERS = {
    "YOLOS": lambda: t.YolosModel(t.YolosConfig(**VISION | {"image_size": [24, 24]})),
    "ViLT": lambda: t.ViltModel(t.ViltConfig(**VISION, vocab_size=70)),
    "TimeSformer": lambda: t.TimesformerModel(t.TimesformerConfig(**VISION, num_frames=2)),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_models_of_similar_names_are_refused_by_their_own(name, tmp_path):
    folder = save(OTHERS[name](), tmp_path)
    with pytest.raises(NotRepresentable, match=f"This is {name}"):
        vitconvert.load_checkpoint(folder)
    problem = vitconvert.inspect(folder).problem
    assert isinstance(problem, NotRepresentable) and problem.fact.startswith(f"This is {name}")
