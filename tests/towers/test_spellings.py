"""Towers in files of programs that are no package: real modules, renamed as those write them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitconvert
from tests.originals.spelling import SIZES, dino_head, dinov2, dinov3, filled, pair, prefixed
from tests.packages import timm
from tests.packages import transformers as t
from tests.small_models import randomise_calmly
from tests.towers.families import VISION, internvl, save
from vitconvert.errors import AmbiguousDialect, MissingFact, NotRepresentable
from vitconvert.formats import open_container

STATED = {"num_heads": 3, "activation": "quick_gelu"}
LANGUAGE_MODEL = filled(
    {"model.embed_tokens.weight": (70, 20), "model.layers.0.mlp.up_proj.weight": (30, 20)}
)
IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def check_tokens(source, tokens, **reading):
    ours = vitconvert.load_model(source, **reading)
    torch.testing.assert_close(ours.forward_features(IMAGES), tokens, rtol=0, atol=0)


def clip():
    return randomise_calmly(t.CLIPVisionModel(t.CLIPVisionConfig(**VISION)))


def siglip():
    config = t.SiglipVisionConfig(**VISION, vision_use_head=False)
    return randomise_calmly(t.SiglipVisionModel(config))


def small_timm(**more):
    """A ViT by timm of the sizes of `SIZES`."""
    sizes = {**SIZES, "mlp_ratio": 2, "num_classes": 0}
    return randomise_calmly(timm.models.VisionTransformer(**sizes | more))


@torch.no_grad()
def test_llavas_own_code(tmp_path):
    model = clip()
    tensors = prefixed("model.vision_tower.vision_tower.vision_model.", model.state_dict())
    save_file(tensors | LANGUAGE_MODEL, tmp_path / "model.safetensors")
    config = {
        "model_type": "llava",
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
        "mm_vision_select_layer": -2,
        "hidden_size": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MissingFact) as error:  # the language model's heads are not the tower's
        vitconvert.load_checkpoint(tmp_path)
    assert "num_heads" in str(error.value)
    check_tokens(tmp_path, model(IMAGES).last_hidden_state, overrides=STATED)


@torch.no_grad()
def test_pi0(tmp_path):
    model, start = siglip(), "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
    beside = prefixed("paligemma_with_expert.gemma_expert.", LANGUAGE_MODEL)
    save_file(prefixed(start, model.state_dict()) | beside, tmp_path / "model.safetensors")
    tokens = model(IMAGES).last_hidden_state
    check_tokens(tmp_path / "model.safetensors", tokens, overrides={"num_heads": 3})


@torch.no_grad()
@pytest.mark.parametrize("scale", ["gamma", "scale_factor"])
def test_openvla_has_two(tmp_path, scale):
    first = small_timm(init_values=1e-5, reg_tokens=4, no_embed_class=True)
    second = small_timm(class_token=False, global_pool="map")
    tensors = {n.replace("gamma", scale): v for n, v in first.state_dict().items()}
    tensors = prefixed("vision_backbone.featurizer.", tensors)
    tensors |= prefixed("vision_backbone.fused_featurizer.", second.state_dict())
    file = tmp_path / "model.safetensors"
    save_file(tensors | prefixed("language_model.", LANGUAGE_MODEL), file)
    with pytest.raises(AmbiguousDialect):
        vitconvert.load_checkpoint(file)
    for name, model in {"featurizer": first, "fused_featurizer": second}.items():
        facts = {"num_heads": 3, "no_embed_class": name == "featurizer"}
        reading = {"tower": f"vision_backbone.{name}", "overrides": facts}
        check_tokens(file, model.forward_features(IMAGES), **reading)
        told = "the larger model reads layer -2 of this ViT, without its prefix tokens; here is the"
        notes = vitconvert.load_checkpoint(file, **reading).ledger.notes
        assert any(note.startswith(told) for note in notes)
        assert any(note.startswith(told) for note in vitconvert.inspect(file, **reading).notes)


@torch.no_grad()
def test_prismatics_own_files_nest_what_openvla_writes_flat(tmp_path):
    """`checkpoints/latest-checkpoint.pt` of prismatic-vlms: a state dict for each module."""
    model = small_timm(class_token=False, global_pool="map")
    file = tmp_path / "latest-checkpoint.pt"
    towers = prefixed("featurizer.", model.state_dict())
    other = filled(pair("projector.0", 8, 48))
    parts = {"vision_backbone": towers, "projector": other, "llm_backbone": LANGUAGE_MODEL}
    torch.save({"model": parts, "optimizer": {}}, file)
    check_tokens(file, model.forward_features(IMAGES), overrides={"num_heads": 3})
    second = {"vision_backbone": prefixed("dino_", towers) | prefixed("siglip_", towers)}
    torch.save({"model": parts | second}, file)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(file)
    assert "--tower vision_backbone.dino_featurizer" in str(error.value)


@pytest.mark.parametrize(
    ("start", "model_type"),
    [("vision.", "deepseek_vl_v2"), ("vision_model.vision_tower.", "multi_modality")],
    ids=["DeepSeek-VL2", "Janus"],
)
@torch.no_grad()
def test_deepseeks_towers_of_timm(start, model_type, tmp_path):
    model = small_timm(class_token=False, global_pool="map")
    tensors = prefixed(start, model.state_dict()) | prefixed("language.", LANGUAGE_MODEL)
    save_file(tensors | filled(pair("projector.layers.0", 8, 48)), tmp_path / "model.safetensors")
    config = {"model_type": model_type, "vision_config": {"layers": 27, "width": 1152}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_tokens(tmp_path, model.forward_features(IMAGES), overrides={"num_heads": 3})
    notes = vitconvert.load_checkpoint(tmp_path, overrides={"num_heads": 3}).ledger.notes
    assert any("every token of this ViT, not what is pooled of them" in note for note in notes)


def decoder(prefix):
    shapes = {f"{prefix}conv_seg.weight": (5, 48, 1, 1), f"{prefix}conv_seg.bias": (5,)}
    return filled(shapes | pair(f"{prefix}norm", 48))


@pytest.mark.parametrize(
    ("start", "beside"),
    [
        ("pretrained.", "depth_head.projects."),
        ("module.pretrained.", "module.depth_head."),
        ("backbone.", "decode_head."),
        ("model.backbone.", "model.decode_head."),
    ],
)
@torch.no_grad()
def test_a_backbone_beside_a_decoder(tmp_path, start, beside):
    file = tmp_path / "model.pth"
    theirs = dinov2()
    torch.save({"state_dict": prefixed(start, theirs) | decoder(beside), "epoch": 3}, file)
    checkpoint = vitconvert.load_checkpoint(file, overrides={"num_heads": 3})
    assert checkpoint.dialect == "dinov2"
    names = {n for n in checkpoint.ledger.ignored if "mask_token" not in n}
    assert names == set(decoder(beside))
    reference = small_timm(init_values=1.0)
    reference.load_state_dict({n: v for n, v in theirs.items() if n != "mask_token"})
    check_tokens(checkpoint, reference.forward_features(IMAGES))


def dinov2_training():
    """`model_final.rank_0.pth`: FSDP's wrapper gone, as DINOv2's checkpointer writes it."""
    teacher, student = dinov2(), {n: -v for n, v in dinov2().items()}
    tensors = prefixed("teacher.backbone.", teacher) | prefixed("student.backbone.", student)
    for side in ("teacher", "student"):
        head = filled(dino_head())
        tensors |= {n.replace("head.", f"{side}.dino_head.", 1): v for n, v in head.items()}
    return tensors | filled({"dino_loss.center": (1, 20)}), teacher


@pytest.mark.parametrize("wrapper", ["model", ""])
def test_dinov2s_training_state_has_a_teacher_and_a_student(tmp_path, wrapper):
    tensors, teacher = dinov2_training()
    file = tmp_path / "model_final.rank_0.pth"
    torch.save({"model": tensors, "iteration": 9} if wrapper else tensors, file)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(file)
    assert "--tower teacher.backbone" in str(error.value)
    read = vitconvert.load_checkpoint(file, tower="teacher.backbone", overrides={"num_heads": 3})
    assert read.dialect == "dinov2"
    assert torch.equal(read.tensors["cls_token"], teacher["cls_token"])


class Node(nn.Module):
    """Parameters in modules, under the names of a state dict."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            place = self
            for step in path:
                if not hasattr(place, step):
                    place.add_module(step, Node({}))
                place = getattr(place, step)
            place.register_parameter(last, nn.Parameter(tensor))


