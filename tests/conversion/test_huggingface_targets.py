"""Every class of transformers that is read is written again, and timm's where it fits."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.huggingface.classes import CLASSES, Case, outputs
from tests.huggingface.every_class import saved as save_class
from tests.packages import timm, transformers
from tests.sampling import sampled
from tests.small_models import randomise_calmly
from vitconvert.checkpoint import build_model
from vitconvert.conversion.target import choose_without_steps
from vitconvert.errors import NotRepresentable, ParityFailed
from vitconvert.programs.opening import open_output
from vitconvert.programs.program import DescribedModel
from vitconvert.tables.dialects import builtin_tables

# The dialect that has a class's own name, where another one computes the same.
NAMED = {
    "Data2Vec, classes": "hf_data2vec",
    "SigLIP, classes": "hf_siglip_classifier",
    "SigLIP 2": "hf_siglip2",
    "SigLIP 2, both towers": "hf_siglip2",
    "SigLIP 2, classes": "hf_siglip2_classifier",
}
# Image towers are written as such, and in the names that releases before 5 read too.
TOWERS = ("CLIPVisionModel", "SiglipVisionModel", "Siglip2VisionModel")
WRITTEN = {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "SiglipModel": "SiglipVisionModel",
    "Siglip2Model": "Siglip2VisionModel",
}
IMAGES = {"image_only": True, "verify": False}  # tests/text has both towers
SHARED = {"Data2Vec": "BeitModel"}  # the same function under a class that pools


def older_name(model: torch.nn.Module, name: str) -> str:
    return f"vision_model.{name}" if type(model).__name__ in TOWERS else name


@pytest.mark.parametrize("name", sampled(CLASSES, 3))
@torch.no_grad()
def test_every_class_comes_back_as_it_was(name, tmp_path):
    case = CLASSES[name]
    model = case.model()
    model.save_pretrained(tmp_path / "first")
    vitconvert.convert(tmp_path / "first", **IMAGES | {"output": tmp_path / "between"})
    vitconvert.convert(
        tmp_path / "between",
        to=NAMED.get(name, "hf"),
        **IMAGES | {"output": tmp_path / "second"},
    )

    first = load_file(tmp_path / "first" / "model.safetensors")
    second = load_file(tmp_path / "second" / "model.safetensors")
    expected = {
        older_name(model, key): tensor
        for key, tensor in first.items()
        if not key.startswith(case.ignored or ("nothing",))
    }
    assert expected.keys() <= second.keys()
    for key, tensor in expected.items():
        assert torch.equal(second[key], tensor) and second[key].dtype == tensor.dtype, key

    reopened, problems = opened(tmp_path / "second")
    own = SHARED.get(name, type(model).__name__)
    assert type(reopened).__name__ == WRITTEN.get(own, own)
    assert not any(problems.values()), problems
    for key in second.keys() - expected.keys():  # a constant, which plays no part
        assert second[key].unique().numel() <= 1 and key.startswith(case.ignored), key
    images = torch.randn(2, 3, *vitconvert.load_checkpoint(tmp_path / "second").config.image_size)
    # gelu_new is written as the other name of the same function.
    tolerance = 1e-5 if "gelu_new" in case.arguments.values() else 0.0
    for theirs, ours in zip(outputs(model, images), outputs(reopened, images), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=tolerance)


def opened(folder) -> tuple[torch.nn.Module, Mapping[str, object]]:
    """What transformers makes of a directory, as its users call it."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    auto = transformers.AutoModel
    if "ForImageClassification" in kind:
        auto = transformers.AutoModelForImageClassification
    if kind.endswith("WithProjection"):
        auto = transformers.CLIPVisionModelWithProjection
    model, problems = auto.from_pretrained(folder, dtype="float32", output_loading_info=True)
    return model.eval(), problems


BARE = {
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": 24,
    "patch_size": 8,
    "layer_norm_eps": 1e-7,
}


