"""Pixels against timm's own transform, and images opened against its own data set."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.packages import sklearn, timm
from tests.preprocessing.conftest import sample
from vitconvert.errors import ConflictingFact, InputMismatch, NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import INTERPOLATIONS
from vitconvert.preprocessing.image_files import open_image

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def timm_transform(cfg: dict[str, Any]) -> Callable[[Image.Image], torch.Tensor]:
    return timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=cfg), is_training=False
    )


MODES = ("center", "squash", "border")
SIZES = ((3, 48, 48), (3, 97, 97), (3, 48, 33))
PIPELINES = list(itertools.product(INTERPOLATIONS, MODES, (0.875, 0.9, 0.95, 1.0), SIZES))


@pytest.mark.parametrize(("interpolation", "mode", "crop_pct", "size"), sample(PIPELINES, 5))
def test_every_timm_pipeline_is_pixel_equal(photographs, size, crop_pct, mode, interpolation):
    cfg = {
        "input_size": size,
        "crop_pct": crop_pct,
        "crop_mode": mode,
        "interpolation": interpolation,
        **IMAGENET,
    }
    ours, theirs = Preprocessing.from_timm(cfg), timm_transform(cfg)
    for image in photographs:
        assert torch.equal(ours(image), theirs(image)), image.size
    assert Preprocessing.from_timm(ours.to_timm()).differences(ours) == ()


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_a_real_photograph_at_224_is_pixel_equal(name):
    image = Image.fromarray(sklearn.datasets.load_sample_image(name))
    for crop_pct in (0.875, 0.9, 0.95, 1.0):
        cfg = {"input_size": (3, 224, 224), "crop_pct": crop_pct, "interpolation": "bicubic"}
        assert torch.equal(Preprocessing.from_timm(cfg)(image), timm_transform(cfg)(image))


def test_a_silent_cfg_means_timms_defaults(photographs):
    ours, theirs = Preprocessing.from_timm({}), timm_transform({"unrelated": 1})
    assert all(torch.equal(ours(image), theirs(image)) for image in photographs)


@pytest.mark.parametrize("mode", MODES)
def test_a_grey_model_is_pixel_equal(photograph, mode):
    cfg = {"input_size": (1, 28, 28), "crop_mode": mode, "mean": (0.13,), "std": (0.31,)}
    image = photograph(61, 45, 1)
    assert image.mode == "L"
    assert torch.equal(Preprocessing.from_timm(cfg)(image), timm_transform(cfg)(image))


def awkward_files(folder: Path, photograph: Callable[..., Image.Image]) -> list[Path]:
    rgb, alpha = photograph(61, 45), photograph(61, 45, 1)
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    grey_alpha = rgb.convert("L")
    grey_alpha.putalpha(alpha)
    palette = rgb.quantize(17)
    deep = Image.frombytes("I;16", (61, 45), bytes(range(256)) * 21 + bytes(114))
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    images: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "grey.png": (rgb.convert("L"), {}),
        "grey_alpha.png": (grey_alpha, {}),
        "alpha.png": (rgba, {}),
        "palette.png": (palette, {}),
        "palette_alpha.png": (palette, {"transparency": bytes(range(0, 255, 15))}),
        "palette_key.gif": (palette, {"transparency": 3}),
        "key.png": (rgb, {"transparency": rgb.getpixel((0, 0))}),
        "bits.png": (rgb.convert("1"), {}),
        "inks.jpg": (rgb.convert("CMYK"), {}),
        "deep.png": (deep, {}),
        "turned.jpg": (rgb, {"exif": turned}),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    return [folder / name for name in images]


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves them open
@pytest.mark.parametrize("channels", [3, 1])
def test_files_of_every_kind_are_opened_as_timm_opens_them(tmp_path, photograph, channels):
    """timm converts to RGB (L for one channel): alpha and the EXIF orientation are forgotten."""
    (tmp_path / "class").mkdir()
    paths = awkward_files(tmp_path / "class", photograph)
    cfg = {
        "input_size": (channels, 32, 32),
        "mean": (0.4, 0.5, 0.6)[:channels],
        "std": (0.2, 0.3, 0.25)[:channels],
    }
    theirs = timm.data.ImageDataset(
        str(tmp_path),
        transform=timm_transform(cfg),
        input_img_mode="RGB" if channels == 3 else "L",
    )
    by_name = {Path(theirs.filename(i)).name: theirs[i][0] for i in range(len(theirs))}
    assert len(paths) - 1 == len(by_name)  # timm's reader does not look for GIF
    ours = Preprocessing.from_timm(cfg)
    for path in paths:
        expected = by_name.get(path.name)
        if expected is None:
            expected = timm_transform(cfg)(Image.open(path).convert(theirs.input_img_mode))
        assert torch.equal(ours(open_image(path)), expected), path.name


def test_alpha_in_a_palette_is_forgotten_without_a_warning(photograph):
    palette = photograph(61, 45).quantize(17)
    expected = Preprocessing.from_timm({})(palette)
    palette.info["transparency"] = bytes(range(0, 255, 15))
    assert torch.equal(Preprocessing.from_timm({})(palette), expected)


def test_sixteen_bits_saturate_instead_of_being_scaled(tmp_path, photograph):
    # What Pillow's convert does, and so every project here: anything above 255 is white.
    deep = Image.frombytes("I;16", (8, 8), bytes([0, 4]) * 64)
    squash = {"input_size": (3, 8, 8), "crop_pct": 1.0, "mean": (0, 0, 0), "std": (1, 1, 1)}
    assert Preprocessing.from_timm(squash)(deep).min() == 1


def test_a_line_too_thin_for_a_border_is_refused(photograph):
    border = Preprocessing.from_timm(
        {"input_size": (3, 28, 28), "crop_mode": "border", "crop_pct": 1.0}
    )
    with pytest.raises(InputMismatch) as caught:
        border(photograph(300, 1))
    assert str(caught.value) == (
        "error: input-mismatch\n"
        "  A 1x300 image is too narrow to be resized into 28x28.\n"
        "  resized  0x28"
    )


@pytest.mark.parametrize(
    ("cfg", "fact"),
    [
        ({"crop_mode": "centre"}, "crop_mode = 'centre' is not one of center, squash, border."),
        ({"crop_pct": "1"}, "crop_pct = '1' should be a number."),
        ({"crop_pct": -0.9}, "crop_pct = -0.9 must be positive."),
        ({"input_size": (3, 224)}, "input_size = (3, 224) should be 3 numbers."),
        ({"input_size": 224}, "input_size = 224 should be 3 numbers."),
        ({"input_size": (3, 0, 9)}, "input_size = (3, 0, 9) should be whole numbers of pixels."),
        ({"mean": [0.5, [1], 2]}, "mean = [0.5, [1], 2] should be 3 numbers."),
        # timm fails in the middle of Normalize.
        ({"input_size": (1, 28, 28)}, "mean = (0.485, 0.456, 0.406) should be a number."),
        *(
            (
                {"interpolation": wrong},
                f"interpolation = {wrong!r} is not one of nearest, bilinear, "
                "bicubic, lanczos, box, hamming",
            )
            for wrong in ("random", ["bicubic"])
        ),
        *(
            (
                {"input_size": (3, 9, 8), "crop_pct": 8.5, "crop_mode": mode},
                "1x0 is not a size of an image",
            )
            for mode in MODES
        ),
    ],
)
def test_a_malformed_cfg_is_refused(cfg, fact):
    with pytest.raises(ConflictingFact) as caught:
        Preprocessing.from_timm(cfg)
    assert [fact] == (list(caught.value.details) or [caught.value.fact])


@pytest.mark.parametrize(
    ("image", "resize", "crop_pct"),
    [(224, 248, 0.9), (224, 256, 0.875), (224, 235, 0.95), (384, 384, 1.0), (224, 242, 0.925)],
)
def test_crop_pct_is_the_roundest_that_gives_the_size(image, resize, crop_pct):
    bit = Preprocessing.from_huggingface(
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": resize},
            "crop_size": image,
        }
    )
    assert bit.to_timm()["crop_pct"] == crop_pct
    assert Preprocessing.from_timm(bit.to_timm()).resize_size == (resize, resize)


OTHER_SIZES = itertools.product((0.875, 0.9, 0.965, 1.0), MODES, ((384, 384), (96, 160), (97, 97)))


@pytest.mark.parametrize(("crop_pct", "mode", "size"), sample(OTHER_SIZES, 5))
def test_another_image_size_is_prepared_as_timm_prepares_it(crop_pct, mode, size, photographs):
    cfg = {"crop_pct": crop_pct, "crop_mode": mode, "interpolation": "bilinear", **IMAGENET}
    resized = Preprocessing.from_timm(cfg | {"input_size": (3, 224, 224)}).at_size(size)
    theirs = timm_transform(cfg | {"input_size": (3, *size)})
    assert torch.equal(resized(photographs[0]), theirs(photographs[0]))
    assert Preprocessing.from_timm(resized.to_timm()).differences(resized) == ()


def test_an_oblong_model_made_square_and_back_is_prepared_as_before():
    cfg = {"input_size": (3, 48, 32), "crop_pct": 0.9, "crop_mode": "center"}
    oblong = Preprocessing.from_timm(cfg)
    square = oblong.at_size((96, 96))
    assert (square.resize, square.resize_size) == ("shortest", (106, 106))
    assert square.at_size((48, 32)).differences(oblong) == ()


def test_what_timm_cannot_state_is_refused():
    uneven = Preprocessing.from_huggingface(
        {"image_processor_type": "DeiTImageProcessor", "size": [60, 40], "crop_size": 32}
    )
    with pytest.raises(NotRepresentable) as caught:
        uneven.to_timm()
    assert str(caught.value) == (
        "error: not-representable\n"
        "  timm cannot express this resizing: squash to 60x40, then 32x32.\n"
        "  from  preprocessor_config.json"
    )


def test_other_scales_of_numbers_are_folded_for_timm(photographs):
    """timm always divides by 255, so mean and std must take up another factor, or none."""
    for stated in ({"rescale_factor": 1 / 127.5}, {"do_rescale": False}, {"do_normalize": False}):
        config = {"image_processor_type": "ViTImageProcessor", "size": 32, **stated}
        pil = Preprocessing.from_huggingface(config, backend="pil")
        timm = timm_transform(pil.to_timm())
        for image in photographs:
            torch.testing.assert_close(pil(image), timm(image), rtol=1e-6, atol=2e-6)
