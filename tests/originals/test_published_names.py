"""Names that Meta publishes for its ViTs state what their files do not show; heads of DINOv2."""

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn

import vitconvert
from tests.cli.conftest import run
from tests.small_models import randomise, relative
from vitconvert.errors import ConflictingFact, MissingFact, ShapeMismatch
from vitconvert.tables.architectures import find_architecture

__all__ = ["run"]
SMALL = {"img_size": 28, "embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
SET = {"num_heads": 3, "image_size": 28}


def small_dinov2(**changes):
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", **{**SMALL, **changes})
    return randomise(model).eval()


def in_metas_names(model, base=""):
    tensors = {f"{base}{name}": tensor for name, tensor in model.state_dict().items()}
    width = model.state_dict()["cls_token"].shape[-1]
    return {**tensors, f"{base}mask_token": torch.zeros(1, width)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A file of dinov2_vits14's sizes, two blocks deep, under a name that says nothing."""
    model = small_dinov2(img_size=518, embed_dim=384, depth=12, num_heads=6, mlp_ratio=0.25)
    path = tmp_path_factory.mktemp("dinov2") / "weights.pth"
    torch.save(in_metas_names(model), path)
    return model, path


def test_a_name_states_the_heads(published, tmp_path, run):
    model, path = published
    images = torch.rand(1, 3, 518, 518)
    with pytest.raises(MissingFact, match="num_heads"):
        vitconvert.load_model(path)
    with torch.inference_mode():
        wanted = model(images)
        found = vitconvert.load_model(path, architecture="dinov2_vits14")(images)
    assert relative(found, wanted) < 1e-5
    plan = ("dino", "dinov2_vits14_reg", "--checkpoint", path, "--dry-run")
    answer = run(*plan)
    assert answer.code == 0 and "num_heads 6" in answer.out
    named = tmp_path / "dinov2_vits14_pretrain.pth"
    named.symlink_to(path)
    config = vitconvert.load_checkpoint(named).config
    assert config.num_heads == 6 and config.origins["num_heads"].startswith("assumed")
    with pytest.raises(ConflictingFact, match="embed_dim = 768"):
        vitconvert.load_model(path, architecture="dinov2_vitb14")


def test_a_name_of_dino_is_known_of_its_backbone_whose_tensors_are_timms(tmp_path, run):
    torch.manual_seed(0)
    arguments = {"mlp_ratio": 0.25, "num_classes": 0}
    randomise(model := timm.create_model("vit_small_patch16_224", **arguments)).eval()
    torch.save(model.state_dict(), path := tmp_path / "dino_deitsmall16_pretrain.pth")
    answer = run("dino", "dino_vits16", "--checkpoint", path, "--dry-run")
    assert answer.code == 0 and "num_heads 6" in answer.out
    config = vitconvert.load_checkpoint(path).config
    assert (config.num_heads, config.position_resampling) == (6, "bicubic_offset")


@pytest.mark.parametrize(
    ("file", "like", "heads"),
    [
        ("mae_pretrain_vit_base.pth", "vit_base_patch16_224", 12),
        ("mae_pretrain_vit_huge.pth", "vit_huge_patch14_224", 16),
        ("vit-s-300ep.pth.tar", "vit_small_patch16_224", 12),  # of MoCo v3, whose small has 12
        ("linear-vit-s-300ep.pth.tar", "vit_small_patch16_224", 12),
        ("vits16_800ep.pth.tar", "vit_small_patch16_224", 6),  # of MSN
    ],
)
def test_names_of_published_files_tell_the_heads(file, like, heads, tmp_path):
    arguments = {"mlp_ratio": 0.25, "num_classes": 0}
    tensors = timm.create_model(like, **arguments).state_dict()
    if file.startswith("vit-"):  # as MoCo v3 trains
        extra = {"module.base_encoder.head.0.weight": torch.zeros(8, 384)}
        wrapped = {f"module.base_encoder.{name}": tensor for name, tensor in tensors.items()}
        tensors = {"state_dict": wrapped | extra}
    torch.save(tensors, tmp_path / file)
    config = vitconvert.load_checkpoint(tmp_path / file).config
    assert config.num_heads == heads
    assert config.origins["num_heads"].startswith("assumed: the file name begins with")


def test_what_the_names_of_dinov3_state():
    row = find_architecture("dinov3", "dinov3_vith16plus")
    assert (row["embed_dim"], row["num_heads"], row["activation"]) == (1280, 20, "silu")
    assert find_architecture("dinov3", "dinov3_vit7b16")["num_heads"] == 32


class LinearClassifierWrapper(nn.Module):
    """What dinov2/hub/classifiers.py at b8931f7 computes with layers=1."""

    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.linear_head = nn.Linear(2 * backbone.embed_dim, classes)

    def forward(self, images):
        tokens = self.backbone.forward_features(images)
        skip = self.backbone.num_prefix_tokens
        return self.linear_head(torch.cat([tokens[:, 0], tokens[:, skip:].mean(dim=1)], dim=1))


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"])
def test_the_head_of_one_layer_is_held(name, tmp_path):
    backbone = timm.create_model(name, **SMALL)
    randomise(model := LinearClassifierWrapper(backbone, 5)).eval()
    tensors = in_metas_names(backbone, "backbone.")
    tensors = {key.replace("reg_token", "register_tokens"): t for key, t in tensors.items()}
    if "reg4" in name:  # Meta's have a position of the class token, which timm adds in
        pos = tensors["backbone.pos_embed"]
        tensors["backbone.pos_embed"] = torch.cat([torch.zeros_like(pos[:, :1]), pos], dim=1)
    tensors |= {k: v for k, v in model.state_dict().items() if k.startswith("linear_head")}
    torch.save(tensors, path := tmp_path / "classifier.pth")
    images = torch.rand(2, 3, 28, 28)
    with torch.inference_mode():
        wanted = model(images)
        assert relative(vitconvert.load_model(path, overrides=SET)(images), wanted) < 1e-5
    for to in ("hf", "dinov2"):
        vitconvert.convert(path, to=to, output=tmp_path / to, overrides=SET)
        with torch.inference_mode():
            assert relative(vitconvert.load_model(tmp_path / to)(images), wanted) < 1e-5
    written = torch.load(tmp_path / "dinov2" / "model.pt")
    assert written.keys() == tensors.keys()


def test_a_head_of_four_layers_is_no_head_of_this_vit(tmp_path):
    tensors = in_metas_names(small_dinov2(), "backbone.")
    tensors |= {"linear_head.weight": torch.randn(5, 5 * 48), "linear_head.bias": torch.randn(5)}
    torch.save(tensors, path := tmp_path / "classifier.pth")
    with pytest.raises(ShapeMismatch, match=r"--ignore 'linear_head\.\*' leaves it out"):
        vitconvert.load_model(path, overrides=SET)
    found = vitconvert.load_checkpoint(path, overrides=SET, ignore=["linear_head.*"])
    assert (found.config.num_classes, found.config.pooling) == (0, "token")


def test_a_mask_token_that_plays_no_part_may_be_missing(tmp_path):
    model = small_dinov2()
    torch.save(model.state_dict(), path := tmp_path / "weights.pth")
    images = torch.rand(2, 3, 28, 28)
    with torch.inference_mode():
        found = vitconvert.load_model(path, dialect="dinov2", overrides=SET)(images)
        assert relative(found, model(images)) < 1e-5


def test_a_question_names_the_defaults_of_the_library(tmp_path):
    import transformers

    sizes = {"hidden_size": 30, "image_size": 32, "patch_size": 8, "num_hidden_layers": 2}
    config = transformers.ViTConfig(**sizes, num_attention_heads=3, intermediate_size=50)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    wrapped = {f"model.{name}": tensor for name, tensor in tensors.items()}
    torch.save({"state_dict": wrapped, "epoch": 1}, path := tmp_path / "last.ckpt")
    with pytest.raises(MissingFact, match=r"norm_eps .*the library has 1e-12"):
        vitconvert.load_model(path)
