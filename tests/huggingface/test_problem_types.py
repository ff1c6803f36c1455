"""What logits mean: `transformers.pipeline` of an output gives what it gives of the source.

`problem_type` of config.json and the number of labels decide: a softmax, sigmoids, or the numbers.
"""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitconvert
from tests.small_models import randomise
from vitconvert.cli import main
from vitconvert.errors import ConflictingFact

KINDS = {
    "none": {"num_labels": 7},
    "single": {"num_labels": 7, "problem_type": "single_label_classification"},
    "multi": {"num_labels": 7, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "regressions": {"num_labels": 5, "problem_type": "regression"},
    "one": {"num_labels": 1},
    "one of many": {"num_labels": 1, "problem_type": "multi_label_classification"},
}
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-6,
}
LIKE = {"hidden_size": 30, "image_size": 32, "patch_size": 8, **SIZES}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A photograph of noise, of the model's size."""
    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8)
    path = tmp_path / "image.png"
    Image.fromarray(pixels.numpy()).save(path)
    return path


def saved(folder: Path, kind: str, family: str = "ViT") -> Path:
    """A classifier of transformers with its processor."""
    import transformers

    torch.manual_seed(0)
    arguments = {"vision_config": LIKE} if family in ("CLIP", "Siglip") else LIKE
    config = getattr(transformers, f"{family}Config")(**arguments, **KINDS[kind])
    randomise(model := getattr(transformers, f"{family}ForImageClassification")(config))
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def judged(folder: Path, image: Path) -> list[tuple[str, float]]:
    """Labels and scores as transformers' users get them."""
    from transformers import pipeline

    found = pipeline("image-classification", str(folder))(str(image))
    return [(one["label"], one["score"]) for one in found]


def is_same(found: list[tuple[str, float]], wanted: list[tuple[str, float]]) -> bool:
    """Whether labels and scores are the same, within rounding."""
    scores = [pytest.approx(score, rel=1e-4, abs=1e-6) for _, score in wanted]
    return [name for name, _ in found] == [name for name, _ in wanted] and [
        score for _, score in found
    ] == scores


def predicted(folder: Path, image: Path) -> list[tuple[str, float]]:
    """The same by vitconvert."""
    (prediction,) = vitconvert.predict(str(folder), str(image))
    return [(one.label or f"LABEL_{one.index}", one.score) for one in prediction.top]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("ViT", kind) for kind in KINDS),
        *((family, "multi") for family in ("Beit", "Dinov2", "CLIP", "Siglip")),
    ],
)
def test_outputs_and_predict_give_what_the_pipeline_gives(
    tmp_path: Path, image: Path, family: str, kind: str
) -> None:
    source = saved(tmp_path / "source", kind, family)
    wanted = judged(source, image)
    assert is_same(predicted(source, image), wanted)
    vitconvert.convert(str(source), to="hf", output=tmp_path / "out", verify=False)
    assert is_same(judged(tmp_path / "out", image), wanted)
    stated = json.loads((tmp_path / "out" / "config.json").read_text()).get("problem_type")
    assert stated == KINDS[kind].get("problem_type")


@pytest.mark.parametrize("way", [["vit"], ["timm"], ["torchvision"], ["vit", "timm", "vit"]])
@pytest.mark.parametrize("kind", ["multi", "regressions"])
def test_every_way_there_and_back_keeps_it(
    tmp_path: Path, image: Path, way: list[str], kind: str
) -> None:
    source = saved(tmp_path / "source", kind)
    wanted, at = judged(source, image), source
    for step, to in enumerate([*way, "hf"]):
        done = vitconvert.convert(str(at), to=to, output=tmp_path / str(step), verify=False)
        at = tmp_path / str(step)
        assert is_same(predicted(at, image), wanted)
        if to == "timm":  # by transformers' wrapper
            assert [score for _, score in judged(at, image)] == pytest.approx(
                [score for _, score in wanted], rel=1e-4
            )
        if to == "torchvision":
            assert any("has no word for it" in note for note in done.ledger.notes)
            assert KINDS[kind]["problem_type"] in (at / "README.md").read_text()
    assert is_same(judged(at, image), wanted)


