"""Meta's files: read as they are, they compute what timm's conversion of them does."""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from tests.originals.spelling import (
    HEADS,
    HIDDEN,
    PATCHES,
    SIZES,
    WIDTH,
    Tensors,
    dino_head,
    dinov2,
    dinov3,
    filled,
    mae_decoder,
    meta_vit,
    moco_head,
    msn_head,
    pair,
    prefixed,
)
from tests.packages import timm
from tests.small_models import relative
from vitconvert import load_checkpoint, load_model
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    ShapeMismatch,
    TensorMismatch,
    UnknownDialect,
)

ROUNDING = 2e-5
STATED = {"num_heads": HEADS}


@dataclass(frozen=True, kw_only=True)
class Original:
    """A file of a project, and timm's model of the same function."""

    dialect: str
    file: Callable[[], object]
    backbone: Callable[[], Tensors]
    timm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=lambda: STATED)
    named: bool = False  # timm has a model of the same tensors, so the dialect must be named
    pooled: bool = True  # whether timm pools as the project does
    notes: tuple[str, ...] = ()


def vit(**options: Any) -> Tensors:
    return filled(meta_vit(**options))


def parallel(tensors: Tensors) -> Tensors:
    return prefixed("module.", tensors)


def slow(tensors: Tensors) -> Tensors:
    """Weights of another encoder in the same file, which must not be taken."""
    return {name: tensor + 1 for name, tensor in tensors.items()}


def dino_file() -> object:
    backbone = prefixed("backbone.", vit())
    teacher = backbone | filled(dino_head())
    return {
        "student": parallel(slow(teacher)),
        "teacher": teacher,
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small"),
    }


def dinov2_teacher() -> object:
    heads = prefixed("dino_", filled(dino_head())) | prefixed("ibot_", filled(dino_head()))
    return {"teacher": prefixed("backbone.", dinov2(chunk=4)) | heads}


def ijepa_file() -> object:
    encoder = vit(positions=PATCHES, class_token=False)
    predictor = filled(pair("predictor_embed", 24, WIDTH) | {"mask_token": (1, 1, 24)})
    return {
        "encoder": parallel(encoder),
        "predictor": parallel(predictor),
        "target_encoder": parallel(slow(encoder)),
        "opt": {},
        "epoch": 300,
    }


def msn_file() -> object:
    target = vit() | msn_head()
    return {
        "encoder": parallel(slow(target)),
        "opt": {},
        "prototypes": torch.ones(4, 8),
        "target_encoder": parallel(target),
        "epoch": 800,
    }


def moco_file() -> object:
    both = prefixed("base_encoder.", vit()) | prefixed("momentum_encoder.", slow(vit()))
    return {"arch": "vit_small", "state_dict": parallel(both | moco_head())}


def fine_tuned_mae() -> Tensors:
    tensors = vit()
    for kind in ("weight", "bias"):
        tensors[f"fc_norm.{kind}"] = tensors.pop(f"norm.{kind}")
    return tensors | filled(pair("head", 7, WIDTH))


def deit3() -> Tensors:
    scale = "{}.gamma_{}".format
    return vit(positions=PATCHES, scale=scale) | filled(pair("head", 7, WIDTH))


def deit3_in_timm() -> Tensors:
    tensors = deit3().items()
    return {re.sub(r"gamma_([12])", r"ls\1.gamma", name): tensor for name, tensor in tensors}


