"""mlx-image's VisionTransformer on MLX, on a CPU."""

import numpy as np
import pytest
import torch

import vitconvert
from tests.mlx.making import made, saved
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.errors import NotRepresentable
from vitconvert.formats import open_container

pytestmark = pytest.mark.slow
CASES = {
    "plain": ("mlx_image", {}),
    "representation": ("mlx_image_representation", {"representation_size": 9}),
    "no biases of attention, no head": ("mlx_image", {"attn_bias": False, "num_classes": 0}),
}
IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def output(model) -> torch.Tensor:
    import mlx.core as mx

    found = model(mx.array(IMAGES.permute(0, 2, 3, 1).contiguous().numpy()))
    return torch.from_numpy(np.array(found))


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("file", ["model.safetensors", "weights.npz"])
def test_the_same_function_and_the_same_bytes(case, file, tmp_path):
    dialect, changes = CASES[case]
    model = made(**changes)
    path = saved(tmp_path / file, model)
    stated = {"num_heads": 3}
    checkpoint = vitconvert.load_checkpoint(path, overrides=stated)
    assert checkpoint.dialect == dialect
    assert checkpoint.config.norm_eps == 1e-5
    theirs = output(model)
    for fast in (False, True):
        ours = vitconvert.load_model(checkpoint, fast=fast)(IMAGES)
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()
    if file.endswith("npz"):
        return
    there = vitconvert.convert(path, to="vit", output=tmp_path / "vit", overrides=stated)
    assert there.parity.verdict == "equal" and there.parity.reference.startswith("mlx-image 0.")
    back = vitconvert.convert(there.output, to="mlx_image", output=tmp_path / "back")
    (opened,) = back.opened
    assert opened.consumer == "mlxim" and opened.relative <= 2e-5
    with open_container(back.output / "model.safetensors") as after, open_container(path) as before:
        assert after.metadata["format"] == "mlx"
        assert after.manifest == before.manifest
        for name in before.manifest:
            assert torch.equal(after.read(name), before.read(name))


def test_another_eps_is_refused(tmp_path):
    model = randomise(timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1))
    torch.save(model.state_dict(), tmp_path / "m.pt")
    with pytest.raises(NotRepresentable, match="norm_eps: the weights need 1e-06"):
        vitconvert.convert(
            tmp_path / "m.pt",
            to="mlx_image",
            output=tmp_path / "out",
            overrides={"num_heads": 3},
            verify=False,
        )
