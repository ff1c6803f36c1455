"""RADIO: NVIDIA's files, transformers' RadioModel and timm's naflexvit are one model."""

import argparse
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import timm, transformers
from tests.small_models import randomise, relative
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.tables.dialects import builtin_tables

SIZES = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3, "mlp_ratio": 1.5}
SIZES |= {"patch_size": 8, "image_size": 40, "max_img_size": 72, "num_cls_tokens": 3}
SCALE = {"norm_mean": [0.3, 0.5, 0.2], "norm_std": [0.25, 0.5, 0.125]}
START = "radio_model.model."
WIDE = (24, 56)


@pytest.fixture(scope="module")
def radio(tmp_path_factory):
    """transformers' model with every parameter random, and the directory that it writes."""
    config = transformers.RadioConfig(**SIZES, num_registers=5, **SCALE)
    torch.manual_seed(3)
    model = transformers.RadioModel(config)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    randomise(model).load_state_dict(buffers, strict=False)
    folder = tmp_path_factory.mktemp("radio")
    model.eval().save_pretrained(folder)
    return model, folder


def normalised(pixels):
    mean, std = (torch.tensor(SCALE[name]).view(3, 1, 1) for name in ("norm_mean", "norm_std"))
    return (pixels - mean) / std


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def save(folder, tensors, **config):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.inference_mode()
def test_the_features_are_the_first_token_of_the_summary(radio):
    model, folder = radio
    for size in ((40, 40), WIDE):
        pixels = torch.rand(2, 3, *size)
        wanted = model(pixels)
        for fast in (False, True):
            ours = vitconvert.load_model(folder, image_size=size, fast=fast)
            images = normalised(pixels)
            assert relative(ours(images), wanted.summary[:, :48]) <= 2e-5
            tokens = ours.forward_features(images)
            assert relative(tokens, wanted.last_hidden_state) <= 2e-5
    assert "the first class token" in str(vitconvert.load_checkpoint(folder).ledger.ignored)


def test_the_numbers_that_the_model_normalises_with_are_preprocessing(radio, tmp_path):
    _, folder = radio
    found = vitconvert.load_checkpoint(folder)
    torch.testing.assert_close(found.preprocessing.mean, tuple(SCALE["norm_mean"]))
    assert found.preprocessing.std == tuple(SCALE["norm_std"])
    processor = {"image_processor_type": "CLIPImageProcessor", "do_normalize": False}
    processor |= {"size": {"height": 40, "width": 40}, "do_center_crop": False}
    beside = save(tmp_path / "beside", tensors_of(folder), model_type="radio", **radio_sizes())
    (beside / "preprocessor_config.json").write_text(json.dumps(processor))
    stated = vitconvert.load_checkpoint(beside).preprocessing
    assert stated.normalize and stated.std == tuple(SCALE["norm_std"])
    usual = builtin_tables()["hf_radio"].preprocessing
    assert usual["mean"] == transformers.image_utils.OPENAI_CLIP_MEAN
    assert usual["std"] == transformers.image_utils.OPENAI_CLIP_STD
    broken = tensors_of(folder)
    broken["radio_model.input_conditioner.norm_std"][1] = 0
    with pytest.raises(ConflictingFact, match="divides by zero"):
        vitconvert.load_checkpoint(
            save(tmp_path / "broken", broken, model_type="radio", **radio_sizes())
        )


def radio_sizes():
    return {**SIZES, "num_registers": 5}


def test_to_timm_and_back(radio, tmp_path):
    model, folder = radio
    there = vitconvert.convert(folder, output=tmp_path / "timm", to="timm")
    assert there.parity is not None
    assert [one.relative for one in there.opened] == [0, 0]  # timm, and transformers' wrapper
    with torch.inference_mode():
        pixels = torch.rand(1, 3, 40, 40)
        theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
        assert relative(theirs(normalised(pixels)), model(pixels).summary[:, :48]) <= 2e-5
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["pretrained_cfg"]["std"] == SCALE["norm_std"]

    back = vitconvert.convert(tmp_path / "timm", output=tmp_path / "back", to="hf")
    assert back.parity is not None and back.opened[0].relative is not None
    before, after = tensors_of(folder), tensors_of(tmp_path / "back")
    assert before.keys() == after.keys()
    different = [name for name in before if not torch.equal(before[name], after[name])]
    assert different == ["radio_model.summary_idxs"]  # one class token is left to be told
    assert after["radio_model.summary_idxs"].tolist() == [0]
    with torch.inference_mode():  # pixels as the class reads them
        again = transformers.RadioModel.from_pretrained(tmp_path / "back").eval()
        assert torch.equal(again(pixels).summary, model(pixels).summary[:, :48])
    processor = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
    assert processor["do_normalize"] is False


