"""Two models on the same images, each behind its own preprocessing."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.packages import open_clip, timm, transformers
from tests.parity.conftest import save_timm
from vitconvert.api import compare, convert, verify
from vitconvert.errors import MissingFact, UsageError

ONCE = {"dtypes": ("float32",), "batch": 1}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Odd sizes, and what cameras and editors write: EXIF, alpha, palettes, grey, inks."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(3)

    def picture(width, height):
        coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        return coarse.resize((width, height), Image.Resampling.BICUBIC)

    turned = Image.Exif()
    turned[0x0112] = 6
    picture(101, 57).save(folder / "turned.jpg", exif=turned)
    clear = picture(64, 203)
    clear.putalpha(picture(64, 203).convert("L"))
    clear.save(folder / "alpha.png")
    picture(61, 45).quantize(17).save(folder / "palette.png", transparency=bytes(range(0, 255, 15)))
    picture(33, 40).convert("L").save(folder / "grey.png")
    picture(331, 250).convert("CMYK").save(folder / "inks.jpg")
    return folder


@pytest.fixture(scope="module")
def timm_model(tmp_path_factory):
    return save_timm(tmp_path_factory.mktemp("timm"))


@pytest.fixture
def hf(huggingface_checkpoint):
    """Saved with its processor, whose options are given."""

    def save(**processor):
        kinds = transformers.ViTConfig, transformers.ViTForImageClassification
        folder = huggingface_checkpoint(*kinds, num_labels=5)
        options = {"size": {"height": 32, "width": 24}} | processor
        transformers.ViTImageProcessor(**options).save_pretrained(folder)
        return folder

    return save


def on_images(report):
    (found,) = (c for c in report.comparisons if c.images == "images")
    return found


def told(report, word):
    return [note for note in report.notes if note.startswith(word)]


def assert_same_pixels(report, whose):
    found = on_images(report)
    assert report.ok, report.summary()
    assert (found.agreed, found.rows) == (5, 5)
    assert told(report, "preprocessing") == ["preprocessing: bit-equal pixels"]
    assert told(report, "images")[0].endswith(f" and by {whose}")
    assert not any("preprocessing of images" in fact for fact in report.not_tested)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_timms_own_transforms(timm_model, photos):
    report = verify(timm_model, images=photos, **ONCE)
    assert_same_pixels(report, f"timm {timm.__version__}'s create_transform")


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize("converts", [None, True])
def test_transformers_own_processor(converts, hf, photos):
    report = verify(hf(do_convert_rgb=converts), images=photos, **ONCE)
    assert_same_pixels(report, f"transformers {transformers.__version__}'s ViTImageProcessor")


def test_open_clips_own_transforms(randomise, photos, tmp_path):
    vision = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2, "head_width": 32}
    sizes = {"embed_dim": 20, "vision_cfg": vision}
    text = {"context_length": 8, "vocab_size": 50, "width": 64, "heads": 2, "layers": 1}
    model = randomise(open_clip.CLIP(embed_dim=20, vision_cfg=vision, text_cfg=text))
    torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    cfg = {"model_cfg": sizes, "preprocess_cfg": {"interpolation": "bicubic"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(cfg))
    report = verify(tmp_path, images=photos, **ONCE)
    assert_same_pixels(report, f"open_clip {open_clip.__version__}'s image_transform_v2")


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_only_causes_that_change_these_images_are_named(timm_model, photos, tmp_path):
    source = tmp_path / "timm"
    shutil.copytree(timm_model, source)
    stated = json.loads((source / "config.json").read_text())
    stated["pretrained_cfg"] |= {"crop_mode": "squash", "crop_pct": 1.0}
    (source / "config.json").write_text(json.dumps(stated))
    convert(source, to="hf", output=tmp_path / "hf")
    report = verify(tmp_path / "hf", images=photos, **ONCE)
    pixels, *causes = told(report, "preprocessing")
    assert "levels of 255 (turned.jpg)" in pixels
    assert [cause.rpartition(":")[0] for cause in causes] == [
        "preprocessing: the other side applies the EXIF orientation",
        "preprocessing: the other side resizes uint8 tensors, not Pillow images",
    ]
    assert causes[0].rpartition(": ")[2].startswith("1 of 5 images, up to ")
    plain = verify(tmp_path / "hf", images=[photos / "grey.png"], **ONCE)
    assert "EXIF" not in plain.summary()


def test_a_cause_that_no_file_states_is_unknown(hf, photos, monkeypatch):
    """Their code does something else than its file says."""
    folder = hf()
    load_image = transformers.image_utils.load_image
    mirrored = lambda image: load_image(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)  # noqa: E731
    monkeypatch.setattr(transformers.image_utils, "load_image", mirrored)
    report = verify(folder, images=photos, **ONCE)
    assert told(report, "preprocessing")[1].startswith(
        "preprocessing: cause unknown in 5 of 5 images: no file states what transformers "
    )


def test_another_preprocessing_is_found(hf, photos, tmp_path):
    mine = hf()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for file in mine.iterdir():
        (theirs / file.name).write_bytes(file.read_bytes())
    stated = json.loads((theirs / "preprocessor_config.json").read_text())
    stated["image_mean"] = [0.5, 0.5, 0.4]
    (theirs / "preprocessor_config.json").write_text(json.dumps(stated))
    report = verify(mine, against=theirs, images=photos, **ONCE)
    assert not report.ok
    assert [c.ok for c in report.comparisons] == [True, True, False]
    assert report.first_divergence is None
    pixels, steps = told(report, "preprocessing")
    assert pixels.startswith("preprocessing: pixels differ by up to 0.2 in the normalised input (")
    mean = "mean is (0.5, 0.5, 0.5) here and (0.5, 0.5, 0.4) there"
    assert steps == f"preprocessing: {mean}: 5 of 5 images, up to 0.2"
    with pytest.raises(Exception, match="does not compute"):
        report.raise_if_failed()


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(timm_model, photos, tmp_path):
    broken = [tmp_path / f"{i}\x1b.png" for i in range(5)]
    for path in broken:
        path.write_bytes(b"no image")
    report = verify(timm_model, images=[*broken, photos / "grey.png"], **ONCE)
    assert report.ok
    assert on_images(report).rows == 1
    assert told(report, "not compared") == [
        *(f"not compared: {i}\\x1b.png: This file cannot be read as an image." for i in range(3)),
        "not compared: 2 more images",
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing.png", "No such file or directory."),
        ("empty", "There are no images in this folder."),
    ],
)
def test_nothing_but_what_cannot_be_read(name, why, timm_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as error:
        verify(timm_model, images=tmp_path / name, **ONCE)
    assert error.value.fact == "None of the images could be compared."
    assert error.value.details == (f"{name}: {why}",)


def test_no_more_than_the_first_32(timm_model, tmp_path):
    (tmp_path / "many").mkdir()
    for i in range(34):
        Image.new("RGB", (9, 7), (i, 90, 3 * i)).save(tmp_path / "many" / f"{i:02}.png")
    report = verify(timm_model, images=tmp_path / "many", **ONCE)
    assert on_images(report).rows == 32
    assert told(report, "images")[0].startswith("images: 32 of the first 32,")


def test_a_project_without_code_for_images(torchvision_file, photos):
    report = verify(torchvision_file, overrides={"num_heads": 3}, images=photos, **ONCE)
    (note,) = told(report, "images")
    assert note.endswith("for both sides: the other side's preprocessing is unknown")
    assert told(report, "preprocessing") == []
    assert "preprocessing of images: both sides took the same" in report.not_tested


def test_nothing_says_how(plain, photos):
    with pytest.raises(MissingFact, match="No file states the preprocessing of images"):
        verify(plain, overrides={"num_heads": 3}, images=photos, **ONCE)


@pytest.fixture
def module(timm_model):
    """Somebody's own module: for once, timm's."""
    return timm.create_model(f"local-dir:{timm_model}", pretrained=True).eval()


def test_a_module_of_ones_own_has_its_own_preprocessing(module, timm_model, photos):
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(module), is_training=False
    )

    def right(image):
        return transform(image.convert("RGB"))

    def wrong(image):
        return right(image)[None].numpy() * np.float32(1.01)

    report = compare(module, against=timm_model, images=photos, preprocess=right, **ONCE)
    assert report.ok
    assert told(report, "preprocessing") == ["preprocessing: bit-equal pixels"]
    assert told(report, "images")[0].startswith("images: 5, prepared by your preprocess ")
    report = compare(module, against=timm_model, images=photos, preprocess=wrong, **ONCE)
    assert not report.ok
    assert not on_images(report).ok
    pixels, cause = told(report, "preprocessing")
    assert pixels.startswith("preprocessing: pixels differ by up to 0.0")
    assert cause == "preprocessing: cause unknown: no file states what your preprocess does"


def test_without_its_own_the_checkpoints_is_taken(module, timm_model, photos):
    report = compare(module, against=timm_model, images=photos, **ONCE)
    assert on_images(report).rows == 5
    assert "for both sides" in told(report, "images")[0]
    assert "preprocessing of images: both sides took the same" in report.not_tested


def test_a_preprocess_that_raises_or_makes_other_images(module, timm_model, photos):
    def strange(image):
        if image.mode == "CMYK":
            raise KeyError("no inks")
        return torch.zeros(3, 32, 32) if image.mode == "L" else torch.zeros(3, 32, 24)

    report = compare(module, against=timm_model, images=photos, preprocess=strange, **ONCE)
    assert told(report, "not compared: ") == [
        "not compared: grey.png: it becomes (3, 32, 32) here and (3, 32, 24) there",
        "not compared: inks.jpg: your preprocess: KeyError: 'no inks'",
    ]
    assert on_images(report).rows == 3


def test_preprocess_is_for_images(module, timm_model):
    with pytest.raises(UsageError, match="preprocess"):
        compare(module, timm_model, preprocess=lambda image: image)
