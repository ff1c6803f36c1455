"""The hybrid's stem: beside timm's, and beside each project's arithmetic in float64."""

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.packages import timm
from vitconvert.errors import ConflictingFact
from vitconvert.model import ViT

DEPTHS = [(), (1,), (1, 2, 2), (2, 1, 1, 2), (3, 4, 9)]
SIZES = [(64, 96), (65, 79)]


@pytest.mark.parametrize("depths", DEPTHS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_timm_style_equals_timm_to_the_last_bit(depths, size, make_config, randomise, images):
    if len(depths) == 4:
        size = (size[0] * 2, size[1] * 2)
    config = _hybrid(make_config, depths, image_size=size, stem_style="timm")
    theirs = randomise(_timm(config))
    ours = _same_weights(config, theirs)
    x = images(config)
    assert torch.equal(ours.patch_embed(x), theirs.patch_embed(x))
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("size", [(64, 96), (67, 79)], ids=str)
@pytest.mark.parametrize("stem", [(2,), (1, 2, 2), (2, 1, 1, 2), "mobileclip"], ids=str)
def test_batch_norm_stems_equal_timm_to_the_last_bit(
    stem, size, training, make_config, randomise, images
):
    config = _batch_normed(make_config, stem, image_size=size)
    theirs = randomise(_timm_batch_normed(config))
    ours = ViT(config)
    ours.load_state_dict(_renamed(theirs.state_dict()), strict=True)
    ours.train(training), theirs.train(training)
    x = images(config)
    assert torch.equal(ours.patch_embed(x), theirs.patch_embed(x))
    assert torch.equal(ours(x), theirs(x))
    gathered = _renamed(theirs.state_dict())
    assert all(torch.equal(gathered[name], tensor) for name, tensor in ours.state_dict().items())
    counts = {int(t) for name, t in gathered.items() if name.endswith("num_batches_tracked")}
    assert counts == {11 if training else 9}


@pytest.mark.parametrize("stem", [(1, 2), "mobileclip"], ids=str)
def test_fresh_batch_norm_stems_are_timms(stem, make_config):
    config = _batch_normed(make_config, stem, stem_width=64, image_size=(64, 96))
    theirs = _renamed(_timm_batch_normed(config).state_dict())
    for name, tensor in ViT(config).state_dict().items():
        ours, wanted = tensor.float(), theirs[name].float()
        if ours.ndim == 4 and "backbone" in name:
            assert abs(ours.std() / wanted.std() - 1) < 5 / ours.numel() ** 0.5, name
            assert (ours.abs().max() < 2 * ours.std()) == (stem == "mobileclip"), name
        elif "norm" in name:
            assert torch.equal(ours, wanted), name


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"stem_style": "mobileclip", "stem_depths": (1,)},
            "stem_style = 'mobileclip' has no stages: stem_depths must be empty",
        ),
        (
            {"stem_style": "resnet_d", "stem_width": 9},
            "the stem's first convolutions halve stem_width 9",
        ),
        (
            {"stem_style": "mobileclip", "image_size": (64, 7)},
            "image_size 64x7 is too small for a patch of 1x1 (stem stride 8)",
        ),
    ],
)
def test_stems_that_do_not_exist(fields, problem, make_config):
    with pytest.raises(ConflictingFact) as error:
        make_config(**{"stem": True, "patch_size": (1, 1), "image_size": (64, 96)} | fields)
    assert str(error.value) == (
        f"error: conflicting-fact\n  These facts contradict each other.\n  {problem}"
    )


@pytest.mark.parametrize("depths", [(), (1, 2, 2)], ids=str)
def test_intermediates_equal_timm(depths, make_config, randomise, images):
    config = _hybrid(make_config, depths, image_size=(64, 96), stem_style="timm")
    theirs = randomise(_timm(config))
    ours = _same_weights(config, theirs)
    x = images(config)
    outputs, wanted = (m.forward_intermediates(x, intermediates_only=True) for m in (ours, theirs))
    assert all(map(torch.equal, outputs, wanted))
    assert len(outputs) == len(wanted)


@pytest.mark.parametrize("depths", [(), (1, 2, 2)], ids=str)
def test_google_style_is_close_to_timm(depths, make_config, randomise, images):
    config = _hybrid(make_config, depths)
    theirs = randomise(_timm(config))
    ours = _same_weights(config, theirs)
    x = images(config)
    assert 0 < _relative(ours.patch_embed.backbone(x), theirs.patch_embed.backbone(x)) < 5e-5


