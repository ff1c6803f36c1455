"""Pixels against AutoImageProcessor, with both of its backends."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.packages import transformers
from tests.preprocessing.test_timm import timm_transform
from vitconvert.errors import (
    ConflictingFact,
    InputMismatch,
    MissingFact,
    NotRepresentable,
    VitConvertError,
)
from vitconvert.preprocessing import Preprocessing, image_files, pixels

BACKENDS = ["torchvision", "pil"]
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def vit(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "ViTImageProcessor", "size": 48, **stated}


def bit(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 57}, **stated}


def sam(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "SamImageProcessor", **stated}


def auto(folder: Path, config: dict[str, Any], **options: Any) -> Any:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return transformers.AutoImageProcessor.from_pretrained(folder, **options)


def theirs(processor: Any, image: Image.Image) -> torch.Tensor:
    return processor(image, return_tensors="pt")["pixel_values"][0].float()


CONFIGS = {
    "vit": vit(**IMAGENET),
    "vit, height and width": vit(size={"height": 33, "width": 48}, resample=3),
    "vit, a list": vit(size=[33, 48]),
    "vit, fast": vit(image_processor_type="ViTImageProcessorFast"),
    "vit, no filter": vit(do_resize=False, resample=None, do_center_crop=True, crop_size=48),
    "vit, nothing but squashing": vit(do_rescale=None, do_normalize=None, image_mean=None),
    "bit, transparency unspoken": bit(do_convert_rgb=None, crop_size=48),
    "vit, default_to_square null": vit(default_to_square=None, do_center_crop=True, crop_size=32),
    "vit, default_to_square": vit(default_to_square=False, do_center_crop=True, crop_size=32),
    "vit, nearest": vit(resample=0),
    "vit, lanczos": vit(resample=1),
    "vit, no normalisation": vit(do_normalize=False),
    "vit, no rescaling": vit(do_rescale=False),
    "vit, neither": vit(do_rescale=False, do_normalize=False),
    "vit, other factor": vit(rescale_factor=1 / 127.5),
    "vit, one mean": vit(image_mean=0.4, image_std=0.3),
    "vit of 2021": {
        "feature_extractor_type": "ViTFeatureExtractor",
        "size": 48,
        "do_resize": True,
        "do_normalize": True,
        "resample": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "deit of 2021": {
        "feature_extractor_type": "DeiTFeatureExtractor",
        "size": 57,
        "crop_size": 48,
        "do_center_crop": True,
        "do_resize": True,
        "do_normalize": True,
        "resample": 3,
        **IMAGENET,
    },
    "clip of 2021": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 57, "crop_size": 48},
    "deit's defaults": {"image_processor_type": "DeiTImageProcessor"},
    "bit's defaults": {"image_processor_type": "BitImageProcessor"},
    "bit": bit(crop_size={"height": 48, "width": 48}),
    "bit, not square": bit(crop_size={"height": 40, "width": 33}),
    "bit, larger crop": bit(crop_size=71),
    "bit, even margins": bit(crop_size=47),
    "bit, a side that is null": bit(size={"shortest_edge": 57, "longest_edge": None}, crop_size=48),
    "bit, no resizing": bit(do_resize=False, crop_size=60),
    "blip": {"image_processor_type": "BlipImageProcessor", "size": {"height": 40, "width": 48}},
    "blip's defaults": {"image_processor_type": "BlipImageProcessor"},
    "chinese clip": {"image_processor_type": "ChineseCLIPImageProcessor", "crop_size": 200},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": [48, 48]},
    "beit": {"image_processor_type": "BeitImageProcessor", "size": 48},
    "beit, cropped": {
        "image_processor_type": "BeitImageProcessor",
        "size": 57,
        "do_center_crop": True,
        "crop_size": 48,
    },
    "dinov3": {"image_processor_type": "DINOv3ViTImageProcessor", "size": [48, 48]},
    "sam": sam(size={"longest_edge": 48}, pad_size={"height": 48, "width": 48}),
    "sam, more padding": sam(
        size={"longest_edge": 41}, pad_size={"height": 48, "width": 57}, resample=3
    ),
    "sam, no resizing": sam(do_resize=False, pad_size={"height": 800, "width": 800}),
    "sam, no normalisation": sam(
        size={"longest_edge": 48}, pad_size={"height": 48, "width": 48}, do_normalize=False
    ),
    "sam 2": {"image_processor_type": "Sam2ImageProcessorFast", "size": [48, 33]},
    "sam 3": {"image_processor_type": "Sam3ImageProcessor", "size": [48, 33]},
    "owlvit": {"image_processor_type": "OwlViTImageProcessor", "size": [48, 33]},
    "owlvit, cropped": {
        "feature_extractor_type": "OwlViTFeatureExtractor",
        "size": 57,
        "crop_size": 48,
        "do_center_crop": True,
    },
    "gemma 3": {"image_processor_type": "Gemma3ImageProcessor", "size": [48, 33]},
    "flava": {"image_processor_type": "FlavaImageProcessor", "size": [57, 51], "crop_size": 48},
    "flava, not cropped": {
        "feature_extractor_type": "FlavaFeatureExtractor",
        "size": [48, 33],
        "do_center_crop": False,
        "return_codebook_pixels": True,
    },
    "got ocr": {"image_processor_type": "GotOcr2ImageProcessor", "size": [48, 33]},
    "dpt": {"image_processor_type": "DPTImageProcessor", "size": [48, 33]},
    "dpt, multiples": {
        "image_processor_type": "DPTImageProcessor",
        "size": [48, 34],
        "ensure_multiple_of": 14,
    },
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_processor_is_pixel_equal_and_written_alike(tmp_path, photographs, name, backend):
    processor = auto(tmp_path, CONFIGS[name], backend=backend)
    ours = Preprocessing.from_huggingface(CONFIGS[name], backend=backend)
    for image in photographs:
        assert torch.equal(ours(image), theirs(processor, image)), image.size
    # SAM 2 has no Pillow variant, and is written as a class that has one.
    backend = "pil" if ours.backend == "transformers_pil" else "torchvision"
    again = Preprocessing.from_huggingface(ours.to_huggingface(), backend=backend)
    assert again.differences(ours) == ()


@pytest.mark.parametrize("code", [4, 5])  # box, hamming
def test_filters_that_only_pillow_has(tmp_path, photographs, code):
    processor = auto(tmp_path, vit(resample=code), backend="pil")
    ours = Preprocessing.from_huggingface(vit(resample=code), backend="pil")
    assert all(torch.equal(ours(image), theirs(processor, image)) for image in photographs)
    with pytest.raises(NotImplementedError):  # so transformers itself does not get further
        theirs(auto(tmp_path, vit(resample=code)), photographs[0])
    with pytest.raises(NotRepresentable) as caught:
        Preprocessing.from_huggingface(vit(resample=code))
    name = {4: "box", 5: "hamming"}[code]
    assert str(caught.value) == (
        "error: not-representable\n"
        f"  The transformers backend cannot resize with the {name} filter.\n"
        "  filters  nearest, bilinear, bicubic, lanczos\n"
        "  from     preprocessor_config.json"
    )
    with pytest.raises(NotRepresentable):  # the file alone would choose the wrong backend
        ours.to_huggingface()


def test_the_default_backend_is_torchvision(tmp_path, photograph):
    processor = auto(tmp_path, CONFIGS["bit"])
    image = photograph(331, 250)
    default = Preprocessing.from_huggingface(CONFIGS["bit"])(image)
    pil = Preprocessing.from_huggingface(CONFIGS["bit"], backend="pil")(image)
    assert processor.backend == "torchvision"
    assert torch.equal(default, theirs(processor, image))
    assert not torch.equal(default, pil)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_grey_processor_is_pixel_equal(tmp_path, photograph, backend):
    config = vit(image_mean=[0.13], image_std=[0.31])
    image = photograph(61, 45, 1)
    ours = Preprocessing.from_huggingface(config, backend=backend)
    assert ours.channels == 1
    assert torch.equal(ours(image), theirs(auto(tmp_path, config, backend=backend), image))


@pytest.mark.parametrize("stated", [{"image_mean": [0.3]}, {"image_std": [0.3]}])
def test_one_mean_serves_as_many_channels_as_the_deviation_has(tmp_path, photographs, stated):
    """Three, where the other is the class's own; the Pillow backend of transformers refuses."""
    ours = Preprocessing.from_huggingface(vit(**stated))
    processor = auto(tmp_path, vit(**stated))
    assert all(torch.equal(ours(image), theirs(processor, image)) for image in photographs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("converts", [None, False, True])
def test_a_file_is_opened_as_load_image_does(tmp_path, photograph, backend, converts):
    """Alpha is dropped, but do_convert_rgb puts a transparent colour on white."""
    config = vit(do_convert_rgb=converts)
    processor = auto(tmp_path, config, backend=backend)
    ours = Preprocessing.from_huggingface(config, backend=backend)
    rgb, grey = photograph(61, 45), photograph(61, 45, 1)
    rgba, grey_alpha, palette = rgb.copy(), rgb.convert("L"), rgb.quantize(17)
    rgba.putalpha(grey)
    grey_alpha.putalpha(grey)
    palette.info["transparency"] = 3
    for image in (rgba, grey_alpha, palette, grey, rgb.convert("1")):
        image.save(tmp_path / "image.png")
        loaded = transformers.image_utils.load_image(str(tmp_path / "image.png"))
        assert torch.equal(ours(tmp_path / "image.png"), theirs(processor, loaded)), image.mode
    rgba.save(tmp_path / "rgba.png")
    with Image.open(tmp_path / "rgba.png") as opened:  # what a file becomes is not what this does
        if not converts:
            with pytest.raises((ValueError, RuntimeError)):
                theirs(processor, opened)
        else:
            assert not torch.equal(ours(opened), theirs(processor, opened))
    assert ours.transparency == ("key" if converts else "drop")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright_as_load_image_does(tmp_path, photograph, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.jpg"
    photograph(61, 45).save(path, exif=exif)
    expected = theirs(auto(tmp_path, vit()), transformers.image_utils.load_image(str(path)))
    ours = Preprocessing.from_huggingface(vit())(image_files.open_image(path))
    assert torch.equal(ours, expected)


def test_the_model_type_names_the_processor_when_the_file_does_not(tmp_path, photographs):
    transformers.ViTConfig().save_pretrained(tmp_path)
    processor = auto(tmp_path, {"size": 48})
    ours = Preprocessing.from_huggingface({"size": 48}, model_type="vit")
    assert all(torch.equal(ours(image), theirs(processor, image)) for image in photographs)


def test_without_resizing_only_images_of_the_size_fit(tmp_path, photograph):
    processor = auto(tmp_path, vit(do_resize=False))
    ours = Preprocessing.from_huggingface(vit(do_resize=False), image_size=(45, 61))
    assert torch.equal(ours(photograph(61, 45)), theirs(processor, photograph(61, 45)))
    with pytest.raises(InputMismatch) as caught:
        ours(photograph(61, 44))
    assert str(caught.value) == (
        "error: input-mismatch\n"
        "  The image is 44x61, the model reads 45x61, and this preprocessing resizes nothing.\n"
        "  from  preprocessor_config.json"
    )


CONTRADICTS = "The preprocessing contradicts itself."
REFUSED: list[tuple[dict[str, Any], type[VitConvertError], list[str]]] = [
    (
        {"size": 224},
        MissingFact,
        [
            "The preprocessing file names no image processor.",
            "keys        size",
            "model_type  None",
            'hint: write one into it, e.g. "image_processor_type": "ViTImageProcessor".',
        ],
    ),
    (
        {"image_processor_type": "ConvNextImageProcessor"},
        NotRepresentable,
        [
            "Images processed by ConvNextImageProcessor are not supported.",
            "supported  BeitImageProcessor, BitImageProcessor, BlipImageProcessor, "
            "CLIPImageProcessor, ChineseCLIPImageProcessor, CohereCompassImageProcessor, "
            "Cosmos3EdgeImageProcessor, DINOv3ViTImageProcessor, DPTImageProcessor, "
            "DeiTImageProcessor, Ernie4_5_VLMoeImageProcessor, FlavaImageProcessor, "
            "Gemma3ImageProcessor, Gemma4ImageProcessor, Glm46VImageProcessor, "
            "Glm4vImageProcessor, GotOcr2ImageProcessor, HunYuanVLImageProcessor, "
            "OwlViTImageProcessor, PaddleOCRVLImageProcessor, PixtralImageProcessor, "
            "Qwen2VLImageProcessor, "
            "Sam2ImageProcessor, Sam3ImageProcessor, SamImageProcessor, Siglip2ImageProcessor, "
            "SiglipImageProcessor, VJEPA2VideoProcessor, ViTImageProcessor, "
            "VideoLlama3ImageProcessor, VideoMAEImageProcessor, VideoMAEVideoProcessor, "
            "VivitImageProcessor, VivitVideoProcessor",
        ],
    ),
    (
        {"image_processor_type": "SamImageProcessor", "size": {"height": 48, "width": 48}},
        NotRepresentable,
        ["size = {'height': 48, 'width': 48} is not supported; longest_edge is."],
    ),
    (
        {"image_processor_type": "SamImageProcessor", "do_center_crop": True},
        NotRepresentable,
        ["do_center_crop of SamImageProcessor is not supported."],
    ),
    (
        {"image_processor_type": "SamImageProcessor", "do_pad": False},
        MissingFact,
        [
            "The size of the processed images depends on the image itself.",
            "processor       SamImageProcessor",
            "size            None",
            "do_center_crop  False",
        ],
    ),
    (
        {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True},
        NotRepresentable,
        [
            "do_pan_and_scan of Gemma3ImageProcessor is not supported: it cuts an image into "
            "several."
        ],
    ),
    (
        {"image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": True},
        NotRepresentable,
        [
            "crop_to_patches of GotOcr2ImageProcessor is not supported: it cuts an image into "
            "several."
        ],
    ),
    (
        {"image_processor_type": "FlavaImageProcessor", "return_image_mask": True},
        NotRepresentable,
        [
            "return_image_mask of FlavaImageProcessor is not supported: the model would read "
            "masked patches."
        ],
    ),
    (
        {"image_processor_type": "DPTImageProcessor", "keep_aspect_ratio": True},
        NotRepresentable,
        ["keep_aspect_ratio of DPTImageProcessor is not supported: sizes depend on the image."],
    ),
    (
        vit(size={"longest_edge": 99}),
        NotRepresentable,
        [
            "size = {'longest_edge': 99} is not supported.",
            "hint: height and width, or shortest_edge, are.",
        ],
    ),
    (
        bit(do_center_crop=False),
        MissingFact,
        [
            "The size of the processed images depends on the image itself.",
            "processor       BitImageProcessor",
            "size            {'shortest_edge': 57}",
            "do_center_crop  False",
        ],
    ),
    (
        vit(resample="bicubic"),
        ConflictingFact,
        [
            "resample = 'bicubic' is not the number of a filter of Pillow.",
            "known  0 nearest, 1 lanczos, 2 bilinear, 3 bicubic, 4 box, 5 hamming",
        ],
    ),
    (
        vit(image_mean=[0.5] * 4, image_std=[0.5] * 4),
        ConflictingFact,
        [CONTRADICTS, "mean has 4 values and std 4: both need 3 (RGB) or 1 (grey)"],
    ),
    (
        vit(image_std=[0.5, 0, 0.5]),
        ConflictingFact,
        [CONTRADICTS, "std = (0.5, 0.0, 0.5) divides by zero"],
    ),
    (vit(do_center_crop=True), MissingFact, ["do_center_crop is set, and crop_size is not."]),
    (vit(do_pad=True), NotRepresentable, ["do_pad of ViTImageProcessor is not supported."]),
    (vit(rescale_factor=0), ConflictingFact, ["rescale_factor = 0 must be positive."]),
    # transformers: "must both be specified"
    (vit(image_mean=None), ConflictingFact, ["image_mean = None should be 3 numbers."]),
    (vit(size="224"), ConflictingFact, ["size = '224' should be 2 numbers."]),
    (
        {"image_processor_type": "DINOv3ViTImageProcessor", "do_rescale": False},
        NotRepresentable,
        ["DINOv3ViTImageProcessor cannot normalise without do_rescale."],
    ),
]


@pytest.mark.parametrize(("config", "error", "lines"), REFUSED)
def test_what_cannot_be_done_is_refused(config, error, lines):
    with pytest.raises(error) as caught:
        Preprocessing.from_huggingface(config)
    assert str(caught.value) == "\n  ".join([f"error: {error.code}", *lines])


# timm -> transformers

CROPPED = {"input_size": (3, 48, 48), "crop_pct": 48 / 56, "interpolation": "bicubic"}
CROPPED |= {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def test_a_timm_crop_becomes_bit_image_processor():
    written = Preprocessing.from_timm(
        {"input_size": (3, 224, 224), "crop_pct": 0.9, "mean": [0.5] * 3, "std": [0.5] * 3}
    ).to_huggingface()
    assert written == {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": 248},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
    }


def test_timms_pixels_come_out_of_transformers_but_for_odd_crops(tmp_path, photograph):
    """Half a pixel is rounded to even by timm, down by transformers."""
    ours, transform = Preprocessing.from_timm(CROPPED), timm_transform(CROPPED)
    processor = auto(tmp_path, ours.to_huggingface(), backend="pil")
    for width in range(112, 128):  # 56 to 64 wide once resized: 8 to 15 columns are cut
        image = photograph(width, 112)
        cut = width * 56 // 112 - 48
        same = torch.equal(theirs(processor, image), transform(image))
        assert same == (cut % 4 != 3), width
        assert torch.equal(ours(image), transform(image))


def test_a_squash_stays_one(tmp_path, photographs):
    cfg = {"input_size": (3, 40, 48), "crop_mode": "squash", "crop_pct": 1.0}
    ours = Preprocessing.from_timm(cfg)
    written = ours.to_huggingface()
    assert written["image_processor_type"] == "ViTImageProcessor"
    processor = auto(tmp_path, written, backend="pil")
    for image in photographs:
        assert torch.equal(theirs(processor, image), ours(image))


def test_differences_are_told():
    timm = Preprocessing.from_timm(CROPPED)
    huggingface = Preprocessing.from_huggingface(timm.to_huggingface())
    assert timm.differences(huggingface) == (
        "backend is torchvision here and transformers there",
        "transparency is drop here and key there",
    )


@pytest.mark.parametrize("mode", ["border", "center"])
def test_timms_other_ways_are_refused(mode):
    cfg = {"input_size": (3, 40, 48), "crop_mode": mode, "crop_pct": 1.0}
    with pytest.raises(NotRepresentable) as caught:
        Preprocessing.from_timm(cfg).to_huggingface()
    resize = {"border": "border", "center": "cover"}[mode]
    assert str(caught.value) == (
        "error: not-representable\n"
        f"  transformers cannot express this resizing: {resize} with bicubic.\n"
        "  from  timm's pretrained_cfg"
    )


# Kernels that this machine may not choose


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_vectorised_kernels_bilinear_goes_by_floats(monkeypatch, photograph, interpolation):
    from torchvision.transforms.v2 import functional

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    image = np.moveaxis(np.array(photograph(331, 250)), -1, 0)
    expected = functional.resize(
        torch.from_numpy(np.ascontiguousarray(image)), [48, 33], interpolation, antialias=True
    )
    ours = pixels.resized_on_tensor(image, (48, 33), interpolation, antialias=True)
    assert np.array_equal(ours, expected.numpy())


def test_a_torch_without_lanczos_is_named(monkeypatch, photograph):
    def interpolate(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    monkeypatch.setattr(torch.nn.functional, "interpolate", interpolate)
    with pytest.raises(NotRepresentable, match="cannot resize tensors with the lanczos filter"):
        Preprocessing.from_huggingface(vit(resample=1))(photograph(61, 45))
