"""Outputs are opened by the projects that they are for, and those see what is wrong with one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.conversion.conftest import fill
from tests.originals.spelling import dinov3
from tests.packages import open_clip, transformers
from tests.spelling import google_arrays
from vitconvert.errors import NotRepresentable, ParityFailed
from vitconvert.formats import Content
from vitconvert.programs.opening import Opened, open_output
from vitconvert.tables.dialects import builtin_tables

PLAIN = {"embed_dim": 30, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "num_classes": 7}
PLAIN |= {"img_size": 48}
VISION = {"image_size": 24, "layers": 3, "width": 48, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 7, "vocab_size": 40, "width": 16, "heads": 2, "layers": 2}


def names(conversion) -> list[str]:
    return [opened.consumer.split()[0] for opened in conversion.opened]


def test_torchvision_opens_what_is_for_it(timm_directory, tmp_path):
    conversion = vitconvert.convert(
        timm_directory(**PLAIN), to="torchvision", output=tmp_path / "o"
    )
    assert names(conversion) == ["torch.load", "torchvision"]
    read, computed = conversion.opened
    assert read.summary() == "torch.load: every tensor as it was written"
    assert computed.relative <= 2e-5
    recorded = json.loads((tmp_path / "o" / "vitconvert.json").read_text())["opened_by"]
    assert recorded == [opened.to_dict() for opened in conversion.opened]


@pytest.mark.parametrize(
    ("changes", "to", "dialect"),
    [
        ({}, "openclip", "openclip"),
        ({"ls_init_value": 0.1}, "openclip_tower", "openclip_tower"),
        (
            {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
            "openclip",
            "openclip_clipa",
        ),
        (
            {"pool_type": "none", "attentional_pool": False, "qk_norm": False},
            "openclip",
            "openclip",
        ),
    ],
    ids=["CLIP", "LayerScale", "CLIPA", "all tokens"],
)
def test_open_clip_opens_its_own_towers(changes, to, dialect, tmp_path):
    source = openclip_directory(tmp_path / "source", **changes)
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out", image_only=True)
    assert conversion.target_dialect == dialect
    assert conversion.parity.ok and conversion.parity.reference.startswith("open_clip 3")
    assert names(conversion) == ["safetensors.torch.load_file", "open_clip"]
    assert conversion.opened[1].relative <= 2e-5


def test_a_timm_tower_for_images_of_any_size_is_compared_layer_by_layer(tmp_path):
    """Its patch embedding gives a grid (`dynamic_img_size`), and ours gives a sequence."""
    vision = {"timm_model_name": "test_vit4", "image_size": 160}
    source = openclip_directory(tmp_path / "source", "CustomTextCLIP", vision)
    conversion = vitconvert.convert(source, to="openclip", output=tmp_path / "out")
    assert conversion.parity.ok
    assert re.fullmatch(r"open_clip 3\.\d+\.\d+ TimmModel", conversion.parity.reference)


def openclip_directory(folder: Path, kind="CLIP", base=VISION, **changes) -> Path:
    """As `open_clip.push_to_hf_hub.save_for_hf` writes it."""
    vision = base | changes
    torch.manual_seed(5)
    model = getattr(open_clip, kind)(embed_dim=20, vision_cfg=vision, text_cfg=TEXT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder.mkdir()
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    config = {"embed_dim": 20, "vision_cfg": vision, "text_cfg": TEXT}
    text = json.dumps({"model_cfg": config, "preprocess_cfg": {}})
    (folder / "open_clip_config.json").write_text(text)
    return folder


def test_projects_that_cannot_be_installed_are_said_to_have_opened_nothing(
    timm_directory, tmp_path
):
    source = timm_directory(**PLAIN)
    conversion = vitconvert.convert(source, to="jeonsworld", output=tmp_path / "out")
    assert [opened.summary() for opened in conversion.opened] == [
        "torch.load: every tensor as it was written",
        "jeonsworld: not tried, jeonsworld ViT-pytorch: a repository of scripts, not a package to "
        "install",
    ]
    settings = {"img_size": 48, "num_classes": 0, "init_values": 0.1, "depth": 2}
    dinov2 = timm_directory("vit_small_patch14_dinov2", **settings | {"img_size": 42})
    conversion = vitconvert.convert(dinov2, to="dinov2", output=tmp_path / "dinov2")
    assert [opened.summary() for opened in conversion.opened] == [
        "torch.load: every tensor as it was written",
        "dinov2: not tried, Meta DINOv2: a repository of scripts, not a package to install",
    ]


def test_a_model_that_classifies_every_token_opens(timm_directory, tmp_path):
    """`global_pool=""` leaves one row of logits for each token."""
    source = timm_directory(**PLAIN, global_pool="")
    conversion = vitconvert.convert(source, output=tmp_path / "out")
    assert [opened.summary() for opened in conversion.opened] == [
        "timm: bit-equal",
        "transformers: bit-equal",
    ]


def google(folder: Path) -> Path:
    """Google's file."""
    np.savez(folder / "vit.npz", **google_arrays(depth=2, heads=3, width=48, size=24))
    return folder / "vit.npz"


