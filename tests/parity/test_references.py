"""Checkpoints that real packages made and saved agree with those packages."""

import numpy as np
import pytest
import torch

from tests.packages import timm, torchvision, transformers, vit_pytorch
from vitconvert.api import verify


def assert_equal(report, *, bits=False):
    assert report.ok, report.summary()
    assert [(c.images, c.dtype) for c in report.comparisons] == [
        ("noise", "float32"),
        ("photograph", "float32"),
        ("noise", "float64"),
        ("photograph", "float64"),
    ]
    assert all(c.relative <= 1e-12 for c in report.comparisons if c.dtype == "float64")
    assert all(c.agreed == c.rows for c in report.comparisons)
    if bits:
        assert all(c.bit_equal for c in report.comparisons if c.dtype == "float32")


TIMM = {
    "plain, one channel": ("vit_tiny_patch16_224", {"in_chans": 1}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "grid of patches": ("test_vit", {}),
    "registers, average": ("test_vit2", {}),
    "attention pooling": ("test_vit3", {}),
    "layer scale": ("deit3_small_patch16_224", {}),
    "quick gelu": ("vit_base_patch32_clip_quickgelu_224", {"depth": 1}),
}


@pytest.mark.parametrize(("architecture", "arguments"), TIMM.values(), ids=TIMM)
def test_timm_named(architecture, arguments, timm_checkpoint):
    report = verify(timm_checkpoint(architecture, **arguments))
    assert_equal(report, bits=True)
    assert report.reference.startswith(f"timm {timm.__version__} VisionTransformer")


def test_timm_hybrid(randomise, tmp_path):
    arguments = {"img_size": [64, 96]}
    model = randomise(timm.create_model("vit_tiny_r_s16_p8_224", num_classes=7, **arguments))
    timm.models.save_for_hf(model, tmp_path / "hybrid", model_args=arguments)
    assert_equal(verify(tmp_path / "hybrid"))


def test_timm_state_dict_without_a_name(randomise, tmp_path):
    model = timm.models.VisionTransformer(
        img_size=24,
        patch_size=8,
        in_chans=4,
        embed_dim=30,
        depth=3,
        num_heads=5,
        mlp_ratio=50 / 30,
        num_classes=4,
    )
    tensors = {f"module.{name}": value for name, value in randomise(model).state_dict().items()}
    torch.save({"state_dict": tensors}, tmp_path / "checkpoint.pth")
    report = verify(tmp_path / "checkpoint.pth", overrides={"num_heads": 5})
    assert_equal(report, bits=True)


HUGGINGFACE = {
    "ViT": ("ViTConfig", "ViTForImageClassification", {"num_labels": 7}),
    "ViT, two classes": ("ViTConfig", "ViTForImageClassification", {"num_labels": 2}),
    "ViT, relu, one channel": (
        "ViTConfig",
        "ViTForImageClassification",
        {"hidden_act": "relu", "num_channels": 1},
    ),
    "ViT, pooler": ("ViTConfig", "ViTModel", {}),
    "ViT, masked": ("ViTConfig", "ViTForMaskedImageModeling", {"image_size": 24}),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", {}),
    "DeiT, teacher": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", {}),
    "MSN": ("ViTMSNConfig", "ViTMSNModel", {}),
    "I-JEPA": ("IJepaConfig", "IJepaForImageClassification", {}),
    "MAE": ("ViTMAEConfig", "ViTMAEModel", {"image_size": 24}),
}


@pytest.mark.parametrize("disk", [True, False], ids=["on disk", "in memory"])
@pytest.mark.parametrize(("config", "model", "arguments"), HUGGINGFACE.values(), ids=HUGGINGFACE)
def test_huggingface(config, model, arguments, disk, huggingface_checkpoint):
    config, model = getattr(transformers, config), getattr(transformers, model)
    report = verify(huggingface_checkpoint(config, model, disk=disk, **arguments))
    assert_equal(report, bits=True)
    assert report.reference.startswith(f"transformers {transformers.__version__} ")


@pytest.mark.parametrize(
    ("representation", "old_names"), [(None, False), (20, False), (None, True)]
)
def test_torchvision(representation, old_names, randomise, tmp_path):
    model = torchvision.models.VisionTransformer(
        image_size=24,
        patch_size=8,
        num_layers=3,
        num_heads=3,
        hidden_dim=30,
        mlp_dim=50,
        num_classes=7,
        representation_size=representation,
    )
    state = dict(randomise(model).state_dict())
    if old_names:
        state = {
            name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): tensor
            for name, tensor in state.items()
        }
    torch.save(state, tmp_path / "vit.pth")
    assert_equal(verify(tmp_path / "vit.pth", overrides={"num_heads": 3}))


LUCIDRAINS = {"cls": "ViT", "mean": "ViT", "simple": "SimpleViT"}


@pytest.mark.parametrize("kind", LUCIDRAINS)
def test_lucidrains(kind, randomise, tmp_path):
    pool = {} if kind == "simple" else {"pool": kind}
    model = getattr(vit_pytorch, LUCIDRAINS[kind])(
        image_size=(32, 24),
        patch_size=8,
        num_classes=7,
        dim=32,
        depth=3,
        heads=3,
        dim_head=10,
        mlp_dim=50,
        **pool,
    )
    torch.save(randomise(model).state_dict(), tmp_path / "vit.pt")
    stated = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
    assert_equal(verify(tmp_path / "vit.pt", overrides=stated))


