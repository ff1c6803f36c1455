"""What files of projects that are no packages say and leave unsaid."""

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