def test_changed_classes_and_dtype_keep_it(tmp_path: Path, image: Path) -> None:
    source = saved(tmp_path / "source", "multi")
    wanted = judged(source, image)
    vitconvert.convert(
        str(source), to="hf", output=tmp_path / "all", dtype=torch.bfloat16, classes=[5, 2]
    )
    found = judged(tmp_path / "all", image)
    known = dict(wanted)
    assert sorted(name for name, _ in found) == ["LABEL_0", "LABEL_1"]
    vitconvert.convert(
        str(source), to="hf", output=tmp_path / "one", classes=[int(wanted[0][0][6:])]
    )
    assert judged(tmp_path / "one", image)[0][1] == pytest.approx(max(known.values()), rel=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # PEFT 0.21, transformers 5.24
def test_a_merged_adapter_keeps_it(tmp_path: Path, image: Path) -> None:
    import transformers
    from peft import LoraConfig, get_peft_model

    source = saved(tmp_path / "source", "multi")
    model = transformers.AutoModelForImageClassification.from_pretrained(source)
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(model, lora)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "theirs")
    for folder in ("source", "theirs"):
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(
            tmp_path / folder
        )
    how = {"adapter": str(tmp_path / "adapter"), "verify": False}
    vitconvert.convert(str(source), to="hf", output=tmp_path / "out", **how)
    assert is_same(judged(tmp_path / "out", image), judged(tmp_path / "theirs", image))


def test_inspect_says_where_it_comes_from(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", "multi")
    fact = vitconvert.inspect(str(source)).told["problem_type"]
    assert fact == ("multi_label_classification", "config.json")


@pytest.mark.parametrize("kind", ["single", "multi", "regression"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_exports_have_the_right_function(
    tmp_path: Path, image: Path, kind: str, probabilities: bool
) -> None:
    source, file = saved(tmp_path / "source", kind), tmp_path / "model.onnx"
    how = {"to": "onnx", "probabilities": probabilities}
    if kind == "regression" and probabilities:
        with pytest.raises(ConflictingFact, match="not probabilities"):
            vitconvert.export_model(str(source), file, **how)
        return
    vitconvert.export_model(str(source), file, **how)
    wanted = judged(source, image)
    assert is_same(predicted(file, image), wanted)
    if probabilities:
        import onnxruntime

        (pixels,) = vitconvert.load_checkpoint(str(source)).preprocessing(Image.open(image))[None]
        session = onnxruntime.InferenceSession(file)
        (scores,) = session.run(None, {"images": pixels[None].numpy()})
        assert sorted(scores[0])[::-1][: len(wanted)] == pytest.approx(
            [score for _, score in wanted], rel=1e-4
        )


def test_what_predict_prints(
    tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = saved(tmp_path / "source", "regression")
    ((_, value),) = judged(source, image)

    def printed(*more: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["predict", str(source), str(image), *more])
        return capsys.readouterr().out

    assert f"  {value:.4g}  0" in printed()
    assert printed("-q") == f"{image}\t{value:.4g}\n"
    said = json.loads(printed("--json"))
    assert said["score_function"] == "none"
    assert said["top"] == [
        {"index": 0, "label": None, "probability": None, "logit": pytest.approx(value, rel=1e-5)}
    ]


def test_a_user_states_it(tmp_path: Path, image: Path) -> None:
    source = saved(tmp_path / "source", "none")
    stated = {"problem_type": "multi_label_classification"}
    vitconvert.convert(
        str(source), to="hf", output=tmp_path / "out", overrides=stated, verify=False
    )
    wanted = saved(tmp_path / "wanted", "multi")
    assert is_same(judged(tmp_path / "out", image), judged(wanted, image))
