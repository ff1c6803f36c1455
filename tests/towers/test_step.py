"""Step 3.7's vision encoder before its convolutions, by transformers' class."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers as t
from tests.small_models import randomise_calmly, relative
from tests.towers.families import LANGUAGE
from vitconvert.errors import NotRepresentable, TensorMismatch

VISION = {"hidden_size": 60, "num_hidden_layers": 11, "num_attention_heads": 3, "mlp_ratio": 1.51}
VISION |= {"image_size": 32, "patch_size": 8}
TEXT = LANGUAGE | {"num_hidden_layers": 2, "head_dim": 10, "layer_types": ["full_attention"] * 2}
TEXT |= {"mlp_layer_types": ["dense"] * 2}
# As StepFun's code (configuration_step3p7.py, StepRoboticsVisionEncoderConfig) has these values
OF_STEPFUN = {"model_type": "perception_encoder", "width": 60, "layers": 11, "heads": 3}
OF_STEPFUN |= {"image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_act": "quick_gelu"}
OF_STEPFUN |= {"use_cls_token": False, "use_ln_post": False, "use_rope2d": True}


def made(**changes):
    torch.manual_seed(5)
    model = t.Step3p7VisionModel(t.Step3p7VisionConfig(**VISION | changes))
    return randomise_calmly(model).eval()


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    saved = tmp_path_factory.mktemp("step")
    model.save_pretrained(saved)
    return saved


def images_of(*size):
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(7))


def before_convolutions(model, images):
    """The tokens that the first convolution reads."""
    found = []
    first = model.downsampler1
    with first.register_forward_pre_hook(lambda _, given: found.append(given[0])):
        model(images)
    return found[0].flatten(2).transpose(1, 2)


@pytest.mark.parametrize("size", [(32, 32), (48, 48), (24, 56)])
@torch.no_grad()
def test_the_tokens_before_the_convolutions(size, model, folder, tmp_path):
    images = images_of(*size)
    wanted = before_convolutions(model, images)
    assert vitconvert.load_checkpoint(folder).dialect == "hf_step3p7_disk"
    assert relative(vitconvert.load_model(folder, image_size=size)(images), wanted) < 1e-6
    # In the names of its class, q and k are in another order.
    model.save_pretrained(tmp_path, save_original_format=False)
    assert vitconvert.load_checkpoint(tmp_path).dialect == "hf_step3p7"
    assert relative(vitconvert.load_model(tmp_path, image_size=size)(images), wanted) < 1e-6


@torch.no_grad()
def test_within_the_larger_model_and_beside_stepfuns_config(model, tmp_path):
    config = t.Step3p7Config(vision_config=dict(VISION), text_config=dict(TEXT))
    torch.manual_seed(3)
    larger = randomise_calmly(t.Step3p7ForConditionalGeneration(config)).eval()
    larger.model.vision_model.load_state_dict(model.state_dict())
    larger.save_pretrained(tmp_path)
    images = images_of(32, 32)
    wanted = before_convolutions(model, images)
    own = json.loads((tmp_path / "config.json").read_text())
    for vision in (own["vision_config"], OF_STEPFUN):
        (tmp_path / "config.json").write_text(json.dumps(own | {"vision_config": vision}))
        found = vitconvert.load_checkpoint(tmp_path)
        assert found.dialect == "hf_step3p7_disk" and "vision_model." in found.tower.prefix
        assert "the larger model reads" in found.ledger.ignored["vit_downsampler1.weight"]
        assert relative(vitconvert.load_model(tmp_path)(images), wanted) < 1e-6
        assert vitconvert.verify(tmp_path).verdict == "equal"


def test_an_encoder_of_stepfuns_code_that_does_not_rotate_is_refused(folder, tmp_path):
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(OF_STEPFUN | {"use_rope2d": False}))
    with pytest.raises(NotRepresentable, match="use_rope2d"):
        vitconvert.load_checkpoint(tmp_path)


@pytest.mark.parametrize("scale", [1, 1.0, 2.0])
def test_an_encoder_of_stepfuns_code_that_rescales_its_rotation(scale, folder, tmp_path):
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    said = OF_STEPFUN | {"rope_theta_rescale_factor": scale}
    (tmp_path / "config.json").write_text(json.dumps(said))
    if scale == 1:
        assert vitconvert.load_checkpoint(tmp_path).dialect == "hf_step3p7_disk"
        return
    with pytest.raises(NotRepresentable, match=r"rope_theta_rescale_factor = '2\.0'"):
        vitconvert.load_checkpoint(tmp_path)


@torch.no_grad()
def test_without_its_convolutions_it_is_no_perception_encoder_of_meta(model, folder, tmp_path):
    """Whose names these are then, and whose activation is another."""
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "downsampler" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert vitconvert.load_checkpoint(tmp_path).dialect == "hf_step3p7_disk"
    images = images_of(32, 32)
    ours = vitconvert.load_model(tmp_path)(images)
    assert relative(ours, before_convolutions(model, images)) < 1e-6


def test_without_a_config_its_convolutions_are_not_passed_over(folder, tmp_path):
    save_file(load_file(folder / "model.safetensors"), tmp_path / "a.safetensors")
    with pytest.raises(TensorMismatch, match="vit_downsampler1"):
        vitconvert.load_checkpoint(tmp_path / "a.safetensors", overrides={"num_heads": 3})
    found = vitconvert.load_checkpoint(
        tmp_path / "a.safetensors", dialect="hf_step3p7_disk", overrides={"num_heads": 3}
    )
    assert (found.config.activation, found.config.image_size) == ("quick_gelu", (32, 32))


@pytest.mark.slow
@torch.no_grad()
def test_it_is_converted(tmp_path):
    model = made(hidden_act="gelu")
    model.save_pretrained(tmp_path / "own")
    images = images_of(32, 32)
    wanted = before_convolutions(model, images)
    for to, stated in (("vit", {}), ("timm", {}), ("pe", {"num_heads": 3, "image_size": 32})):
        done = vitconvert.convert(tmp_path / "own", to=to, output=tmp_path / to, verify=True)
        assert done.opened and not [opened for opened in done.opened if opened.why_not]
        ours = vitconvert.load_model(tmp_path / to, overrides=stated)
        assert relative(ours(images), wanted) < 1e-6
