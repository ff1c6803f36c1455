"""Original names of models that timm has too: what timm's own loader makes of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

import vitconvert
from tests.originals.spelling import HEADS, HIDDEN, SIZES, WIDTH, Tensors, filled, pair, prefixed
from tests.originals.spelling_of_others import (
    LABELS,
    aimv2,
    beit3,
    eva01,
    eva02,
    perception,
    sapiens2,
    text_tower,
)
from tests.packages import timm
from tests.small_models import relative
from vitconvert.formats import open_container

ROUNDING = 2e-5


@dataclass(frozen=True, kw_only=True)
class Other:
    """A file, and timm's model of the same function."""

    dialect: str
    file: Callable[[], object]
    tensors: Callable[[], Tensors]
    timm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)
    to: str = ""  # what is written, where another table reads the same files


def visual(tensors: Tensors) -> Tensors:
    return prefixed("visual.", tensors) | text_tower()


RATIO = {"mlp_ratio": HIDDEN / WIDTH}
SAPIENS = {"num_kv_heads": (*(HEADS, 1) * 5, HEADS), "num_classes": 0}
PIXELS = {"patch_size": 1}  # of which there are as many as in the grid that timm scales to
OTHERS = {
    "EVA-02": Other(
        dialect="eva02",
        file=lambda: {"module": eva02()},
        tensors=eva02,
        timm="eva02_base_patch14_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA-02, packed": Other(
        dialect="eva02_packed",
        file=lambda: {"model": eva02(packed=True)},
        tensors=partial(eva02, packed=True),
        timm="eva02_tiny_patch14_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA-CLIP": Other(
        dialect="eva02",
        file=lambda: visual(eva02(clip=True)),
        tensors=partial(eva02, clip=True),
        timm="eva02_base_patch16_clip_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA-01": Other(
        dialect="timm_eva",
        to="eva01",
        file=lambda: {"module": eva01()},
        tensors=eva01,
        timm="eva_giant_patch14_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA01-CLIP-g": Other(
        dialect="timm_eva",
        to="eva01",
        file=lambda: visual(eva01(clip=True)),
        tensors=partial(eva01, clip=True),
        timm="eva_giant_patch14_clip_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA02-CLIP-E": Other(
        dialect="timm_eva",
        to="eva02_clip_e",
        file=lambda: visual(eva01(clip=True)),
        tensors=partial(eva01, clip=True),
        timm="eva02_enormous_patch14_clip_224",
        options=RATIO | {"num_classes": LABELS},
        stated={"block_order": "post"},
    ),
    "Sapiens 2": Other(
        dialect="sapiens2",
        file=sapiens2,
        tensors=sapiens2,
        timm="vit_base_patch16_sapiens2",
        options=RATIO | SAPIENS,
        stated={"image_size": (24, 24)},
    ),
    "AIMv2": Other(
        dialect="aimv2",
        file=aimv2,
        tensors=aimv2,
        timm="aimv2_large_patch14_224",
        options=RATIO | {"num_classes": 0, "global_pool": ""},
    ),
    "BEiT-3": Other(
        dialect="beit3",
        file=lambda: {"model": beit3()},
        tensors=beit3,
        timm="beit3_base_patch16_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "Perception Encoder": Other(
        dialect="pe",
        file=lambda: {"state_dict": visual(perception(side=24))},
        tensors=partial(perception, side=24),
        timm="vit_pe_core_tiny_patch16_384",
        options=RATIO | PIXELS | {"num_classes": LABELS},
    ),
    "Perception Encoder, tokens": Other(
        dialect="pe_tokens",
        file=lambda: perception(side=32, pooled=False, scaled=True),
        tensors=partial(perception, side=32, pooled=False, scaled=True),
        timm="vit_pe_lang_large_patch14_448",
        options=RATIO | PIXELS | {"img_size": 32, "num_classes": 0, "global_pool": ""},
    ),
}
# microsoft/unilm, beit3/modeling_finetune.py: of retrieval, captions and questions.
BESIDE_BEIT3 = pair("mlm_head", 11, WIDTH) | pair("pooler.norm", WIDTH)
BESIDE_BEIT3 |= pair("pooler.dense", WIDTH, WIDTH) | {"language_head.weight": (6, WIDTH)}
BESIDE_BEIT3 |= {"vision_head.weight": (6, WIDTH), "logit_scale": ()}
# microsoft/unilm 768a3c8, beit2/modeling_pretrain.py.
BESIDE_BEIT2 = pair("cls_pt_norm", WIDTH) | pair("cls_pt_lm_head", 6, WIDTH)
BESIDE_BEIT2 |= pair("cls_pt_layers.0.norm1", WIDTH) | {"cls_pt_layers.1.gamma_1": (WIDTH,)}
READ = OTHERS | {
    "BEiT-3, fine-tuned to find texts of images": Other(
        dialect="beit3",
        file=lambda: {"model": beit3() | filled(BESIDE_BEIT3)},
        tensors=beit3,
        timm="beit3_base_patch16_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "EVA-01, relative positions": Other(
        dialect="timm_eva",
        file=lambda: {"model": eva01(relative=True)},
        tensors=partial(eva01, relative=True),
        timm="beit_base_patch16_224",
        options=RATIO | {"num_classes": LABELS},
    ),
    "BEiT v2, whose pre-training has blocks beside the encoder": Other(
        dialect="timm_eva",
        file=lambda: {"model": eva01(relative=True) | filled(BESIDE_BEIT2)},
        tensors=partial(eva01, relative=True),
        timm="beit_base_patch16_224",
        options=RATIO | {"num_classes": LABELS},
    ),
}
NOT_WRITTEN = ("rope.freqs", "mask_token", "text_e", "logit_scale", ".B.")
every_original = pytest.mark.parametrize("name", OTHERS)


def timm_model(other: Other) -> torch.nn.Module:
    """timm's model with the weights that its own conversion makes of the project's."""
    options = {**SIZES, **other.options}
    loader = timm.models.vision_transformer
    model = timm.create_model(other.timm, **options)
    if isinstance(model, timm.models.eva.Eva):
        loader = timm.models.eva
    model.load_state_dict(loader.checkpoint_filter_fn(other.tensors(), model))
    return model.eval()


@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_computes_what_timm_makes_of_it(name, tmp_path):
    other = READ[name]
    torch.save(other.file(), tmp_path / "file.pth")
    stated = {"num_heads": HEADS, **other.stated}
    checkpoint = vitconvert.load_checkpoint(tmp_path / "file.pth", overrides=stated)
    assert checkpoint.dialect == other.dialect
    theirs = timm_model(other)
    torch.manual_seed(1)
    images = torch.randn(2, 3, *checkpoint.config.image_size)
    for fast in (False, True):
        ours = vitconvert.load_model(tmp_path / "file.pth", overrides=stated, fast=fast)
        assert relative(ours(images), theirs(images)) <= ROUNDING


@every_original
def test_comes_back_from_vitconverts_own_names(name, tmp_path):
    """Every tensor that plays a part, byte by byte, proved on the way by timm's own loader."""
    other = OTHERS[name]
    torch.save(other.file(), tmp_path / "file.pth")
    stated = {"num_heads": HEADS, **other.stated}
    there = {"to": "vit", "output": tmp_path / "vit", "overrides": stated, "verify": False}
    vitconvert.convert(tmp_path / "file.pth", **there)
    back = vitconvert.convert(
        tmp_path / "vit", to=other.to or other.dialect, output=tmp_path / "back"
    )
    with open_container(next((tmp_path / "back").glob("model.*"))) as container:
        found = {key: container.read(key) for key in container.manifest}
    tensors = other.tensors().items()
    wanted = {key: t for key, t in tensors if not any(part in key for part in NOT_WRITTEN)}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in found)
    read, computed = back.opened
    assert read.bit_equal and computed.relative is not None
    assert computed.consumer.endswith("which reads the original's names")