@pytest.mark.parametrize("kind", ["ViTModel", "ViTMAEModel", "ViTMSNModel", "IJepaModel"])
def test_an_encoder_without_pooler_gets_none_made_up(kind, tmp_path):
    class_ = getattr(transformers, kind)
    pooler = {} if kind in ("ViTMAEModel", "ViTMSNModel") else {"add_pooling_layer": False}
    model = randomise_calmly(class_(class_.config_class(**BARE), **pooler))
    model.save_pretrained(tmp_path / "first")
    conversion = vitconvert.convert(tmp_path / "first", to="hf", output=tmp_path / "second")
    assert [(o.consumer, o.bit_equal) for o in conversion.opened] == [("transformers", True)]
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    reopened, _ = opened(tmp_path / "second")
    assert type(reopened).__name__ == ("IJepaModel" if kind == "IJepaModel" else "ViTMSNModel")


def test_weights_that_a_class_would_make_up_are_an_error(tmp_path):
    CLASSES["BEiT, shared"].model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    model = build_model(vitconvert.load_checkpoint(tmp_path))
    tensors["classifier.more"] = tensors.pop("classifier.bias")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ParityFailed) as error:
        open_output(tmp_path, builtin_tables()["hf_beit"], model)
    assert str(error.value) == (
        "error: parity-failed\n"
        "  transformers cannot load the output.\n"
        "  problem  missing_keys: classifier.bias; unexpected_keys: classifier.more\n"
        "  hint: nothing was written. Please report this with the checkpoint's name."
    )


WIDE = {"patch_size": [8, 4], "image_size": [24, 40], "num_channels": 1}
SQUARE = {"patch_size": 8, "image_size": 24}
DINOV3 = {"num_register_tokens": 4, "rope_theta": 100.0, **SQUARE}
GATED = {"intermediate_size": 48, "mlp_bias": True, **DINOV3}
OF_TIMM = {  # changes, dialect, architecture
    "DINOv2": ({"num_channels": 1}, "timm", "vit_base_patch14_dinov2"),
    "DINOv2, SwiGLU, no bias of q, k, v": (
        {"qkv_bias": True},
        "timm_swiglu_packed",
        "vit_giant_patch14_dinov2",
    ),
    "DINOv3": (DINOV3 | WIDE, "timm_eva", "vit_tiny_patch16_dinov3_qkvb"),
    "DINOv3, SwiGLU, no bias": (GATED, "timm_eva_gated", "vit_small_plus_patch16_dinov3"),
    "BEiT, classes": ({"layer_norm_eps": 1e-6}, "timm_eva", "beit_base_patch16_224"),
    "BEiT, absolute, token": ({"layer_norm_eps": 1e-6}, "timm", "vit_base_patch14_dinov2"),
    "CLIP": ({}, "timm", "vit_base_patch16_clip_quickgelu_224"),
    "CLIP, classes": ({}, "timm", "vit_base_patch16_clip_224"),
    "SigLIP": ({}, "timm", "vit_base_patch32_siglip_256"),
    "SigLIP, classes": ({}, "timm", "vit_base_patch32_siglip_gap_256"),
    "AIMv2": ({"num_channels": 4}, "timm_swiglu", "aimv2_large_patch14_224"),
}


def saved(name, folder, changes: Mapping[str, object] | None = None):
    case: Case = CLASSES[name]
    case = replace(case, arguments={**case.arguments, **(changes or {})})
    case.model().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", sampled(OF_TIMM, 4, "slow"))
def test_timm_builds_what_a_class_of_transformers_was(name, tmp_path):
    changes, dialect, architecture = OF_TIMM[name]
    folder = saved(name, tmp_path / "first", changes)
    conversion = vitconvert.convert(folder, to="timm", output=tmp_path / "timm")
    assert conversion.target_dialect == dialect
    assert all(opened.relative <= 2e-6 for opened in conversion.opened)
    assert {opened.consumer for opened in conversion.opened} == {"timm", "transformers"}
    written = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert written["architecture"] == architecture
    assert "num_classes" not in written["model_args"]


BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12, "head_dim": 64, "mlp_dim": 3072}
BASE |= {"image_size": (224, 224), "patch_size": (16, 16)}
EPS = {"norm_eps": 1e-6}
TOLD = {"img_size": [224, 224], "mlp_ratio": 4}


@pytest.mark.parametrize(
    ("name", "changes", "architecture", "arguments"),
    [
        (
            "DINOv2",
            {"patch_size": (14, 14), "image_size": (518, 518)},
            "vit_base_patch14_dinov2",
            None,
        ),
        (
            "DINOv3",
            {"num_registers": 4, "rope_temperature": 100.0},
            "vit_base_patch16_dinov3_qkvb",
            {**TOLD, "global_pool": "token"},
        ),
        ("BEiT, classes", EPS, "beit_base_patch16_224", {"mlp_ratio": 4}),
        (
            "BEiT, classes",
            EPS | {"image_size": (384, 384)},
            "beit_base_patch16_384",
            {"mlp_ratio": 4},
        ),
        ("CLIP", {}, "vit_base_patch16_clip_quickgelu_224", None),
        ("CLIP", {"activation": "gelu"}, "vit_base_patch16_clip_224", None),
        ("SigLIP", {"pool_mlp_dim": 3072}, "vit_base_patch16_siglip_224", None),
        ("SigLIP, classes", {}, "vit_base_patch16_siglip_gap_224", None),
    ],
)
def test_a_released_size_is_called_by_its_name(name, changes, architecture, arguments, tmp_path):
    config = vitconvert.load_checkpoint(saved(name, tmp_path)).config
    model = DescribedModel(config=config.replace(**BASE | changes))
    target = choose_without_steps("timm", model).target
    assert target.their_config["architecture"] == architecture
    if arguments is not None:  # an architecture of ViT is told everything
        assert target.their_config["model_args"] == arguments


def refused(name, to, folder, changes) -> NotRepresentable:
    config = vitconvert.load_checkpoint(saved(name, folder)).config.replace(**changes)
    with pytest.raises(NotRepresentable) as error:
        choose_without_steps(to, DescribedModel(config=config))
    return error.value


@pytest.mark.parametrize(
    ("name", "to", "changes", "message"),
    [
        (
            *("BEiT, classes", "timm_eva", {}),
            "No architecture of timm Eva, Beit computes this.\n"
            "  listed in  weights_map/architectures.toml\n"
            "  the nearest is beit_base_patch16_224, with norm_eps 1e-06 and not 1e-12",
        ),
        (
            *("DINOv2", "hf_dinov2", {"mlp_dim": 50}),
            "Hugging Face DINOv2 says mlp_dim by a ratio, and none makes this one.\n"
            "  table      weights_map/hf_dinov2.toml\n"
            "  ratio      mlp_ratio\n"
            "  mlp_dim    50\n"
            "  embed_dim  36",
        ),
        (
            *("DINOv2", "hf_deit", {"dist_token": True, "layer_scale": False}),
            "Hugging Face DeiTForImageClassification has no class that computes this.\n"
            "  table  weights_map/hf_deit.toml",
        ),
    ],
)
def test_a_refusal_says_what_was_looked_for(name, to, changes, message, tmp_path):
    error = refused(name, to, tmp_path, changes)
    assert str(error) == f"error: not-representable\n  {message}"


@pytest.mark.parametrize(
    ("name", "to", "changes", "problem"),
    [
        (
            *("SigLIP", "hf_siglip", {"pool_heads": 2}),
            "map_pooling implies pool_heads == 0 or pool_heads == num_heads is always True there, "
            "and False here (map_pooling = True, pool_heads = 2, num_heads = 3): its head has "
            "num_attention_heads",
        ),
        (
            *("SigLIP", "hf_siglip", {"pool_mlp_dim": 7}),
            "pool_mlp_dim == 0 or pool_mlp_dim == mlp_dim is always True there, and False here",
        ),
        (
            *("SigLIP", "timm", {"pool_heads": 2}),
            "timm: map_pooling implies pool_heads == 0 or pool_heads == num_heads is always True",
        ),
        ("CLIP, projection", "timm", {}, "timm: head_bias is always True there, and False here"),
        ("DINOv2, classes", "timm", {}, "timm: a head of timm reads one vector, and this one"),
        (
            *("AIMv2", "hf_aimv2", {"proj_bias": True}),
            "qkv_bias == proj_bias is always True there, and False here (qkv_bias = False, "
            "proj_bias = True): the qkv_bias of Aimv2Attention is of all four projections",
        ),
        ("DINOv2", "hf_dinov2", {"image_size": (24, 40)}, "not square: Dinov2Embeddings takes the"),
        ("CLIP", "hf_clip", {"head_dim": 10}, "even_heads is always True there, and False here"),
    ],
)
def test_what_a_class_cannot_be(name, to, changes, problem, tmp_path):
    error = refused(name, to, tmp_path, changes)
    assert problem in "\n".join([str(error), *error.details])  # the message leads with the nearest


