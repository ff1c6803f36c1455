"""The size of the images, which positions show where they can, and the message where not."""

import pytest

from tests import packages
from tests.facts.header import CONTRADICTED, examine, message, missing, shapes_of, timm
from tests.tables.specimens.google import google_hybrid
from vitconvert.errors import ConflictingFact, MissingFact

HEADS = {"num_heads": 3}


def test_an_image_size_that_the_positions_contradict():
    user = HEADS | {"image_size": (32, 32)}
    assert message(ConflictingFact, timm(), user) == CONTRADICTED.format(
        "image_size = 32x32 (user) makes 16 patches, but the tensors have 10 positions"
    )


def test_a_grid_that_is_not_square_is_asked_for():
    shapes = timm() | {"pos_embed": (1, 13, 30)}
    assert message(MissingFact, shapes, HEADS) == missing(
        "timm",
        "image_size  13 positions with 1 prefix tokens do not form a square grid",
        "--set image_size=...",
    )
    config, _ = examine(shapes, HEADS | {"image_size": (32, 24)})
    assert config.grid_size == (4, 3)


def test_positions_with_and_without_prefix_that_are_both_square_are_asked_for():
    shapes = timm() | {"pos_embed": (1, 9, 30), "reg_token": (1, 4, 30)}
    assert message(MissingFact, shapes, HEADS) == missing(
        "timm",
        "image_size  9 positions with 5 prefix tokens do not form a square grid",
        "--set image_size=...",
    )
    config, _ = examine(shapes, HEADS | {"image_size": (24, 24)})
    assert config.no_embed_class and config.origins["no_embed_class"] == "tensors"
    config, _ = examine(shapes, HEADS | {"image_size": (16, 16)})
    assert not config.no_embed_class


def test_positions_of_patches_alone_are_recognised():
    config, _ = examine(timm() | {"pos_embed": (1, 9, 30)}, HEADS)
    assert (config.no_embed_class, config.image_size) == (True, (24, 24))


def test_a_user_who_misplaces_the_positions():
    user = HEADS | {"image_size": (24, 24), "no_embed_class": True}
    assert message(ConflictingFact, timm(), user) == CONTRADICTED.format(
        "no_embed_class = True (user), but image_size = 24x24 and the 10 positions of the tensors "
        "leave only False"
    )


def test_an_image_that_patches_do_not_fill():
    config, _ = examine(timm(), HEADS | {"image_size": (31, 25)})
    assert config.grid_size == (3, 3)


def test_a_stem_rounds_up_as_its_padding_does():
    config, _ = examine(google_hybrid(()), {"image_size": (23, 17)})
    assert config.grid_size == (3, 3)


def beit(*, shared=False, size=(32, 32)):
    options = {"img_size": size, "patch_size": 8, "embed_dim": 36, "num_heads": 3, "depth": 2}
    kind = "use_shared_rel_pos_bias" if shared else "use_rel_pos_bias"
    return shapes_of(packages.timm.models.Beit, **options, use_abs_pos_emb=False, **{kind: True})


@pytest.mark.parametrize("shared", [False, True])
def test_relative_positions_show_a_square_grid(shared):
    config, ledger = examine(beit(shared=shared))
    assert config.relative_positions == ("shared" if shared else "block")
    assert (config.image_size, config.num_heads) == ((32, 32), 3)
    assumed = "assumed: 52 relative positions form a square grid"
    assert ledger.assumed["image_size"] == f"32x32 ({assumed})"


def test_relative_positions_of_another_grid_are_asked_for():
    shapes = beit(size=(32, 24))
    assert message(MissingFact, shapes) == missing(
        "timm_eva",
        "image_size  38 relative positions do not form a square grid",
        "--set image_size=...",
    )
    config, _ = examine(shapes, {"image_size": (32, 24)})
    assert config.grid_size == (4, 3) and config.axes()["relative"] == 38


def test_an_image_size_that_relative_positions_contradict():
    assert message(ConflictingFact, beit(), {"image_size": (24, 32)}) == CONTRADICTED.format(
        "image_size = 24x32 (user) needs 38 relative positions, but the tensors have 52"
    )
    config, ledger = examine(beit(), None, None, {"image_size": (224, 224)})
    assert config.image_size == (32, 32)
    assert ledger.notes == (
        "image_size = 224x224 (architecture some_vit) needs 3028 relative positions, but the "
        "tensors have 52",
    )


@pytest.mark.parametrize("stated", [None, {"image_size": (32, 32)}])
def test_relative_positions_without_patches_leave_the_patches_to_be_asked_for(stated):
    shapes = {n: shape for n, shape in beit().items() if n != "patch_embed.proj.weight"}
    assert message(MissingFact, shapes, stated) == missing(
        "timm_eva",
        "patch_size   not stated\n  in_channels  not stated",
        "--set patch_size=... --set in_channels=...",
    )


def test_error_a_patch_without_pixels():
    shapes = timm() | {"patch_embed.proj.weight": (30, 3, 0, 8)}
    assert message(MissingFact, shapes, HEADS) == missing(
        "timm", "image_size  patches of 0x8 pixels do not make up an image", "--set image_size=..."
    )
    assert message(ConflictingFact, shapes, HEADS | {"image_size": (24, 24)}) == (
        "error: conflicting-fact\n  These facts contradict each other.\n"
        "  patch_size 0x8 must be at least 1x1"
    )
