"""What a pixel golden holds, and that each project's own code makes the same of every image."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from tests.packages import needed, open_clip, timm, torchvision, transformers
from tests.pixel_goldens.conftest import CFG, STEPS
from vitconvert.api import record_pixels
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import CorruptFile, InputMismatch, OutputExists, ParityFailed
from vitconvert.pixel_goldens.golden import read
from vitconvert.preprocessing import Preprocessing


def test_json_and_safetensors_say_all_without_vitconvert(golden):
    stated = json.loads((golden.folder / "vitconvert.json").read_text())
    tensors = load_file(golden.folder / "pixels.safetensors")
    seen = set()
    for name, image in stated["images"].items():
        content = (golden.folder / name).read_bytes()
        with Image.open(golden.folder / name) as file:
            mode = file.mode
        assert hashlib.sha256(content).hexdigest() == stated["sha256"][name]
        for step, one in image["steps"].items():
            array = tensors[one["tensor"]]
            assert (str(array.dtype), list(array.shape)) == (one["dtype"], one["shape"])
            assert hashlib.sha256(array.tobytes()).hexdigest() == one["sha256"]
            seen.add((mode, array.dtype.str, step))
    assert {mode for mode, _, _ in seen} == {"RGB", "RGBA", "L", "P", "CMYK", "I;16"}
    assert {dtype for _, dtype, step in seen if step == "normalised"} == {"<f4"}
    assert stated["steps"]["cropped"] == "the middle 48x48, its corner half a pixel rounded to even"
    assert stated["verdict"] == "not verified: the project's own code was not run"


def test_sizes_are_odd_and_one_image_is_smaller(golden):
    sizes = []
    for name in golden.images:
        with Image.open(golden.folder / name) as file:
            sizes.append(file.size)
    assert all(side % 2 for size in sizes for side in size)
    assert sorted(min(size) < 48 for size in sizes).count(True) == 1


def test_a_checkpoint_is_recorded_by_its_own_project(tmp_path):
    golden = record_pixels(DIGITS, tmp_path / "digits.pixels")
    assert golden.verdict.startswith(f"12 of 12 images bit-equal to timm {timm.__version__}'s")
    assert read(tmp_path / "digits.pixels").verdict == golden.verdict
    with pytest.raises(OutputExists, match="already exists"):
        record_pixels(DIGITS, tmp_path / "digits.pixels")
    record_pixels(DIGITS, tmp_path / "digits.pixels", mean=(0.1, 0.2, 0.3), overwrite=True)
    assert read(tmp_path / "digits.pixels").reference == ""  # timm's code knows no such mean


def test_images_that_a_project_refuses_or_prepares_otherwise_are_told(tmp_path):
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=CFG), is_training=False
    )

    def own(image):
        if image.mode == "CMYK":
            raise ValueError("no inks")
        if image.mode == "RGBA":
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return transform(image.convert("RGB"))

    golden = record_pixels(STEPS, tmp_path / "out", preprocess=own)
    assert {name: (one.verdict, *one.steps) for name, one in golden.others.items()} == {
        "alpha.png": ("only the result is known", "normalised"),
        "cmyk.jpg": ("refused: ValueError: no inks",),
    }
    with pytest.raises(ParityFailed, match="does not make the pixels of your preprocess"):
        record_pixels(replace(STEPS, interpolation="bilinear"), tmp_path / "no", preprocess=own)
    assert not (tmp_path / "no").exists()


def test_a_model_of_sounds_has_no_pixels_and_one_of_patches_all(tmp_path):
    sounds = Preprocessing.from_huggingface({"feature_extractor_type": "ASTFeatureExtractor"})
    with pytest.raises(InputMismatch, match="The model reads none of the images") as raised:
        record_pixels(sounds, tmp_path / "sounds")
    assert raised.value.details[0].startswith("gradient.png: refused by vitconvert: ")
    assert not (tmp_path / "sounds").exists()
    config = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 12}
    patches = Preprocessing.from_huggingface(config, image_size=(64, 48))
    golden = record_pixels(patches, tmp_path / "patches")
    made = {name: image.steps for name, image in golden.images.items() if image.steps}
    assert golden.images.keys() - made.keys() == {"turned.jpg"}  # which is wide once it is turned
    assert all(steps["normalised"].shape == (3, 64, 48) for steps in made.values())


def test_a_golden_that_contradicts_itself_is_refused(golden, tmp_path):
    for file in golden.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stated = json.loads((tmp_path / "vitconvert.json").read_text())
    stated["images"]["../edges.png"] = stated["images"].pop("edges.png")
    (tmp_path / "vitconvert.json").write_text(json.dumps(stated))
    with pytest.raises(CorruptFile, match="not a pixel golden") as raised:
        read(tmp_path)
    assert raised.value.evidence["problem"] == "'../edges.png' is not a file name"


def composed(transform, mode="RGB"):
    """The steps of torchvision's Compose: what is resized, what is cropped, and the result."""

    def prepare(image):
        image = image.convert(mode) if mode else image
        steps = []
        for one in transform.transforms:
            image = one(image)
            if isinstance(image, Image.Image):
                steps.append(np.moveaxis(np.atleast_3d(np.array(image)), -1, 0))
        return {"resized": steps[0], "cropped": steps[1], "normalised": image}

    return prepare


