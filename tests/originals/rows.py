"""Files as their projects save them, and who else computes them: timm, or what was kept of it."""

import argparse
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.originals import goldens, make_mmpretrain_files, make_originals
from tests.originals.goldens import golden
from tests.originals.spelling import (
    HEADS,
    HIDDEN,
    PATCHES,
    SIZES,
    WIDTH,
    Tensors,
    deit3,
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


@dataclass(frozen=True, kw_only=True)
class Original:
    """A file of a project.

    Attributes:
        dialect: What it is read as.
        file: What is saved, or where it lies.
        stated: What a user has to say of it.
        named: Whether the dialect must be named, too, since no tensor tells it.
        expected, notes: What is found out, and what the ledger says.
        timm: An architecture of timm of the same function,
        options: with these arguments besides the sizes,
        tensors: in which timm's own loader puts these.
        kept: Images, and what the project computed of them.
        rounding: How near that is.
        back: The dialect in which it comes back, if it does,
        left: but for names with these parts.
    """

    dialect: str
    file: Callable[[], object]
    stated: Mapping[str, Any] = field(default_factory=lambda: {"num_heads": HEADS})
    named: bool = False
    expected: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] | None = None
    timm: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: Callable[[], Tensors] = dict
    kept: Callable[[], tuple[Tensor, Tensor]] | None = None
    rounding: float = 2e-5
    back: str = ""
    left: tuple[str, ...] = ()

    def saved(self, folder: Path) -> Path:
        """Where the file lies."""
        file = self.file()
        if isinstance(file, Path):
            return file
        torch.save(file, folder / "file.pth")
        return folder / "file.pth"

    @property
    def how(self) -> dict[str, Any]:
        """How a user has it read."""
        return {"overrides": self.stated, "dialect": self.dialect if self.named else None}

    def model(self) -> torch.nn.Module:
        """timm's model with the weights that its own loader makes of the project's."""
        ratio = {"mlp_ratio": HIDDEN / WIDTH}
        model = timm.create_model(self.timm, **{**SIZES, **ratio, **self.options})
        eva = isinstance(model, timm.models.eva.Eva)
        loader = timm.models.eva if eva else timm.models.vision_transformer
        model.load_state_dict(loader.checkpoint_filter_fn(self.tensors(), model))
        return model.eval()


# Meta


def vit(**options: Any) -> Tensors:
    return filled(meta_vit(**options))


def parallel(tensors: Tensors) -> Tensors:
    return prefixed("module.", tensors)


def slow(tensors: Tensors) -> Tensors:
    """Weights of another encoder in the same file, which must not be taken."""
    return {name: tensor + 1 for name, tensor in tensors.items()}


def dino_file() -> object:
    teacher = prefixed("backbone.", vit()) | filled(dino_head())
    namespace = argparse.Namespace(arch="vit_small")
    return {"student": parallel(slow(teacher)), "teacher": teacher, "epoch": 1, "args": namespace}


def dinov2_teacher() -> object:
    heads = prefixed("dino_", filled(dino_head())) | prefixed("ibot_", filled(dino_head()))
    return {"teacher": prefixed("backbone.", dinov2(chunk=4)) | heads}


def ijepa_encoder() -> Tensors:
    return vit(positions=PATCHES, class_token=False)


def ijepa_file() -> object:
    predictor = filled(pair("predictor_embed", 24, WIDTH) | {"mask_token": (1, 1, 24)})
    trained = {"encoder": parallel(ijepa_encoder()), "predictor": parallel(predictor)}
    return trained | {"target_encoder": parallel(slow(ijepa_encoder())), "opt": {}, "epoch": 300}


def msn_file() -> object:
    target = vit() | msn_head()
    both = {"encoder": parallel(slow(target)), "target_encoder": parallel(target)}
    return both | {"opt": {}, "prototypes": torch.ones(4, 8), "epoch": 800}


def moco_file() -> object:
    both = prefixed("base_encoder.", vit()) | prefixed("momentum_encoder.", slow(vit()))
    return {"arch": "vit_small", "state_dict": parallel(both | moco_head())}


def fine_tuned_mae() -> Tensors:
    tensors = {re.sub("^norm", "fc_norm", name): tensor for name, tensor in vit().items()}
    return tensors | filled(pair("head", 7, WIDTH))


def deit3_in_timm() -> Tensors:
    return {re.sub(r"gamma_([12])", r"ls\1.gamma", name): t for name, t in deit3().items()}


