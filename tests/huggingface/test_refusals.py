"""What vitconvert cannot compute, or what contradicts itself, is refused and never guessed."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.huggingface.classes import CLASSES
from tests.huggingface.every_class import saved as save_class
from tests.packages import transformers
from vitconvert import load_checkpoint, plan_conversion
from vitconvert.errors import (
    ConflictingFact,
    NotRepresentable,
    TensorMismatch,
    UnknownDialect,
)
from vitconvert.tables.parts import Header
from vitconvert.tables.towers import find_part


@pytest.fixture
def changed(save):
    """A checkpoint whose config.json says something else."""

    def change(name: str, **values):
        folder, _ = save(CLASSES[name])
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return folder

    return change


def message(error: pytest.ExceptionInfo) -> str:
    """Without the place of the file."""
    return re.sub(r"  \S*/model", "  model", str(error.value))


def test_an_activation_without_a_word(changed):
    folder = changed("CLIP", hidden_act="mish")
    with pytest.raises(NotRepresentable) as error:
        load_checkpoint(folder)
    assert str(error.value) == (
        "error: not-representable\n"
        "  config.json says hidden_act = 'mish', which vitconvert has no word for.\n"
        "  table    weights_map/hf_clip.toml\n"
        "  problem  activation is one of gelu, gelu_tanh, quick_gelu, relu, silu, tanh\n"
        "  hint: --set activation=... states it in vitconvert's words."
    )
    stated = load_checkpoint(folder, overrides={"activation": "gelu"})
    assert stated.config.activation == "gelu"


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        (
            "DINOv3",
            {"use_gated_mlp": True},
            "gated_mlp = True (config.json), but the tensors have False",
        ),
        (
            "DINOv3",
            {"num_attention_heads": 5},
            "num_heads = 5 (config.json) does not divide 36, the width of q",
        ),
        ("SigLIP", {"hidden_size": 72}, "embed_dim = 72 (config.json), but the tensors have 36"),
        (
            "SigLIP 2",
            {"patch_size": 4},
            "patch_size and in_channels: 4x4 and 3 do not make up the 192 values of a patch",
        ),
    ],
)
def test_a_configuration_that_the_tensors_contradict(name, values, problem, changed):
    with pytest.raises(ConflictingFact) as error:
        load_checkpoint(changed(name, **values))
    assert message(error) == (
        "error: conflicting-fact\n"
        "  What is stated contradicts the tensors.\n"
        f"  {problem}\n"
        "  hint: leave these values out, or name the file that they belong to. --image-size "
        "resamples positions; --set states what the file is, if a name is wrong."
    )


def test_relative_positions_of_another_grid(changed):
    checkpoint = load_checkpoint(changed("BEiT", image_size=32))
    assert checkpoint.config.image_size == (24, 24)
    assert checkpoint.ledger.notes == (
        "image_size = 32x32 (config.json) needs 52 relative positions, but the tensors have 28",
    )


def test_a_grid_that_transformers_mistakes(tmp_path):
    case = CLASSES["BEiT"]
    arguments = dict(case.arguments) | {"image_size": [24, 40], "num_hidden_layers": 2}
    replace(case, arguments=arguments).model().save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable) as error:
        load_checkpoint(tmp_path)
    assert message(error) == (
        "error: not-representable\n"
        "  The library's own code misreads tensors like these.\n"
        "  dialect  hf_beit (weights_map/hf_beit.toml)\n"
        "  not square: BeitRelativePositionBias takes rows for columns on other grids\n"
        "  So the function that they were trained for is unknown."
    )


def test_another_model_of_the_same_names(changed):
    with pytest.raises(UnknownDialect) as error:
        load_checkpoint(changed("CLIP", model_type="some_vision_model"))
    assert message(error) == (
        "error: unknown-dialect\n"
        "  config.json says that these tensors are another model's.\n"
        "  config.json  model_type = 'some_vision_model'\n"
        "  tensors      those of hf_clip (Hugging Face CLIP, vision encoder)\n"
        "  Tensors of the same names can mean another function.\n"
        "  hint: a table of your own (--table) that extends this one can identify the model."
    )


def test_an_architecture_without_words(tmp_path):
    case = CLASSES["DINOv3"]
    biased = {**case.arguments, "num_hidden_layers": 2, "key_bias": True}
    replace(case, arguments=biased).model().save_pretrained(tmp_path)
    with pytest.raises(TensorMismatch, match=r"layer\.0\.attention\.k_proj\.bias"):
        load_checkpoint(tmp_path)


def without(folder, part):
    """Take tensors out of a file."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if part not in name}
    assert 0 < len(kept) < len(tensors)
    save_file(kept, file, metadata={"format": "pt"})
    return folder


def test_a_classifier_whose_norm_is_lost(save):
    folder, _ = save(CLASSES["BEiT, shared"])
    with pytest.raises(TensorMismatch) as error:
        load_checkpoint(without(folder, "pooler"))
    assert error.value.fact == "It is unknown what the head of this ViT reads."


