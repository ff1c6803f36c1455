"""The table of named architectures is what the packages say."""

import pytest
import timm
import torch

from tests.tables import make_architectures
from vitconvert.errors import NotRepresentable
from vitconvert.tables.architectures import architecture_in, architectures, find_architecture
from vitconvert.tables.directory import tables_dir

NAMES = (
    "vit_tiny_patch16_224",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_so400m_patch14_siglip_gap_224",
    "vit_base_patch32_siglip_256",
    "deit3_small_patch16_224",
    "vit_tiny_r_s16_p8_224",
)


@pytest.mark.slow
def test_the_file_is_what_the_script_writes():
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    assert make_architectures.document() == text


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
        "vit_pe_core_base_patch16_224",  # rotary positions
        "vit_base_patch16_rope_224",
        "vit_base_patch16_rpn_224",  # norms after the branches
        "beit_base_patch16_224",
        "vit_giant_patch14_dinov2",  # SwiGLU
    ],
)
def test_what_computes_something_else_has_no_row(name):
    assert name not in architectures()["timm"]
    with pytest.raises(NotRepresentable):
        find_architecture("timm", name)


def test_the_whole_message_for_an_unknown_name():
    with pytest.raises(NotRepresentable) as error:
        find_architecture("timm", "vit_base_patch16_225.augreg")
    assert str(error.value) == (
        "error: not-representable\n"
        "  'vit_base_patch16_225' is no architecture that vitconvert knows.\n"
        "  ecosystem  timm\n"
        "  listed in  weights_map/architectures.toml\n"
        "  Its tensors may look like a plain ViT's and still mean another function, so they are "
        "not read as one.\n"
        "  hint: Did you mean vit_base_patch16_224 or vit_base_patch16_xp_224?"
    )


def test_no_other_architecture_of_timm_passes_for_a_known_one_by_its_file_name():
    known = architectures()["timm"]
    others = [name for name in timm.list_models("*vit*") if name not in known]
    taken = {name: architecture_in("timm", name) for name in others}
    assert {name for name, known_as in taken.items() if known_as} <= {"test_vit_relpos"}