def test_a_part_that_may_not_be_zero_is_left_out_only_where_nothing_else_holds_it(tmp_path):
    """BEiT has no bias of the keys; a DINOv2 of which it holds the rest does."""
    config = vitconvert.load_checkpoint(saved("DINOv2", tmp_path)).config
    choice = choose_without_steps("hf", DescribedModel(config=config))
    target, passed_over = choice.target, choice.passed_over
    assert target.table.name == "hf_dinov2"
    assert passed_over["hf_beit"] == "leaves out a part that is not known to be zero"
    assert choose_without_steps("hf_beit", DescribedModel(config=config)).target.plan.zeros


def test_a_spelling_of_the_past_is_written_only_by_its_own_name(huggingface_directory):
    config = vitconvert.load_checkpoint(huggingface_directory()).config
    assert (
        choose_without_steps("hf_vit_memory", DescribedModel(config=config)).target.table.name
        == "hf_vit_memory"
    )
    strange = DescribedModel(
        config=config.replace(pooling="avgmax", mlp_norm=True, head_bias=False)
    )
    for ecosystem, today, past in (("hf", "hf_vit", "memory"), ("timm", "timm", "2020")):
        with pytest.raises(NotRepresentable) as error:
            choose_without_steps(ecosystem, strange)
        tried = [line.partition(":")[0] for line in error.value.details]
        assert today in tried
        assert not any(name.endswith(past) for name in tried)


GAP = {"img_size": 24, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("vit_base_patch16_siglip_gap_224", "SiglipForImageClassification", 0),
        ("vit_huge_patch14_gap_224", "IJepaForImageClassification", 1),  # which no name says
    ],
)
def test_of_classes_that_compute_the_same_the_familys_own_is_written(name, kind, told, tmp_path):
    model = timm.create_model(name, num_classes=7, **GAP)
    timm.models.save_for_hf(randomise_calmly(model), str(tmp_path / "timm"), model_args=GAP)
    done = vitconvert.convert(tmp_path / "timm", to="hf", output=tmp_path / "hf")
    assert type(opened(tmp_path / "hf")[0]).__name__ == kind
    notes = [note for note in done.ledger.notes if not note.startswith("labels: none")]
    assert len(notes) == told and all(o.relative is not None for o in done.opened)


@pytest.mark.parametrize(
    ("name", "kind", "mark", "said"),
    sampled(
        [
            ("OwlViTVisionModel", "CLIPVisionModel", "clip_vision_model", "owlvit_vision_model"),
            ("InstructBlipVisionModel", "BlipVisionModel", "blip", "instructblip"),
            ("Blip2VisionModel", "BlipVisionModel", "blip", "blip_2"),
            ("ViTMAEModel", "ViTMSNModel", "vit_msn", "vit_mae"),
        ],
        3,
        "slow",
    ),
)
def test_a_class_of_another_family_is_told(name, kind, mark, said, tmp_path):
    save_class(name, tmp_path / "first")
    notes = vitconvert.plan_conversion(tmp_path / "first", to="hf").ledger.notes
    (note,) = (note for note in notes if "another family" in note)
    assert f"for {kind}, a class of another family ({mark}" in note
    assert f"the source says {said}" in note