PLAIN = {"activation": "gelu", "norm_eps": 1e-6, "pooling": "token", "image_size": (24, 24)}
DINOV3 = {
    "norm_eps": 1e-5,
    "rope": "dinov3",
    "rope_periods": True,
    "num_heads": HEADS,
    "num_registers": 4,
}
RATIO = {"mlp_ratio": HIDDEN / WIDTH}
SWIGLU_RATIO = {"mlp_ratio": 2 * HIDDEN / WIDTH}  # timm counts both halves
ORIGINALS = {
    "DINO, full": Original(
        dialect="dino",
        file=dino_file,
        backbone=vit,
        timm="vit_small_patch16_224",
        options=RATIO | {"num_classes": 0},
        expected=PLAIN | {"position_resampling": "bicubic_offset"},
        notes=("the weights are those under teacher; beside them lie student (--prefer)",),
    ),
    "DINO, backbone": Original(
        dialect="timm",
        file=vit,
        backbone=vit,
        timm="vit_small_patch16_224",
        options=RATIO | {"num_classes": 0},
        expected=PLAIN,
    ),
    "DINOv2": Original(
        dialect="dinov2",
        file=dinov2,
        backbone=dinov2,
        timm="vit_small_patch14_dinov2",
        options=RATIO,
        expected=PLAIN | {"position_resampling": "bicubic_offset", "layer_scale": True},
    ),
    "DINOv2, registers": Original(
        dialect="dinov2",
        file=partial(dinov2, registers=4),
        backbone=partial(dinov2, registers=4),
        timm="vit_small_patch14_reg4_dinov2",
        options=RATIO,
        expected=PLAIN | {"position_resampling": "bicubic_antialias", "num_registers": 4},
    ),
    "DINOv2, SwiGLU": Original(
        dialect="dinov2_swiglu",
        file=partial(dinov2, swiglu=True),
        backbone=partial(dinov2, swiglu=True),
        timm="vit_giant_patch14_dinov2",
        options=SWIGLU_RATIO,
        expected=PLAIN | {"activation": "silu", "gated_mlp": True, "mlp_dim": HIDDEN},
    ),
    "DINOv2, SwiGLU and registers, in chunks": Original(
        dialect="dinov2_swiglu",
        file=partial(dinov2, swiglu=True, registers=4, chunk=3),
        backbone=partial(dinov2, swiglu=True, registers=4),
        timm="vit_giant_patch14_reg4_dinov2",
        options=SWIGLU_RATIO,
        expected=PLAIN | {"activation": "silu", "depth": 11},
    ),
    "DINOv2, teacher in chunks": Original(
        dialect="dinov2",
        file=dinov2_teacher,
        backbone=dinov2,
        timm="vit_small_patch14_dinov2",
        options=RATIO,
        expected=PLAIN | {"depth": 11},
    ),
    "DINOv3": Original(
        dialect="dinov3",
        file=dinov3,
        backbone=dinov3,
        timm="vit_small_patch16_dinov3_qkvb",
        options=RATIO,
        stated={"image_size": (24, 24)},
        expected=DINOV3 | {"activation": "gelu"},
        pooled=False,
    ),
    "DINOv3, SwiGLU": Original(
        dialect="dinov3_swiglu",
        file=partial(dinov3, swiglu=True),
        backbone=partial(dinov3, swiglu=True),
        timm="vit_small_plus_patch16_dinov3_qkvb",
        options=RATIO | {"swiglu_align_to": 1},
        stated={"image_size": (24, 24)},
        expected=DINOV3 | {"activation": "silu", "gated_mlp": True},
        pooled=False,
    ),
    "DINOv3, 7B": Original(
        dialect="dinov3_7b",
        file=partial(dinov3, swiglu=True, bias=False),
        backbone=partial(dinov3, swiglu=True, bias=False),
        timm="vit_7b_patch16_dinov3",
        options=RATIO | {"swiglu_align_to": 1},
        stated={"image_size": (24, 24)},
        expected=DINOV3 | {"activation": "silu", "qkv_bias": False},
        pooled=False,
    ),
    "MAE, with decoder": Original(
        dialect="mae",
        file=lambda: {"model": vit() | filled(mae_decoder())},
        backbone=vit,
        timm="vit_base_patch16_224",
        options=RATIO | {"num_classes": 0},
        expected=PLAIN | {"position_resampling": "bicubic"},
    ),
    "MAE, fine-tuned": Original(
        dialect="timm",
        file=lambda: {"model": fine_tuned_mae()},
        backbone=fine_tuned_mae,
        timm="vit_base_patch16_224",
        options=RATIO | {"num_classes": 7, "global_pool": "avg"},
        expected=PLAIN | {"pooling": "avg", "fc_norm": True, "num_classes": 7},
    ),
    "DeiT III": Original(
        dialect="deit3",
        file=lambda: {"model": deit3()},
        backbone=deit3_in_timm,
        timm="deit3_small_patch16_224",
        options=RATIO | {"num_classes": 7},
        expected=PLAIN | {"no_embed_class": True, "layer_scale": True},
        named=True,
    ),
    "I-JEPA": Original(
        dialect="timm",
        file=ijepa_file,
        backbone=partial(vit, positions=PATCHES, class_token=False),
        timm="vit_huge_patch14_gap_224",
        options=RATIO | {"num_classes": 0, "fc_norm": False},
        expected=PLAIN | {"pooling": "avg", "class_token": False},
        notes=("the weights are those under encoder; beside them lie target_encoder (--prefer)",),
    ),
    "MSN": Original(
        dialect="msn",
        file=msn_file,
        backbone=vit,
        timm="vit_small_patch16_224",
        options=RATIO | {"num_classes": 0},
        expected=PLAIN | {"position_resampling": "bicubic"},
        notes=("the weights are those under target_encoder; beside them lie encoder (--prefer)",),
    ),
    "MoCo v3": Original(
        dialect="moco_v3",
        file=moco_file,
        backbone=vit,
        timm="vit_small_patch16_224",
        options=RATIO | {"num_classes": 0},
        expected=PLAIN,
    ),
}
every_original = pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)


