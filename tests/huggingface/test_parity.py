"""`verify` finds transformers' own class for every checkpoint, and agrees with it."""

import pytest

from tests.huggingface.classes import CLASSES
from tests.packages import transformers
from tests.sampling import sampled
from vitconvert.api import verify


@pytest.mark.parametrize("name", sampled(CLASSES, 4))
def test_verified_against_the_class_that_wrote_it(name, save):
    case = CLASSES[name]
    folder, model = save(case)
    report = verify(folder)
    assert report.ok, report.summary()
    rounding = case.config in ("DINOv3ViTConfig", "Aimv2VisionConfig")
    dtypes = {comparison.dtype for comparison in report.comparisons}
    assert dtypes == ({"float32"} if rounding else {"float32", "float64"})
    name = type(model).__name__
    tower = {"CLIPModel": "CLIPVisionModelWithProjection", "SiglipModel": "SiglipVisionModel"}
    tower["Siglip2Model"] = "Siglip2VisionModel"
    assert report.reference == f"transformers {transformers.__version__} {tower.get(name, name)}"
    layers = {layer.layer for layer in report.layers}
    assert {"patch_embed", "embedding", "blocks.1.attn", "blocks.1.mlp"} <= layers