def beside(taken: str, other: str) -> tuple[str, ...]:
    return (f"the weights are those under {taken}; the file also has {other} (--prefer)",)


PLAIN = {"activation": "gelu", "norm_eps": 1e-6, "pooling": "token", "image_size": (24, 24)}
BICUBIC = PLAIN | {"position_resampling": "bicubic"}
OFFSET = PLAIN | {"position_resampling": "bicubic_offset"}
SWIGLU = PLAIN | {"activation": "silu", "depth": 11}
HALVES = {"mlp_ratio": 2 * HIDDEN / WIDTH}  # timm counts both halves
ROTATED = {"norm_eps": 1e-5, "rope": "dinov3", "rope_periods": True, "num_heads": HEADS}
ROTATED |= {"num_registers": 4}
GATED = ROTATED | {"activation": "silu"}
SIZED = {"image_size": (24, 24)}
ALIGNED = {"swiglu_align_to": 1}
SMALL, BASE = "vit_small_patch16_224", "vit_base_patch16_224"
HEADLESS = {"num_classes": 0}
SEVEN = {"num_classes": 7}


def of_timm(dialect: str, timm: str, tensors: Any, file: Any = None, **more: Any) -> Original:
    """A file of these tensors, or one in which they lie, that an architecture of timm computes."""
    return Original(dialect=dialect, timm=timm, tensors=tensors, file=file or tensors, **more)


def of_meta(*what: Any, notes: tuple[str, ...] = (), **more: Any) -> Original:
    return of_timm(*what, notes=notes, **more)


plain, registered = partial(of_meta, options=HEADLESS), partial(dinov2, registers=4)
gated, biasless = partial(dinov3, swiglu=True), partial(dinov3, swiglu=True, bias=False)
dinov2_gated = partial(dinov2, swiglu=True)
META = {
    "DINO, full": plain(
        "dino", SMALL, vit, dino_file, expected=OFFSET, notes=beside("teacher", "student")
    ),
    "DINO, backbone": plain("timm", SMALL, vit, expected=PLAIN),
    "DINOv2": of_meta(
        "dinov2", "vit_small_patch14_dinov2", dinov2, expected=OFFSET | {"layer_scale": True}
    ),
    "DINOv2, registers": of_meta(
        "dinov2",
        "vit_small_patch14_reg4_dinov2",
        registered,
        expected=PLAIN | {"position_resampling": "bicubic_antialias", "num_registers": 4},
    ),
    "DINOv2, SwiGLU": of_meta(
        "dinov2_swiglu",
        "vit_giant_patch14_dinov2",
        dinov2_gated,
        options=HALVES,
        expected=SWIGLU | {"gated_mlp": True, "mlp_dim": HIDDEN},
    ),
    "DINOv2, SwiGLU and registers, in chunks": of_meta(
        "dinov2_swiglu",
        "vit_giant_patch14_reg4_dinov2",
        partial(dinov2_gated, registers=4),
        partial(dinov2_gated, registers=4, chunk=3),
        options=HALVES,
        expected=SWIGLU,
    ),
    "DINOv2, teacher in chunks": of_meta(
        "dinov2",
        "vit_small_patch14_dinov2",
        dinov2,
        dinov2_teacher,
        expected=PLAIN | {"depth": 11},
    ),
    "DINOv3": of_meta(
        "dinov3",
        "vit_small_patch16_dinov3_qkvb",
        dinov3,
        stated=SIZED,
        expected=ROTATED | {"activation": "gelu"},
    ),
    "DINOv3, SwiGLU": of_meta(
        "dinov3_swiglu",
        "vit_small_plus_patch16_dinov3_qkvb",
        gated,
        options=ALIGNED,
        stated=SIZED,
        expected=GATED | {"gated_mlp": True},
    ),
    "DINOv3, 7B": of_meta(
        "dinov3_7b",
        "vit_7b_patch16_dinov3",
        biasless,
        options=ALIGNED,
        stated=SIZED,
        expected=GATED | {"qkv_bias": False},
    ),
    "MAE, with decoder": plain(
        "mae", BASE, vit, lambda: {"model": vit() | filled(mae_decoder())}, expected=BICUBIC
    ),
    "MAE, fine-tuned": of_meta(
        "timm",
        BASE,
        fine_tuned_mae,
        lambda: {"model": fine_tuned_mae()},
        options=SEVEN | {"global_pool": "avg"},
        expected=PLAIN | {"pooling": "avg", "fc_norm": True, "num_classes": 7},
    ),
    "DeiT III": of_meta(
        "deit3",
        "deit3_small_patch16_224",
        deit3_in_timm,
        lambda: {"model": deit3()},
        named=True,  # timm has a rotated model of the same tensors
        options=SEVEN,
        expected=PLAIN | {"no_embed_class": True, "layer_scale": True},
    ),
    "I-JEPA": of_meta(
        "timm",
        "vit_huge_patch14_gap_224",
        ijepa_encoder,
        ijepa_file,
        options=HEADLESS | {"fc_norm": False},
        expected=PLAIN | {"pooling": "avg", "class_token": False},
        notes=beside("encoder", "target_encoder"),
    ),
    "MSN": plain(
        "msn", SMALL, vit, msn_file, expected=BICUBIC, notes=beside("target_encoder", "encoder")
    ),
    "MoCo v3": plain("moco_v3", SMALL, vit, moco_file, expected=PLAIN),
}