def test_names_in_memory_and_names_of_nvidia(radio, tmp_path):
    model, folder = radio
    model.save_pretrained(tmp_path / "memory", save_original_format=False)
    own = {
        name.replace("layer_scale", "ls").replace("lambda1", "grandma"): tensor
        for name, tensor in tensors_of(folder).items()
    }
    own["radio_model.adaptors.clip.head.weight"] = torch.randn(4, 48)
    save(tmp_path / "own", own, patch_size=8, preferred_resolution=[40, 40])
    images = torch.rand(1, 3, 40, 40)
    said = {"num_heads": 3}
    with torch.inference_mode():
        wanted = vitconvert.load_model(folder)(images)
        assert torch.equal(vitconvert.load_model(tmp_path / "memory")(images), wanted)
        assert torch.equal(vitconvert.load_model(tmp_path / "own", overrides=said)(images), wanted)
    assert not vitconvert.verify(tmp_path / "own", overrides=said).skipped
    # timm reads such files too.
    named = {"img_size": 40, "patch_size": 8, "embed_dim": 48, "depth": 11, "num_heads": 3}
    named |= {"mlp_ratio": 1.5, "pos_embed_grid_size": (9, 9), "reg_tokens": 7}
    theirs = timm.create_model("naflexvit_large_patch16_radio_v3", **named).eval()
    theirs.load_state_dict(timm.models.naflexvit.checkpoint_filter_fn(own, theirs))
    with torch.inference_mode():
        assert relative(theirs(images), wanted) <= 2e-5


@torch.inference_mode()
def test_what_nvidias_training_saves(radio, tmp_path):
    """NVlabs/RADIO, hubconf.py: the ViT under base_model, in half precision as published."""
    _, folder = radio
    start = "radio_model."
    state = {
        name.replace("radio_model.model.", "base_model.").removeprefix(start): tensor.half()
        for name, tensor in tensors_of(folder).items()
        if name != "radio_model.summary_idxs"
    }
    state |= {
        "_heads.clip.fc1.weight": torch.ones(2, 48),
        "_feature_normalizer.mean": torch.ones(9),
    }
    arguments = argparse.Namespace(
        model="vit_base_patch16_224", dtype=torch.float16, cpe_max_size=72
    )
    torch.save(
        {"arch": arguments.model, "state_dict": state, "args": arguments}, tmp_path / "r.tar"
    )
    said = {"num_heads": 3, "image_size": (40, 40)}
    found = vitconvert.load_checkpoint(tmp_path / "r.tar", overrides=said)
    assert found.table.name == "hf_radio"
    torch.testing.assert_close(
        found.preprocessing.mean, tuple(SCALE["norm_mean"]), atol=1e-3, rtol=0
    )
    same = save(
        tmp_path / "same",
        {n: t.half() if t.is_floating_point() else t for n, t in tensors_of(folder).items()},
        model_type="radio",
        **radio_sizes(),
    )
    ours = vitconvert.load_model(tmp_path / "r.tar", overrides=said, dtype=torch.float32)
    theirs = vitconvert.load_model(same, dtype=torch.float32)
    images = torch.rand(1, 3, 40, 40)
    assert torch.equal(ours(images), theirs(images))


def test_one_token_without_registers_and_without_scales(tmp_path):
    config = transformers.RadioConfig(
        **SIZES | {"num_cls_tokens": 1, "num_hidden_layers": 2, "mlp_ratio": 4.0},
        num_registers=0,
        summary_idxs=[0],
    )
    randomise(transformers.RadioModel(config)).save_pretrained(tmp_path / "one")
    bare = {n: t for n, t in tensors_of(tmp_path / "one").items() if "layer_scale" not in n}
    bare["radio_model.input_conditioner.norm_std"] = torch.ones(3, 1, 1)
    folder = save(tmp_path / "bare", bare, **json.loads((tmp_path / "one/config.json").read_text()))
    found = vitconvert.load_checkpoint(folder)
    assert found.config.num_registers == 0 and not found.config.layer_scale
    done = vitconvert.convert(folder, output=tmp_path / "back", to="hf")
    assert done.parity is not None and done.opened[0].relative is not None  # 4.0, and not 4
    after = tensors_of(tmp_path / "back")
    same = [n for n in bare if torch.equal(bare[n], after[n])]
    assert {*bare} - {*same} <= {"radio_model.summary_idxs"} and bare.keys() == after.keys()


def test_what_radio_has_no_place_for(tmp_path, radio):
    _, folder = radio
    with pytest.raises(NotRepresentable, match="patch_bias is always True there, and False here"):
        vitconvert.convert(folder, output=tmp_path / "vit", to="hf_dinov2_reg")
    named = {"img_size": 40, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    named |= {"pos_embed_grid_size": (9, 9)}
    model = randomise(timm.create_model("naflexvit_base_patch16_radio_v3", **named))
    model.embeds.proj.bias.data.zero_()
    timm.models.save_for_hf(model, tmp_path / "timm", model_args=named, safe_serialization=True)
    with pytest.raises(NotRepresentable):  # the class has positions fitted by another rule
        vitconvert.convert(tmp_path / "timm", output=tmp_path / "hf", to="hf_radio")
    said = {"position_resampling": "bilinear"}
    vitconvert.convert(
        tmp_path / "timm", output=tmp_path / "hf", to="hf_radio", overrides=said, verify=False
    )