def siglip(folder: Path) -> Path:
    """A model of transformers that pools with attention."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 70, "image_size": 24, "patch_size": 8}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes))
    fill(model).save_pretrained(folder / "siglip")
    return folder / "siglip"


@pytest.mark.parametrize(
    ("source", "to"), [(google, "jax"), (google, "big_vision"), (siglip, "big_vision")]
)
def test_numpy_and_timms_reader_open_an_npz(source, to, tmp_path):
    conversion = vitconvert.convert(source(tmp_path), to=to, output=tmp_path / "out")
    assert names(conversion) == ["numpy.load", "timm"]
    assert conversion.opened[0].bit_equal and conversion.opened[1].relative <= 2e-5


def swapped(first, second):
    return lambda tensors: {first: tensors[second], second: tensors[first]}


LAYER = "encoder.layers.encoder_layer_1"
MHA = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
QKV = "visual.trunk.blocks.1.attn.qkv.weight"
READ = {
    "model.pt": lambda file: torch.load(file, weights_only=True),
    "model.npz": lambda file: dict(np.load(file)),
    "model.safetensors": load_file,
}
WRITE = {
    "model.pt": torch.save,
    "model.npz": lambda tensors, file: np.savez(file, **tensors),
    "model.safetensors": lambda tensors, file: save_file(tensors, file, {"format": "pt"}),
}


@pytest.mark.parametrize(
    ("source", "table", "file", "wrong"),
    [
        (
            *("timm", "torchvision", "model.pt"),
            swapped(f"{LAYER}.ln_1.weight", f"{LAYER}.ln_2.weight"),
        ),
        ("google", "google_jax", "model.npz", swapped(f"{MHA}/query/bias", f"{MHA}/key/bias")),
        (
            *("open_clip", "openclip", "model.safetensors"),
            lambda tensors: {"visual.proj": tensors["visual.proj"].flip(0).contiguous()},
        ),
        (
            *("timm", "openclip_timm", "model.safetensors"),
            lambda tensors: {QKV: torch.cat([-tensors[QKV][:30], tensors[QKV][30:]])},
        ),
    ],
    ids=["swapped norms", "swapped queries and keys", "a turned projection", "turned queries"],
)
def test_a_program_sees_what_is_wrong(source, table, file, wrong, timm_directory, tmp_path):
    sources = {
        "timm": lambda: timm_directory(**PLAIN),
        "google": lambda: google(tmp_path),
        "open_clip": lambda: openclip_directory(tmp_path / "source"),
    }
    place, output = sources[source](), tmp_path / "out"
    vitconvert.convert(place, to=table, output=output, verify=False)
    tensors = READ[file](output / file)
    WRITE[file](tensors | wrong(tensors), output / file)
    model = vitconvert.load_model(place)
    read, computed = open_output(output, builtin_tables()[table], model)
    assert read.bit_equal and not computed.bit_equal
    with pytest.raises(ParityFailed, match=r"(torchvision|timm|open_clip).* computes something"):
        computed.raise_if_failed()


def test_an_output_of_scripts_that_holds_other_numbers(timm_directory, tmp_path, monkeypatch):
    """jeonsworld's classes cannot be installed, so vitconvert reads its output again."""
    monkeypatch.setattr(Content, "whole", lambda content: bytearray(content.info.nbytes))
    with pytest.raises(ParityFailed, match="vitconvert loads the output and computes something"):
        vitconvert.convert(timm_directory(**PLAIN), to="jeonsworld", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_reader_that_finds_other_bytes(timm_directory, tmp_path, monkeypatch):
    load = torch.load

    def off_by_one(path, **options):
        return {name: tensor + 1 for name, tensor in load(path, **options).items()}

    monkeypatch.setattr(torch, "load", off_by_one)
    with pytest.raises(ParityFailed) as error:
        vitconvert.convert(timm_directory(**PLAIN), to="torchvision", output=tmp_path / "out")
    assert str(error.value) == (
        "error: parity-failed\n"
        "  torch.load reads other tensors in the output than were written.\n"
        "  tensor  class_token\n"
        "  hint: nothing was written. Please report this with the checkpoint's name."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["timm", "hf"])
def test_periods_of_a_rotation_go_without_where_the_target_computes_them(to, tmp_path):
    """Meta's published files hold others, rounded to bfloat16, which have no place."""
    tensors, options = dinov3(), {"to": to, "overrides": {"num_heads": 3}}
    torch.save(tensors, tmp_path / "dinov3.pth")
    plan = vitconvert.plan_conversion(tmp_path / "dinov3.pth", **options)
    assert "rope.periods is what the target computes" in plan.guards
    done = vitconvert.convert(tmp_path / "dinov3.pth", output=tmp_path / "out", **options)
    assert done.ledger.changed[0].startswith("compute-rope-periods: ")
    assert all(opened.relative <= 2e-5 for opened in done.opened)
    tensors["rope_embed.periods"] = tensors["rope_embed.periods"].bfloat16().float()
    torch.save(tensors, tmp_path / "rounded.pth")
    with pytest.raises(NotRepresentable, match="and these are others") as error:
        vitconvert.convert(tmp_path / "rounded.pth", output=tmp_path / "no", **options)
    assert error.value.evidence == {
        "tensor": "rope.periods",
        "relative difference": "1.9e-03",
    }
    assert not (tmp_path / "no").exists()


def test_verdicts_in_words():
    assert Opened(consumer="a", relative=0.0, bit_equal=True).summary() == "a: bit-equal"
    assert Opened(consumer="a", relative=1e-6).summary() == "a: relative difference 1.0e-06"
    not_tried = Opened(consumer="a", relative=None, why_not="not installed")
    assert not_tried.summary() == "a: not tried, not installed"
