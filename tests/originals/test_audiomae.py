"""AudioMAE in timm's layout: a plain ViT of one channel, whose spectrograms are oblong.

As gaunernst/vit_base_patch16_1024_128.audiomae_as2m and ..._ft_as20k on the Hub are: timm's
vit_base_patch16_224 with arguments, whose images are (times, frequencies).
"""

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.packages import timm
from tests.small_models import randomise_calmly, relative
from tests.uses import in_onnx_runtime
from vitconvert import Preprocessing
from vitconvert.errors import NotRepresentable

ARGUMENTS = {"img_size": [64, 24], "patch_size": 8, "in_chans": 1, "embed_dim": 48, "depth": 11}
ARGUMENTS |= {"num_heads": 3, "global_pool": "avg"}


def made(**changes):
    torch.manual_seed(5)
    return randomise_calmly(timm.create_model("vit_base_patch16_224", **ARGUMENTS | changes))


@pytest.fixture(scope="module", params=[0, 7], ids=["pretrained", "fine-tuned"])
def saved(request, tmp_path_factory):
    model, folder = made(num_classes=request.param), tmp_path_factory.mktemp("audiomae")
    timm.models.save_for_hf(model, str(folder), model_args=ARGUMENTS)
    return model, folder


@torch.inference_mode()
def test_outputs_are_those_of_timm_at_two_sizes(saved):
    model, folder = saved
    longer = made(num_classes=model.num_classes, img_size=(96, 24))
    positions = timm.layers.resample_abs_pos_embed(model.pos_embed, [12, 3], [8, 3])
    longer.load_state_dict(model.state_dict() | {"pos_embed": positions})
    for theirs, size in ((model, (64, 24)), (longer, (96, 24))):
        spectrograms = torch.randn(3, 1, *size)
        for fast in (False, True):
            ours = vitconvert.load_model(folder, fast=fast, image_size=size)
            assert relative(ours(spectrograms), theirs(spectrograms)) < 1e-6


def test_it_is_written_again_and_opened(saved, tmp_path):
    model, folder = saved
    for to in ("timm", "vit"):
        done = vitconvert.convert(folder, output=tmp_path / to, to=to, verify=True)
        assert [opened.why_not for opened in done.opened] == [None] * len(done.opened)
        spectrograms = torch.randn(2, 1, 64, 24)
        with torch.inference_mode():
            ours = vitconvert.load_model(tmp_path / to)
            assert relative(ours(spectrograms), model(spectrograms)) < 1e-6
    with pytest.raises(NotRepresentable, match="in_channels is always 3 there, and 1 here"):
        vitconvert.convert(folder, output=tmp_path / "tv", to="torchvision")


@pytest.mark.coverage
def test_it_is_exported(saved, tmp_path):
    model, folder = saved
    spectrograms = torch.randn(2, 1, 64, 24)
    found = in_onnx_runtime(folder, spectrograms, tmp_path)
    with torch.inference_mode():
        assert relative(found, model(spectrograms)) < 1e-5


def test_its_features_are_embedded(saved, tmp_path):
    """Of a spectrogram as a picture, grey and as large as the model reads it."""
    model, folder = saved
    levels = np.random.default_rng(2).integers(0, 256, (64, 24), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "mel.png")
    reads = Preprocessing.from_timm(
        {"input_size": (1, 64, 24), "crop_pct": 1.0, "mean": (0.4,), "std": (0.3,)}
    )
    (found,) = vitconvert.embed(folder, tmp_path / "mel.png", reads)
    pixels = (torch.from_numpy(levels)[None, None].float() / 255 - 0.4) / 0.3
    with torch.inference_mode():
        wanted = model.forward_head(model.forward_features(pixels), pre_logits=True)
    assert relative(found.features[None], wanted) < 2e-6
