"""What files of projects that are no packages say and leave unsaid."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

import vitconvert
from tests.originals.goldens import golden, images_and_output
from tests.packages import timm
from tests.small_models import relative
from vitconvert.errors import (
    AmbiguousDialect,
    MissingFact,
    NotRepresentable,
    UnknownDialect,
    VitConvertError,
)

ROUNDING = 1e-6


def refused(tensors, tmp_path, kind: type[VitConvertError], match: str) -> None:
    torch.save(tensors, tmp_path / "file.pth")
    with pytest.raises(kind, match=match):
        vitconvert.load_checkpoint(tmp_path / "file.pth", overrides={"num_heads": 3})


def test_a_matrix_for_each_head_is_told(tmp_path):
    tensors = golden("tintn")
    for number in range(2):
        attention = f"encoder.blocks.{number}.attention"
        weight = tensors.pop(f"{attention}.qkv_projection.weight")
        del tensors[f"{attention}.qkv_projection.bias"]
        names = [f"heads.{h}.{x}" for x in ("query", "key", "value") for h in range(3)]
        rows = zip(names, weight.chunk(9), strict=True)
        tensors |= {f"{attention}.{n}.weight": part.clone() for n, part in rows}
    refused(tensors, tmp_path, UnknownDialect, "use_faster_attention = false")


def test_a_representation_layer_before_the_norm_is_told(tmp_path):
    layer = {"pre_logits.weight": torch.ones(12, 12), "pre_logits.bias": torch.ones(12)}
    refused(golden("lukemelas") | layer, tmp_path, NotRepresentable, "load_repr_layer")


def test_the_eps_of_an_own_training_is_asked_for(tmp_path):
    torch.save(golden("dinov3_key_bias"), tmp_path / "file.pth")
    with pytest.raises(MissingFact, match="layernormbf16"):
        vitconvert.load_checkpoint(tmp_path / "file.pth")


@pytest.mark.parametrize(("name", "also"), [("deit3", "ibot"), ("ibot", "deit3")])
def test_a_question_names_every_dialect_with_so_many_positions(name, also, tmp_path):
    """DeiT III's class token has no position, iBOT's has one, timm's Eva knows both."""
    torch.save(golden(name), tmp_path / "file.pth")
    with pytest.raises(AmbiguousDialect) as error:
        vitconvert.load_checkpoint(tmp_path / "file.pth", overrides={"num_heads": 3})
    assert error.value.evidence.keys() == {name, "timm_eva_rope"}
    assert f"--dialect {name} or --dialect timm_eva_rope" in str(error.value)
    with pytest.raises(MissingFact, match="do not form a square grid"):
        vitconvert.load_checkpoint(tmp_path / "file.pth", dialect=also, overrides={"num_heads": 3})


@pytest.mark.parametrize(
    ("architecture", "dialect", "rope"),
    [
        ("deit3_small_patch16_224", "deit3", "none"),
        ("vit_small_patch16_rope_ape_224", "timm_eva_rope", "axial"),
    ],
)
def test_an_architecture_tells_dialects_of_the_same_tensors_apart(
    architecture, dialect, rope, tmp_path
):
    with torch.device("meta"):
        shapes = timm.create_model("deit3_small_patch16_224", num_classes=0).state_dict()
    names = ((re.sub(r"ls([12])\.gamma", r"gamma_\1", name), t) for name, t in shapes.items())
    tensors = {name: torch.zeros(t.shape, dtype=torch.float16) for name, t in names}
    save_file(tensors, tmp_path / "file.safetensors")
    checkpoint = vitconvert.load_checkpoint(
        tmp_path / "file.safetensors", architecture=architecture
    )
    assert (checkpoint.dialect, checkpoint.config.rope) == (dialect, rope)


@torch.no_grad()
def test_a_class_that_gives_all_tokens_holds_what_pools_the_class_token(tmp_path):
    torch.save(golden("internvit"), tmp_path / "file.pth")
    done = vitconvert.convert(
        tmp_path / "file.pth", to="hf", output=tmp_path / "out", overrides={"num_heads": 3}
    )
    assert [change.partition(":")[0] for change in done.ledger.changed] == ["all-tokens"]
    assert done.opened[-1].relative <= 2e-5
    images, output = images_and_output("internvit")
    tokens = vitconvert.load_model(tmp_path / "out")(images)
    assert tokens.shape[1] == 10
    assert relative(tokens[:, 0], output) <= ROUNDING


def test_windows_that_no_tensor_shows_are_asked_for(tmp_path):
    torch.save(golden("vitdet_plain"), tmp_path / "file.pth")
    with pytest.raises(MissingFact, match=r"window_size(.|\n)*global_blocks"):
        vitconvert.load_checkpoint(tmp_path / "file.pth", overrides={"num_heads": 3})


# As config.json of dots.ocr has it, without a type of its section
DOTS = {"embed_dim": 24, "hidden_size": 5, "intermediate_size": 10, "num_hidden_layers": 2}
DOTS |= {"num_attention_heads": 3, "num_channels": 3, "patch_size": 4, "rms_norm_eps": 1e-5}
DOTS |= {"post_norm": True, "use_bias": False, "is_causal": False, "spatial_merge_size": 2}
SIZED = {"image_size": (24, 40)}


def dots(folder, **changes):
    """A whole dots.ocr, with the names of its text model."""
    layer = "model.layers.0.self_attn"
    text = {f"{layer}.{name}_proj.weight": torch.zeros(9, 9) for name in "qkvo"}
    text |= {f"{layer}.{name}_proj.bias": torch.zeros(9) for name in "qkv"}
    text["model.layers.0.mlp.gate_proj.weight"] = torch.zeros(9, 9)
    text["model.embed_tokens.weight"] = torch.zeros(7, 9)
    tensors = {f"vision_tower.{name}": tensor for name, tensor in golden("dots_ocr").items()}
    save_file(tensors | text, folder / "model.safetensors")
    config = {"model_type": "dots_ocr", "num_attention_heads": 9, "vision_config": DOTS | changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def test_dots_ocr_within_the_whole_model(tmp_path):
    checkpoint = vitconvert.load_checkpoint(dots(tmp_path), overrides=SIZED)
    assert (checkpoint.dialect, checkpoint.config.num_heads) == ("hf_dots_ocr", 3)
    images, output = images_and_output("dots_ocr")
    assert relative(vitconvert.load_model(checkpoint)(images), output) <= ROUNDING
    skipped = vitconvert.verify(tmp_path, overrides=SIZED).skipped
    assert skipped.endswith("the code of a repository is not run.")
    done = vitconvert.convert(tmp_path, output=tmp_path / "vit", to="vit", overrides=SIZED)
    assert done.opened
    assert relative(vitconvert.load_model(tmp_path / "vit")(images), output) <= ROUNDING


def test_what_is_refused_of_dots_ocr(tmp_path):
    with pytest.raises(MissingFact, match="the grid is unknown"):
        vitconvert.load_checkpoint(dots(tmp_path))
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: vit"):
        vitconvert.convert(tmp_path, output=tmp_path / "hf", to="hf", overrides=SIZED)
    with pytest.raises(NotRepresentable, match="is_causal"):
        vitconvert.load_checkpoint(dots(tmp_path, is_causal=True), overrides=SIZED)