def timm_model(original: Original) -> torch.nn.Module:
    """timm's model with the weights that its own conversion makes of the project's."""
    model = timm.create_model(original.timm, **{**SIZES, **original.options})
    module = (
        timm.models.eva
        if isinstance(model, timm.models.eva.Eva)
        else timm.models.vision_transformer
    )
    model.load_state_dict(module.checkpoint_filter_fn(original.backbone(), model))
    return model.eval()


@every_original
def test_every_tensor_is_accounted_for_and_every_fact_found(original, tmp_path):
    torch.save(original.file(), tmp_path / "file.pth")
    named = {"dialect": original.dialect} if original.named else {}
    checkpoint = load_checkpoint(tmp_path / "file.pth", overrides=original.stated, **named)
    assert checkpoint.dialect == original.dialect
    ledger = checkpoint.ledger
    assert ledger.read == len(ledger.used) + len(ledger.ignored)
    assert ledger.notes == original.notes
    found = {name: getattr(checkpoint.config, name) for name in original.expected}
    assert found == dict(original.expected)


@every_original
@torch.no_grad()
def test_computes_what_timm_makes_of_it(original, tmp_path):
    torch.save(original.file(), tmp_path / "file.pth")
    named = {"dialect": original.dialect} if original.named else {}
    ours = load_model(tmp_path / "file.pth", overrides=original.stated, **named)
    theirs = timm_model(original)
    torch.manual_seed(1)
    images = torch.randn(2, 3, 24, 24)
    assert relative(ours.forward_features(images), theirs.forward_features(images)) <= ROUNDING
    if original.pooled:
        assert relative(ours(images), theirs(images)) <= ROUNDING
    else:
        assert relative(ours(images), theirs.forward_features(images)[:, 0]) <= ROUNDING


@torch.no_grad()
def test_beit_as_it_pre_trains(tmp_path):
    """microsoft/unilm/beit, modeling_pretrain.py: a head predicts the visual tokens."""
    options = {"use_abs_pos_emb": False, "use_shared_rel_pos_bias": True, "init_values": 0.1}
    model = timm.models.beit.Beit(**SIZES, **options, global_pool="token", num_classes=0)
    for tensor in model.parameters():
        tensor.copy_(torch.randn(tensor.shape) * 0.2 + 0.1)
    extra = {"mask_token": (1, 1, WIDTH), **pair("lm_head", 11, WIDTH)}
    torch.save({"model": model.state_dict() | filled(extra)}, tmp_path / "file.pth")
    images = torch.randn(2, 3, 24, 24)
    assert relative(load_model(tmp_path / "file.pth")(images), model.eval()(images)) <= ROUNDING


