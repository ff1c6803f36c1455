"""equimo's own files: what its class computes, and what it makes of what is written."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import vitconvert
from tests.equimo.models import MODELS, saved
from tests.packages import jax
from tests.small_models import relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert.errors import CorruptFile

pytestmark = [pytest.mark.coverage, pytest.mark.filterwarnings("ignore")]
ROUNDING = 1e-6
DIALECTS = {
    "dinov2_vitg14": "equimo_swiglu",
    "dinov3_vitb16_pretrain_lvd1689m": "equimo_dinov3",
    "dinov3_vits16plus_pretrain_lvd1689m": "equimo_dinov3_swiglu",
}


def outputs(model: Any, images: torch.Tensor) -> torch.Tensor:
    run = jax.vmap(partial(model, inference=True))
    return torch.from_numpy(np.array(run(jax.numpy.asarray(images.numpy()))))


@pytest.mark.parametrize("size", [24, 32])
@pytest.mark.parametrize("variant", MODELS)
@torch.no_grad()
def test_what_equimo_saves_is_computed(variant, size, tmp_path):
    model = saved(variant, tmp_path, size)
    assert vitconvert.load_checkpoint(tmp_path).dialect == DIALECTS.get(variant, "equimo")
    ours = vitconvert.load_model(tmp_path)
    images = torch.randn(2, 3, size, size)
    assert relative(ours(images), outputs(model, images)) <= ROUNDING


@pytest.mark.parametrize("variant", MODELS)
def test_it_becomes_timms_and_its_own_again(variant, tmp_path):
    saved(variant, tmp_path / "own")
    done = vitconvert.convert(tmp_path / "own", to="vit", output=tmp_path / "vit")
    assert done.parity is not None and done.parity.reference.startswith("equimo")
    again = vitconvert.convert(tmp_path / "vit", to="equimo", output=tmp_path / "again")
    assert [opened.consumer for opened in again.opened if not opened.why_not]
    first, second = (vitconvert.load_checkpoint(tmp_path / n).tensors for n in ("own", "again"))
    assert all(torch.equal(first[name], second[name]) for name in second)


@pytest.mark.parametrize("variant", ["siglip2_vitb16_224", "dinov3_vits16plus_pretrain_lvd1689m"])
@torch.no_grad()
def test_it_is_exported_and_embedded(variant, tmp_path):
    model = saved(variant, tmp_path / "own")
    images = torch.rand(2, 3, 24, 24)
    found = in_onnx_runtime(tmp_path / "own", images, tmp_path)
    assert relative(found, outputs(model, images)) < 1e-5
    features = embedded(tmp_path / "own", tmp_path, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert features.shape == (1, 24)


def test_what_equimo_packs_is_unpacked_by_a_command(tmp_path):
    saved("siglip2_vitb16_224", tmp_path / "own", packed=True)
    (file,) = tmp_path.glob("own*.lz4")
    with pytest.raises(CorruptFile, match=r"compressed with lz4") as error:
        vitconvert.load_checkpoint(file)
    assert error.value.hint == "unpack it first: `lz4 -dc FILE | tar -x`."


def test_leaves_without_arguments_are_refused(tmp_path):
    saved("siglip2_vitb16_224", tmp_path)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    metadata["model_config"]["qk_norm"] = True
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(CorruptFile, match=r"metadata\.json is not about a ViT of equimo"):
        vitconvert.load_checkpoint(tmp_path)
    (tmp_path / "metadata.json").unlink()
    with pytest.raises(CorruptFile, match=r"a single \.npy array without a name"):
        vitconvert.load_checkpoint(tmp_path)
