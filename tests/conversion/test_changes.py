"""What is changed on the way: as the real packages change it, or with no change of the function."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import timm, transformers
from tests.small_models import SMALL_TIMM as SMALL
from tests.small_models import small_config
from vitconvert import comparison
from vitconvert.conversion.options import WriteOptions
from vitconvert.conversion.steps import STEPS
from vitconvert.errors import NotRepresentable, ParityFailed, UsageError
from vitconvert.facts.surgery import change_channels
from vitconvert.model import ViT
from vitconvert.model.resampling import resample_positions, resample_relative_positions
from vitconvert.model.resizing import resize
from vitconvert.model.rope import dinov3_periods

TINY = {**SMALL, "img_size": 48}


def images(channels=3, size=(48, 48)):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, *size, generator=generator)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (3, 4), (3, 7), (1, 4)])
def test_channels_change_as_in_timm(before, after, timm_directory, tmp_path):
    source = timm_directory(**TINY, in_chans=before)
    conversion = vitconvert.convert(
        source, output=tmp_path / "out", in_channels=after, verify=False
    )
    wanted = timm.models._manipulate.adapt_input_conv(
        after, load_file(source / "model.safetensors")["patch_embed.proj.weight"], before
    )
    found = load_file(tmp_path / "out" / "model.safetensors")["patch_embed.proj.weight"]
    assert torch.equal(found, wanted)
    assert conversion.ledger.changed == (f"input channels changed from {before} to {after}",)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    x = images(after)
    assert torch.equal(theirs(x), vitconvert.load_model(tmp_path / "out")(x))


def test_grey_and_back_keeps_what_a_grey_image_gives(timm_directory, tmp_path):
    source = timm_directory(**TINY)
    grey = vitconvert.convert(source, output=tmp_path / "grey", in_channels=1, verify=False)
    back = vitconvert.convert(grey.output, output=tmp_path / "rgb", in_channels=3, verify=False)
    x = images(1)
    wanted = vitconvert.load_model(source)(x.expand(-1, 3, -1, -1))
    for output, image in ((grey.output, x), (back.output, x.expand(-1, 3, -1, -1))):
        torch.testing.assert_close(vitconvert.load_model(output)(image), wanted)
    made = vitconvert.load_checkpoint(grey.output).preprocessing
    assert made.channels == 1
    assert made.mean == pytest.approx((0.5,))


def test_channels_that_a_model_has_already_change_nothing(timm_directory, tmp_path):
    source, output = timm_directory(**TINY), tmp_path / "out"
    config = json.loads((source / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.4], "std": [0.3, 0.2, 0.5]}
    (source / "config.json").write_text(json.dumps(config))
    conversion = vitconvert.convert(source, output=output, in_channels=3, verify=False)
    assert conversion.ledger.changed == ()
    made = vitconvert.load_checkpoint(output).preprocessing
    assert (made.mean, made.std) == ((0.1, 0.2, 0.4), (0.3, 0.2, 0.5))


@pytest.mark.parametrize(
    "stem",
    [
        {"stem_style": "google", "stem_depths": (1, 1), "stem_width": 32},
        {"stem_style": "resnet_d", "stem_depths": (1, 1), "stem_width": 32},
        {"stem_style": "mobileclip", "stem_width": 32},
    ],
    ids=["standardised", "resnet_d", "mobileclip"],
)
def test_the_first_convolution_of_a_stem_is_the_one_that_changes(stem):
    config = random_config(stem=True, image_size=(64, 32), patch_size=(1, 1), **stem)
    model = randomised(ViT(config))
    tensors, grey, _ = change_channels(model.state_dict(), config, 1)
    changed = ViT(grey).eval()
    changed.load_state_dict(tensors)
    x = images(1, (64, 32))
    if stem["stem_style"] == "google":  # it standardises its kernels, also over the channels
        assert changed(x).isfinite().all()
    else:
        torch.testing.assert_close(changed(x), model(x.expand(-1, 3, -1, -1)))


def test_classes_are_chosen_by_index_and_by_name(huggingface_directory, tmp_path):
    names = {index: f"kind {index}" for index in range(7)}
    source = huggingface_directory(id2label=names)
    labels = vitconvert.load_checkpoint(source).labels
    conversion = vitconvert.convert(
        source, to="hf", output=tmp_path / "out", classes=[labels[3], 0], verify=False
    )
    assert conversion.ledger.changed == (f"2 of {len(labels)} classes were kept",)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.id2label == {0: labels[3], 1: labels[0]}
    x = images(size=vitconvert.load_checkpoint(source).config.image_size)
    torch.testing.assert_close(theirs(x).logits, vitconvert.load_model(source)(x)[:, [3, 0]])


@pytest.mark.parametrize("count", [0, 4])
def test_a_new_head_is_zeros_or_none(count, timm_directory, tmp_path):
    source = timm_directory("deit_tiny_distilled_patch16_224", **TINY)
    conversion = vitconvert.convert(
        source, output=tmp_path / "out", num_classes=count, verify=False
    )
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    heads = {name for name in tensors if name.startswith("head")}
    assert len(heads) == (4 if count else 0)
    assert not any(tensors[name].any() for name in heads)
    assert "the head of 7 classes was" in conversion.ledger.changed[0]
    assert vitconvert.load_model(tmp_path / "out").config.num_classes == count
    timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)


@pytest.mark.parametrize(
    ("wanted", "fact"),
    [
        ({"classes": [7]}, "The head has no class 7."),
        ({"classes": [1, 1]}, "Classes to keep are named once each"),
        ({"classes": ["cat"]}, "No class is called 'cat'."),
        ({"classes": [1], "num_classes": 3}, "num_classes replaces the head"),
        ({"num_classes": -1}, "num_classes = -1 must be a whole number of at least 0"),
        ({"in_channels": 0}, "in_channels = 0 must be a whole number of at least 1"),
        ({"allow": ["fold"]}, "There is no step 'fold' to allow."),
        ({"max_shard_size": "5 apples"}, "'5 apples' is not a size."),
        ({"max_shard_size": 5, "to": "torchvision"}, "torchvision VisionTransformer is read from"),
        ({"max_shard_size": 5}, "timm VisionTransformer (plain, distilled, hybrid) is read from"),
    ],
)
def test_changes_that_make_no_sense(wanted, fact, timm_directory, tmp_path):
    with pytest.raises(UsageError) as error:
        vitconvert.convert(timm_directory(**TINY), output=tmp_path / "out", verify=False, **wanted)
    assert error.value.fact.startswith(fact)
    assert not (tmp_path / "out").exists()


def test_a_cast_tells_its_effect(timm_directory, tmp_path):
    conversion = vitconvert.convert(
        timm_directory(**TINY), output=tmp_path / "out", dtype=torch.bfloat16, verify=False
    )
    (change,) = conversion.ledger.changed
    told = float(change.removeprefix("cast from float32 to bfloat16; logits change by "))
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    exact = vitconvert.load_model(tmp_path / "timm-model")(x)
    tensors = vitconvert.load_checkpoint(tmp_path / "out").tensors
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    cast = vitconvert.load_model(tmp_path / "out")(x)
    assert told == pytest.approx(((cast - exact).abs().max() / exact.abs().max()).item(), rel=0.1)


@pytest.mark.parametrize("beside", [0.5, math.inf, math.nan])
def test_a_cast_that_makes_numbers_infinite_is_refused(beside, timm_directory, tmp_path):
    """float16 ends at 65,504: nobody is to report that."""
    folder = timm_directory(**TINY)
    tensors = load_file(folder / "model.safetensors")
    tensors["blocks.0.mlp.fc1.weight"][3, 5] = 7e4
    tensors["blocks.0.mlp.fc1.weight"][4, 1] = beside
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(NotRepresentable, match="float16 cannot hold the numbers of 1 ") as error:
        vitconvert.convert(folder, output=tmp_path / "out", dtype=torch.float16, verify=False)
    assert error.value.evidence["tensors"] == "blocks.0.mlp.fc1.weight"
    assert error.value.evidence["largest"] == "7e+04"
    assert "--dtype bfloat16" in error.value.hint and not (tmp_path / "out").exists()
    vitconvert.convert(folder, output=tmp_path / "out", dtype=torch.bfloat16, verify=False)


def test_sizes():
    said = (None, 7, "7", "5GB", "1.5 KiB", "2m")
    assert [WriteOptions(max_shard_size=size).max_bytes for size in said] == [
        *(None, 7, 7, 5_000_000_000, 1536, 2_000_000)
    ]


def test_shards_are_opened_by_transformers(huggingface_directory, tmp_path):
    source, output = huggingface_directory(), tmp_path / "out"
    conversion = vitconvert.convert(source, to="hf", output=output, max_shard_size=20_000)
    assert conversion.opened[0].bit_equal
    names = sorted(path.name for path in output.glob("*.safetensors"))
    assert len(names) > 2
    assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert set(conversion.sha256) == {*names, "model.safetensors.index.json"}
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(names)
    tensors = {k: v for name in names for k, v in load_file(output / name).items()}
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    back = vitconvert.convert(output, to="hf", output=tmp_path / "back", verify=False)
    again = load_file(back.output / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_one_of_several_state_dicts_is_preferred(tmp_path):
    plain, averaged = (timm.create_model("vit_tiny_patch16_224", **TINY) for _ in range(2))
    path = tmp_path / "trained.pth"
    torch.save({"model": plain.state_dict(), "model_ema": averaged.state_dict()}, path)
    stated = {"num_heads": 3, "norm_eps": 1e-6, "rope": "none"}
    for prefer, wanted in ((None, averaged), ("model", plain)):
        output = tmp_path / str(prefer)
        vitconvert.convert(path, output=output, prefer=prefer, overrides=stated, verify=False)
        tensors = load_file(output / "model.safetensors")
        assert torch.equal(tensors["head.weight"], wanted.state_dict()["head.weight"])
    with pytest.raises(UsageError) as caught:
        vitconvert.convert(path, output=tmp_path / "x", prefer="ema", overrides=stated)
    assert str(caught.value) == (
        "error: usage\n"
        "  The checkpoint has no weights under 'ema'.\n"
        f"  file    {path}\n"
        "  found   model_ema\n"
        "  beside  model\n"
        "  hint: leave out --prefer (in Python, prefer) to read those that were found."
    )


def random_config(**fields):
    odd = {"image_size": (24, 16), "num_classes": 5, "embed_dim": 36, "head_dim": 8}
    return small_config(**odd | {"norm_eps": 1e-5} | fields)


def randomised(model):
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def random_model(**fields):
    return randomised(ViT(random_config(**fields)))


# Those that change which outputs there are have tests of their own.
OUTPUTS = {"all-tokens", *(name for name, step in STEPS.items() if step.narrows)}


# What a model has before a step that it needs for it.
BEFORE = {
    "zero-class-position": {"no_embed_class": True},
    "fit-positions": {"position_embedding": "grid", "position_grid": (4, 5)},
    "norm-before-pooling": {"final_norm": False, "fc_norm": True},
    "token-as-register": {"dist_token": True, "num_registers": 0},
    "register-as-token": {"dist_token": False, "num_registers": 1, "register_positions": True},
    "store-positions": {"position_embedding": "sincos1d"},
    "store-rope-periods": {"rope": "dinov3", "position_embedding": "none"},
    "compute-rope-periods": {"rope": "dinov3", "position_embedding": "none", "rope_periods": True},
    "rotary-pairs": {"rope": "axial", "position_embedding": "none"},
    "zero-patch-bias": {"patch_bias": False, "pre_norm": False},
    "zero-head-bias": {"head_bias": False},
}


@pytest.mark.parametrize("name", sorted(STEPS.keys() - OUTPUTS))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dist_token": True},
        {"block_order": "post_norm"},
        {"block_order": "res_post_norm"},
        {"num_registers": 2},
        {"num_registers": 2, "register_positions": False},
    ],
    ids=str,
)
def test_a_step_keeps_the_function_or_says_that_it_does_not_apply(name, fields):
    step, fields = STEPS[name], fields | BEFORE.get(name, {})
    model = random_model(**fields)
    for key in step.zero:
        torch.nn.init.zeros_(model.get_parameter(key))
    if model.config.rope_periods:
        periods = dinov3_periods(model.config.head_dim // 4, model.config.rope_temperature)
        model.get_parameter("rope.periods").data.copy_(periods)
    without_place = name == "fold-qkv-bias" and "block_order" in fields
    if without_place or ("pooling" in name and fields.get("dist_token")):
        assert not step.applies(model.config)
        return
    assert step.applies(model.config)
    changed = ViT(step.becomes(model.config)).eval()
    changed.load_state_dict(step.tensors(model.state_dict(), model.config))
    x = images(size=(24, 16))
    assert changed.state_dict().keys() != model.state_dict().keys() or any(
        not torch.equal(value, model.state_dict()[key])
        for key, value in changed.state_dict().items()
    )
    torch.testing.assert_close(changed(x), model(x), rtol=1e-4, atol=1e-4)


NO_POSITIONS, AVERAGED = {"position_embedding": "none"}, {"class_token": False, "pooling": "avg"}
KEYS_DO_NOT_CANCEL = ({"rope": "axial", **NO_POSITIONS}, {"qk_norm": True}, {"qkv_bias": False})
# What would change nothing, or the function.
NOT = {
    "fold-class-position": [AVERAGED, {"no_embed_class": True}, NO_POSITIONS],
    "zero-class-position": [
        {},
        {"no_embed_class": True, **NO_POSITIONS},
        {"no_embed_class": True, **AVERAGED},
    ],
    "drop-key-bias": KEYS_DO_NOT_CANCEL,
    "fold-qkv-bias": [
        *KEYS_DO_NOT_CANCEL,
        *({"block_order": "post_norm"}, {"block_order": "res_post_norm"}),
        *({"norm_bias": False}, {"norm": "rms", "norm_bias": False}),
        *({"proj_bias": False}, {"attention_norm": True}, {"differential": True}),
        {"attention_proj": False, "head_dim": 12},
        {"num_heads": 5},  # more channels than the width: not every bias has an origin
    ],
    "norm-after-pooling": [{"pooling": "avg"}, {"final_norm": False}, {"fc_norm": True}],
    "norm-before-pooling": [
        {"fc_norm": True, "final_norm": False, "pooling": "avg"},
        *({}, {"final_norm": False}, {"fc_norm": True}),
    ],
    "compute-rope-periods": [{"rope": "dinov3"}],
    "store-positions": [{}, NO_POSITIONS],
    "store-rope-periods": [{"rope": "axial"}, {"rope": "dinov3", "rope_periods": True}],
    "rotary-pairs": [
        *({}, {"rope": "dinov3"}, {"rope": "axial", "qk_norm": True}),
        {"rope": "axial", "rope_half": True, "rope_by_axis": True},
    ],
    "token-as-register": [
        {},
        {"dist_token": True, "dist_head": True},
        {"dist_token": True, "num_registers": 1},
    ],
    "register-as-token": [
        *({}, {"num_registers": 2}, {"num_registers": 1, "register_positions": False}),
        {"num_registers": 1, "dist_token": True},
    ],
    "zero-head-bias": [{}, {"head_bias": False, "num_classes": 0}],
    "drop-head-bias": [
        *({"head_bias": False}, {"num_classes": 0}, {"dist_token": True, "dist_head": True}),
    ],
}


@pytest.mark.parametrize(
    ("name", "fields"), [(name, fields) for name, several in NOT.items() for fields in several]
)
def test_a_step_that_would_change_nothing_or_the_function_does_not_apply(name, fields):
    assert STEPS["fold-qkv-bias"].applies(random_config())
    assert not STEPS[name].applies(random_config(**fields))


def test_an_image_size_that_no_weight_depends_on_is_told():
    model = random_model(rope="axial", position_embedding="none")
    before = model.state_dict()
    tensors, config, changes = resize(before, model.config, image_size=(32, 24))
    assert changes == ("image size 24x16 to 32x24",)
    assert config.image_size == (32, 24)
    assert tensors == before


def test_every_table_of_relative_positions_is_resampled():
    model = random_model(relative_positions="block")
    before = model.state_dict()
    tensors, _, changes = resize(before, model.config, image_size=32)
    assert changes == (
        "positions resampled from 3x2 to 4x4 patches (bicubic_antialias, geometric)",
    )
    grids = {"old_grid": (3, 2), "new_grid": (4, 4)}
    for name, tensor in before.items():
        if name.endswith("relative_position_bias_table"):
            tensor = resample_relative_positions(tensor, **grids, rule="geometric")
        elif name == "pos_embed":
            tensor = resample_positions(tensor, **grids, prefix=1, rule="bicubic_antialias")
        assert torch.equal(tensors[name], tensor), name


SAME = "makes it fit, with the same function and other bytes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "allow", "hint"),
    [
        ("hf_vit", [], f"--allow zero-class-position {SAME}."),
        (
            "hf",
            ["drop-key-bias"],
            f"--allow zero-class-position --allow drop-key-bias {SAME}; drop-key-bias only if the "
            "bias of the keys is not zero.",
        ),
        (
            "hf_beit",
            ["zero-class-position"],
            "--allow zero-class-position --allow drop-key-bias makes it fit: the bias of the keys, "
            "which softmax cancels, becomes zero.",
        ),
        (
            "lucidrains",
            [],
            f"--allow zero-class-position --allow fold-qkv-bias --allow adapted-module {SAME}.",
        ),
    ],
)
def test_a_refusal_offers_all_steps_that_help_together(to, allow, hint, timm_directory, tmp_path):
    """What is allowed and not needed is not taken."""
    scaled = None if to in ("lucidrains", "hf_vit") else 0.5
    source = timm_directory(**TINY, no_embed_class=True, init_values=scaled)
    options = {"to": to, "output": tmp_path / "out"}
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, allow=allow, verify=False, **options)
    assert error.value.hint == hint
    offered = re.findall(r"--allow (\S+)", hint)
    more = ["fold-qkv-bias"] if to == "hf_vit" else []
    conversion = vitconvert.convert(source, allow=[*offered, *more], **options)
    taken = {change.partition(":")[0] for change in conversion.ledger.changed}
    assert taken - {"norm-after-pooling"} == set(offered) - {"adapted-module"}


def test_no_step_is_offered_where_none_helps(timm_directory, tmp_path):
    """DeiT III has LayerScale, for which transformers' ViT has no place."""
    source = timm_directory("deit3_small_patch16_224", **TINY)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to="hf_vit", output=tmp_path / "no")
    assert "--allow" not in (error.value.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_intern300m_patch14_448", "vit_giant_patch14_dinov2"])
def test_a_plain_vit_is_not_offered_the_class_of_another(name, timm_directory, tmp_path):
    """Eva leaves out the bias of the keys, and open_clip builds it by name alone."""
    sizes = {"img_size": 28, "depth": 2, "embed_dim": 30, "num_heads": 3, "num_classes": 0}
    source = timm_directory(name, **sizes)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    assert "--allow" not in (error.value.hint or "")
    (reason,) = (d for d in error.value.details if d.startswith("openclip_timm_eva_split: "))
    assert reason.startswith("openclip_timm_eva_split: the nearest is eva02_base_patch14_224, with")


def test_a_step_that_rounding_spoils_is_refused(timm_directory, tmp_path, monkeypatch):
    plain = timm_directory(**TINY, no_embed_class=True)
    monkeypatch.setattr(comparison, "relative_difference", lambda *_: 1e-3)
    with pytest.raises(ParityFailed, match="zero-class-position changes the logits"):
        vitconvert.convert(
            plain,
            output=tmp_path / "out",
            to="hf_vit",
            allow=["zero-class-position"],
            verify=False,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_registers_of_dinov2_become_timms_once_the_class_position_is_folded(tmp_path):
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, mlp_ratio=4, image_size=28,
        patch_size=14, num_register_tokens=4,
    )  # fmt: skip
    model = transformers.Dinov2WithRegistersModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05, generator=generator)
    model.save_pretrained(tmp_path / "hf")
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(tmp_path / "hf", to="timm", output=tmp_path / "out")
    assert "--allow fold-class-position" in error.value.hint
    conversion = vitconvert.convert(
        tmp_path / "hf", to="timm", output=tmp_path / "out", allow=["fold-class-position"]
    )
    assert {opened.consumer for opened in conversion.opened} == {"timm", "transformers"}
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architecture"] == "vit_small_patch14_reg4_dinov2"
    x = images(size=(28, 28))
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    torch.testing.assert_close(theirs(x), model(x).pooler_output)