@pytest.mark.parametrize("name", ["SigLIP", "SigLIP, both towers", "SigLIP 2", "AIMv2, pooled"])
def test_a_pooling_head_that_is_lost(name, save):
    folder, _ = save(CLASSES[name])
    with pytest.raises(TensorMismatch) as error:
        load_checkpoint(without(folder, "head."))
    assert "missing    attn_pool.latent" in str(error.value)


SHARED = {"depth": 2, "hidden_size": 36, "num_heads": 3, "patch_size": 8, "out_hidden_size": 20}
SHARED |= {"intermediate_size": 50, "num_key_value_heads": 1}


@pytest.mark.parametrize("typed", ["glm5_next_vision", "glm5_next"])
def test_glm_5_is_not_glm_ocr_whose_tensors_it_has(typed, tmp_path):
    kind = transformers.Glm5NextVisionModel
    sizes = {"depth": 2, "hidden_size": 36, "num_heads": 3, "patch_size": 8, "out_hidden_size": 20}
    kind(kind.config_class(**sizes, projection_intermediate_size=60)).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"model_type": typed}))
    with pytest.raises(NotRepresentable, match="This is GLM-5: its MLPs clip what they gate"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("prefix", ["", "model.visual."])
def test_glm_image_is_refused_by_name(prefix, tmp_path):
    kind = transformers.GlmImageVisionModel
    sizes = {"depth": 2, "hidden_size": 36, "num_heads": 3, "patch_size": 8, "image_size": 32}
    model = kind(kind.config_class(**sizes, intermediate_size=50))
    tensors = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    said = model.config.to_dict()
    if prefix:
        said = {"model_type": "glm_image", "vision_config": said}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(NotRepresentable, match="This is GLM-Image: GLM-4V's vision encoder with"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("prefix", ["", "model.visual."])
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("HYV4VLVision", "hy_v4_vl", "Hy4: Hunyuan VL's tensors, whose positions are fitted"),
        ("VideoLlama3Vision", "dots3_note", "dots3: its blocks choose among experts"),
        ("Kimi_K25Vision", "kimi_k3", "Kimi K3: MoonViT 2, with RMS norms and heads that are"),
        ("Lfm3VlVision", "lfm3_vl", "LFM3-VL, which is no ViT: its blocks are gated convolutions"),
    ],
)
def test_towers_of_images_of_any_size_are_refused_by_name(name, kind, said, prefix, tmp_path):
    model = getattr(transformers, f"{name}Model")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 50, "patch_size": 8, "num_key_value_heads": 4}
    with torch.device("meta"):
        shapes = model(model.config_class(**sizes)).state_dict()
    tensors = {prefix + name: torch.zeros(tensor.shape) for name, tensor in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(NotRepresentable, match=f"This is {said}"):
        load_checkpoint(tmp_path)


def test_hy4_is_not_hunyuan_vl_whose_tensors_it_has(tmp_path):
    kind = transformers.HYV4VLVisionModel
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 50, "patch_size": 8, "max_image_size": 24}
    tensors = kind(kind.config_class(**sizes)).state_dict()
    for start in ("", "model.vision_tower.", "vit."):
        save_file({start + n: t for n, t in tensors.items()}, tmp_path / "model.safetensors")
        with pytest.raises(UnknownDialect):
            load_checkpoint(tmp_path, overrides={"num_heads": 4})


@pytest.mark.parametrize("dialect", [None, "hf"])
def test_a_model_that_no_table_knows_is_never_anothers(dialect, tmp_path):
    kind = transformers.Exaone4_5_VisionModel
    kind(kind.config_class(**SHARED)).save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match=r"This is EXAONE 4\.5: heads that share keys"):
        load_checkpoint(tmp_path, dialect=dialect)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"model_type": "glim_vision"}))
    with pytest.raises(UnknownDialect) as error:
        load_checkpoint(tmp_path, dialect=dialect)
    assert error.value.fact == "The model that config.json names is unknown."
    assert error.value.evidence["config.json"] == "model_type = 'glim_vision'"


@pytest.mark.parametrize(
    "name",
    [
        "Sapiens2Model",  # under `model.`, nearly a DINOv3
        "UnlimitedOcrVisionModel",  # under `vision_encoder.`, a CLIP without its class token
    ],
)
def test_a_tower_is_not_anothers_where_config_json_names_none_that_is_known(name):
    kind = getattr(transformers, name)
    config = kind.config_class()
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in kind(config).state_dict().items()}
    with pytest.raises(UnknownDialect) as error:
        find_part(Header(shapes=shapes, config=config.to_dict()))
    assert "model_type = " in str(error.value.evidence["config.json"])


@pytest.mark.slow
def test_a_text_tower_that_reads_other_tokens_is_left_behind(tmp_path):
    save_class("MetaClip2Model", tmp_path / "model")
    plan = plan_conversion(tmp_path / "model", to="hf")
    (note,) = (note for note in plan.ledger.notes if "text" in note)
    assert "left out: config.json says model_type = 'metaclip_2'" in note


def test_a_dialect_of_the_same_files_makes_nothing_ambiguous(tmp_path):
    save_class("Blip2ForConditionalGeneration", tmp_path / "model")
    assert load_checkpoint(tmp_path / "model", dialect="hf").dialect == "hf_blip"