def of_timm():
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=CFG), is_training=False
    )
    return STEPS, composed(transform)


def of_open_clip():
    of = open_clip.transform
    transform = of.image_transform_v2(of.PreprocessCfg(size=48), is_train=False)
    steps = composed(transform, mode=None)

    def prepare(image):
        made = steps(image)
        return made if image.mode == "RGB" else {"normalised": made["normalised"]}

    return Preprocessing.from_openclip({}, image_size=(48, 48)), prepare


def of_torchvision():
    preset = torchvision.transforms._presets.ImageClassification(crop_size=48, resize_size=55)
    functional = torchvision.transforms.functional

    def prepare(image):
        image = image.convert("RGB")
        resized = functional.resize(image, 55, functional.InterpolationMode.BILINEAR)
        cropped = functional.center_crop(resized, [48, 48])
        arrays = (np.moveaxis(np.array(one), -1, 0) for one in (resized, cropped))
        return dict(zip(("resized", "cropped"), arrays, strict=True)) | {
            "normalised": preset(image)
        }

    return replace(STEPS, resize_size=(55, 55), interpolation="bilinear"), prepare


def of_transformers(name, backend, **stated):
    own = {"torchvision": name, "pil": f"{name}Pil"}[backend]
    processor = getattr(transformers, own)(do_convert_rgb=True, **stated)
    config = {"image_processor_type": name, "do_convert_rgb": True, **stated}

    def prepare(image):
        image = transformers.image_utils.load_image(image)
        without = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
        if getattr(processor, "do_pad", False):
            without |= {"do_pad": False}
        made = {
            "cropped": processor(image, **without)["pixel_values"][0],
            "normalised": processor(image, return_tensors="np")["pixel_values"][0],
        }
        if processor.do_center_crop:
            without |= {"do_center_crop": False}
            made["resized"] = processor(image, **without)["pixel_values"][0]
        return made

    return Preprocessing.from_huggingface(config, backend=backend), prepare


def of_clip(backend):
    sizes = {"size": {"shortest_edge": 55}, "crop_size": {"height": 48, "width": 48}}
    return of_transformers("CLIPImageProcessor", backend, **sizes)


def of_sam(backend):
    sizes = {"size": {"longest_edge": 48}, "pad_size": {"height": 48, "width": 48}}
    return of_transformers("SamImageProcessor", backend, **sizes)


def of_vit(backend):
    return of_transformers("ViTImageProcessor", backend, size={"height": 48, "width": 48})


def of_keras_hub():
    needed("keras_hub")
    import keras_hub

    stated = {"image_size": [48, 48], "scale": 1 / 127.5, "offset": -1.0, "antialias": True}
    layer = keras_hub.layers.ImageConverter(**stated, dtype="float32")

    def prepare(image):
        return {"normalised": np.moveaxis(np.array(layer(np.array(image.convert("RGB")))), -1, 0)}

    config = {"class_name": "ImageConverter", "config": stated}
    return Preprocessing.from_keras_hub(config, image_size=(48, 48)), prepare


PROJECTS = {
    "timm": of_timm,
    "open_clip": of_open_clip,
    "torchvision": of_torchvision,
    "CLIP by torchvision": lambda: of_clip("torchvision"),
    "CLIP by Pillow": lambda: of_clip("pil"),
    "ViT by torchvision": lambda: of_vit("torchvision"),
    "ViT by Pillow": lambda: of_vit("pil"),
    "SAM by torchvision": lambda: of_sam("torchvision"),
    "SAM by Pillow": lambda: of_sam("pil"),
    "KerasHub": of_keras_hub,
}


def only_ties(name, golden, steps):
    """Whether a result differs by one level, in a few numbers."""
    theirs = golden.images[name].steps["normalised"]
    levels = np.abs(theirs - steps(golden.folder / name).numpy()) * steps.std[0] * 255
    return levels.max() < 1.01 and (levels > 0.5).mean() < 0.01


@pytest.mark.coverage
@pytest.mark.parametrize("project", PROJECTS)
def test_every_step_is_that_of_the_projects_own_code(project, tmp_path):
    steps, prepare = PROJECTS[project]()
    golden = record_pixels(
        steps, tmp_path / "out", preprocess=lambda image: prepare(image)["normalised"]
    )
    ties = set()
    if project == "KerasHub":  # whose sums round a half up or down, as the processor adds
        ties = {name for name in golden.others if only_ties(name, golden, steps)}
    assert not golden.others.keys() - ties
    for name, image in golden.images.items():
        with Image.open(tmp_path / "out" / name) as file:
            for step, theirs in prepare(file).items():
                ours = torch.from_numpy(image.steps[step])
                assert torch.equal(ours, torch.as_tensor(theirs)), (name, step)