def test_a_bias_under_a_mask_counts_for_queries_and_values_only(tmp_path):
    torch.save(dinov3(), tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth")
    bias = checkpoint.tensors["blocks.10.attn.qkv.bias"].view(3, WIDTH)
    stored = dinov3()["blocks.10.attn.qkv.bias"].view(3, WIDTH)
    assert torch.equal(bias[[0, 2]], stored[[0, 2]])
    assert stored[1].count_nonzero() == WIDTH and not bias[1].count_nonzero()


def test_a_bias_without_its_mask_counts_whole(tmp_path):
    tensors = {name: t for name, t in dinov3().items() if not name.endswith("bias_mask")}
    torch.save(tensors, tmp_path / "file.pth")
    with pytest.raises(MissingFact, match="norm_eps"):
        load_checkpoint(tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth", overrides={"norm_eps": 1e-6})
    bias = checkpoint.tensors["blocks.10.attn.qkv.bias"]
    assert torch.equal(bias, dinov3()["blocks.10.attn.qkv.bias"])


def test_periods_tell_the_heads(tmp_path):
    torch.save(dinov3(), tmp_path / "file.pth")
    config = load_checkpoint(tmp_path / "file.pth").config
    assert (config.num_heads, config.head_dim, config.origins["head_dim"]) == (3, 16, "tensors")
    with pytest.raises(ConflictingFact, match="num_heads = 6"):
        load_checkpoint(tmp_path / "file.pth", overrides={"num_heads": 6})


@torch.no_grad()
def test_periods_are_those_of_the_file(tmp_path):
    """Meta published them rounded to bfloat16; timm computes them, rounded to float32."""
    rounded = dinov3()["rope_embed.periods"].bfloat16().float()
    torch.save(dinov3() | {"rope_embed.periods": rounded}, tmp_path / "file.pth")
    ours = load_model(tmp_path / "file.pth", overrides={"image_size": (24, 24)})
    theirs = timm_model(ORIGINALS["DINOv3"])
    torch.manual_seed(1)
    images = torch.randn(2, 3, 24, 24)
    tokens = ours.forward_features(images)
    assert relative(tokens, theirs.forward_features(images)) > 2 * ROUNDING
    theirs.rope.periods.copy_(rounded)
    assert relative(tokens, theirs.forward_features(images)) <= ROUNDING


@pytest.mark.parametrize(
    ("step", "value", "different"),
    [
        (1, 1.0, "48 of 144 values, the first 1"),
        (2, float("nan"), "48 of 144 values, the first nan"),
    ],
    ids=["keys count", "never initialised"],
)
def test_another_mask_of_the_bias_is_refused(step, value, different, tmp_path):
    tensors = dinov3()
    tensors["blocks.10.attn.qkv.bias_mask"].view(3, WIDTH)[step] = value
    torch.save(tensors, tmp_path / "file.pth")
    checkpoint = load_checkpoint(tmp_path / "file.pth")
    with pytest.raises(NotRepresentable) as error:
        dict(checkpoint.tensors)
    assert str(error.value) == (
        "error: not-representable\n"
        "  A tensor that is ignored because it is always the same is another one here.\n"
        '  row        weights_map/dinov3.toml: "{block}.attn.qkv.bias_mask" = '
        '"1 0 1 : (qkv head dim)"\n'
        "  tensor     blocks.10.attn.qkv.bias_mask\n"
        f"  different  {different}"
    )


def test_a_mask_of_another_shape_is_found_in_the_header(tmp_path):
    torch.save(dinov3() | {"blocks.3.attn.qkv.bias_mask": torch.ones(3)}, tmp_path / "file.pth")
    with pytest.raises(ShapeMismatch) as error:
        load_checkpoint(tmp_path / "file.pth")
    assert "blocks.3.attn.qkv.bias_mask  found [3], wanted [144]" in str(error.value)


def test_deit_iii_and_a_timm_model_with_rope_have_the_same_tensors(tmp_path):
    torch.save({"model": deit3()}, tmp_path / "file.pth")
    with pytest.raises(AmbiguousDialect, match="deit3"):
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)


def test_what_another_stem_leaves_untold_names_its_first_tensor(tmp_path):
    """MoCo v3's and MSN's convolutions, DeiT III's hMLP: no row reads their patches."""
    tensors = {name: t for name, t in vit().items() if not name.startswith("patch_embed")}
    stem = {"patch_embed.proj.0.weight": (6, 3, 3, 3), **pair("patch_embed.proj.3", WIDTH, 6)}
    torch.save(tensors | filled(stem), tmp_path / "file.pth")
    with pytest.raises(MissingFact) as error:
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)
    assert str(error.value) == (
        "error: missing-fact\n"
        "  The tensors do not tell everything that decides the function.\n"
        "  dialect    timm (weights_map/timm.toml)\n"
        "  left over  patch_embed.proj.0.weight, patch_embed.proj.3.weight, "
        "patch_embed.proj.3.bias\n"
        "  patch_size   nothing tells it, and no row reads patch_embed.proj.0.weight\n"
        "  in_channels  nothing tells it, and no row reads patch_embed.proj.0.weight\n"
        "  hint: --set patch_size=... --set in_channels=... (in Python, overrides={...}) states it."
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"blocks.0.norm11.weight": (WIDTH,), "blocks.0.gamma_1_1": (WIDTH,)},
        {"patch_embed.proj.4.weight": (WIDTH, WIDTH, 1, 1)},
        {"cls_norm.weight": (WIDTH,)},
    ],
    ids=["parallel blocks", "convolutional stem", "untied norms"],
)
def test_what_has_no_row_is_named(extra, tmp_path):
    torch.save(deit3() | filled(extra), tmp_path / "file.pth")
    with pytest.raises(
        (TensorMismatch, UnknownDialect), match=next(iter(extra)).replace(".", r"\.")
    ):
        load_checkpoint(tmp_path / "file.pth", overrides=STATED)
