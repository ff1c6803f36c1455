"""DINO within detectors and models of depth: RF-DETR, DEIMv2, Depth Anything 3, VGGT.

transformers' own classes, and what the projects' own code computed (tests/originals/goldens).
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.originals.make_originals import FOLDER, ORIGINALS, picture
from tests.packages import timm, transformers
from tests.small_models import randomise_calmly, relative
from tests.uses import in_onnx_runtime
from vitconvert import ViT
from vitconvert.errors import ConflictingFact, NotRepresentable, UsageError

ROUNDING = 1e-6
WINDOWS = {"num_heads": 3, "window_count": 2, "global_blocks": (1,)}
SIZES = {"hidden_size": 24, "num_attention_heads": 3, "patch_size": 4}
SIZES |= {"num_hidden_layers": 11, "mlp_ratio": 2}


def patches_of(maps):
    return maps[-1].flatten(2).transpose(1, 2)


def kept(name):
    file = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    return file["model"], picture(*ORIGINALS[name].image), file["output"]


def rf_detr(windows, side=24, out=(1, 4, 8, 11), **more):
    config = transformers.RfDetrDinov2Config(
        **SIZES, image_size=side, num_windows=windows, out_indices=list(out), **more
    )
    torch.manual_seed(7)
    return randomise_calmly(transformers.RfDetrDinov2Backbone(config))


@torch.inference_mode()
@pytest.mark.parametrize(("windows", "side", "channels"), [(2, 24, 3), (3, 36, 4), (1, 20, 1)])
def test_rf_detrs_backbone_alone_at_two_sizes(windows, side, channels, tmp_path):
    theirs = rf_detr(windows, side, num_channels=channels)
    theirs.save_pretrained(tmp_path)
    for larger in (side, side + 4 * windows * 2):
        images = torch.randn(2, channels, larger, larger)
        wanted = patches_of(theirs(images).feature_maps)
        for fast in (False, True):
            ours = vitconvert.load_model(tmp_path, image_size=larger, fast=fast)
            found = ours.forward_features(images)
            assert found.shape[1] == windows**2 + wanted.shape[1]
            assert relative(found[:, windows**2 :], wanted) < ROUNDING
            assert relative(ours(images), wanted.mean(dim=1)) < ROUNDING


@pytest.mark.slow
def test_rf_detr_within_the_detector(tmp_path):
    config = transformers.RfDetrConfig(
        backbone_config=rf_detr(2).config, num_queries=5, d_model=16, decoder_layers=2
    )
    torch.manual_seed(7)
    detector = randomise_calmly(transformers.RfDetrForObjectDetection(config))
    detector.save_pretrained(tmp_path / "detector")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "detector")
    assert (checkpoint.dialect, checkpoint.config.global_blocks) == ("hf_rf_detr", (1, 4, 8))
    assert "which it trained further" in " ".join(checkpoint.ledger.notes)
    kind, images = transformers.RfDetrDinov2Backbone, torch.randn(2, 3, 24, 24)
    (backbone,) = (module for module in detector.modules() if isinstance(module, kind))
    with torch.inference_mode():
        wanted = patches_of(backbone(images).feature_maps)
        found = vitconvert.load_model(tmp_path / "detector").forward_features(images)[:, 4:]
    assert relative(found, wanted) < ROUNDING
    done = vitconvert.convert(tmp_path / "detector", to="hf", output=tmp_path / "hf")
    assert done.opened[-1].relative <= 2e-5
    again, problems = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(problems.values())
    with torch.inference_mode():
        assert relative(patches_of(again.eval()(images).feature_maps), wanted) < ROUNDING
    with pytest.raises(NotRepresentable, match="window_count"):
        vitconvert.convert(tmp_path / "detector", to="timm", output=tmp_path / "timm")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["rf_detr", "rf_detr_registers"])
def test_rf_detr_in_roboflows_own_files(name, tmp_path):
    tensors, images, output = kept(name)
    torch.save({"model": tensors, "args": {"num_windows": 2}}, tmp_path / "file.pth")
    lightning = {f"model.{key}": tensor for key, tensor in tensors.items()}
    torch.save({"state_dict": lightning}, tmp_path / "file.ckpt")
    for file in ("file.pth", "file.ckpt"):
        ours = vitconvert.load_model(tmp_path / file, overrides=WINDOWS)
        found = ours.forward_features(images)
        assert relative(found[:, ours.num_prefix_tokens :], output) < ROUNDING
    vitconvert.convert(tmp_path / "file.pth", to="vit", output=tmp_path / "vit", overrides=WINDOWS)
    again = vitconvert.load_model(tmp_path / "vit").forward_features(images)
    assert relative(again, found) < ROUNDING


def test_windows_with_tokens_of_their_own_in_the_model():
    model = vitconvert.load_model(FOLDER / "rf_detr.pth", overrides=WINDOWS)
    config, images = model.config, torch.randn(1, 3, 24, 24)
    with pytest.raises(ConflictingFact, match="5x6 patches do not divide into 2 by 2 windows"):
        config.replace(image_size=(20, 24))
    for obstacle in ({"window_size": 2}, {"rope": "axial", "head_dim": 4}):
        with pytest.raises(ConflictingFact, match="window_count excludes"):
            config.replace(**obstacle)
    with pytest.raises(UsageError, match="within windows"):
        model.forward_intermediates(images, attn_mask=torch.ones(40, 40, dtype=torch.bool))
    other = ViT(config.replace(window_count=0)).eval()
    other.load_state_dict(model.state_dict())
    alone = ViT(config.replace(window_count=1)).eval()
    alone.load_state_dict(model.state_dict())
    with torch.inference_mode():
        assert relative(model(images), other(images)) > 1e-4
        assert torch.equal(alone(images), other(images))
    assert alone.config.function() == other.config.function()


def test_attention_between_windows_is_none():
    model = vitconvert.load_model(FOLDER / "rf_detr.pth", overrides=WINDOWS)
    model.eval()
    positions = list(model.token_positions())
    x = torch.randn(1, 40, 12)
    within = model.blocks[0].probabilities(x, positions[0])
    assert torch.allclose(within[0, :, 0, :4].sum(), within[0, :, 0, 0].sum())  # its own token
    assert (within[0, :, 0] > 0).sum(-1).tolist() == [10, 10, 10]  # and 3 by 3 patches
    assert (model.blocks[1].probabilities(x, positions[1])[0, :, 0] > 0).all()


@pytest.mark.coverage
def test_rf_detr_is_exported(tmp_path):
    rf_detr(2).save_pretrained(tmp_path / "hf")
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        wanted = vitconvert.load_model(tmp_path / "hf")(images)
    assert relative(in_onnx_runtime(tmp_path / "hf", images, tmp_path), wanted) < 1e-5


def deimv2(tmp_path):
    sizes = {key: size for key, size in SIZES.items() if key != "mlp_ratio"} | {"patch_size": 16}
    stages = {"out_features": ["stage5", "stage8", "stage11"], "intermediate_size": 36}
    backbone = transformers.DINOv3ViTConfig(**sizes, **stages, image_size=64, num_register_tokens=4)
    small = {"decoder_layers": 2, "decoder_attention_heads": 2, "encoder_attention_heads": 2}
    small |= dict.fromkeys(("d_model", "encoder_hidden_dim"), 16)
    small |= dict.fromkeys(("encoder_in_channels", "decoder_in_channels"), [16] * 3)
    small |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16)
    config = transformers.Deimv2Config(
        backbone_config=backbone, spatial_tuning_adapter_inplanes=4, num_queries=5, **small
    )
    torch.manual_seed(7)
    model = randomise_calmly(transformers.Deimv2ForObjectDetection(config))
    model.save_pretrained(tmp_path)
    return model.model.conv_encoder.backbone


@pytest.mark.slow
@torch.inference_mode()
def test_deimv2_of_transformers(tmp_path):
    backbone = deimv2(tmp_path / "detector")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "detector")
    assert checkpoint.dialect == "hf_dinov3"
    assert "which it trained further" in " ".join(checkpoint.ledger.notes)
    for size in ((64, 64), (48, 96)):
        images = torch.randn(2, 3, *size)
        wanted = patches_of(backbone(images).feature_maps)
        ours = vitconvert.load_model(tmp_path / "detector", image_size=size)
        assert relative(ours.forward_features(images)[:, 5:], wanted) < ROUNDING
    vitconvert.convert(tmp_path / "detector", to="dinov3", output=tmp_path / "meta")
    again = vitconvert.load_model(tmp_path / "meta", image_size=size)
    assert relative(again.forward_features(images)[:, 5:], wanted) < ROUNDING


@torch.inference_mode()
@pytest.mark.parametrize("name", ["deimv2", "dinov3"])
def test_deimv2_in_its_authors_names(name, tmp_path):
    """As their solver saves it, with averaged weights; `_model` is of its small ViTs alone."""
    tensors, images, output = kept(name)
    inside = {f"backbone.dinov3.{key}": tensor for key, tensor in tensors.items()}
    inside["backbone.sta.stem.0.weight"] = torch.ones(4, 3, 3, 3)
    inside["decoder.query_pos_head.layers.0.weight"] = torch.ones(4, 4)
    slow = {key: tensor + 1 for key, tensor in inside.items()}
    torch.save({"model": slow, "ema": {"module": inside, "updates": 3}}, tmp_path / "file.pth")
    stated = {"num_heads": 3 if name == "deimv2" else 2, "image_size": tuple(images.shape[-2:])}
    stated |= {"norm_eps": 1e-6} if name == "dinov3" else {}
    checkpoint = vitconvert.load_checkpoint(tmp_path / "file.pth", overrides=stated)
    assert checkpoint.dialect == name
    ours = vitconvert.load_model(tmp_path / "file.pth", overrides=stated)
    found = ours(images) if output.ndim == 2 else ours.forward_features(images)
    assert relative(found, output) < 2e-6


@torch.inference_mode()
def test_the_last_norm_of_depth_anything_3_has_another_eps(tmp_path):
    tensors, images, output = kept("depth_anything_3")
    file = torch.load(FOLDER / "depth_anything_3.pth", weights_only=True)
    other_size = file["others"]["20x16"]
    tensors = {key: tensor.float() for key, tensor in tensors.items()}
    tensors["model.head.projects.0.weight"] = torch.ones(4, 12, 1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    for reading in ({}, {"tower": "model.backbone.pretrained."}):
        ours = vitconvert.load_model(
            tmp_path / "model.safetensors", overrides={"num_heads": 3}, **reading
        )
        assert (ours.config.norm_eps, ours.config.final_norm_eps) == (1e-6, 1e-5)
        assert ours.config.position_resampling == "bicubic_offset"
        assert relative(ours.forward_features(images)[:, 1:], output) < ROUNDING
        ours = vitconvert.load_model(
            tmp_path / "model.safetensors",
            overrides={"num_heads": 3},
            image_size=(20, 16),
            **reading,
        )
        found = ours.forward_features(picture(3, 20, 16))[:, 1:]
        assert relative(found, other_size) < ROUNDING
        said = {"num_heads": 3, "final_norm_eps": 1e-2}
        other = vitconvert.load_model(tmp_path / "model.safetensors", overrides=said, **reading)
        assert relative(other.forward_features(images)[:, 1:], output) > 1e-4


def dinov2_in_metas_names():
    sizes = {"img_size": 28, "embed_dim": 24, "depth": 11, "num_heads": 3, "mlp_ratio": 2}
    torch.manual_seed(7)
    model = randomise_calmly(timm.create_model("vit_small_patch14_reg4_dinov2", **sizes))
    tensors = {
        key.replace("reg_token", "register_tokens"): t for key, t in model.state_dict().items()
    }
    positions = tensors["pos_embed"]  # of the class token too, which timm adds to the token
    tensors["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    return model, tensors | {"mask_token": torch.zeros(1, 24)}


@torch.inference_mode()
def test_the_dinov2_of_vggt(tmp_path):
    model, tensors = dinov2_in_metas_names()
    inside = {f"aggregator.patch_embed.{key}": tensor for key, tensor in tensors.items()}
    inside["aggregator.camera_token"] = torch.ones(1, 2, 1, 24)
    inside["aggregator.frame_blocks.0.norm1.weight"] = torch.ones(24)
    inside["aggregator.global_blocks.0.norm1.weight"] = torch.ones(24)
    torch.save(inside, tmp_path / "model.pt")
    stated = {"overrides": {"num_heads": 3}}
    checkpoint = vitconvert.load_checkpoint(tmp_path / "model.pt", **stated)
    assert (checkpoint.dialect, checkpoint.config.position_resampling) == (
        "dinov2",
        "bicubic_antialias",
    )
    assert "which it trained further" in " ".join(checkpoint.ledger.notes)
    images = torch.randn(2, 3, 28, 28)
    found = vitconvert.load_model(tmp_path / "model.pt", **stated).forward_features(images)
    assert relative(found, model.forward_features(images)) < ROUNDING
    vitconvert.convert(tmp_path / "model.pt", to="hf", output=tmp_path / "hf", **stated)
    names = load_file(tmp_path / "hf" / "model.safetensors")
    assert "embeddings.register_tokens" in names


def test_vggt_omega_is_refused_by_name(tmp_path):
    """Its places are in units of the longer side: vggt_omega/models/aggregator.py, "max"."""
    tensors, _, _ = kept("dinov3")
    inside = {f"aggregator.patch_embed.{key}": tensor for key, tensor in tensors.items()}
    inside["aggregator.inter_frame_blocks.0.attn.qkv.weight"] = torch.ones(3, 3)
    torch.save(inside, tmp_path / "model.pt")
    for reading in ({}, {"tower": "aggregator.patch_embed."}):
        with pytest.raises(NotRepresentable, match="VGGT-Omega"):
            vitconvert.load_checkpoint(tmp_path / "model.pt", **reading)
