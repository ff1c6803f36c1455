"""KerasHub's files: what its models compute, and what it makes of what is written."""

import dataclasses
import functools
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packages import keras, keras_hub, transformers
from tests.sampling import sampled
from tests.small_models import relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert import convert, load_checkpoint, load_model, plan_conversion
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import choose_without_steps
from vitconvert.errors import MissingFact, NotRepresentable, SourceError
from vitconvert.programs.program import DescribedModel

# Keras warns of NumPy 2, and of inputs that it takes by name.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("keras_in_numpy"),
]
ROUNDING = 2e-5
SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12}
RECTANGLE, SQUARE = (16, 24, 3), (16, 16, 3)


def randomised(model: Any) -> Any:
    """All parameters random; numbers of positions and seeds stay."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(rng.normal(0, 0.3, weight.shape) + ("gamma" in weight.path))
    for layer in model._flatten_layers():
        counted = hasattr(getattr(layer, "position_ids", None), "assign")
        if counted and "CLIP" in type(layer).__name__:
            layer.position_ids.assign(np.arange(layer.num_positions)[None])
    return model


def vit(classes: int = 5, head: dict[str, Any] | None = None, **changes: Any) -> Any:
    sizes = {**SIZES, "image_shape": RECTANGLE, "patch_size": (8, 12), "mlp_dim": 20, **changes}
    backbone = keras_hub.models.ViTBackbone(**sizes)
    if classes:
        backbone = keras_hub.models.ViTImageClassifier(backbone, classes, **(head or {}))
    return randomised(backbone)


def deit(classes: int = 5, **changes: Any) -> Any:
    sizes = {**SIZES, "image_shape": RECTANGLE, "patch_size": (8, 12), "intermediate_dim": 20}
    backbone = keras_hub.models.DeiTBackbone(**sizes, **changes)
    model = keras_hub.models.DeiTImageClassifier(backbone, classes) if classes else backbone
    return randomised(model)


def dinov2(**changes: Any) -> Any:
    sizes = {**SIZES, "patch_size": 8, "intermediate_dim": 24, "image_shape": SQUARE}
    sizes |= {"position_embedding_shape": SQUARE, "apply_layernorm": True, **changes}
    return randomised(keras_hub.models.DINOV2Backbone(**sizes))


def dinov3(**changes: Any) -> Any:
    sizes = {**SIZES, "hidden_dim": 24, "patch_size": 8, "intermediate_dim": 30}
    sizes |= {"use_key_bias": False, "image_shape": RECTANGLE, **changes}
    return randomised(keras_hub.models.DINOV3Backbone(**sizes))


def encoder(kind: str, **changes: Any) -> Any:
    sizes = {**SIZES, "patch_size": 8, "intermediate_dim": 20, "image_shape": SQUARE, **changes}
    return randomised(getattr(keras_hub.models, f"{kind}VisionEncoder")(**sizes))


def pair(kind: str, text: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Both towers; to one space CLIP projects both, and SigLIP its texts."""
    models = keras_hub.models
    sizes = {"vocabulary_size": 9, "embedding_dim": 10, "max_sequence_length": 5}
    sizes |= {"num_layers": 2, "num_heads": 5, "hidden_dim": 10, "intermediate_dim": 7}
    if kind == "SigLIP":
        sizes["projection_dim"] = SIZES["hidden_dim"]
    words = getattr(models, f"{kind}TextEncoder")(**sizes | (text or {}))
    projection = {"projection_dim": 10} if kind == "CLIP" else {}
    return randomised(
        getattr(models, f"{kind}Backbone")(encoder(kind, **changes), words, **projection)
    )


