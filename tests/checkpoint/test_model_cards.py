"""Models that code of their cards builds: read, and compared with what that code makes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.matrix_sources import write_card
from tests.sampling import sampled
from tests.small_models import randomise_calmly, relative
from tests.tables.make_architectures import CARDS, config_of_card, of_card
from tests.uses import embedded, in_onnx_runtime
from vitconvert import (
    Preprocessing,
    convert,
    embed,
    export_model,
    load_checkpoint,
    load_model,
)
from vitconvert.checkpoint import read_checkpoint
from vitconvert.errors import MissingFact, NotRepresentable
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.statements import Statements
from vitconvert.inference.embed import Features
from vitconvert.inference.options import FeatureOptions
from vitconvert.sources import locate
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.detection import recognise

ROUNDING = 1e-6
# Whose cards take the class token and the mean of the patches; of the others, what the model gives.
BOTH = ("paige-ai/Virchow", "paige-ai/Virchow2", "bioptimus/H0-mini")
CODED = ("MahmoodLab/UNI2-h", *BOTH)  # of which config.json lacks the MLPs


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    def save(name, rows=2, columns=4):
        torch.manual_seed(0)
        side = 16 if name[-3:] == "UNI" or "giga" in name else 14
        size = (rows * side, columns * side)
        changes = {"depth": 2, "img_size": size}
        model = randomise_calmly(of_card(name, **changes))
        folder = tmp_path_factory.mktemp("card")
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps(config_of_card(name, **changes)))
        return folder, model.eval(), torch.randn(2, 3, *size)

    return save


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(CARDS, 3))
@torch.no_grad()
def test_a_model_is_what_the_code_of_its_card_builds(name, saved, tmp_path):
    folder, model, images = saved(name)
    wanted = model(images)
    ours = load_model(folder, architecture=name)
    assert relative(ours(images), wanted) <= ROUNDING
    done = convert(folder, to="timm", output=tmp_path / "timm", architecture=name)
    opened = {one.consumer: one.relative for one in done.opened}
    assert opened["timm"] <= ROUNDING and done.parity.verdict == "equal"
    assert relative(load_model(tmp_path / "timm")(images), wanted) <= ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(BOTH, 3))
@torch.no_grad()
def test_features_are_those_of_the_card(name, saved):
    folder, model, images = saved(name)
    ours = load_model(folder, architecture=name)
    features = Features.of(ours.config, "features", FeatureOptions(pool="cls_mean"))
    output, prefix = model(images), 1 + CARDS[name][1].get("reg_tokens", model.num_reg_tokens)
    wanted = torch.cat([output[:, 0], output[:, prefix:].mean(1)], dim=-1)
    found = features.compute(ours)(images)
    assert relative(found, wanted) <= ROUNDING
    assert features.shape == found.shape[1:]
    assert "class token and mean of the patches" in features.in_words()


@pytest.mark.slow
@torch.no_grad()
def test_virchow_2_is_exported_and_embedded(saved, tmp_path):
    rt = pytest.importorskip("onnxruntime")
    folder, model, images = saved(name := "paige-ai/Virchow2")
    export_model(folder, tmp_path / "v.onnx", to="onnx", architecture=name)
    session = rt.InferenceSession(tmp_path / "v.onnx")
    (tokens,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert relative(torch.from_numpy(tokens), model(images)) <= 1e-5
    levels = np.random.default_rng(2).integers(0, 256, (28, 56, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "tissue.png")
    reads = Preprocessing.from_timm({"input_size": (3, 28, 56), "crop_pct": 1.0})
    checkpoint = load_checkpoint(folder, architecture=name)
    (found,) = embed(checkpoint, tmp_path / "tissue.png", reads, pool="cls_mean")
    output = model(reads(tmp_path / "tissue.png")[None])
    wanted = torch.cat([output[:, 0], output[:, 5:].mean(1)], dim=-1)  # 4 registers, as its card
    assert relative(found.features[None], wanted) <= 2 * ROUNDING


STEPS = {
    "paige-ai/Virchow": (),
    "bioptimus/H0-mini": ("zero-class-position",),
    "paige-ai/Virchow2": ("fold-class-position", "zero-class-position"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(STEPS, 3))
def test_hugging_faces_classes_pool_a_model_that_gives_all_tokens(name, tmp_path):
    """The others, which are pooled, have rows in CONVERSIONS.md."""
    source = write_card(tmp_path / "own", name)
    stated = {"activation": "silu"}
    every = STEPS["paige-ai/Virchow2"]
    with pytest.raises(NotRepresentable):
        convert(source, to="hf", output=tmp_path / "hf", overrides=stated, allow=every)
    pooled = {"overrides": stated | {"pooling": "token"}, "output": tmp_path / "hf"}
    if STEPS[name]:
        with pytest.raises(NotRepresentable) as error:
            convert(source, to="hf", **pooled)
        assert error.value.steps == STEPS[name]
    done = convert(source, to="hf", allow=STEPS[name], **pooled)
    (opened,) = done.opened
    assert (opened.consumer, opened.why_not) == ("transformers", None)
    assert opened.relative <= ROUNDING


@pytest.mark.coverage
@pytest.mark.parametrize("name", CARDS)
@torch.no_grad()
def test_a_model_of_another_size_is_computed_exported_and_embedded(name, saved, tmp_path):
    folder, model, images = saved(name, rows=3, columns=3)
    wanted = model(images)
    assert relative(load_model(folder, architecture=name)(images), wanted) <= ROUNDING
    found = in_onnx_runtime(folder, images, tmp_path, architecture=name)
    assert relative(found, wanted) <= 1e-5
    said = ("--architecture", name, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert embedded(folder, tmp_path, *said).shape[-1] == wanted.shape[-1]


def gathered(card, **stated):
    """What is known of a card's model, of its full size, and what is asked."""
    with torch.device("meta"):
        shapes = {k: tuple(t.shape) for k, t in of_card(card).state_dict().items()}
    binding = recognise(shapes).binding
    said = Statements(config=config_of_card(card), **stated)
    return gather_facts(binding, said.facts(binding.table))


@pytest.mark.parametrize("name", sampled(CODED, 4, "slow"))
def test_the_shape_shows_a_card_where_config_json_does_not_tell_all(name):
    known = gathered(name)
    assert known.asked == {
        "activation": f"{CARDS[name][0]} has no gated MLPs, so code gave this model its own; the "
        f"tensors are those of {name}: --architecture NAME says so"
    }
    assert known.conflicts == ()
    for named in ({"architecture": name}, {"name": name}, {"user": {"activation": "silu"}}):
        told = gathered(name, **named)
        assert told.asked == {}
        assert told.facts["activation"].value == "silu"


def test_a_gate_that_no_card_knows_is_asked_for(saved):
    folder, _, _ = saved("paige-ai/Virchow2")
    with pytest.raises(MissingFact) as error:
        load_checkpoint(folder)
    assert error.value.details == (
        "activation  vit_huge_patch14_224 has no gated MLPs, so code gave this model its own",
    )
    located = replace(locate(folder), repo="paige-ai/Virchow2")
    assert read_checkpoint(located).config.activation == "silu"


def test_a_name_without_its_organisation():
    with pytest.raises(NotRepresentable) as error:
        find_architecture("timm", "Virchow2")
    assert error.value.hint == "did you mean paige-ai/Virchow2?"
