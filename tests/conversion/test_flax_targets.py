"""What Google's, big_vision's and jeonsworld's classes always have is not written without it."""

import pytest
import torch

import vitconvert
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import choose_without_steps
from vitconvert.errors import NotRepresentable
from vitconvert.programs.program import DescribedModel

SIZES = {"image_size": (24, 40), "patch_size": (8, 8), "in_channels": 3, "num_classes": 7}
SIZES |= {"embed_dim": 36, "depth": 2, "num_heads": 3, "head_dim": 12, "mlp_dim": 50}
TOKEN = ViTConfig(**SIZES, activation="gelu_tanh", norm_eps=1e-6, pooling="token")
POOLED = TOKEN.replace(class_token=False, pooling="map", pool_include_prefix=True)
CONFIGS = {
    "google_jax": TOKEN,
    "google_jax_linen": TOKEN.replace(position_embedding="none"),
    "big_vision": POOLED,
    "big_vision_scan": TOKEN.replace(no_embed_class=True),
    "jeonsworld": TOKEN.replace(activation="gelu"),
}


def dialect(to, config) -> str:
    return choose_without_steps(to, DescribedModel(config=config)).target.table.name


def refusal(to, changes) -> str:
    with pytest.raises(NotRepresentable) as error:
        dialect(to, CONFIGS[to].replace(**changes))
    return str(error.value)


@pytest.mark.parametrize("to", CONFIGS)
def test_what_they_all_hold(to):
    assert dialect(to, CONFIGS[to]) == to


@pytest.mark.parametrize("to", CONFIGS)
@pytest.mark.parametrize("part", ["patch", "norm", "qkv", "proj", "mlp", "head"])
def test_every_layer_has_a_bias(to, part):
    problem = f"{part}_bias is always True there, and False here"
    assert problem in refusal(to, {f"{part}_bias": False})


def test_jeonsworlds_images_have_three_channels():
    assert refusal("jeonsworld", {"in_channels": 1}) == (
        "error: not-representable\n"
        "  jeonsworld ViT-pytorch has no such models.\n"
        "  table  weights_map/jeonsworld.toml\n"
        "  in_channels is always 3 there, and 1 here"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pool_heads": 2}, "pool_heads == num_heads is always True there, and False here"),
        ({"pool_mlp_dim": 7}, "pool_mlp_dim == mlp_dim is always True there, and False here"),
        (
            {"class_token": True},
            "class_token implies pooling == 'token' is always True there, and False here "
            "(class_token = True, pooling = map): only pool_type='tok' makes a class token",
        ),
        ({"image_size": (40, 80)}, "class_position_counts is always True there, and False here"),
        ({"image_size": (8, 16)}, "class_position_counts is always True there, and False here"),
    ],
)
def test_what_big_visions_vit_cannot_be(changes, problem):
    assert problem in refusal("big_vision", changes)


def test_a_class_tokens_position_is_found_in_a_square_of_patches_alone():
    square = TOKEN.replace(image_size=(24, 24))
    assert dialect("big_vision", square) == "big_vision"
    assert "class_position_counts is always True there" in refusal(
        "big_vision_scan", {"no_embed_class": False}
    )


def test_computed_positions_cannot_be_mistaken():
    config = POOLED.replace(image_size=(40, 80), position_embedding="sincos2d")
    assert dialect("big_vision", config) == "big_vision"


def test_one_patch_is_no_square_and_a_class_token():
    config = POOLED.replace(image_size=(8, 8))
    assert dialect("big_vision", config) == "big_vision"


def test_a_pooling_with_as_many_heads_as_a_block_is_read_from_what_was_written(
    timm_directory, tmp_path
):
    """timm's configuration leaves their number to the blocks, and big_vision's tensors show it."""
    source = timm_directory(
        img_size=24, patch_size=8, embed_dim=36, depth=2, num_heads=3, mlp_ratio=1.5,
        num_classes=5, act_layer="gelu_tanh", global_pool="map", class_token=False,
    )  # fmt: skip
    output = tmp_path / "out"
    vitconvert.convert(source, to="big_vision", output=output)
    images = torch.randn(2, 3, 24, 24)
    before, after = (vitconvert.load_model(place)(images) for place in (source, output))
    assert torch.equal(before, after)