def test_lucidrains_with_an_exchanged_activation(randomise, tmp_path):
    model = vit_pytorch.ViT(
        image_size=24, patch_size=8, num_classes=7, dim=30, depth=3, heads=3, mlp_dim=50
    )
    torch.save(randomise(model).state_dict(), tmp_path / "vit.pt")
    report = verify(tmp_path / "vit.pt", overrides={"num_heads": 3, "activation": "relu"})
    assert_equal(report)
    assert report.notes == ("GELU was replaced by relu, as the configuration says",)


@pytest.mark.parametrize("representation", [False, True])
def test_google_npz(representation, tmp_path):
    arrays = flax_vit(attention=1, norm=2, mlp=3)
    arrays["cls"] = numbers(1, 1, 24)
    arrays["Transformer/posembed_input/pos_embedding"] = numbers(1, 10, 24)
    if representation:
        arrays |= {"pre_logits/kernel": numbers(24, 24), "pre_logits/bias": numbers(24)}
    np.savez(tmp_path / "vit.npz", **arrays)
    report = verify(tmp_path / "vit.npz")
    assert_equal(report)
    assert report.reference == f"timm {timm.__version__}'s .npz loader"
    assert len(report.notes) == representation


def test_google_npz_of_a_hybrid(tmp_path):
    arrays = flax_vit(attention=1, norm=2, mlp=3)
    arrays["cls"] = numbers(1, 1, 24)
    arrays["Transformer/posembed_input/pos_embedding"] = numbers(1, 5, 24)
    arrays["conv_root/kernel"] = numbers(7, 7, 3, 64)
    arrays |= {"gn_root/scale": 1 + numbers(1, 1, 1, 64), "gn_root/bias": numbers(1, 1, 1, 64)}
    arrays["embedding/kernel"] = numbers(8, 8, 64, 24)
    np.savez(tmp_path / "vit.npz", **arrays)
    report = verify(tmp_path / "vit.npz")
    assert_equal(report)
    assert report.notes == (
        "the ResNet stem was compared in timm's arithmetic, which is not Google's",
    )


@pytest.mark.parametrize("pooling", ["tok", "gap", "map"])
def test_big_vision_npz(pooling, tmp_path):
    arrays = flax_vit(attention=0, norm=1, mlp=0)
    arrays["pos_embedding"] = numbers(1, 9, 24)
    if pooling == "tok":
        arrays["cls"] = numbers(1, 1, 24)
    if pooling == "map":
        arrays["MAPHead_0/probe"] = numbers(1, 1, 24)
        arrays |= flax_attention("MAPHead_0/MultiHeadDotProductAttention_0")
        arrays |= flax_norm("MAPHead_0/LayerNorm_0") | flax_mlp("MAPHead_0/MlpBlock_0")
    np.savez(tmp_path / "vit.npz", **{f"params/{name}": a for name, a in arrays.items()})
    assert_equal(verify(tmp_path / "vit.npz"))


def test_another_checkpoint_of_the_same_function(timm_checkpoint, tmp_path):
    source = timm_checkpoint()
    model = timm.create_model(f"local-dir:{source}", pretrained=True)
    torch.save({"model": model.state_dict()}, tmp_path / "weights.pth")
    stated = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
    report = verify(source, against=source)
    assert_equal(report, bits=True)
    report = verify(tmp_path / "weights.pth", overrides=stated, against=source)
    assert_equal(report, bits=True)


def flax_vit(*, attention, norm, mlp):
    """Arrays of three blocks; the arguments number a block's submodules."""
    arrays = {"embedding/kernel": numbers(8, 8, 3, 24), "embedding/bias": numbers(24)}
    for i in range(3):
        block = f"Transformer/encoderblock_{i}"
        arrays |= flax_norm(f"{block}/LayerNorm_0") | flax_norm(f"{block}/LayerNorm_{norm}")
        arrays |= flax_attention(f"{block}/MultiHeadDotProductAttention_{attention}")
        arrays |= flax_mlp(f"{block}/MlpBlock_{mlp}")
    head = {"head/kernel": numbers(24, 7), "head/bias": numbers(7)}
    return arrays | flax_norm("Transformer/encoder_norm") | head


def flax_norm(name):
    return {f"{name}/scale": 1 + numbers(24), f"{name}/bias": numbers(24)}


def flax_mlp(name):
    return {
        f"{name}/Dense_0/kernel": numbers(24, 50),
        f"{name}/Dense_0/bias": numbers(50),
        f"{name}/Dense_1/kernel": numbers(50, 24),
        f"{name}/Dense_1/bias": numbers(24),
    }


def flax_attention(name):
    arrays = {f"{name}/out/kernel": numbers(3, 8, 24), f"{name}/out/bias": numbers(24)}
    for part in ("query", "key", "value"):
        arrays |= {f"{name}/{part}/kernel": numbers(24, 3, 8), f"{name}/{part}/bias": numbers(3, 8)}
    return arrays


def numbers(*shape):
    return 0.2 * torch.randn(shape).numpy()
