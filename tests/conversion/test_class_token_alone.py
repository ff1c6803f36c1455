"""A head of class token and mean side by side has no place in timm; what is before it has."""

import pytest
import torch

import vitconvert
from tests.huggingface.classes import CLASSES
from tests.packages import timm, transformers
from tests.small_models import randomise_calmly
from vitconvert.errors import NotRepresentable

STEP = "class-token-alone"


@pytest.fixture
def source(tmp_path):
    randomise_calmly(CLASSES["DINOv2, classes"].model()).save_pretrained(tmp_path / "dinov2")
    return tmp_path / "dinov2"


def test_the_refusal_says_why_and_what_fits(source, tmp_path):
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to="timm", output=tmp_path / "out")
    assert "this one reads the class token and the mean of the patches" in error.value.fact
    assert error.value.hint == f"without its head it fits: --num-classes 0 --allow {STEP}."
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to="timm", output=tmp_path / "out", num_classes=0)
    assert error.value.steps == (STEP,)
    assert "without the mean of the patches" in error.value.hint
    with pytest.raises(NotRepresentable):  # a head is not left out by itself
        vitconvert.convert(source, to="timm", output=tmp_path / "out", allow=[STEP])


@pytest.mark.parametrize("to", ["timm", "hf"])
@torch.no_grad()
def test_it_becomes_the_body_that_transformers_takes_it_for(to, source, tmp_path):
    theirs = transformers.Dinov2Model.from_pretrained(source).eval()
    out = tmp_path / "out"
    conversion = vitconvert.convert(source, to=to, output=out, num_classes=0, allow=[STEP])
    assert conversion.parity.ok
    assert any(STEP in change for change in conversion.ledger.changed)
    images = torch.randn(2, 3, *conversion.config.image_size)
    wanted = theirs(images).pooler_output
    torch.testing.assert_close(vitconvert.load_model(out)(images), wanted, rtol=2e-5, atol=2e-5)
    if to == "timm":
        features = timm.create_model(f"local-dir:{out}", pretrained=True).eval()(images)
    else:
        features = transformers.AutoModel.from_pretrained(out).eval()(images).pooler_output
    torch.testing.assert_close(features, wanted, rtol=2e-5, atol=2e-5)
