"""Where no reference computes a checkpoint the report says so, and claims nothing."""

import numpy as np
import pytest
import torch

from tests.packages import timm, torchvision, transformers
from vitconvert.api import verify
from vitconvert.errors import UsageError
from vitconvert.programs import reference


@pytest.fixture
def plain(randomise, tmp_path):
    """timm's tensors; width 30, 3 heads, 3 x 3 patches."""
    model = timm.models.VisionTransformer(
        img_size=24, patch_size=8, embed_dim=30, depth=2, num_heads=3, num_classes=5
    )
    torch.save(randomise(model).state_dict(), tmp_path / "vit.pth")
    return tmp_path / "vit.pth"


def assert_not_verified(report, reason):
    assert report.summary() == f"not verified: {reason}"
    assert not report.verified
    assert not report.ok
    assert report.comparisons == ()
    report.raise_if_failed()


def test_jeonsworld(randomise, tmp_path, plain):
    names = {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj": "embeddings.patch_embeddings",
        "norm1": "attention_norm",
        "norm2": "ffn_norm",
        "attn.proj": "attn.out",
        "mlp": "ffn",
        "blocks": "encoder.layer",
        "norm.": "encoder.encoder_norm.",
    }
    state = {}
    for name, tensor in torch.load(plain, weights_only=True).items():
        ours = name
        if name.startswith("norm."):
            name = "encoder.encoder_" + name
        else:
            for old, new in list(names.items())[:-1]:
                name = name.replace(old, new)
        name = name if name.startswith("head") else f"transformer.{name}"
        if "qkv" in ours:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                state[name.replace("qkv", part)] = third.clone()
        else:
            state[name] = tensor
    torch.save(state, tmp_path / "theirs.bin")
    assert_not_verified(
        verify(tmp_path / "theirs.bin", overrides={"num_heads": 3}),
        "jeonsworld ViT-pytorch: a repository of scripts, not a package to install.",
    )


def test_package_that_is_not_installed(plain, monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(reference, "import_module", fail)
    report = verify(plain, overrides={"num_heads": 3})
    assert_not_verified(report, "timm is not installed (pip install timm).")


def test_oblong_images_of_torchvision(randomise, tmp_path):
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=30, mlp_dim=50
    )
    torch.save(randomise(model).state_dict(), tmp_path / "vit.pth")
    report = verify(tmp_path / "vit.pth", overrides={"num_heads": 3, "image_size": (16, 64)})
    assert_not_verified(report, "torchvision's VisionTransformer reads square images only.")


def test_attention_that_timm_does_not_compute(plain):
    report = verify(plain, overrides={"num_heads": 3, "attention_scale": 0.5})
    assert_not_verified(
        report,
        "timm's VisionTransformer divides its width among the heads and scales by theirs; this "
        "model does not.",
    )


def test_npz_that_timm_does_not_read(tmp_path):
    np.savez(tmp_path / "vit.npz", **linen_vit())
    report = verify(tmp_path / "vit.npz")
    assert_not_verified(report, f"timm {timm.__version__}'s .npz loader does not read this file.")


def linen_vit():
    """Google's current numbering, one block of width 24."""
    block = "Transformer/encoderblock_0"
    mha = f"{block}/MultiHeadDotProductAttention_0"
    shapes = {
        "embedding/kernel": (8, 8, 3, 24),
        "embedding/bias": (24,),
        "cls": (1, 1, 24),
        "Transformer/posembed_input/pos_embedding": (1, 10, 24),
        f"{mha}/out/kernel": (3, 8, 24),
        f"{mha}/out/bias": (24,),
        f"{block}/MlpBlock_0/Dense_0/kernel": (24, 50),
        f"{block}/MlpBlock_0/Dense_0/bias": (50,),
        f"{block}/MlpBlock_0/Dense_1/kernel": (50, 24),
        f"{block}/MlpBlock_0/Dense_1/bias": (24,),
        "head/kernel": (24, 7),
        "head/bias": (7,),
    }
    for norm in (f"{block}/LayerNorm_0", f"{block}/LayerNorm_1", "Transformer/encoder_norm"):
        shapes |= {f"{norm}/scale": (24,), f"{norm}/bias": (24,)}
    for part in ("query", "key", "value"):
        shapes |= {f"{mha}/{part}/kernel": (24, 3, 8), f"{mha}/{part}/bias": (3, 8)}
    return {name: torch.randn(shape).numpy() for name, shape in shapes.items()}


def test_models_of_other_images_do_not_compare(plain, huggingface_checkpoint):
    larger = huggingface_checkpoint(
        transformers.ViTConfig, transformers.ViTForImageClassification, image_size=32
    )
    with pytest.raises(UsageError) as error:
        verify(plain, overrides={"num_heads": 3}, against=larger)
    assert error.value.evidence == {
        "image_size of the model": "(24, 24)",
        "image_size of the checkpoint": "(32, 32)",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"dtypes": ("int8",)},
            "Parity is measured in float32, float64, bfloat16, float16.",
        ),
        ({"dtypes": ()}, "dtypes = () must be names of dtypes."),
        ({"batch": 0}, "batch = 0 must be a whole number of at least 1 and at most 4,096."),
    ],
)
def test_wrong_arguments(arguments, message, plain):
    with pytest.raises(UsageError) as error:
        verify(plain, overrides={"num_heads": 3}, **arguments)
    assert error.value.fact == message