# Others that timm reads

LABELLED = {"num_classes": LABELS}
UNPOOLED = HEADLESS | {"global_pool": ""}
PIXELS = {"patch_size": 1}  # of which there are as many as in the grid that timm scales to
# microsoft/unilm, beit3/modeling_finetune.py: of retrieval, captions and questions.
BESIDE_BEIT3 = pair("mlm_head", 11, WIDTH) | pair("pooler.norm", WIDTH)
BESIDE_BEIT3 |= pair("pooler.dense", WIDTH, WIDTH) | {"language_head.weight": (6, WIDTH)}
BESIDE_BEIT3 |= {"vision_head.weight": (6, WIDTH), "logit_scale": ()}
# microsoft/unilm 768a3c8, beit2/modeling_pretrain.py.
BESIDE_BEIT2 = pair("cls_pt_norm", WIDTH) | pair("cls_pt_lm_head", 6, WIDTH)
BESIDE_BEIT2 |= pair("cls_pt_layers.0.norm1", WIDTH) | {"cls_pt_layers.1.gamma_1": (WIDTH,)}


def visual(tensors: Tensors) -> Tensors:
    return prefixed("visual.", tensors) | text_tower()


NOT_WRITTEN = ("rope.freqs", "mask_token", "text_e", "logit_scale", ".B.")
labelled = partial(of_timm, options=LABELLED, left=NOT_WRITTEN)
packed, clip02 = partial(eva02, packed=True), partial(eva02, clip=True)
clip01, beit2 = partial(eva01, clip=True), partial(eva01, relative=True)
pe = partial(perception, side=24)
pe_scaled = partial(perception, side=32, pooled=False, scaled=True)
OTHERS = {
    "EVA-02": labelled(
        "eva02", "eva02_base_patch14_224", eva02, lambda: {"module": eva02()}, back="eva02"
    ),
    "EVA-02, packed": labelled(
        "eva02_packed",
        "eva02_tiny_patch14_224",
        packed,
        lambda: {"model": packed()},
        back="eva02_packed",
    ),
    "EVA-CLIP": labelled(
        "eva02", "eva02_base_patch16_clip_224", clip02, lambda: visual(clip02()), back="eva02"
    ),
    "EVA-01": labelled(
        "timm_eva", "eva_giant_patch14_224", eva01, lambda: {"module": eva01()}, back="eva01"
    ),
    "EVA01-CLIP-g": labelled(
        "timm_eva",
        "eva_giant_patch14_clip_224",
        clip01,
        lambda: visual(clip01()),
        back="eva01",
    ),
    "EVA02-CLIP-E": labelled(
        "timm_eva",
        "eva02_enormous_patch14_clip_224",
        clip01,
        lambda: visual(clip01()),
        stated={"num_heads": HEADS, "block_order": "res_post_norm"},
        back="eva02_clip_e",
    ),
    "EVA-01, relative positions": labelled(
        "timm_eva", "beit_base_patch16_224", beit2, lambda: {"model": beit2()}
    ),
    "BEiT v2, whose pre-training has blocks beside the encoder": labelled(
        "timm_eva",
        "beit_base_patch16_224",
        beit2,
        lambda: {"model": beit2() | filled(BESIDE_BEIT2)},
    ),
    "BEiT-3": labelled(
        "beit3", "beit3_base_patch16_224", beit3, lambda: {"model": beit3()}, back="beit3"
    ),
    "BEiT-3, fine-tuned to find texts of images": labelled(
        "beit3", "beit3_base_patch16_224", beit3, lambda: {"model": beit3() | filled(BESIDE_BEIT3)}
    ),
    "Sapiens 2": labelled(
        "sapiens2",
        "vit_base_patch16_sapiens2",
        sapiens2,
        options=HEADLESS | {"num_kv_heads": (*(HEADS, 1) * 5, HEADS)},
        stated={"num_heads": HEADS, **SIZED},
        back="sapiens2",
    ),
    "AIMv2": labelled("aimv2", "aimv2_large_patch14_224", aimv2, options=UNPOOLED, back="aimv2"),
    "Perception Encoder": labelled(
        "pe",
        "vit_pe_core_tiny_patch16_384",
        pe,
        lambda: {"state_dict": visual(pe())},
        options=PIXELS | LABELLED,
        back="pe",
    ),
    "Perception Encoder, tokens": labelled(
        "pe_tokens",
        "vit_pe_lang_large_patch14_448",
        pe_scaled,
        options=PIXELS | UNPOOLED | {"img_size": 32},
        back="pe_tokens",
    ),
}