@pytest.mark.parametrize("style", ["google", "timm", "jeonsworld"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_stem_computes_its_projects_formulas(style, size, make_config, randomise, images):
    config = _hybrid(make_config, (1, 2, 2), image_size=size, stem_style=style)
    stem = randomise(ViT(config)).double().patch_embed.backbone
    # Flat kernels and small signals make every epsilon count.
    with torch.no_grad():
        for parameter in stem.parameters():
            parameter.mul_(1e-3 if parameter.ndim == 4 else 1)
    x = images(config).double()
    torch.testing.assert_close(stem(x), _by_hand(x, stem, style), rtol=1e-11, atol=1e-11)


def test_jeonsworlds_stem_is_not_googles(make_config, randomise, images):
    google = randomise(ViT(_hybrid(make_config, (1, 2, 2))))
    other = ViT(_hybrid(make_config, (1, 2, 2), stem_style="jeonsworld")).eval()
    other.load_state_dict(google.state_dict())
    x = images(google.config)
    assert _relative(other(x), google(x)) > 0.01


def test_google_style_in_float32_is_near_its_formulas_in_float64(make_config, randomise, images):
    config = _hybrid(make_config, (1, 2, 2))
    stem = randomise(ViT(config)).patch_embed.backbone
    x = images(config)
    single = stem(x)
    assert _relative(single.double(), _by_hand(x.double(), stem.double(), "google")) < 1e-5


def _same_weights(config, theirs):
    state = theirs.state_dict()
    if not config.stem_depths:
        state = {name.replace("backbone.", "backbone.stem."): state[name] for name in state}
    ours = ViT(config, device="meta").eval()
    ours.load_state_dict(state, strict=True, assign=True)
    return ours


def _hybrid(make_config, depths, **changes):
    fields = {
        "image_size": (64, 96),
        "patch_size": (1, 1) if depths else (1, 4),
        "stem": True,
        "stem_depths": depths,
        "stem_width": 32,
        "depth": 2,
    }
    return make_config(**(fields | changes))


def _batch_normed(make_config, stem, **changes):
    """Depths of a ResNet-D, or MobileCLIP's stem; four channels."""
    if stem == "mobileclip":
        fields = {"stem_style": stem, "patch_size": (2, 2), "no_embed_class": True}
    else:
        fields = {"stem_style": "resnet_d", "patch_size": (1, 1), "stem_depths": stem}
    fields |= {"stem": True, "stem_width": 16, "in_channels": 4, "depth": 2}
    return make_config(**fields | changes)


def _timm_batch_normed(config):
    width = config.stem_width
    if config.stem_style == "mobileclip":
        # Of as many channels as the model is wide, since timm puts no projection behind it.
        backbone = timm.models.vision_transformer_hybrid.ConvStem(
            channels=(width, width, 30),
            stride=(4, 2, 2),
            kernel_size=(4, 2, 2),
            padding=0,
            act_layer=torch.nn.GELU,
            in_chans=config.in_channels,
        )
    else:
        backbone = timm.models.ResNet(
            timm.models.Bottleneck,
            config.stem_depths,
            channels=tuple(width * 2**stage for stage in range(len(config.stem_depths))),
            stem_width=width // 2,
            stem_type="deep",
            avg_down=True,
            num_classes=0,
            global_pool="",
            in_chans=config.in_channels,
        )
        for later in range(len(config.stem_depths), 4):
            backbone.add_module(f"layer{later + 1}", torch.nn.Identity())
    project = config.stem_style != "mobileclip"
    embed = partial(
        timm.layers.HybridEmbed, backbone=backbone, proj=project, in_chans=config.in_channels
    )
    return timm.models.VisionTransformer(
        img_size=config.image_size,
        patch_size=1,
        embed_layer=embed,
        num_classes=7,
        embed_dim=30,
        depth=2,
        num_heads=3,
        mlp_ratio=50 / 30,
        no_embed_class=config.no_embed_class,
        in_chans=config.in_channels,
    )


# timm's names of `resnet.py` and `ConvStem`, and ours
NAMES = {
    r"backbone\.conv1\.0\.": "backbone.stem.conv1.",
    r"backbone\.conv1\.1\.": "backbone.stem.norm1.",
    r"backbone\.conv1\.3\.": "backbone.stem.conv2.",
    r"backbone\.conv1\.4\.": "backbone.stem.norm2.",
    r"backbone\.conv1\.6\.": "backbone.stem.conv3.",
    r"backbone\.bn1\.": "backbone.stem.norm3.",
    r"layer(\d)\.(\d)": lambda found: f"stages.{int(found[1]) - 1}.blocks.{found[2]}",
    r"\.bn(\d)": r".norm\1",
    r"downsample\.1": "downsample.conv",
    r"downsample\.2": "downsample.norm",
    r"backbone\.([01])\.bn": r"backbone.\1.norm",
    r"backbone\.2\.conv": "proj",
}


def _renamed(state):
    renamed = {}
    for name, tensor in state.items():
        for pattern, ours in NAMES.items():
            name = re.sub(pattern, ours, name)
        renamed[name] = tensor
    return renamed


def _timm(config):
    conv = partial(timm.layers.StdConv2dSame, eps=1e-8)
    if config.stem_depths:
        backbone = timm.models.ResNetV2(
            layers=config.stem_depths,
            channels=tuple(128 * 2**stage for stage in range(len(config.stem_depths))),
            stem_chs=32,
            num_classes=0,
            global_pool="",
            preact=False,
            stem_type="same",
            conv_layer=conv,
        )
    else:
        backbone = timm.models.resnetv2.create_resnetv2_stem(
            3, out_chs=32, stem_type="same", preact=False, conv_layer=conv
        )
    return timm.models.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_layer=partial(timm.layers.HybridEmbed, backbone=backbone),
        num_classes=7,
        embed_dim=30,
        depth=2,
        num_heads=3,
        mlp_ratio=50 / 30,
    )


# style: (SAME padding, divisor of a kernel by its variance, norm eps, shortcut groups and eps)
FORMULAS = {
    "google": (True, lambda variance: variance.sqrt() + 1e-5, 1e-6, (32, 1e-6)),
    "timm": (True, lambda variance: (variance + 1e-8).sqrt(), 1e-5, (32, 1e-5)),
    "jeonsworld": (False, lambda variance: (variance + 1e-5).sqrt(), 1e-6, (None, 1e-5)),
}


def _by_hand(x, stem, style):
    """The network as a chain of formulas, on the parameters of `stem`."""
    p = dict(stem.named_parameters())
    same, _, eps, (shortcut_groups, shortcut_eps) = FORMULAS[style]

    def conv_norm(x, conv, norm, stride, groups=32, eps=eps):
        return _norm(_conv(x, p[f"{conv}.weight"], stride, style), p, norm, groups, eps)

    x = F.relu(conv_norm(x, "stem.conv", "stem.norm", 2))
    x = F.max_pool2d(_same(x, 3, 2, float("-inf")) if same else x, 3, 2)
    for s, stage in enumerate(stem.stages):
        for u in range(len(stage.blocks)):
            name, stride = f"stages.{s}.blocks.{u}", 2 if s and not u else 1
            down = f"{name}.downsample"
            shortcut = x
            if not u:
                groups = shortcut_groups or p[f"{down}.norm.weight"].numel()
                shortcut = conv_norm(
                    x, f"{down}.conv", f"{down}.norm", stride, groups, shortcut_eps
                )
            y = F.relu(conv_norm(x, f"{name}.conv1", f"{name}.norm1", 1))
            y = F.relu(conv_norm(y, f"{name}.conv2", f"{name}.norm2", stride))
            x = F.relu(shortcut + conv_norm(y, f"{name}.conv3", f"{name}.norm3", 1))
    return x


def _conv(x, weight, stride, style):
    same, divisor, _, _ = FORMULAS[style]
    size = weight.shape[-1]
    flat = weight.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    kernel = centred / divisor(centred.square().mean(1, keepdim=True))
    x = _same(x, size, stride, 0.0) if same else F.pad(x, [size // 2] * 4)
    return F.conv2d(x, kernel.view_as(weight), None, stride)


def _same(x, size, stride, value):
    height, width = (max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[2:])
    half = (width // 2, width - width // 2, height // 2, height - height // 2)
    return F.pad(x, half, value=value)


def _norm(x, p, name, groups, eps):
    B, C, height, width = x.shape
    grouped = x.reshape(B, groups, -1)
    centred = grouped - grouped.mean(2, keepdim=True)
    scaled = centred / (centred.square().mean(2, keepdim=True) + eps).sqrt()
    scale, shift = p[f"{name}.weight"], p[f"{name}.bias"]
    return scaled.view(B, C, height, width) * scale[:, None, None] + shift[:, None, None]


def _relative(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()
