"""JPEG files decoded and resized on a device: here the processor, in test_gpu.py a GPU."""

import dataclasses
import io
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vitconvert
from tests.inference.test_predict import vit
from tests.packages import torchvision, transformers
from vitconvert.errors import MissingPackage, UsageError, VitConvertWarning
from vitconvert.inference.batches import Ready, run_in_batches
from vitconvert.inference.decoding import JpegDecoder
from vitconvert.inference.options import ComputeOptions
from vitconvert.preprocessing import Preprocessing

CPU = torch.device("cpu")
CROPPED = Preprocessing.from_timm({"input_size": (3, 32, 24), "interpolation": "bicubic"})
HF = {"image_processor_type": "ViTImageProcessor", "size": {"height": 40, "width": 29}}
KINDS = {
    "timm": CROPPED,
    "transformers": Preprocessing.from_huggingface({**HF, "resample": 2}),
    "transformers with Pillow": Preprocessing.from_huggingface(HF, backend="pil"),
    "floats": Preprocessing.from_huggingface(
        {**HF, "image_processor_type": "DINOv3ViTImageProcessor"}
    ),
    "not rescaled": dataclasses.replace(
        Preprocessing.from_huggingface(HF, backend="pil"), rescale_factor=None, mean=(9.0, 7.0, 8.0)
    ),
    "big_vision": dataclasses.replace(
        CROPPED, backend="big_vision", interpolation="bilinear", resize_size=(33, 33)
    ),
}


@pytest.fixture(autouse=True)
def _needs_torchvision():
    assert torchvision.io.decode_jpeg


def photograph(size=(151, 97), seed=0):
    """An image that is smooth, as photographs are."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (size[0] // 9, size[1] // 9, 3), np.uint8))
    return coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC)


def jpeg(image, **how):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95, **how)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(151, 97), (60, 233)])
def test_pixels_are_close_to_the_usual_ones(kind, size):
    """Those of tensors are equal but for rounding; Pillow's are rounded twice."""
    steps = KINDS[kind]
    content = jpeg(photograph(size))
    found, usual = JpegDecoder(steps, CPU)(content), steps(content)
    assert found.shape == usual.shape and found.dtype == torch.float32
    scale = torch.tensor(steps.std).view(-1, 1, 1) * (255 if steps.rescale_factor else 1)
    apart = ((found - usual) * scale).abs()
    assert apart.max() < 3.01 and apart.mean() < 0.5


def test_a_library_that_resizes_tensors_has_these_pixels():
    steps = KINDS["transformers"]
    theirs = transformers.ViTImageProcessor(**{**HF, "resample": 2})
    content = jpeg(photograph())
    wanted = theirs(Image.open(io.BytesIO(content)), return_tensors="pt")["pixel_values"][0]
    assert ((JpegDecoder(steps, CPU)(content) - wanted) * 127.5).abs().max() < 1.01


TURNED = Image.Exif()
TURNED[0x0112] = 6
OTHERS = {
    "PNG": lambda file: photograph().save(file, "PNG"),
    "grey": lambda file: photograph().convert("L").save(file, "JPEG"),
    "CMYK": lambda file: photograph().convert("CMYK").save(file, "JPEG"),
    "turned": lambda file: photograph().save(file, "JPEG", exif=TURNED),
    "cut off": lambda file: file.write(jpeg(photograph())[:2000]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others_are_prepared_as_ever(kind, tmp_path):
    file = io.BytesIO()
    OTHERS[kind](file)
    assert JpegDecoder(KINDS["transformers"], CPU)(file.getvalue()) is None


def test_an_image_that_is_padded_is_prepared_as_ever():
    steps = dataclasses.replace(CROPPED, resize_size=(20, 20), resize="shortest")
    assert JpegDecoder(steps, CPU)(jpeg(photograph())) is None


def test_rows_keep_their_order_and_errors_and_the_difference_is_told_once(tmp_path):
    paths = [tmp_path / f"{n}.{'png' if n == 4 else 'jpg'}" for n in range(13)]
    for seed, path in enumerate(paths):
        photograph(seed=seed).save(path)
    paths[6].write_bytes(b"no image")
    paths[7].unlink()
    model, steps = vit(num_classes=0), dataclasses.replace(CROPPED, image_size=(32, 24))
    how = {"model": model, "preprocessing": steps, "options": ComputeOptions(batch_size=3)}

    def compute(images):
        return images.flatten(1)

    usual = [*run_in_batches(Ready(**how), compute, paths)]
    running = Ready(**how, decoder=JpegDecoder(steps, CPU))
    with pytest.warns(
        VitConvertWarning, match="JPEG files were decoded and resized on cpu"
    ) as told:
        found = [*run_in_batches(running, compute, paths)]
    assert [one.path for one in found] == paths
    numbers = {}
    for ours, theirs in zip(found, usual, strict=True):
        if isinstance(theirs.result, Exception):
            assert str(ours.result) == str(theirs.result)
        else:
            numbers[ours.path.name] = (ours.result - theirs.result).abs().mean().item()
    assert len(numbers) == 11 and numbers.pop("4.png") == 0 and all(numbers.values())
    (text,) = {str(one.message) for one in told}
    mean, largest = re.search(r"first 8,.*by (\S+) of 255.*by (\S+) at most", text).groups()
    assert 0 < float(mean) < 0.5 < float(largest) < 4
    assert [*run_in_batches(running, compute, paths[:2])]  # and nothing warns


def test_what_cannot_be(monkeypatch):
    model, image = vit(), Image.new("RGB", (9, 9))
    with pytest.raises(UsageError, match="Images are decoded on the GPU that computes"):
        vitconvert.predict(model, image, CROPPED, decode="gpu")
    with pytest.raises(UsageError, match="one of cpu, gpu"):
        vitconvert.predict(model, image, CROPPED, decode="tpu")
    for steps, why in (
        (dataclasses.replace(CROPPED, interpolation="lanczos"), "the filter is lanczos"),
        (dataclasses.replace(CROPPED, mean=(0.5,), std=(0.5,)), "not in colours"),
        (dataclasses.replace(CROPPED, resize="border"), "the resizing is within"),
    ):
        with pytest.raises(UsageError, match=why):
            JpegDecoder(steps, CPU)
    with pytest.raises(UsageError, match="JPEG files cannot be decoded on meta here"):
        JpegDecoder(CROPPED, torch.device("meta"))
    for name in ("torchcodec.decoders", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match="needs torchcodec, or torchvision"):
        JpegDecoder(CROPPED, CPU)