def dinov3_training(folder):
    """A directory that DINOv3's checkpointer wrote: the averaged model has two names."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    sides = {side: Node(dinov3()) for side in ("student", "teacher")}
    with torch.no_grad():
        sides["student"].cls_token.neg_()
    model = nn.Module()
    for side, backbone in sides.items():
        head = nn.Linear(4, 4)
        model.add_module(side, nn.ModuleDict({"backbone": backbone, "dino_head": head}))
    model.model_ema = model.teacher
    tensors = get_model_state_dict(model)
    writer = dcp.FileSystemWriter(folder)
    dcp.save({"iteration": 9, "model": tensors}, storage_writer=writer, no_dist=True)
    return tensors


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dinov3s_training_state_after_dcp_to_torch(tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    tensors, file = dinov3_training(tmp_path / "ckpt"), tmp_path / "training.pth"
    dcp_to_torch_save(tmp_path / "ckpt", file)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(file)
    assert list(error.value.evidence) == [
        f"{side}.backbone." for side in ("teacher", "model_ema", "student")
    ]
    for side in ("teacher", "model_ema", "student"):
        stated = {"num_heads": 3, "image_size": 24}
        read = vitconvert.load_checkpoint(file, tower=f"{side}.backbone", overrides=stated)
        assert read.dialect == "dinov3"
        assert torch.equal(read.tensors["cls_token"], tensors[f"{side}.backbone.cls_token"])


def test_dinov3s_training_state_with_flat_names(tmp_path):
    tensors = prefixed("model.teacher.backbone.", dinov3())
    tensors |= prefixed("model.student.backbone.", dinov3())
    file = tmp_path / "training.pth"
    torch.save(tensors | filled({"model.dino_loss.center": (1, 20)}), file)
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(file)
    assert "--tower model.teacher.backbone" in str(error.value)
    stated = {"num_heads": 3, "image_size": 24}
    read = vitconvert.load_checkpoint(file, tower="model.teacher.backbone", overrides=stated)
    assert read.dialect == "dinov3"


# `convert_internvl_weights_to_hf.py` of transformers, the other way round.
_INTERNVL = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
    "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "lambda_": "ls",
}


def internvit(model):
    """The tensors of transformers' port in OpenGVLab's names."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            parts = [model.state_dict()[name.replace("q_proj", f"{p}_proj")] for p in "qkv"]
            name, tensor = name.replace("attention.q_proj", "attn.qkv"), torch.cat(parts)
        for new, old in _INTERNVL.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    return tensors


