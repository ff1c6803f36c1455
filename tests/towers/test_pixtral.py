"""The image tower of Pixtral, Mistral 3 and LightOnOCR, in transformers' names and in Mistral's."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers as t
from tests.small_models import assert_same_tensors, randomise_calmly, relative
from tests.towers.families import LANGUAGE
from tests.uses import embedded, in_onnx_runtime
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.programs.transformers.running import run

SIZES = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 50, "image_size": 24, "patch_size": 6}
SILU = SIZES | {"hidden_act": "silu"}
TURNED = SILU | {"rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"}}
# As Mistral publishes it, beside consolidated.safetensors
PARAMS = {**SILU, "num_channels": 3, "rope_theta": 100.0, "max_image_size": 24}
PARAMS = {"dim": 20, "n_heads": 9, "vision_encoder": PARAMS}
LARGE = LANGUAGE | {"n_routed_experts": 4, "moe_intermediate_size": 8, "kv_lora_rank": 8}
LARGE |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "num_experts_per_tok": 2}


def tower(sizes=SIZES):
    torch.manual_seed(4)
    return randomise_calmly(t.PixtralVisionModel(t.PixtralVisionConfig(**sizes))).eval()


def larger(name):
    """A larger model that holds a tower, and the tower."""
    text = {
        "Llava": lambda: t.LlamaConfig(**LANGUAGE),
        "Mistral3": lambda: t.MistralConfig(**LANGUAGE),
        "LightOnOcr": lambda: t.Qwen3Config(**LANGUAGE, head_dim=10),
        "MistralLarge4": lambda: t.MistralLarge4TextConfig(**LARGE),
    }[name]()
    config = getattr(t, f"{name}Config")
    config = config(vision_config=t.PixtralVisionConfig(**TURNED), text_config=text)
    torch.manual_seed(5)
    model = randomise_calmly(getattr(t, f"{name}ForConditionalGeneration")(config)).eval()
    (found,) = (m for m in model.modules() if isinstance(m, t.PixtralVisionModel))
    return model, found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model, folder = tower(), tmp_path_factory.mktemp("pixtral")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def mistrals(tmp_path_factory):
    """Files in Mistral's names, which transformers writes for one of its classes."""
    model, inside = larger("MistralLarge4")
    folder = tmp_path_factory.mktemp("mistral")
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    assert "vision_encoder.transformer.layers.0.attention.wq.weight" in tensors
    published = tmp_path_factory.mktemp("published")
    save_file(tensors, published / "consolidated.safetensors")
    (published / "params.json").write_text(json.dumps(PARAMS), encoding="utf-8")
    return inside, folder, published


def sized(size):
    return {"overrides": {"image_size": size}}


def check(model, folder, dialect, **options):
    assert vitconvert.load_checkpoint(folder, **options).table.name == dialect
    for size in ((24, 24), (36, 60)):
        images = torch.rand(2, 3, *size)
        for fast in (False, True):
            ours = vitconvert.load_model(folder, fast=fast, **sized(size))
            with torch.inference_mode():
                assert relative(ours(images), run(model, images)) < 1e-6


def test_outputs_are_those_of_transformers_at_every_size(saved):
    check(*saved, "hf_pixtral")
    assert vitconvert.load_checkpoint(saved[1]).config.activation == "gelu"
    assert vitconvert.verify(saved[1]).verdict == "equal"


@pytest.mark.parametrize("name", ["Llava", "Mistral3", "LightOnOcr"])
@pytest.mark.parametrize("disk", [True, False])
def test_it_is_found_in_the_larger_model(name, disk, tmp_path):
    model, inside = larger(name)
    model.save_pretrained(tmp_path, save_original_format=disk)
    check(inside, tmp_path, "hf_pixtral")
    assert vitconvert.verify(tmp_path).verdict == "equal"


def test_files_in_mistrals_names_are_those_of_transformers(mistrals):
    inside, folder, published = mistrals
    check(inside, folder, "mistral")
    check(inside, published, "mistral")


def test_what_params_json_says_is_needed_and_only_of_mistrals(mistrals, saved, tmp_path):
    *_, published = mistrals
    save_file(load_file(published / "consolidated.safetensors"), tmp_path / "a.safetensors")
    with pytest.raises(MissingFact, match="num_heads"):
        vitconvert.load_checkpoint(tmp_path)
    (tmp_path / "params.json").write_text(json.dumps({"num_heads": 5}), encoding="utf-8")
    with pytest.raises(MissingFact, match="num_heads"):
        vitconvert.load_checkpoint(tmp_path)


@torch.inference_mode()
def test_it_is_written_in_the_other_names_and_back(mistrals, tmp_path):
    inside, _, published = mistrals
    done = vitconvert.convert(published, output=tmp_path / "hf", to="hf")
    assert [opened.consumer for opened in done.opened] == ["transformers"]
    assert done.ledger.changed[0].startswith("rotary-pairs: ")
    own = inside.state_dict()
    assert_same_tensors(load_file(tmp_path / "hf" / "model.safetensors"), own)
    vitconvert.convert(tmp_path / "hf", output=tmp_path / "back", to="mistral")
    before = load_file(published / "consolidated.safetensors")
    before = {name: x for name, x in before.items() if name.startswith("vision_encoder.")}
    assert_same_tensors(load_file(tmp_path / "back" / "model.safetensors"), before)
    written = json.loads((tmp_path / "back" / "params.json").read_text())
    kept = PARAMS["vision_encoder"].keys() - {"max_image_size", "hidden_act"}
    assert written == {"vision_encoder": {k: PARAMS["vision_encoder"][k] for k in kept}}
    (tmp_path / "back" / "vitconvert.json").unlink()
    check(inside, tmp_path / "back", "mistral")


def test_it_is_written_for_transformers_and_for_vitconvert(saved, tmp_path):
    _, folder = saved
    for to in ("hf", "vit"):
        done = vitconvert.convert(folder, output=tmp_path / to, to=to, verify=True)
        assert [opened.consumer for opened in done.opened] == ["transformers"]
        images = torch.rand(2, 3, 24, 24)
        with torch.inference_mode():
            before, after = (vitconvert.load_model(f)(images) for f in (folder, tmp_path / to))
        assert torch.equal(before, after)
    files = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "hf"))
    assert_same_tensors(*files)


def test_what_is_refused(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ConflictingFact, match="image_size"):
        vitconvert.load_checkpoint(folder, **sized((5, 24)))
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: hf, vit"):
        vitconvert.convert(folder, output=tmp_path / "timm", to="timm")
    tower(SIZES | {"hidden_act": "relu6"}).save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="relu6"):
        vitconvert.load_checkpoint(tmp_path)


@pytest.mark.coverage
def test_it_is_exported_and_embedded(saved, tmp_path):
    model, folder = saved
    images = torch.rand(2, 3, 36, 24)
    found = in_onnx_runtime(folder, images, tmp_path, **sized((36, 24)))
    with torch.inference_mode():
        assert relative(found, run(model, images)) < 1e-5
    features = embedded(folder, tmp_path, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert features.shape == (1, 16, 48)