# What a project's own code computed is kept: goldens/NAME.safetensors


def of_golden(name: str, dialect: str | None = None, **more: Any) -> Original:
    file, kept = partial(golden, name), partial(goldens.images_and_output, name)
    both = {"dialect": dialect or name, "back": dialect or name, "stated": {"num_heads": 3}}
    return Original(file=file, tensors=file, kept=kept, rounding=1e-6, **both | more)


OWN_TRAINING = {"image_size": (16, 12), "norm_eps": 1e-6}
WINDOWS = {"num_heads": 3, "image_size": 20, "window_size": 3, "global_blocks": (1,)}
GOLDENS = {
    # Without registers, and rotary periods that show the heads.
    "dinov3_plain": of_golden("dinov3_plain", "dinov3", stated={"image_size": (16, 12)}),
    "dinov3_key_bias": of_golden("dinov3_key_bias", stated=OWN_TRAINING),
    "dinov3_key_bias_swiglu": of_golden("dinov3_key_bias_swiglu", stated=OWN_TRAINING),
    "asyml": of_golden("asyml", stated={}),  # its matrices have an axis of heads
    "deit3": of_golden("deit3", named=True),
    "dots_ocr": of_golden(
        "dots_ocr", "hf_dots_ocr", back="", stated={"num_heads": 3, "image_size": (24, 40)}
    ),
    "dots_ocr_biases": of_golden(
        "dots_ocr_biases",
        "hf_dots_ocr",
        back="",
        stated={"num_heads": 3, "image_size": 16, "final_norm": False, "norm_eps": 1e-3},
    ),
    "ibot": of_golden("ibot", named=True),
    "internvit": of_golden("internvit", "hf_internvit", back=""),
    "lukemelas": of_golden("lukemelas"),
    "vitdet": of_golden("vitdet"),
    "vitdet_plain": of_golden("vitdet_plain", stated=WINDOWS),
    "tintn": of_golden("tintn"),
}

# goldens/NAME.pth, of which make_originals.py has the code


def of_code(dialect: str, name: str = "", **stated: Any) -> Original:
    name = name or dialect
    path, original = make_originals.FOLDER / f"{name}.pth", make_originals.ORIGINALS[name]

    def kept() -> tuple[Tensor, Tensor]:
        file = torch.load(path, weights_only=True)
        assert file["revision"] == original.revision
        return make_originals.picture(*original.image), file["output"]

    stated = {"num_heads": 2, **stated}
    return Original(dialect=dialect, file=lambda: path, stated=stated, kept=kept, rounding=2e-6)


