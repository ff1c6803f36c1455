"""Asking a checkpoint: what `vitconvert.predict` and `vitconvert.embed` add to a model."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitconvert
from tests.conversion.test_opening import openclip_directory
from tests.packages import timm
from tests.sampling import sampled
from vitconvert.checkpoint import build_model
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import ConflictingFact, MissingFact, UsageError, VitConvertError
from vitconvert.preprocessing import Preprocessing

SAMPLES = DIGITS / "samples"
PREPROCESSING = Preprocessing.from_timm({"input_size": (3, 24, 40), "interpolation": "bilinear"})


@pytest.fixture(scope="module", params=["token", "avg", "map"])
def theirs(request: pytest.FixtureRequest) -> "timm.models.VisionTransformer":
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=(24, 40),
        patch_size=8,
        num_classes=5,
        global_pool=request.param,
        class_token=request.param != "map",
        embed_dim=36,
        depth=11,
        num_heads=3,
        mlp_ratio=1.5,
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture
def checkpoint(theirs: "timm.models.VisionTransformer", tmp_path: Path) -> vitconvert.Checkpoint:
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    facts = {"num_heads": 3, "pooling": theirs.global_pool, "image_size": (24, 40)}
    return vitconvert.load_checkpoint(tmp_path / "model.pth", overrides=facts)


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{n}.png" for n in range(5)]
    for path in paths:
        pixels = random.integers(0, 256, (51 + len(path.name), 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return paths


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=0, atol=2e-5 * float(theirs.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("fast", [False, True])
def test_timm_finds_the_same(
    theirs: "timm.models.VisionTransformer",
    checkpoint: vitconvert.Checkpoint,
    photographs: list[Path],
    fast: bool,
) -> None:
    batch = torch.stack([PREPROCESSING(path) for path in photographs])
    tokens = theirs.forward_features(batch)
    options: dict[str, Any] = {"preprocessing": PREPROCESSING, "batch_size": 2, "fast": fast}

    logits = theirs(batch)
    predictions = list(vitconvert.predict(checkpoint, photographs, **options))
    for row, prediction in zip(logits, predictions, strict=True):
        found = {c.index: c.logit for c in prediction.top}
        assert close(torch.tensor([found[i] for i in range(5)]), row)

    pooled = list(vitconvert.embed(checkpoint, photographs, **options))
    assert [e.path for e in pooled] == photographs
    found_features = torch.stack([e.features for e in pooled if e.features is not None])
    assert close(found_features, theirs.forward_head(tokens, pre_logits=True))

    every = list(vitconvert.embed(checkpoint, photographs, tokens=True, **options))
    assert close(torch.stack([e.features for e in every if e.features is not None]), tokens)


@torch.inference_mode()
@pytest.mark.parametrize("fast", sampled([False, True], 2, "slow"))
@pytest.mark.parametrize(("layer", "number"), [(None, None), (1, 0), (-2, -2), (-1, -1)])
def test_layers_and_pools_are_those_of_timm(
    theirs: "timm.models.VisionTransformer",
    checkpoint: vitconvert.Checkpoint,
    photographs: list[Path],
    fast: bool,
    layer: int | None,
    number: int | None,
) -> None:
    batch = torch.stack([PREPROCESSING(path) for path in photographs])
    if number is None:
        tokens = theirs.forward_features(batch)
    else:
        chosen = [number % len(theirs.blocks)]
        [found] = theirs.get_intermediate_layers(batch, n=chosen, return_prefix_tokens=True)
        tokens = torch.cat(found[::-1], dim=1) if theirs.has_class_token else found
    start = theirs.num_prefix_tokens
    wanted = {
        "mean": tokens[:, start:].mean(dim=1),
        "patches": tokens[:, start:],
        "tokens": tokens,
    }
    if theirs.has_class_token:
        wanted["cls"] = tokens[:, 0]
        wanted["cls_mean"] = torch.cat([wanted["cls"], wanted["mean"]], dim=-1)
    for pool, rows in wanted.items():
        found = vitconvert.embed(
            checkpoint, photographs, PREPROCESSING, layer=layer, pool=pool, fast=fast
        )
        features = [e.features for e in found if e.features is not None]
        assert close(torch.stack(features), rows), pool


def test_error_there_is_no_class_token(tmp_path: Path) -> None:
    model = timm.models.VisionTransformer(
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=1,
        num_heads=3,
        class_token=False,
        global_pool="avg",
    )
    torch.save(model.state_dict(), tmp_path / "model.pth")
    ours = vitconvert.load_model(tmp_path / "model.pth", overrides={"num_heads": 3})
    with pytest.raises(ConflictingFact, match="no class token") as caught:
        vitconvert.embed(ours, [], PREPROCESSING, pool="cls")
    assert caught.value.evidence == {"it pools by": "avg"}


@torch.inference_mode()
def test_a_model_with_its_head_is_embedded_too(
    theirs: "timm.models.VisionTransformer",
    checkpoint: vitconvert.Checkpoint,
    photographs: list[Path],
) -> None:
    model = vitconvert.load_model(
        checkpoint.located.weights,
        overrides={"num_heads": 3, "pooling": theirs.global_pool} | {"image_size": (24, 40)},
    )
    (embedding,) = vitconvert.embed(model, photographs[0], PREPROCESSING)
    tokens = theirs.forward_features(PREPROCESSING(photographs[0])[None])
    assert embedding.features is not None
    assert close(embedding.features, theirs.forward_head(tokens, pre_logits=True)[0])
    assert model.config.num_classes == 5


def clip_of_transformers(folder: Path) -> Callable[[Image.Image], torch.Tensor]:
    """A CLIP in `folder`, and what transformers makes of a photograph."""
    import transformers

    config = transformers.CLIPVisionConfig(
        hidden_size=36, num_hidden_layers=11, num_attention_heads=3, intermediate_size=50,
        image_size=32, patch_size=8, projection_dim=10,
    )  # fmt: skip
    model = transformers.CLIPVisionModelWithProjection(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    size = {"size": {"shortest_edge": 32}, "crop_size": 32}
    processor = transformers.CLIPImageProcessor(**size)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return lambda image: model(**processor(image, return_tensors="pt")).image_embeds[0]


def clip_of_openclip(folder: Path) -> Callable[[Image.Image], torch.Tensor]:
    import open_clip

    openclip_directory(folder)
    told = json.loads((folder / "open_clip_config.json").read_text())
    model = open_clip.model.CLIP(**told["model_cfg"]).eval()
    model.load_state_dict(load_file(folder / "open_clip_model.safetensors"))
    transform = open_clip.image_transform(model.visual.image_size, is_train=False)
    return lambda image: model.encode_image(transform(image)[None])[0]


def clip_of_timm(folder: Path) -> Callable[[Image.Image], torch.Tensor]:
    """With the head that timm makes of a projection: its bias is zero."""
    name, small = "vit_base_patch16_clip_224", {"depth": 2, "embed_dim": 36, "num_heads": 3}
    arguments = {**small, "num_classes": 10, "img_size": 32}
    overlay = {"input_size": (3, 32, 32)}
    model = timm.create_model(name, **arguments, pretrained_cfg_overlay=overlay).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    torch.nn.init.zeros_(model.head.bias)
    timm.models.save_for_hf(model, str(folder), model_args=arguments, safe_serialization=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return lambda image: model(transform(image)[None])[0]


@torch.inference_mode()
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("make", [clip_of_transformers, clip_of_openclip, clip_of_timm])
def test_a_projection_gives_what_its_project_compares_with_texts(
    make: Callable[[Path], Callable[[Image.Image], torch.Tensor]],
    fast: bool,
    photographs: list[Path],
    tmp_path: Path,
) -> None:
    torch.manual_seed(3)
    theirs = make(tmp_path / "clip")
    found = vitconvert.embed(tmp_path / "clip", photographs, projected=True, fast=fast)
    for path, embedding in zip(photographs, found, strict=True):
        assert embedding.features is not None
        assert close(embedding.features, theirs(Image.open(path)))


def test_what_cannot_be_projected(checkpoint: vitconvert.Checkpoint) -> None:
    instead = "\n  hint: leave out --projected (in Python, projected=True)."
    headless = build_model(checkpoint, num_classes=0)
    for model, tokens, told in (
        (
            checkpoint,
            True,
            "usage\n  Only pooled features can be projected, not tokens.\n"
            "  hint: ask for tokens or for projected features, not for both.",
        ),
        (
            checkpoint,
            False,
            "conflicting-fact\n"
            "  The model's head has a bias, so it is a classifier and not a projection.\n"
            f"  classes  5{instead}",
        ),
        (headless, False, f"conflicting-fact\n  The model has no projection.{instead}"),
    ):
        with pytest.raises(VitConvertError) as caught:
            vitconvert.embed(model, [], PREPROCESSING, tokens=tokens, projected=True)
        assert str(caught.value) == f"error: {told}"


def test_a_path_and_a_folder_are_enough() -> None:
    predictions = list(vitconvert.predict(DIGITS, SAMPLES))
    assert [p.top[0].label for p in predictions] == [str(digit) for digit in range(10)]
    renamed = vitconvert.predict(str(DIGITS), str(SAMPLES / "[34].png"), labels=list("abcdefghij"))
    assert [p.top[0].label for p in renamed] == ["d", "e"]


def test_predictions_come_before_all_images_are_looked_at() -> None:
    taken = 0

    def images() -> Iterator[Path]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield SAMPLES / "3.png"

    predictions = vitconvert.predict(DIGITS, images(), batch_size=2)
    assert taken == 0
    assert next(predictions).top[0].label == "3"
    assert taken < 200
    predictions.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ask", [vitconvert.predict, vitconvert.embed])
def test_who_does_not_say_how_images_are_prepared_is_refused(ask: Callable[..., Any]) -> None:
    checkpoint = replace(vitconvert.load_checkpoint(DIGITS), preprocessing=None)
    for model, told in (
        (
            vitconvert.load_model(DIGITS),
            "  A model does not say how its images are prepared.\n"
            "  hint: preprocessing=load_checkpoint(...).preprocessing, or the checkpoint itself "
            "instead of the model.",
        ),
        (
            checkpoint,
            "  No file states this checkpoint's preprocessing.\n"
            f"  dialect  {checkpoint.dialect}\n"
            "  hint: put its preprocessor_config.json, or timm's config.json, beside the weights, "
            "or state it: --preprocessor FILE, or --mean and --std (in Python, preprocessing, "
            "or load_checkpoint(..., preprocessor=FILE)); --architecture NAME takes that of its "
            "library.",
        ),
    ):
        with pytest.raises(MissingFact) as caught:
            ask(model, SAMPLES)
        assert str(caught.value) == f"error: missing-fact\n{told}"


def test_a_model_that_reads_no_photographs_is_refused_for_that(tmp_path: Path) -> None:
    sizes = {"img_size": 16, "patch_size": 8, "in_chans": 4, "embed_dim": 6, "num_heads": 3}
    model = timm.models.VisionTransformer(**sizes, depth=2)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    facts = {"num_heads": 3, "pooling": "token", "image_size": (16, 16)}
    checkpoint = vitconvert.load_checkpoint(tmp_path / "model.pth", overrides=facts)
    uses = (
        lambda: vitconvert.predict(checkpoint, SAMPLES, labels=[str(n) for n in range(1000)]),
        lambda: vitconvert.embed(checkpoint, SAMPLES),
        lambda: vitconvert.attention_maps(checkpoint, SAMPLES),
        lambda: vitconvert.export_model(checkpoint, tmp_path / "x.pt2", to="pt2", images=SAMPLES),
    )
    for use in uses:
        with pytest.raises(ConflictingFact) as caught:
            use()
        assert caught.value.fact == "Image files have 1 or 3 channels, and this model reads 4."


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UsageError) as caught:
        vitconvert.predict(DIGITS, SAMPLES, device="toaster")
    assert caught.value.fact == "torch finds no device 'toaster' on this machine."
    assert caught.value.evidence["devices here"].startswith("cpu")
    assert caught.value.hint == "choose one of these."
