"""Processors that keep the shape of images, for one size: Qwen2-VL's, GLM-4V's, Pixtral's."""

import json
from typing import Any

import pytest
import torch

import vitconvert
from tests.huggingface.every_class import saved
from tests.packages import transformers
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.preprocessing import Preprocessing


def qwen(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "Qwen2VLImageProcessor", **stated}


def glm(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "Glm4vImageProcessor", **stated}


def pixtral(**stated: Any) -> dict[str, Any]:
    return {"image_processor_type": "PixtralImageProcessor", **stated}


def other(name: str, **stated: Any) -> dict[str, Any]:
    return {"image_processor_type": f"{name}ImageProcessor", **stated}


SMALL = {"patch_size": 8, "min_pixels": 256, "max_pixels": 4096}
LIMITS = {"size": {"shortest_edge": 2560, "longest_edge": 8192}}
LEVELS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 100}
KEPT = {  # a size that the processor keeps
    "qwen": (qwen(), (84, 56)),
    "qwen, fast": (qwen(image_processor_type="Qwen2VLImageProcessorFast"), (56, 84)),
    "qwen, all stated": (qwen(**SMALL, **LEVELS, merge_size=1, resample=2), (40, 56)),
    "qwen, the least and most pixels": (qwen(**SMALL | {"min_pixels": 4096}), (64, 64)),
    "qwen, no resizing": (qwen(do_resize=False, patch_size=8), (16, 48)),
    "glm": (glm(), (112, 84)),
    "glm, limits": (glm(**LIMITS, patch_size=8, merge_size=2), (64, 64)),
    "glm 4.6": (glm(image_processor_type="Glm46VImageProcessor"), (84, 112)),
    "compass": (other("CohereCompass"), (84, 56)),
    "cosmos": (other("Cosmos3Edge"), (256, 320)),
    "cosmos, limits": (other("Cosmos3Edge", **LIMITS, patch_size=8), (48, 64)),
    "hunyuan": (other("HunYuanVL"), (512, 544)),
    "hunyuan, stated": (other("HunYuanVL", **SMALL, **LEVELS, resample=1), (48, 64)),
    "paddle": (other("PaddleOCRVL"), (392, 420)),
    "paddle, limits": (other("PaddleOCRVL", **SMALL, **LEVELS), (48, 64)),
    "ernie": (other("Ernie4_5_VLMoe"), (56, 84)),
    "video llama": (other("VideoLlama3"), (70, 56)),
    "pixtral": (pixtral(), (48, 64)),
    "pixtral, fast": (pixtral(image_processor_type="PixtralImageProcessorFast"), (16, 16)),
    "pixtral, stated": (
        pixtral(**LEVELS, size={"height": 40, "width": 72}, patch_size={"height": 8, "width": 24}),
        (40, 72),
    ),
}


def auto(folder: Any, config: dict[str, Any], backend: str = "torchvision") -> Any:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)


