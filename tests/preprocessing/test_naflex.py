"""SigLIP 2 NaFlex: photographs keep their shape, as Siglip2ImageProcessor keeps it."""

import json

import pytest
import torch
from PIL import Image

import vitconvert
from tests.matrix_sources import randomised
from tests.packages import transformers
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.pixels import size_in_patches

VISION = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3}
VISION |= {"intermediate_size": 72, "patch_size": 8, "num_patches": 36}
TEXT = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 40}
TEXT |= {"intermediate_size": 30, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A classifier with its processor."""
    config = transformers.Siglip2Config(vision_config=VISION, text_config=TEXT, num_labels=5)
    folder = tmp_path_factory.mktemp("naflex")
    model = transformers.Siglip2ForImageClassification(config)
    randomised(model).save_pretrained(folder)
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=36)
    processor.save_pretrained(folder)
    return folder


def in_patches(image: torch.Tensor) -> torch.Tensor:
    """(C, H, W) as (patches, y x channel)."""
    C, height, width = image.shape
    grid = image.reshape(C, height // 8, 8, width // 8, 8).permute(1, 3, 2, 4, 0)
    return grid.reshape(-1, 64 * C)


@pytest.mark.parametrize("most", [1, 2, 36, 256, 1024])
def test_sizes_are_those_of_transformers(most):
    theirs = transformers.models.siglip2.image_processing_siglip2
    for height, width in [(333, 517), (100, 75), (481, 640), (5, 3), (16, 16), (1, 400), (7, 7000)]:
        for patch in (8, 14, 16):
            wanted = theirs.get_image_size_for_max_num_patches(height, width, patch, most)
            found = size_in_patches((height, width), patch_size=patch, max_patches=most)
            assert found == wanted, (height, width, patch)


SHAPES = {(100, 75): (56, 40), (61, 62): (48, 48), (64, 640): (16, 144)}  # height, width


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "made"), SHAPES.items(), ids=str)
@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@torch.no_grad()
def test_photographs_give_what_transformers_gives(shape, made, backend, source, photograph):
    image = photograph(shape[1], shape[0])
    processor = transformers.AutoImageProcessor.from_pretrained(source, backend=backend)
    inputs = processor(image, return_tensors="pt")
    stated = json.loads((source / "preprocessor_config.json").read_text())
    ours = Preprocessing.from_huggingface(stated, backend=backend, image_size=made)
    count = made[0] * made[1] // 64
    pixels = ours(image)
    assert torch.equal(in_patches(pixels), inputs["pixel_values"][0, :count])
    assert torch.equal(ours(image, fast=True), pixels)
    assert inputs["pixel_attention_mask"].sum() == count
    theirs = transformers.Siglip2ForImageClassification.from_pretrained(source).eval()
    wanted = theirs(**inputs).logits
    found = vitconvert.load_model(source, image_size=made)(pixels[None])
    assert torch.allclose(found, wanted, rtol=0, atol=float(2e-5 * wanted.abs().max()))


@torch.no_grad()
def test_predictions_are_those_of_transformers_or_refused(source, photograph, tmp_path):
    square, oblong = tmp_path / "square.png", tmp_path / "oblong.png"
    photograph(61, 62).save(square)
    photograph(75, 100).save(oblong)
    made, refused = vitconvert.predict(source, [square, oblong])
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    theirs = transformers.Siglip2ForImageClassification.from_pretrained(source).eval()
    with Image.open(square) as image:
        logits = theirs(**processor(image, return_tensors="pt")).logits[0]
    assert [c.index for c in made.top] == logits.argsort(descending=True).tolist()
    assert made.top[0].logit == pytest.approx(float(logits.max()), abs=1e-4)
    assert str(refused.error) == (
        "error: input-mismatch\n"
        "  The image keeps its aspect ratio and becomes 56x40, but the model reads 48x48.\n"
        "  from   preprocessor_config.json\n"
        f"  image  {oblong}\n"
        "  hint: `vitconvert convert MODEL --image-size 56x40 -o DIR` makes a model of that size."
    )
    vitconvert.convert(source, output=tmp_path / "out", image_size=(56, 40), verify=False)
    [made] = vitconvert.predict(tmp_path / "out", oblong)
    with Image.open(oblong) as image:
        logits = theirs(**processor(image, return_tensors="pt")).logits[0]
    assert made.top[0].logit == pytest.approx(float(logits.max()), abs=1e-4)


def test_the_processor_is_written_where_patches_are_read(source, tmp_path, photograph):
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "hf", verify=False)
    assert conversion.departures == ()
    image = photograph(75, 100)
    theirs, written = (
        transformers.AutoImageProcessor.from_pretrained(d) for d in (source, tmp_path / "hf")
    )
    wanted, found = (processor(image, return_tensors="pt") for processor in (theirs, written))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert "output = model(**images)" in (tmp_path / "hf" / "README.md").read_text()


def test_other_programs_are_said_to_make_one_shape(source, tmp_path):
    conversion = vitconvert.convert(source, to="timm", output=tmp_path / "timm", verify=False)
    assert conversion.departures == (
        "timm resizes Pillow images, not uint8 tensors",
        "timm ignores the EXIF orientation",
        "timm gives all images one aspect ratio",
        "timm resize is patches here and squash there",
        "timm resize_size is None here and (48, 48) there",
    )
    assert not (tmp_path / "timm" / "preprocessor_config.json").exists()
    siglip = vitconvert.convert(
        source, to="hf_siglip_classifier", output=tmp_path / "hf", verify=False
    )
    assert siglip.departures == (
        "preprocessor_config.json is left out: the source keeps the aspect ratio of images, "
        "and this class does not",
    )
    (tmp_path / "hf" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "SiglipImageProcessor", "size": [48, 48]})
    )
    (tmp_path / "hf" / "vitconvert.json").unlink()
    back = vitconvert.convert(
        tmp_path / "hf", to="hf_siglip2_classifier", output=tmp_path / "back", verify=False
    )
    assert back.departures == (
        "preprocessor_config.json is left out: this class keeps the aspect ratio of images, "
        "and the source does not",
    )
