"""The table of named architectures is what the packages say."""

import tomllib

import pytest
import torch

from tests.packages import timm
from tests.tables import make_architectures
from vitconvert.errors import NotRepresentable
from vitconvert.tables.architectures import (
    architecture_in,
    architectures,
    find_architecture,
    named,
)
from vitconvert.toml_files import tables_dir

NAMES = (
    "vit_tiny_patch16_224",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_so400m_patch14_siglip_gap_224",
    "vit_base_patch32_siglip_256",
    "deit3_small_patch16_224",
    "vit_tiny_r_s16_p8_224",
)


@pytest.mark.coverage
def test_the_file_is_what_the_script_writes():
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    assert make_architectures.document() == text


@pytest.mark.slow
def test_a_sample_of_the_file_is_what_the_script_writes():
    lines = (tables_dir() / "architectures.toml").read_text(encoding="utf-8").splitlines()
    sample = make_architectures.timm_rows(every=29)
    assert len(sample) > 2
    for name, row in (each for rows in sample.values() for each in rows):
        assert f'"{name}" = {{ {make_architectures.inline(row)} }}' in lines


def test_every_row_of_the_file_is_read():
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    whole = tomllib.loads(text)
    assert {dialect: list(rows) for dialect, rows in architectures().items()} == {
        dialect: list(rows) for dialect, rows in whole.items()
    }
    for dialect, rows in architectures().items():
        for name, row in rows.items():
            said = whole[dialect][name].items()
            assert row == {k: tuple(v) if isinstance(v, list) else v for k, v in said}
        turned = {name for name, row in whole[dialect].items() if "rope" in row}
        assert set(rows.stating("rope")) == turned
        assert all(whole[dialect][name]["rope"] != "none" for name in turned)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_what_timm_builds(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    found = find_architecture("timm", f"{name}.some_tag")
    block = model.blocks[0]
    assert found["num_heads"] == block.attn.num_heads
    assert found["depth"] == len(model.blocks)
    assert found["embed_dim"] == model.embed_dim
    assert found["norm_eps"] == block.norm1.eps
    assert found["patch_size"] == tuple(model.patch_embed.proj.kernel_size)
    assert found["image_size"] == tuple(model.patch_embed.img_size)
    assert found["pooling"] == model.global_pool
    assert found["no_embed_class"] == model.no_embed_class


@pytest.mark.parametrize(
    "name",
    [
        "vitamin_base_224",  # convolutions in front of the blocks
        "hiera_tiny_224",
    ],
)
def test_what_computes_something_else_has_no_row(name):
    assert all(name not in rows for rows in architectures().values())
    with pytest.raises(NotRepresentable):
        find_architecture("timm", name)


@pytest.mark.parametrize(
    ("name", "dialect", "fields"),
    [
        (
            "vit_base_patch16_rpn_224",
            "timm",
            {"block_order": "res_post_norm", "class_token": False},
        ),
        ("test_vit4", "timm", {"norm": "rms", "num_registers": 1, "fc_norm": True}),
        ("beit_base_patch16_224", "timm_eva", {"relative_positions": "block"}),
        ("vit_7b_patch16_dinov3", "timm_eva_gated", {"rope": "dinov3", "gated_mlp": True}),
        ("vit_dpwee_patch16_reg1_gap_256", "timm_parallel", {"differential": True}),
        ("vit_small_resnet50d_s16_224", "timm_resnet_d", {"stem_depths": (3, 4, 6)}),
        ("vit_base_mci_224", "timm_mobileclip", {"stem_style": "mobileclip", "stem_depths": ()}),
        ("vit_srelpos_small_patch16_224", "timm_relpos", {"relative_positions": "shared_mlp"}),
        ("samvit_base_patch16_224", "timm_sam", {"norm_eps": 1e-5, "final_norm_eps": 1e-6}),
    ],
)
def test_a_row_stands_under_its_dialect_and_says_what_differs(name, dialect, fields):
    row = architectures()[dialect][name]
    assert {field: row.get(field) for field in fields} == fields
    assert find_architecture("timm", name) == row


def test_the_whole_message_for_an_unknown_name():
    with pytest.raises(NotRepresentable) as error:
        find_architecture("timm", "vit_base_patch16_225.augreg")
    assert str(error.value) == (
        "error: not-representable\n"
        "  'vit_base_patch16_225' is not an architecture that vitconvert knows.\n"
        "  ecosystem  timm\n"
        "  listed in  weights_map/architectures.toml\n"
        "  Its tensors may look like a plain ViT's and still mean another function, so they are "
        "not read as one.\n"
        "  hint: did you mean vit_base_patch16_224 or vit_base_patch16_xp_224?"
    )


def test_no_other_architecture_of_timm_passes_for_a_known_one_by_its_file_name():
    known = named("timm")
    others = [name for name in timm.list_models("*vit*") if name not in known]
    taken = {name: architecture_in("timm", name) for name in others}
    assert {name for name, known_as in taken.items() if known_as} == set()