@pytest.mark.parametrize(
    ("norm", "normed"), [("layer_norm", False), ("rms_norm", False), ("rms_norm", True)]
)
@pytest.mark.parametrize("prefix", ["", "vision_model."])
@torch.no_grad()
def test_internvit_in_its_own_names(tmp_path, prefix, norm, normed):
    more = {"norm_type": norm, "use_qk_norm": normed, "attention_bias": not normed}
    model = randomise_calmly(internvl(**more)).model.vision_tower
    beside = prefixed("language_model.", LANGUAGE_MODEL) if prefix else {}
    save_file(prefixed(prefix, internvit(model)) | beside, tmp_path / "model.safetensors")
    config = VISION | {"model_type": "intern_vit_6b", "norm_type": norm, "layer_norm_eps": 1e-6}
    whole = {"model_type": "internvl_chat", "vision_config": config} if prefix else config
    (tmp_path / "config.json").write_text(json.dumps(whole))
    checkpoint = vitconvert.load_checkpoint(tmp_path)
    assert checkpoint.dialect == "hf_internvit"
    skipped = vitconvert.verify(tmp_path).skipped
    assert skipped.endswith("no 'intern_vit_6b'; the code of a repository is not run.") or prefix
    tokens = model(IMAGES).last_hidden_state
    check_tokens(checkpoint, tokens)
    assert torch.equal(vitconvert.load_model(checkpoint)(IMAGES), tokens[:, 0])


@pytest.mark.slow
def test_norms_of_whole_queries_fit_their_own_class_alone(tmp_path):
    model = internvl(norm_type="rms_norm", use_qk_norm=True, num_hidden_layers=11)
    folder = save(randomise_calmly(model), tmp_path / "internvl")
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: hf, vit"):
        vitconvert.convert(folder, to="timm", output=tmp_path / "timm")
    done = vitconvert.convert(folder, output=tmp_path / "out")
    assert done.parity is not None and done.parity.ok
    assert vitconvert.load_checkpoint(tmp_path / "out").config.whole_qk_norm
    assert vitconvert.diff(folder, tmp_path / "out").equal


@torch.no_grad()
def test_blip_in_its_authors_code(tmp_path):
    """Salesforce's BLIP and ALBEF, models/blip_pretrain.py: timm's ViT beside its momentum copy."""
    model = small_timm()
    tower = model.state_dict()
    text = filled({"text_encoder.encoder.layer.0.attention.self.query.weight": (8, 8)})
    text |= filled(pair("vision_proj", 4, SIZES["embed_dim"]) | {"queue": (4, 9)})
    copy = {f"visual_encoder_m.{name}": tensor + 1 for name, tensor in tower.items()}
    torch.save({"model": prefixed("visual_encoder.", tower) | copy | text}, tmp_path / "blip.pth")
    tokens = model.forward_features(IMAGES)
    check_tokens(tmp_path / "blip.pth", tokens, overrides={"num_heads": 3})


@torch.no_grad()
@pytest.mark.parametrize(
    ("start", "section"), [("encoder/", "encoder"), ("vision_model/", "vision_config")]
)
def test_flax_models_of_two_parts(start, section, tmp_path):
    """FlaxVisionEncoderDecoderModel and FlaxVisionTextDualEncoderModel of transformers 4."""
    folder = Path(__file__).parents[1] / "flax" / "files" / "vit_bfloat16"
    with open_container(folder / "flax_model.msgpack") as file:
        tensors = prefixed(start, {name: file.read(name).contiguous() for name in file.manifest})
    save_file(tensors | {"decoder/wte/embedding": torch.ones(5, 4)}, tmp_path / "model.safetensors")
    config = {"model_type": "made", section: json.loads((folder / "config.json").read_text())}
    (tmp_path / "config.json").write_text(json.dumps(config))
    alone, whole = (vitconvert.load_model(place) for place in (folder, tmp_path))
    images = torch.randn(1, 3, *alone.config.image_size, dtype=alone.cls_token.dtype)
    assert torch.equal(whole(images), alone(images))