def theirs(processor: Any, image: Any) -> torch.Tensor:
    """(C, H, W), of patches too: in squares, of equal frames."""
    made = processor(image, return_tensors="pt")
    if "image_grid_thw" not in made:
        (image,) = made["pixel_values"]
        return image
    (_, rows, columns), patch = made["image_grid_thw"][0].tolist(), processor.patch_size
    side = processor.merge_size
    if type(processor).__name__.startswith("Cosmos3Edge"):  # with the channels last, of one frame
        squares = (rows // side, columns // side, side, side, patch, patch, 3)
        image = made["pixel_values"].reshape(squares).permute(6, 0, 2, 4, 1, 3, 5)
        return image.reshape(3, rows * patch, columns * patch)
    if type(processor).__name__.startswith(("HunYuanVL", "PaddleOCRVL")):  # row by row
        side = 1
    split = (rows // side, columns // side, side, side, 3, processor.temporal_patch_size)
    first, *others = made["pixel_values"].reshape(*split, patch, patch).unbind(5)
    assert all(torch.equal(other, first) for other in others)
    return first.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * patch, columns * patch)


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("name", KEPT)
def test_pixels_are_those_of_the_processor_for_an_image_of_the_size(
    name, backend, tmp_path, photograph
):
    config, size = KEPT[name]
    processor = auto(tmp_path, config, backend)
    ours = Preprocessing.from_huggingface(config, backend=backend, image_size=size)
    image = photograph(size[1], size[0])
    assert ours(image).shape == (3, *size)
    assert torch.equal(ours(image), theirs(processor, image))


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (qwen(**SMALL), (82, 101)),
        (glm(**LIMITS, patch_size=8), (90, 110)),
        (pixtral(), (47, 63)),
        (other("HunYuanVL", **SMALL, resample=1), (82, 101)),  # which it does not read
    ],
)
def test_an_image_that_the_processor_makes_of_the_size_is_resized_alike(
    config, shape, tmp_path, photograph
):
    image = photograph(shape[1], shape[0])
    wanted = theirs(auto(tmp_path, config), image)
    size = (wanted.shape[1], wanted.shape[2])
    assert size != shape
    assert torch.equal(Preprocessing.from_huggingface(config, image_size=size)(image), wanted)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (qwen(), (84, 70)),  # no whole squares
        (qwen(), (28, 28)),  # too few pixels
        (qwen(**SMALL), (64, 80)),  # too many
        (glm(**LIMITS, patch_size=8), (64, 80)),  # as two frames
        (glm(**SMALL), (48, 48)),  # GLM's has no older names
        (other("VideoLlama3"), (84, 63)),
        (other("Cosmos3Edge"), (224, 256)),  # too few pixels, as one frame
        (other("PaddleOCRVL"), (392, 434)),
        (other("HunYuanVL"), (480, 512)),
        (pixtral(), (48, 56)),
        (pixtral(size={"longest_edge": 48}), (48, 64)),
    ],
)
def test_a_size_that_the_processor_does_not_keep_is_refused(config, size, tmp_path, photograph):
    with pytest.raises(NotRepresentable, match=r"would give an image of \d+x\d+ another size"):
        Preprocessing.from_huggingface(config, image_size=size)
    made = theirs(auto(tmp_path, config), photograph(size[1], size[0]))
    assert made.shape[1:] != size


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
def test_gemmas_pixels_are_those_of_its_processor(backend, tmp_path, photograph):
    """It makes images as large as its tokens allow, and normalises where it is told to alone."""
    config = other("Gemma4", patch_size=8, max_soft_tokens=70)
    processor = auto(tmp_path, config, backend)
    for image in (photograph(101, 64), photograph(40, 333), photograph(7, 9)):
        made = processor(image, return_tensors="pt")
        places = made["image_position_ids"][0]
        columns, rows = (places.max(dim=0).values + 1).tolist()
        patches = made["pixel_values"][0, : rows * columns].reshape(rows, columns, 8, 8, 3)
        wanted = patches.permute(4, 0, 2, 1, 3).reshape(3, rows * 8, columns * 8)
        ours = Preprocessing.from_huggingface(
            config, backend=backend, image_size=(rows * 8, columns * 8)
        )
        assert torch.equal(ours(image), wanted)
    with pytest.raises(NotRepresentable, match="would give an image of 240x192 another size"):
        Preprocessing.from_huggingface(config, image_size=(240, 192))  # 80 tokens


def test_how_a_size_is_refused():
    with pytest.raises(NotRepresentable) as error:
        Preprocessing.from_huggingface(qwen(min_pixels=3000), image_size=(56, 50))
    assert str(error.value) == (
        "error: not-representable\n"
        "  Qwen2VLImageProcessor would give an image of 56x50 another size.\n"
        "  multiples of            28x28\n"
        "  size                    {'shortest_edge': 3136, 'longest_edge': 1003520}\n"
        "  min_pixels, max_pixels  3000, None\n"
        "  hint: state an image_size that it keeps."
    )


@pytest.mark.parametrize(
    ("config", "error", "fact"),
    [
        (qwen(), MissingFact, "The size of the processed images depends on the image itself."),
        (qwen(size=224), ConflictingFact, "size = 224 should be an object with limits."),
        (qwen(size={}), None, ""),  # as if it were silent
        (
            qwen(size={"shortest_edge": 2}),
            ConflictingFact,
            "longest_edge = None should be a number.",
        ),
        (
            pixtral(do_center_crop=True),
            NotRepresentable,
            "do_center_crop of PixtralImageProcessor is not supported.",
        ),
    ],
)
def test_what_is_malformed_is_said(config, error, fact):
    size = None if error is MissingFact else (56, 56)
    if error is None:
        assert Preprocessing.from_huggingface(config, image_size=size).image_size == size
        return
    with pytest.raises(error) as caught:
        Preprocessing.from_huggingface(config, image_size=size)
    assert caught.value.fact == fact


MODELS = {
    "Qwen3VLVisionModel": qwen(**SMALL, merge_size=2, processor_class="X"),
    "Glm4vVisionModel": glm(**LIMITS, patch_size=8),
    "PixtralVisionModel": pixtral(patch_size=8),
}


@pytest.mark.coverage
@pytest.mark.parametrize("name", MODELS)
def test_the_file_goes_on_to_the_same_class_and_no_other(name, tmp_path, photograph):
    folder, size = saved(name, tmp_path / "source"), (32, 48)
    auto(folder, MODELS[name])
    stated = {"overrides": {"image_size": size}}
    vitconvert.convert(folder, to="hf", output=tmp_path / "hf", verify=False, **stated)
    written = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert written == MODELS[name]
    vitconvert.convert(folder, to="vit", output=tmp_path / "vit", verify=False, **stated)
    image = photograph(61, 45)
    ours = Preprocessing.from_huggingface(written, image_size=size)(image)
    for output in ("hf", "vit"):
        assert torch.equal(vitconvert.load_checkpoint(tmp_path / output).preprocessing(image), ours)
    [features] = vitconvert.embed(tmp_path / "hf", [image])
    assert features.error is None
