"""Where no reference computes a checkpoint the report says so, and claims nothing."""

import numpy as np
import pytest
import torch

from tests.packages import timm, transformers
from tests.tables.specimens.google import LINEN, google, jeonsworld
from vitconvert.api import verify
from vitconvert.errors import UsageError
from vitconvert.programs import reference


def assert_not_verified(report, reason):
    assert report.summary() == f"not verified: {reason}"
    assert not report.verified
    assert not report.ok
    assert report.comparisons == ()
    report.raise_if_failed()


def test_jeonsworld(tmp_path):
    tensors = {name: torch.randn(shape) for name, shape in jeonsworld().items()}
    torch.save(tensors, tmp_path / "theirs.bin")
    assert_not_verified(
        verify(tmp_path / "theirs.bin", overrides={"num_heads": 3, "image_size": (24, 18)}),
        "jeonsworld ViT-pytorch: a repository of scripts, not a package to install.",
    )


def test_package_that_is_not_installed(plain, monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(reference, "import_module", fail)
    report = verify(plain, overrides={"num_heads": 3})
    assert_not_verified(report, "timm is not installed (pip install timm).")


@pytest.mark.parametrize(
    ("file", "stated", "reason"),
    [
        (
            "torchvision_file",
            {"image_size": (16, 64)},
            "torchvision's VisionTransformer reads square images only.",
        ),
        (
            "plain",
            {"attention_scale": 0.5},
            "timm's VisionTransformer divides its width among the heads and scales by theirs; "
            "this model does not.",
        ),
    ],
)
def test_what_a_class_does_not_compute(file, stated, reason, request):
    report = verify(request.getfixturevalue(file), overrides={"num_heads": 3, **stated})
    assert_not_verified(report, reason)


def test_npz_that_timm_does_not_read(tmp_path):
    shapes = google(LINEN, depth=1, patch=(8, 8, 3))
    np.savez(tmp_path / "vit.npz", **{k: torch.randn(s).numpy() for k, s in shapes.items()})
    report = verify(tmp_path / "vit.npz")
    assert_not_verified(report, f"timm {timm.__version__}'s .npz loader does not read this file.")


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