DROPS = {"dropout_rate": 0.1, "attention_dropout": 0.1}
EXACT = {"intermediate_activation": "gelu"}
NO_BIAS = {"use_mha_bias": False, "use_mlp_bias": False, "use_patch_bias": False}
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "vit": ("keras_vit", functools.partial(vit, num_layers=11, layer_norm_epsilon=1e-4, **DROPS)),
    "gap": (
        "keras_vit_pre_logits",
        functools.partial(vit, head={"pooling": "gap", "intermediate_dim": 7}, **NO_BIAS),
    ),
    "no token": (
        "keras_vit",
        functools.partial(vit, head={"pooling": "gap"}, use_class_token=False),
    ),
    "backbone": ("keras_vit", functools.partial(vit, classes=0)),
    "deit": ("keras_deit", functools.partial(deit, **DROPS)),
    "dinov2": ("keras_dinov2", dinov2),
    "dinov2 registers": ("keras_dinov2_reg", functools.partial(dinov2, num_register_tokens=3)),
    "dinov2 giant": (
        "keras_dinov2_reg_swiglu",
        functools.partial(dinov2, num_register_tokens=3, use_swiglu_ffn=True),
    ),
    "dinov2 swiglu": (
        "keras_dinov2_swiglu",
        functools.partial(dinov2, use_swiglu_ffn=True, num_layers=1),
    ),
    "dinov3": ("keras_dinov3", functools.partial(dinov3, image_shape=(16, 32, 3))),
    "dinov3 bare": (
        "keras_dinov3",
        functools.partial(
            dinov3,
            num_register_tokens=0,
            num_layers=11,
            rope_theta=50.0,
            layer_norm_eps=1e-6,
            **{f"use_{part}_bias": False for part in ("query", "value", "proj", "mlp")},
        ),
    ),
    "dinov3 gated": (
        "keras_dinov3",
        functools.partial(
            dinov3, num_register_tokens=2, use_gated_mlp=True, hidden_activation="silu"
        ),
    ),
    "clip": (
        "keras_clip",
        functools.partial(pair, "CLIP", num_layers=11, text=EXACT, intermediate_activation="gelu"),
    ),
    "siglip": ("keras_siglip", functools.partial(pair, "SigLIP", text={"num_layers": 11})),
    "clip encoder": ("keras_clip_encoder", functools.partial(encoder, "CLIP")),
    "siglip encoder": ("keras_siglip_encoder", functools.partial(encoder, "SigLIP")),
}
WRITTEN = [name for name in CASES if name not in ("no token", "backbone")]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A preset, with what its model makes of images."""

    folder: Path
    model: Any
    dialect: str
    images: torch.Tensor
    output: torch.Tensor


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    @functools.cache
    def save(name: str) -> Saved:
        dialect, make = CASES[name]
        model = make()
        folder = tmp_path_factory.mktemp("preset") / name
        model.save_to_preset(str(folder))
        if name.startswith("dinov2"):  # it makes its positions when it is loaded
            model = keras_hub.models.Backbone.from_preset(str(folder))
        shape = SQUARE if name.startswith(("dinov2", "clip", "sig")) else RECTANGLE
        shape = (16, 32, 3) if name == "dinov3" else shape
        images = np.random.default_rng(1).normal(size=(2, *shape)).astype("f4")
        return Saved(folder, model, dialect, *map(torch.tensor, (images, computed(model, images))))

    return save


def computed(model: Any, images: np.ndarray) -> np.ndarray:
    """Logits, image features, or tokens."""
    match type(model).__name__:
        case "CLIPBackbone":
            return np.array(model.get_vision_embeddings(images))
        case "SigLIPBackbone":
            return np.array(model.get_vision_embeddings(images))
        case "CLIPVisionEncoder":
            return np.array(model({"images": images}))[:, 0]
        case "DINOV2Backbone" | "SigLIPVisionEncoder":
            return np.array(model({"images": images}))
        case "DINOV3Backbone":
            return np.array(model({"pixel_values": images}))
    return np.array(model(images))


@torch.no_grad()
def ours(model: Any, case: Saved) -> torch.Tensor:
    images = case.images.permute(0, 3, 1, 2)
    return (model.forward_features if case.output.ndim == 3 else model)(images)


@pytest.mark.parametrize("name", CASES)
def test_a_preset_computes_what_keras_hub_does(name, saved):
    case = saved(name)
    checkpoint = load_checkpoint(case.folder)
    assert checkpoint.dialect == case.dialect
    assert relative(ours(load_model(case.folder), case), case.output) <= ROUNDING
    assert relative(ours(load_model(case.folder, fast=True), case), case.output) <= ROUNDING


@pytest.mark.coverage
@pytest.mark.parametrize("shape", [(16, 32, 3), (32, 32, 3)])
def test_dinov3_is_exported_and_embedded_at_two_sizes(shape, tmp_path):
    model = dinov3(image_shape=shape)
    model.save_to_preset(str(tmp_path / "own"))
    images = np.random.default_rng(1).normal(size=(2, *shape)).astype("f4")
    wanted = torch.from_numpy(computed(model, images))
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
    tokens = load_model(tmp_path / "own").forward_features(channels_first)
    assert relative(tokens, wanted) <= ROUNDING
    found = in_onnx_runtime(tmp_path / "own", channels_first, tmp_path)
    assert relative(found, wanted[:, 0]) <= 1e-5
    features = embedded(tmp_path / "own", tmp_path, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert features.shape == (1, wanted.shape[-1])


@pytest.mark.parametrize("name", sampled(WRITTEN, 3))
def test_a_preset_comes_back_byte_for_byte(name, saved, tmp_path):
    case = saved(name)
    back = tmp_path / "back"
    allow = ["norm-eps"] if name == "clip" else []  # the last norm of its texts has another
    # HF holds all but the layer before the head and the mean of all tokens.
    hf = "vit" if name == "gap" else "hf"
    done = convert(case.folder, to=hf, output=tmp_path / "ours", allow=allow)
    assert done.parity.verdict == "equal"
    plan = plan_conversion(tmp_path / "ours", to="keras_hub", allow=allow)
    done = convert(tmp_path / "ours", to="keras_hub", output=back, allow=allow)
    opened, *texts = done.opened
    assert (opened.consumer, done.target_dialect) == ("keras_hub", case.dialect)
    assert opened.relative <= ROUNDING and len(texts) == (name in ("clip", "siglip"))
    kind = "ImageClassifier" if (back / "task.json").exists() else "Backbone"
    theirs = getattr(keras_hub.models, kind).from_preset(str(back))
    again = computed(theirs, case.images.numpy())
    assert np.abs(again - case.output.numpy()).max() < 1e-5
    for verdict in texts:
        ids = np.array([[1, 8, 3, 0, 2], [4, 4, 7, 5, 8]])
        wanted, found = (np.array(m.get_text_embeddings(ids)) for m in (case.model, theirs))
        assert verdict.relative <= ROUNDING and np.array_equal(wanted, found)
    before, after = (load_checkpoint(d).weights.container for d in (case.folder, back))
    assert {t.assembly.target: t.info for t in plan.tensors} == after.manifest
    # Of DINOv2, positions that loading makes anew, and the token of masked patches.
    made = "dinov2_embedding/vars/" + ("3" if "reg" in case.dialect else "2")
    state = ("optimizer/", "seed_generator/", made)
    names = {n for n in before.manifest if not any(part in n for part in state)}
    assert set(after.manifest) == names
    for name in names - {f"layers/dinov{n}_embedding/vars/1" for n in (2, 3)}:
        assert before.manifest[name] == after.manifest[name]
        assert torch.equal(before.read(name), after.read(name))
    for file in ("config.json", "task.json"):
        if (case.folder / file).exists():
            stated = (json.loads((d / file).read_text()) for d in (case.folder, back))
            assert_agrees(*stated)


def assert_agrees(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """What was written says nothing else; a name counts the models of a process."""
    for key, value in ours.items():
        if isinstance(value, dict):
            assert_agrees(theirs[key], value)
        elif key not in ("name", "layer_scale_init_value"):
            assert theirs[key] == value, key


def test_files_of_the_whole_model(saved, tmp_path):
    case = saved("gap")
    case.model.save(tmp_path / "x.keras")
    found = load_model(tmp_path / "x.keras")
    assert relative(ours(found, case), case.output) <= ROUNDING
    assert load_checkpoint(tmp_path / "x.keras").weights.container.format == "keras"
    case.model.save_weights(tmp_path / "x.weights.h5")
    told = {"image_size": (16, 24), "pooling": "avg"}
    found = load_model(tmp_path / "x.weights.h5", overrides=told)
    assert relative(ours(found, case), case.output) <= ROUNDING


def test_a_backbone_alone_and_what_is_asked(saved, tmp_path):
    done = convert(saved("backbone").folder, to="keras_hub", output=tmp_path / "back")
    assert done.opened[0].relative <= ROUNDING
    assert not (tmp_path / "back" / "task.json").exists()
    shutil.copy(saved("dinov2").folder / "model.weights.h5", tmp_path)
    with pytest.raises(MissingFact) as error:
        load_checkpoint(tmp_path / "model.weights.h5")
    assert "num_registers" in error.value.details[0]


def test_error_positions_that_a_model_built_anew_has(tmp_path):
    size = {**SIZES, "patch_size": 8, "intermediate_dim": 20, "image_shape": SQUARE}
    keras_hub.models.CLIPVisionEncoder(**size).save_to_preset(str(tmp_path / "x"))
    with pytest.raises(NotRepresentable, match="ignored because it is always the same"):
        load_model(tmp_path / "x")


def test_error_half_of_a_pair(saved, tmp_path):
    """The projection of CLIP has a place beside a text tower alone, whose last norm is another."""
    source = convert(saved("clip").folder, to="hf", output=tmp_path / "x", verify=False)
    (note,) = (note for note in source.ledger.notes if "text encoder" in note)
    assert "final_norm_eps: the weights need 1e-06, and there it is 1e-05" in note
    assert note.endswith("; --allow norm-eps carries it")
    with pytest.raises(NotRepresentable) as error:
        convert(tmp_path / "x", to="keras_hub", output=tmp_path / "y", verify=False)
    assert (
        "KerasHub CLIPBackbone, vision encoder is a part of a model of both encoders"
        in error.value.fact
    )
    assert error.value.hint == "without its head it fits: --num-classes 0."
    told = {"output": tmp_path / "y", "verify": False}
    done = convert(tmp_path / "x", to="keras_hub", num_classes=0, **told)
    assert done.target_dialect == "keras_clip_encoder"
    convert(saved("clip").folder, to="hf", allow=["norm-eps"], overwrite=True, **told)
    with pytest.raises(NotRepresentable) as error:
        convert(tmp_path / "y", to="keras_hub", output=tmp_path / "z", verify=False)
    assert "final_norm_eps: the weights need 1e-05, and there it is 1e-06" in error.value.fact
    assert error.value.hint.startswith("--allow norm-eps makes it fit; it changes the text encoder")


TEXTS = {"clip": ["a photo of Snow!", "été 12 <|endoftext|> x  y"], "siglip": ["a photo of snow"]}


def words_of_clip(folder: Path) -> tuple[str, str]:
    """A vocabulary of CLIP's kind: all bytes, all that end a word, and a few that are merged."""
    from tokenizers import pre_tokenizers

    merges = ["s n", "o w</w>", "sn ow</w>", "a n", "an d</w>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    words += [merge.replace(" ", "") for merge in merges] + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary, merged = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({word: place for place, word in enumerate(words)}))
    merged.write_text("\n".join(["#version: 0.2", *merges, ""]))
    return str(vocabulary), str(merged)


def pieces_of_siglip() -> bytes:
    import sentencepiece

    made = io.BytesIO()
    kinds = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "unk_piece": "<unk>"}
    texts = iter(["a photo of snow and ice", "quick brown foxes jump", "a photograph"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=made, vocab_size=30, minloglevel=2, **kinds
    )
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clip", {"pad_with_end_token": True}),
        ("clip", {"pad_with_end_token": False}),
        ("siglip", {}),
    ],
)
def test_a_tokenizer_goes_along_and_gives_the_same_ids(name, said, saved, tmp_path, monkeypatch):
    """Transformers fills texts of CLIP up with their end, and back it is the same files again."""
    models = keras_hub.models
    # That of KerasHub sets these where TensorFlow is, and needs them where it is not.
    monkeypatch.setattr(
        models.CLIPTokenizer,
        "_set_vocabulary_and_merges_tf",
        lambda self, words, merges: vars(self).update(vocabulary=words, merges=merges),
    )
    source, hf, back = (tmp_path / folder for folder in ("source", "hf", "back"))
    shutil.copytree(saved(name).folder, source)
    if name == "clip":
        theirs = models.CLIPTokenizer(*words_of_clip(tmp_path), **said)
    else:
        theirs = models.SigLIPTokenizer(pieces_of_siglip())
    theirs.save_to_preset(str(source))
    told = {"allow": ["norm-eps"] if name == "clip" else [], "verify": False}
    convert(source, to="hf", output=hf, **told)
    found = transformers.AutoTokenizer.from_pretrained(hf)
    assert found.model_max_length == load_checkpoint(source).text.config.context_length
    ids = found(TEXTS[name], padding="max_length", max_length=32)["input_ids"]
    start = [theirs.start_token_id] if name == "clip" else []
    for text, row in zip(TEXTS[name], ids, strict=True):
        wanted = [*start, *map(int, theirs(text)), theirs.end_token_id]
        assert row == wanted + [theirs.end_token_id] * (32 - len(wanted))
    for _ in range(2):  # over its own output, too
        done = convert(hf, to="keras_hub", output=back, overwrite=True, **told)
    assert not any("left out" in note for note in done.ledger.notes)
    again = type(theirs).from_preset(str(back))
    assert again.pad_token_id == theirs.end_token_id
    for text in TEXTS[name]:
        assert np.array_equal(again(text), theirs(text))
    convert(source, to="keras_hub", output=tmp_path / "again", verify=False)
    assert type(theirs).from_preset(str(tmp_path / "again")).pad_token_id == theirs.pad_token_id
    for file in sorted((source / "assets").rglob("*.*")):
        for other in (back, tmp_path / "again"):
            assert (other / file.relative_to(source)).read_bytes() == file.read_bytes()