MEAN = {"pooling": "avg", "head_dim": 4}
OF_CODE = {
    "mobileclip": of_code("mobileclip", image_size=(48, 32)),
    "eva02_pretraining": of_code("eva02", "eva02_pretraining"),
    "eva02_finetuned": of_code("eva02", "eva02_finetuned"),
    "lucidrains_0_7_4": of_code("lucidrains_0_7", "lucidrains_0_7_4", **MEAN),
    "lucidrains_0_40_2": of_code("lucidrains_0_10", "lucidrains_0_40_2", **MEAN),
    "lucidrains_1_0_0": of_code("lucidrains_1_0", "lucidrains_1_0_0", **MEAN),
    "lucidrains_1_7_14": of_code("lucidrains_1_4", "lucidrains_1_7_14", **MEAN),
    "dinov3 itself": of_code("dinov3", norm_eps=1e-6, image_size=(12, 20)),
    "timm_small": of_code("timm", "timm_small", norm_eps=1e-5, attention_scale=0.25),
    "aimv2": of_code("aimv2", image_size=(12, 8)),
    "aimv2_native": of_code("aimv2", "aimv2_native", image_size=(8, 20)),
    "beit3": of_code("beit3"),
    "eva01": of_code("timm_eva", "eva01"),
    "eva_clip_g": of_code("timm_eva", "eva_clip_g"),
    "eva_clip_l": of_code("eva02", "eva_clip_l"),
    "eva_clip_e": of_code("timm_eva", "eva_clip_e", block_order="res_post_norm"),
    "perception": of_code("pe", "perception", pool_heads=2),  # all published ones have 8
    "perception_tokens": of_code("pe_tokens", "perception_tokens"),
    "sapiens2": of_code("sapiens2", image_size=(12, 8)),
    "videomae": of_code("videomae", image_size=(12, 12), frames=4),
    "vjepa2": of_code("vjepa2", image_size=(12, 20), frames=6),
    "vjepa2_1": of_code("vjepa2_1", image_size=(48, 80), frames=6),
    "videomae_v2": of_code("videomae", "videomae_v2", image_size=(12, 12), frames=6),
    "videomae_pretraining": of_code("videomae", "videomae_pretraining", image_size=(8, 8)),
    "eupe": of_code("dinov3", "eupe", num_heads=3, image_size=(12, 20)),
    "deimv2": of_code("deimv2", num_heads=3, image_size=(12, 20)),
    "ast": of_code("ast", num_heads=3, patch_stride=(10, 9), image_size=(37, 52)),
    "ast_long": of_code("ast", "ast_long", num_heads=3, patch_stride=(16, 12), image_size=(34, 77)),
    "m2d": of_code("m2d", num_heads=3, image_size=(8, 20)),
    "eat": of_code("eat", num_heads=3, image_size=(48, 128), position_grid=(5, 8)),
}

# mmpretrain/NAME.pth, as its training saves them


class _Data(pickle.Unpickler):
    """Of a file of ours: what lies beside the weights, with nothing in the place of histories."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("mmengine") or name == "getattr":
            return _Nothing if module.startswith("mmengine") else lambda *_: None
        return super().find_class(module, name)


class _Nothing:
    def __setstate__(self, _: object) -> None:
        """Keep nothing."""


class _Pickle:
    Unpickler = _Data
    load = staticmethod(lambda file, **options: _Data(file).load())


def mmpretrain_file(name: str) -> Mapping[str, Any]:
    """The weights, images, and what MMPretrain computed of them."""
    path = make_mmpretrain_files.FOLDER / f"{name}.pth"
    return torch.load(path, pickle_module=_Pickle, weights_only=False)


def of_mmpretrain(name: str, dialect: str = "mmpretrain", **stated: Any) -> Original:
    def kept() -> tuple[Tensor, Tensor]:
        file = mmpretrain_file(name)
        return file["images"], file["output"]

    return Original(
        dialect=dialect,
        file=lambda: make_mmpretrain_files.FOLDER / f"{name}.pth",
        stated={"num_heads": make_mmpretrain_files.HEADS, **stated},
        tensors=lambda: mmpretrain_file(name)["state_dict"],
        kept=kept,
        back="mmpretrain",
        left=("relative_position_index",),
        expected={"depth": 11 if name == "plain" else 2},
    )


MMPRETRAIN = {
    "plain": of_mmpretrain("plain"),
    "pre_logits": of_mmpretrain("pre_logits", image_size=(12, 16)),
    "clip": of_mmpretrain("clip", "mmpretrain_clip", activation="quick_gelu"),
    "mean": of_mmpretrain("mean"),
    "both_norms": of_mmpretrain("both_norms"),
    "swiglu": of_mmpretrain("swiglu", "mmpretrain_swiglu"),
    "beit": of_mmpretrain("beit", "mmpretrain_beit"),
    "beit_shared": of_mmpretrain("beit_shared", "mmpretrain_beit"),
    "distilled": of_mmpretrain("distilled"),
}
ALL = META | OTHERS | GOLDENS | OF_CODE
ALL |= {f"mmpretrain {name}": row for name, row in MMPRETRAIN.items()}
