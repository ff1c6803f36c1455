"""A model of free image size: as it is built for each size, and as the libraries compute it."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitconvert
from tests.conversion.test_other_sizes import in_transformers, noise, save_hf, save_timm
from tests.packages import timm
from tests.runtimes.test_families import PARTS
from tests.sampling import sampled
from tests.small_models import randomise, relative, small_config, small_timm
from vitconvert.errors import (
    ConflictingFact,
    InputMismatch,
    MissingFact,
    UsageError,
    VitConvertWarning,
)
from vitconvert.model import FastViT, ViT
from vitconvert.model.open_sizes import resized
from vitconvert.model.resampling import INTERPOLATION, OFFSET, resample_positions
from vitconvert.model.resizing import resize

MERGED = {"class_token": False, "pooling": "avg", "merge_size": 1}
KINDS = {
    "learned": {"depth": 11},
    "one channel": {"in_channels": 1, "num_registers": 2, "register_positions": False},
    "beit": {"relative_positions": "block", "position_embedding": "none"},
    "shared": {"relative_positions": "shared", "relative_resampling": "bilinear"},
    "rope": {"rope": "axial", "head_dim": 12, "rope_reference": (3, 5)},
    "mixed": {"rope": "mixed", "head_dim": 12},
    "dinov3": {"rope": "dinov3", "head_dim": 12},
    "registers of dinov2": {"position_resampling": "bicubic_offset", "num_registers": 3},
    "windows and global blocks": PARTS["windows"] | {"global_blocks": (1,)},
    "hidden padding": PARTS["windows"] | {"window_padding": False, "relative_positions": "none"},
    "merged": MERGED,
    **PARTS,
}
GRIDS = ((3, 3), (2, 7), (6, 5), (7, 2))


def free(model, kind=ViT):
    """The same model, of free image size."""
    one = kind(model.config, device="meta").eval()
    one.load_state_dict(model.state_dict(), assign=True)
    one.patch_embed.strict_img_size = False
    return one


def at(model, size, kind=ViT):
    """The same model, built for a size."""
    tensors, config, _ = resize(model.state_dict(), model.config, image_size=size)
    one = kind(config, device="meta").eval()
    one.load_state_dict(tensors, assign=True)
    return one


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("kind", sampled(KINDS, 3))
def test_equals_the_model_of_each_size(kind):
    config = small_config(**KINDS[kind])
    torch.manual_seed(3)
    model = randomise(ViT(config))
    patch = [side * config.stem_stride for side in config.patch_size]
    for grid in (config.grid_size, *GRIDS):
        size = (grid[0] * patch[0], grid[1] * patch[1])
        images = noise(size, config.in_channels)
        try:
            expected = at(model, size)
        except ConflictingFact:
            continue
        assert torch.equal(free(model)(images), expected(images)), size
        assert torch.equal(free(model, FastViT)(images), at(model, size, FastViT)(images)), size
        ours, theirs = (one.forward_intermediates(images) for one in (free(model), expected))
        assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
        for a, b in zip(
            vitconvert.attentions(free(model), images).values(),
            vitconvert.attentions(expected, images).values(),
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("rule", INTERPOLATION)
def test_products_are_interpolation(rule):
    for old in ((5, 3), (1, 4), (7, 9), (14, 14)):
        table = torch.randn(1, old[0] * old[1], 6, generator=torch.Generator().manual_seed(1))
        for new in ((5, 3), (9, 4), (3, 1), (2, 17), (31, 16), (14, 14), (7, 8)):
            wanted = resample_positions(table, old_grid=old, new_grid=new, prefix=0, rule=rule)
            mode, offset = rule.removesuffix("_offset"), OFFSET.get(rule, 0.0)
            found = resized(table.reshape(1, *old, 6), new, mode=mode, offset=offset)
            assert relative(found.flatten(1, 2), wanted) < 1e-5, (old, new)


def in_timm(directory, images):
    options = {"pretrained": True, "dynamic_img_size": True, "in_chans": images.shape[1]}
    return timm.create_model(f"local-dir:{directory}", **options).eval()(images)


TIMM = {
    "vit": ("vit_base_patch16_224", {"num_classes": 6}),
    "deit3": ("deit3_base_patch16_224", {"num_classes": 6, "in_chans": 1}),
    "eva02": ("eva02_base_patch14_224", {"num_classes": 6, "depth": 11}),
    "dinov3": ("vit_small_patch16_dinov3", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TIMM)
def test_equals_timm(kind, tmp_path):
    name, arguments = TIMM[kind]
    source = save_timm(tmp_path, name, **arguments)
    model = vitconvert.load_model(source, dynamic_size=True)
    usual = vitconvert.load_model(source)
    patch, channels = model.config.patch_size[0], model.config.in_channels
    images = noise(model.config.image_size, channels)
    assert torch.equal(model(images), usual(images))
    for rows, columns in ((12, 12), (7, 7), (5, 14), (13, 2)):
        images = noise((rows * patch, columns * patch), channels)
        assert torch.equal(model(images), in_timm(source, images))
    with pytest.raises(InputMismatch, match="do not divide into patches"):
        model(noise((7 * patch + 1, 7 * patch), channels))
    with pytest.raises(AssertionError):
        in_timm(source, noise((7 * patch + 1, 7 * patch), channels))


@pytest.mark.slow
def test_equals_transformers_which_leaves_out_what_is_over(tmp_path):
    settings = {"intermediate_size": 60, "num_labels": 5, "num_channels": 1}
    source = save_hf(tmp_path, "ViTForImageClassification", **settings)
    model = vitconvert.load_model(source, dynamic_size=True)
    for size in ((84, 84), (50, 50), (85, 90), (36, 111)):
        images = noise(size, 1)
        assert relative(model(images), in_transformers(source, images)) < 2e-6
        cut = images[..., : size[0] // 7 * 7, : size[1] // 7 * 7]
        assert torch.equal(model(images), model(cut))


def test_too_small_images_and_wrong_channels():
    model = free(randomise(ViT(small_config())))
    with pytest.raises(ConflictingFact, match="too small"):
        model(noise((4, 24)))
    with pytest.raises(InputMismatch, match=r"\(B, 3, height, width\)"):
        model(noise((16, 24), 4))


def test_gradients_reach_positions():
    with torch.enable_grad():
        model = ViT(small_config())
        model.patch_embed.strict_img_size = False
        model(noise((16, 40))).sum().backward()
    assert model.pos_embed.grad is not None and bool(model.pos_embed.grad.abs().sum() > 0)


def test_positions_are_not_resampled_twice(tmp_path):
    source = save_timm(tmp_path, "vit_base_patch16_224", num_classes=6)
    with pytest.raises(UsageError, match="keeps its own positions"):
        vitconvert.load_model(source, image_size=112, dynamic_size=True)
    same = vitconvert.load_model(source, image_size=84, dynamic_size=True)
    assert same(noise((84, 91))).shape == (1, 6)


def images_of(prepared):
    """What goes through a model: an image of an odd size."""
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (93, 71, prepared.channels), np.uint8))]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(56, 133), 42, (84, 84)])
def test_classes_and_features_at_another_size(size, tmp_path):
    """Of a live model, of a checkpoint and of a path alike, as timm computes them."""
    source = save_timm(tmp_path, "vit_base_patch16_224", num_classes=6)
    checkpoint = vitconvert.load_checkpoint(source)
    live, prepared = vitconvert.load_model(source, dynamic_size=True), checkpoint.preprocessing
    height, width = (size, size) if isinstance(size, int) else size
    sized = {"input_size": (3, height, width), "interpolation": "bicubic", "crop_pct": 0.9}
    transform = timm.data.create_transform(**sized, mean=prepared.mean, std=prepared.std)
    (image,) = images_of(prepared)
    wanted = in_timm(source, transform(image)[None])[0]
    (usual,) = vitconvert.embed(checkpoint, image, image_size=size, tokens=True, fast=False)
    for model, given in ((live, prepared), (live, prepared.at_size((height, width)))):
        how = {} if given is not prepared else {"image_size": size}
        (found,) = vitconvert.predict(model, image, given, topk=6, **how)
        logits = torch.tensor([one.logit for one in sorted(found.top, key=lambda one: one.index)])
        assert relative(logits, wanted) < 1e-6
        (tokens,) = vitconvert.embed(model, image, given, tokens=True, **how)
        assert torch.equal(tokens.features, usual.features)
    for model in (checkpoint, source):
        (found,) = vitconvert.predict(model, image, prepared, image_size=size, topk=6)
        logits = torch.tensor([one.logit for one in sorted(found.top, key=lambda one: one.index)])
        assert relative(logits, wanted) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("size", [(42, 168), (63, 70)])
def test_maps_of_a_live_model_are_those_of_the_checkpoint(size, tmp_path):
    """The first size has as many patches as the model's own, down and across exchanged."""
    source = save_timm(tmp_path, "vit_base_patch16_224", num_classes=6, depth=2)
    at_size = vitconvert.load_checkpoint(source, image_size=size)
    live, prepared = vitconvert.load_model(source, dynamic_size=True), at_size.preprocessing
    for maps, name in ((vitconvert.attention_maps, "flow"), (vitconvert.feature_maps, "tokens")):
        (ours,), (theirs,) = (
            list(maps(model, images_of(prepared), prepared)) for model in (live, at_size)
        )
        assert ours.grid == theirs.grid == (size[0] // 7, size[1] // 7)
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.slow
def test_sizes_that_a_live_model_does_not_take(tmp_path):
    source = save_timm(tmp_path, "vit_base_patch16_224", num_classes=6)
    prepared = vitconvert.load_checkpoint(source).preprocessing
    fixed = vitconvert.load_model(source)
    with pytest.raises(UsageError, match="image_size: this option builds the model differently"):
        vitconvert.predict(fixed, images_of(prepared), prepared, image_size=42)
    same = vitconvert.embed(fixed, images_of(prepared), prepared, image_size=84)
    assert next(same).error is None
    free = vitconvert.load_model(source, dynamic_size=True)
    with pytest.raises(UsageError, match="85x84 does not divide into patches"):
        vitconvert.embed(free, images_of(prepared), prepared, image_size=(85, 84))
    with pytest.raises(ConflictingFact, match="too small"):
        vitconvert.embed(free, images_of(prepared), prepared, image_size=3)


@pytest.mark.slow
def test_a_free_size_is_not_saved_and_that_is_said(tmp_path):
    source = save_timm(tmp_path, "vit_base_patch16_224", num_classes=6)
    model, images = vitconvert.load_model(source, dynamic_size=True), noise((42, 91))
    with pytest.warns(VitConvertWarning, match="a free image size is not saved"):
        model.save_pretrained(tmp_path / "saved", verify=False)
    with pytest.raises(InputMismatch, match="expects 84x84"):
        ViT.from_pretrained(tmp_path / "saved")(images)
    again = ViT.from_pretrained(tmp_path / "saved", dynamic_size=True)
    assert torch.equal(again(images), model(images))


def test_an_unknown_rule_is_asked_for(tmp_path):
    model = randomise(small_timm(num_classes=0, img_size=24))
    save_file(model.state_dict(), tmp_path / "backbone.safetensors")
    reading = {"overrides": {"num_heads": 3}}
    with pytest.raises(MissingFact, match="resamples positions is unknown"):
        vitconvert.load_model(tmp_path / "backbone.safetensors", dynamic_size=True, **reading)
    reading["overrides"]["position_resampling"] = "bicubic"
    found = vitconvert.load_model(tmp_path / "backbone.safetensors", dynamic_size=True, **reading)
    images = noise((40, 16))
    wanted = vitconvert.load_model(
        tmp_path / "backbone.safetensors", image_size=(40, 16), **reading
    )
    assert torch.equal(found(images), wanted(images))
