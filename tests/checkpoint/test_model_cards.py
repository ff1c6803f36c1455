"""Models that code of their cards builds: read, and compared with what that code makes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.packages import timm, transformers
from tests.sampling import sampled
from tests.small_models import randomise_calmly, relative
from tests.tables.make_architectures import CARDS, of_card
from tests.uses import embedded, in_onnx_runtime
from vitconvert import (
    Preprocessing,
    convert,
    embed,
    export_model,
    load_checkpoint,
    load_model,
    verify,
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


def config_json(name, **changes):
    """What lies beside the weights: no word for classes."""
    architecture, arguments = CARDS[name]
    words = {k: v for k, v in arguments.items() if k not in ("mlp_layer", "act_layer")}
    return {"architecture": architecture, "num_classes": 0, "model_args": words | changes}


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
        (folder / "config.json").write_text(json.dumps(config_json(name, **changes)))
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
    said = Statements(config=config_json(card), **stated)
    return gather_facts(binding, said.facts(binding.table))


@pytest.mark.parametrize("name", CODED)
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


@torch.no_grad()
def test_registers_under_the_type_of_dinov2(tmp_path):
    """Hibou's own code calls it so (https://github.com/HistAI/hibou)."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Dinov2WithRegistersConfig(image_size=28, patch_size=14, **sizes)
    model = randomise_calmly(transformers.Dinov2WithRegistersModel(config))
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said |= {"model_type": "dinov2", "architectures": ["Dinov2Model"]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    images = torch.randn(2, 3, 28, 28)
    wanted = model.eval()(images).pooler_output
    assert relative(load_model(tmp_path)(images), wanted) <= ROUNDING
    assert verify(tmp_path).verdict == "not verified"


@torch.no_grad()
def test_a_file_of_ssl4eo_is_known_by_its_name(tmp_path):
    """TorchGeo's names: 13 bands of Sentinel-2, trained as DINO or MoCo v3."""
    model = timm.create_model("vit_small_patch16_224", in_chans=13, num_classes=0).eval()
    file = tmp_path / "vit_small_patch16_224_sentinel2_all_dino-36bcc127.pth"
    torch.save(randomise_calmly(model).state_dict(), file)
    images = torch.randn(1, 13, 224, 224)
    assert relative(load_model(file)(images), model(images)) <= ROUNDING


def test_a_name_without_its_organisation():
    with pytest.raises(NotRepresentable) as error:
        find_architecture("timm", "Virchow2")
    assert error.value.hint == "did you mean paige-ai/Virchow2?"
