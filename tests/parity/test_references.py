"""Checkpoints that real packages made and saved agree with those packages."""

import numpy as np
import pytest
import torch

from tests.packages import timm, torchvision, transformers, vit_pytorch
from tests.tables.specimens.google import big_vision, google
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


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "arguments"), TIMM.values(), ids=TIMM)
def test_timm_named(architecture, arguments, timm_checkpoint):
    report = verify(timm_checkpoint(architecture, **arguments))
    assert_equal(report, bits=True)
    assert report.reference.startswith(f"timm {timm.__version__} VisionTransformer")


@pytest.mark.slow
def test_timm_hybrid(timm_checkpoint):
    sizes = {"img_size": [64, 96], "patch_size": 1, "depth": 12}
    assert_equal(verify(timm_checkpoint("vit_tiny_r_s16_p8_224", **sizes)))


def test_timm_state_dict_without_a_name(randomise, tmp_path):
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 30, "depth": 3, "num_heads": 5}
    model = timm.models.VisionTransformer(**sizes, in_chans=4, mlp_ratio=50 / 30, num_classes=4)
    tensors = {f"module.{name}": value for name, value in randomise(model).state_dict().items()}
    torch.save({"state_dict": tensors}, tmp_path / "checkpoint.pth")
    report = verify(tmp_path / "checkpoint.pth", overrides={"num_heads": 5})
    assert_equal(report, bits=True)


# Every class is in tests/huggingface/; these are other arguments, and both spellings.
HUGGINGFACE = {
    "two classes": ("ViTConfig", "ViTForImageClassification", False, {"num_labels": 2}),
    "relu, one channel": (
        "ViTConfig",
        "ViTForImageClassification",
        True,
        {"hidden_act": "relu", "num_channels": 1},
    ),
    "teacher": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", True, {}),
    "masked": ("ViTConfig", "ViTForMaskedImageModeling", False, {"image_size": 24}),
}


@pytest.mark.parametrize(
    ("config", "model", "disk", "arguments"), HUGGINGFACE.values(), ids=HUGGINGFACE
)
def test_huggingface(config, model, disk, arguments, huggingface_checkpoint):
    config, model = getattr(transformers, config), getattr(transformers, model)
    report = verify(huggingface_checkpoint(config, model, disk=disk, **arguments))
    assert_equal(report, bits=True)
    assert report.reference.startswith(f"transformers {transformers.__version__} ")


SIZES = {"image_size": 24, "patch_size": 8, "num_classes": 7}
OF_TORCHVISION = SIZES | {"num_layers": 3, "num_heads": 3, "hidden_dim": 30, "mlp_dim": 50}
OF_LUCIDRAINS = SIZES | {"dim": 32, "depth": 3, "heads": 3, "dim_head": 10, "mlp_dim": 50}
OBLONG = OF_LUCIDRAINS | {"image_size": (32, 24)}
STATED = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
FILES = {  # classes by name, as packages may be absent
    "torchvision": ("torchvision", OF_TORCHVISION),
    "torchvision, representation": ("torchvision", OF_TORCHVISION | {"representation_size": 20}),
    "lucidrains, class": ("ViT", OBLONG | {"pool": "cls"}),
    "lucidrains, mean": ("ViT", OBLONG | {"pool": "mean"}),
    "lucidrains, simple": ("SimpleViT", OBLONG),
}


@pytest.mark.parametrize(("kind", "arguments"), FILES.values(), ids=FILES)
def test_state_dicts(kind, arguments, randomise, tmp_path):
    of_torchvision = kind == "torchvision"
    build = torchvision.models.VisionTransformer if of_torchvision else getattr(vit_pytorch, kind)
    torch.save(randomise(build(**arguments)).state_dict(), tmp_path / "vit.pth")
    stated = STATED if arguments["image_size"] != 24 else {"num_heads": 3}
    assert_equal(verify(tmp_path / "vit.pth", overrides=stated))


def test_torchvisions_old_names(randomise, tmp_path):
    state = randomise(torchvision.models.VisionTransformer(**OF_TORCHVISION)).state_dict()
    old = {
        name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): tensor
        for name, tensor in state.items()
    }
    torch.save(old, tmp_path / "vit.pth")
    assert_equal(verify(tmp_path / "vit.pth", overrides={"num_heads": 3}))


def test_lucidrains_with_an_exchanged_activation(randomise, tmp_path):
    torch.save(randomise(vit_pytorch.ViT(**OF_LUCIDRAINS)).state_dict(), tmp_path / "vit.pt")
    stated = {"num_heads": 3, "activation": "relu"}
    report = verify(tmp_path / "vit.pt", overrides=stated)
    assert_equal(report)
    assert report.notes == ("GELU was replaced by relu, as the configuration says",)


def save_npz(path, shapes):
    """Random arrays, around 1 where they are factors."""
    rng = np.random.default_rng(8)
    np.savez(
        path,
        **{
            name: (name.endswith("scale") + 0.2 * rng.standard_normal(shape)).astype(np.float32)
            for name, shape in shapes.items()
        },
    )
    return path


@pytest.mark.parametrize("representation", [False, True])
def test_google_npz(representation, tmp_path):
    shapes = google(patch=(8, 8, 3), pre_logits=representation)
    report = verify(save_npz(tmp_path / "vit.npz", shapes))
    assert_equal(report)
    assert report.reference == f"timm {timm.__version__}'s .npz loader"
    assert len(report.notes) == representation


def test_google_npz_of_a_hybrid(tmp_path):
    shapes = google(depth=3, patch=(3, 3, 64))
    shapes |= {"conv_root/kernel": (7, 7, 3, 64)}
    shapes |= {"gn_root/scale": (1, 1, 1, 64), "gn_root/bias": (1, 1, 1, 64)}
    report = verify(save_npz(tmp_path / "vit.npz", shapes))
    assert_equal(report)
    assert report.notes == (
        "the ResNet stem was compared in timm's arithmetic, which is not Google's",
    )


@pytest.mark.parametrize("pooling", ["tok", "gap", "map"])
def test_big_vision_npz(pooling, tmp_path):
    shapes = big_vision("params/", cls=pooling == "tok", pool=pooling == "map", pool_hidden=50)
    assert_equal(verify(save_npz(tmp_path / "vit.npz", shapes)))


def test_another_checkpoint_of_the_same_function(timm_checkpoint, tmp_path):
    source = timm_checkpoint()
    model = timm.create_model(f"local-dir:{source}", pretrained=True)
    torch.save({"model": model.state_dict()}, tmp_path / "weights.pth")
    assert_equal(verify(source, against=source), bits=True)
    report = verify(tmp_path / "weights.pth", overrides=STATED, against=source)
    assert_equal(report, bits=True)