def test_a_tokenizer_that_keras_hub_does_not_read_stays(saved, tmp_path):
    """`tokenizer.json` is another file there, and a link chooses no file of the machine."""
    source, hf = tmp_path / "source", tmp_path / "hf"
    shutil.copytree(saved("siglip").folder, source)
    (source / "tokenizer.json").write_text("{}")
    convert(source, to="hf", output=hf, verify=False)
    assert not (hf / "tokenizer.json").exists()
    (hf / "tokenizer.json").write_text("{}")
    done = convert(hf, to="keras_hub", output=tmp_path / "x", verify=False)
    assert not (tmp_path / "x/tokenizer.json").exists()
    assert "its tokenizer is left out, because KerasHub SigLIP" in done.ledger.notes[-1]
    (tmp_path / "elsewhere/tokenizer").mkdir(parents=True)
    (tmp_path / "elsewhere/tokenizer/vocabulary.spm").write_text("secret")
    (source / "assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="a link that leads out of its folder"):
        convert(source, to="hf", output=tmp_path / "y", verify=False)


def test_error_functions_without_a_place(saved, tmp_path):
    source = load_checkpoint(saved("vit").folder)
    for change in ({"activation": "gelu_tanh"}, {"norm_bias": False}, {"fc_norm": True}):
        config: ViTConfig = source.config.replace(**change)
        with pytest.raises(NotRepresentable):
            choose_without_steps("keras_hub", DescribedModel(config=config))


def test_keras_computes_by_itself():
    assert keras.backend.backend() == "numpy"


@pytest.mark.parametrize(
    ("activation", "problem"),
    [("softmax", "single_label_classification"), ("sigmoid", "multi_label_classification")],
)
def test_what_comes_after_the_logits_is_what_they_mean(
    tmp_path: Path, activation: str, problem: str
) -> None:
    model = vit(head={"activation": activation})
    model.save_to_preset(str(tmp_path / "theirs"))
    convert(str(tmp_path / "theirs"), to="keras_hub", output=tmp_path / "ours")
    config = load_checkpoint(str(tmp_path / "theirs")).config
    assert (config.problem_type, config.score_function) == (problem, activation)
    again = keras_hub.models.ImageClassifier.from_preset(str(tmp_path / "ours"))
    images = np.random.default_rng(0).normal(size=(3, *RECTANGLE)).astype("float32")
    wanted = np.array(model(images))
    assert np.allclose(wanted.sum(-1), 1) == (activation == "softmax")
    assert np.allclose(np.array(again(images)), wanted, atol=1e-5)
    convert(str(tmp_path / "theirs"), to="hf", output=tmp_path / "hf", verify=False)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["problem_type"] == problem
