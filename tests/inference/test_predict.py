from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitconvert.api import predict as predict_lazily
from vitconvert.config import ViTConfig
from vitconvert.errors import CorruptFile, SourceError, UsageError, VitConvertError
from vitconvert.inference.predict import Prediction
from vitconvert.model import ViT
from vitconvert.preprocessing import Preprocessing

PREPROCESSING = Preprocessing.from_timm({"input_size": (3, 24, 32), "interpolation": "bilinear"})
NAMES = [f"thing {i}" for i in range(7)]


def vit(**changes: Any) -> ViT:
    torch.manual_seed(0)
    model = ViT(
        ViTConfig(
            image_size=(24, 32),
            patch_size=(8, 8),
            in_channels=3,
            embed_dim=16,
            depth=2,
            num_heads=2,
            head_dim=8,
            mlp_dim=24,
            activation="gelu",
            norm_eps=1e-6,
            **{"pooling": "token", "num_classes": 7, **changes},
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def predict(*arguments: Any, **options: Any) -> list[Prediction]:
    return list(predict_lazily(*arguments, **options))


@pytest.fixture(scope="module")
def model() -> ViT:
    return vit()


def test_probabilities_are_the_softmax_of_the_models_logits(
    model: ViT, photographs: list[Image.Image]
) -> None:
    predictions = predict(model, photographs, PREPROCESSING, topk=3, labels=NAMES)
    for image, prediction in zip(photographs, predictions, strict=True):
        with torch.inference_mode():
            logits = model(PREPROCESSING(image)[None])[0]
        expected = sorted(range(7), key=lambda i: -float(logits[i]))[:3]
        assert [c.index for c in prediction.top] == expected
        assert [c.label for c in prediction.top] == [NAMES[i] for i in expected]
        for candidate in prediction.top:
            assert candidate.logit == pytest.approx(float(logits[candidate.index]), abs=1e-5)
            probability = float(logits.double().softmax(0)[candidate.index])
            assert candidate.probability == pytest.approx(probability, rel=1e-5)
        assert prediction.error is None


@pytest.mark.parametrize("batch_size", [1, 2, 3, 99])
def test_batches_do_not_mix_images(
    model: ViT, photographs: list[Image.Image], batch_size: int
) -> None:
    alone = [predict(model, [image], PREPROCESSING)[0].top[0] for image in photographs]
    together = predict(model, photographs, PREPROCESSING, batch_size=batch_size)
    for one, prediction in zip(alone, together, strict=True):
        assert prediction.top[0].index == one.index
        assert prediction.top[0].logit == pytest.approx(one.logit, abs=1e-5)


def test_a_bad_image_does_not_stop_the_rest(
    tmp_path: Path, model: ViT, photograph: Callable[..., Image.Image]
) -> None:
    good, broken, missing = (tmp_path / f"{n}.png" for n in ("good", "broken", "missing"))
    photograph(61, 45).save(good)
    broken.write_bytes(good.read_bytes()[:1000])
    predictions = predict(model, [missing, good, broken, good], PREPROCESSING, batch_size=3)
    assert [p.path for p in predictions] == [missing, good, broken, good]
    assert [type(p.error) for p in predictions] == [
        SourceError,
        type(None),
        CorruptFile,
        type(None),
    ]
    assert predictions[1].top == predict(model, [good], PREPROCESSING)[0].top
    assert predictions[0].top == predictions[2].top == ()
    assert predictions[1].top[0].index == predictions[3].top[0].index


def test_an_image_that_does_not_fit_is_named(
    tmp_path: Path, model: ViT, photograph: Callable[..., Image.Image]
) -> None:
    border = Preprocessing.from_timm({"input_size": (3, 24, 32), "crop_mode": "border"})
    thin = tmp_path / "thin.png"
    photograph(300, 1).save(thin)
    (prediction,) = predict(model, [thin], border)
    assert str(prediction.error) == (
        "error: input-mismatch\n"
        "  A 1x300 image is too narrow to be resized into 27x36.\n"
        "  resized  0x36\n"
        f"  image    {thin}"
    )


def test_only_bad_images_never_reach_the_model(tmp_path: Path, model: ViT) -> None:
    (prediction,) = predict(model, [tmp_path / "none.png"], PREPROCESSING)
    assert prediction.top == ()


def test_no_images_give_no_predictions(model: ViT) -> None:
    assert predict(model, [], PREPROCESSING) == []


def test_topk_stops_at_the_number_of_classes(model: ViT, photographs: list[Image.Image]) -> None:
    (prediction,) = predict(model, photographs[:1], PREPROCESSING, topk=100)
    assert sorted(c.index for c in prediction.top) == list(range(7))
    assert sum(c.probability for c in prediction.top) == pytest.approx(1)
    assert prediction.top[0].label is None


def test_a_narrow_model_is_asked_in_its_own_dtype(photographs: list[Image.Image]) -> None:
    wide = predict(vit(), photographs[:1], PREPROCESSING)[0].top[0]
    narrow = predict(vit().to(torch.bfloat16), photographs[:1], PREPROCESSING)[0].top[0]
    assert narrow.index == wide.index
    assert narrow.logit == pytest.approx(wide.logit, rel=0.1)
    assert narrow.logit == float(torch.tensor(narrow.logit).bfloat16())


def test_logits_that_are_not_finite_are_an_error(photographs: list[Image.Image]) -> None:
    broken = vit()
    with torch.no_grad():
        broken.head.bias[3] = float("nan")
    (prediction,) = predict(broken, photographs[:1], PREPROCESSING)
    assert str(prediction.error) == "error: error\n  The logits are not finite."


def test_predictions_as_json(model: ViT, photographs: list[Image.Image]) -> None:
    (prediction,) = predict(model, photographs[:1], PREPROCESSING, topk=1, labels=NAMES)
    assert prediction.to_dict() == {
        "path": None,
        "top": [dict(vars(best)) for best in prediction.top],
        "score_function": "softmax",
        "error": None,
        "remarks": [],
    }
    failed = Prediction(path=Path("cat.png"), error=VitConvertError("No."))
    assert failed.to_dict() == {
        "path": "cat.png",
        "top": [],
        "score_function": "softmax",
        "error": VitConvertError("No.").to_dict(),
        "remarks": [],
    }


@pytest.mark.parametrize("option", ["topk", "batch_size"])
def test_numbers_below_one_are_refused(model: ViT, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        predict(model, [], PREPROCESSING, **{option: 0})
    assert caught.value.fact.startswith(f"{option} = 0 must be a whole number of at least 1")


STILL = "\n  hint: its features can still be embedded."


@pytest.mark.parametrize(
    ("changes", "options", "told"),
    [
        (
            {},
            {"labels": ["cat"]},
            "conflicting-fact\n  The number of labels is 1, and the number of classes 7.",
        ),
        (
            {"num_classes": 0},
            {},
            f"conflicting-fact\n  The model has no classification head.{STILL}",
        ),
        (
            {"pooling": "none"},
            {},
            "conflicting-fact\n  The model classifies each token, not the image.\n"
            "  pooling  none (user)\n  hint: its tokens can still be embedded.",
        ),
        (
            {"head_bias": False},
            {},
            "conflicting-fact\n"
            f"  The model's head is a projection, like CLIP's, and not a classifier.{STILL}",
        ),
        (
            {},
            {"preprocessing": Preprocessing.from_timm({})},
            "input-mismatch\n"
            "  The preprocessing does not make the images that the model reads.\n"
            "  makes  3x224x224\n  reads  3x24x32\n  from   timm's pretrained_cfg",
        ),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(
    changes: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(VitConvertError) as caught:
        predict(vit(**changes), [], **{"preprocessing": PREPROCESSING, **options})
    assert str(caught.value) == f"error: {told}"


def test_a_projection_whose_outputs_have_names_is_a_classifier() -> None:
    assert predict(vit(head_bias=False), [], PREPROCESSING, labels=NAMES) == []
