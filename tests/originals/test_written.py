"""Files for the original projects' own code, compared with their names and wrappers by hand."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitconvert
from tests.matrix_sources import openai_clip
from tests.originals.rows import biasless, gated, vit
from tests.originals.spelling import (
    DEPTH,
    HEADS,
    WIDTH,
    Tensors,
    deit3,
    dino_head,
    dinov2,
    dinov3,
    filled,
    mae_decoder,
    meta_vit,
    msn_head,
    pair,
    prefixed,
)
from tests.packages import transformers
from tests.sampling import sampled
from tests.small_models import small_config
from vitconvert.errors import NotRepresentable
from vitconvert.programs.target import fit_target
from vitconvert.tables.dialects import builtin_tables

STATED = {"num_heads": HEADS}


@dataclass(frozen=True)
class Written:
    """What is converted, and what the project's code must find."""

    dialect: str
    source: Callable[[], Tensors]
    file: Callable[[], Mapping[str, Any]]
    stated: Mapping[str, Any] = field(default_factory=lambda: STATED)
    read_as: str | None = None


def vit_with_head() -> Tensors:
    return filled(meta_vit() | pair("head", 7, WIDTH))


def mean_of_patches() -> Tensors:
    tensors = vit_with_head()
    return {re.sub("^norm", "fc_norm", name): tensor for name, tensor in tensors.items()}


def unmasked(tensors: Tensors) -> Tensors:
    return tensors | {"mask_token": torch.zeros(1, WIDTH)}


def keyless(tensors: Tensors) -> Tensors:
    """Without the bias that DINOv3's mask takes from the keys."""
    for i in range(DEPTH):
        tensors[f"blocks.{i}.attn.qkv.bias"][WIDTH : 2 * WIDTH] = 0
    return unmasked(tensors)


def dinov3_7b() -> Tensors:
    local = {"local_cls_norm.weight": torch.ones(WIDTH), "local_cls_norm.bias": torch.zeros(WIDTH)}
    return unmasked(dinov3(swiglu=True, bias=False)) | local


def image_tower() -> Tensors:
    return {name: t for name, t in openai_clip().items() if name.startswith("visual.")}


DINOV3 = {"image_size": (24, 24)}
WRITTEN = {
    "DINO": Written(
        "dino_backbone", lambda: prefixed("backbone.", vit()) | filled(dino_head()), vit
    ),
    "MAE": Written("mae_encoder", lambda: vit() | filled(mae_decoder()), lambda: {"model": vit()}),
    "MAE, head on the class token": Written(
        "mae_encoder", vit_with_head, lambda: {"model": vit_with_head()}
    ),
    "MAE, head on the mean": Written(
        "mae_encoder", mean_of_patches, lambda: {"model": mean_of_patches()}
    ),
    "MSN": Written(
        "msn_encoder", lambda: vit() | msn_head(), lambda: {"target_encoder": vit(), "epoch": 0}
    ),
    "MoCo v3": Written(
        "moco_v3", vit, lambda: {"state_dict": prefixed("module.base_encoder.", vit())}
    ),
    "DeiT III": Written("deit3", deit3, lambda: {"model": deit3()}, read_as="deit3"),
    "DINOv2": Written("dinov2", dinov2, lambda: unmasked(dinov2())),
    "DINOv2, SwiGLU and registers": Written(
        "dinov2_swiglu",
        partial(dinov2, swiglu=True, registers=4),
        lambda: unmasked(dinov2(swiglu=True, registers=4)),
    ),
    "DINOv3": Written("dinov3", dinov3, lambda: keyless(dinov3()), DINOV3),
    "DINOv3, SwiGLU": Written("dinov3_swiglu", gated, lambda: keyless(gated()), DINOV3),
    "DINOv3, 7B": Written("dinov3_7b", biasless, dinov3_7b, DINOV3),
    "OpenAI CLIP": Written("openai_clip_visual", openai_clip, image_tower, {}),
}
every_file = pytest.mark.parametrize("written", sampled(WRITTEN.values(), 3, "slow"), ids=WRITTEN)


def converted(written: Written, folder: Path, to: str, **options: Any) -> vitconvert.Conversion:
    torch.save(written.source(), folder / "source.pt")
    return vitconvert.convert(
        folder / "source.pt",
        to=to,
        output=folder / "out",
        dialect=written.read_as,
        overrides=written.stated,
        image_only=True,
        **options,
    )


def require_same(found: object, wanted: object) -> None:
    """The same keys on every level, and tensors of the same bytes."""
    if isinstance(wanted, Tensor):
        assert isinstance(found, Tensor) and found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    elif isinstance(wanted, Mapping):
        assert isinstance(found, dict) and found.keys() == wanted.keys()
        for key, value in wanted.items():
            require_same(found[key], value)
    else:
        assert found == wanted


class Standin(nn.Module):
    """In the place of a project's class: remembers what it is built with and what it loads."""

    built: Mapping[str, Any]
    loaded: Mapping[str, Tensor]

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        type(self).built = arguments

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        type(self).loaded = tensors


class Project(ModuleType):
    """A module in which every name is that class."""

    def __getattr__(self, name: str) -> object:
        return Standin


def used(folder, monkeypatch) -> type[Standin]:
    """Run the model card's first example where the project cannot be imported."""
    code = re.findall("```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[0]
    for module in re.findall(r"^from (\S+) import", code, re.MULTILINE):
        parts = module.split(".")
        if module != "functools":
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, name, Project(name))
    monkeypatch.chdir(folder)
    exec(code, {})
    return Standin


@every_file
def test_the_file_is_what_the_projects_code_looks_for(written, tmp_path, monkeypatch):
    """The model card's code, too, gives the project's class its own names and its sizes."""
    conversion = converted(written, tmp_path, to=builtin_tables()[written.dialect].ecosystem)
    assert conversion.target_dialect == written.dialect
    file = written.file()
    require_same(torch.load(tmp_path / "out" / "model.pt", weights_only=True), file)
    theirs = used(tmp_path / "out", monkeypatch)
    prefix = {"moco_v3": "module.base_encoder.", "openai_clip_visual": "visual."}
    before = prefix.get(written.dialect, "")
    tensors = next((inner for inner in file.values() if isinstance(inner, dict)), file)
    require_same(theirs.loaded, {name.removeprefix(before): t for name, t in tensors.items()})
    heads = 2 if written.dialect == "openai_clip_visual" else HEADS
    named = {"num_heads", "heads", "depth", "layers", "patch_size"}
    built = [value for name, value in theirs.built.items() if name in named]
    assert sorted(built) == sorted([heads, DEPTH, 8])


@every_file
def test_it_comes_back_from_vitconverts_own_names(written, tmp_path):
    """And is recognised by what lies beside it, where its tensors are another dialect's too."""
    converted(written, tmp_path, to="vit", verify=False)
    back = {"to": written.dialect, "output": tmp_path / "back", "verify": False}
    vitconvert.convert(tmp_path / "out", **back)
    require_same(torch.load(tmp_path / "back" / "model.pt", weights_only=True), written.file())
    assert vitconvert.load_checkpoint(tmp_path / "back").dialect == written.dialect
    assert vitconvert.diff(tmp_path / "out", tmp_path / "back").equal


@pytest.mark.parametrize(
    ("registers", "stated", "antialias", "offset"),
    [
        (0, {}, False, 0.1),
        (4, {}, True, 0.0),
        (4, {"position_resampling": "bicubic_offset"}, False, 0.1),
        (0, {"position_resampling": "bicubic"}, False, 0.0),
    ],
)
def test_dinov2_resizes_positions_as_the_source_does(
    registers, stated, antialias, offset, tmp_path, monkeypatch
):
    """Its class has the rule in its arguments, and the models with registers have another."""
    written = Written("dinov2", partial(dinov2, registers=registers), dict, STATED | stated)
    converted(written, tmp_path, to="dinov2", verify=False)
    built = used(tmp_path / "out", monkeypatch).built
    assert (built["interpolate_antialias"], built["interpolate_offset"]) == (antialias, offset)


def test_a_grey_model_goes_to_timm_and_comes_back(tmp_path):
    """Its means of red, green and blue say nothing of grey images, and neither do timm's."""
    grey = vit() | {"patch_embed.proj.weight": torch.randn(WIDTH, 1, 8, 8)}
    torch.save(grey, tmp_path / "source.pt")
    folder = {"output": tmp_path / "out", "overrides": STATED, "verify": False}
    vitconvert.convert(tmp_path / "source.pt", to="timm", **folder)
    back = vitconvert.load_checkpoint(tmp_path / "out")
    require_same(dict(back.tensors), grey)
    (tmp_path / "out" / "vitconvert.json").unlink()
    assert vitconvert.load_checkpoint(tmp_path / "out").preprocessing is None


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("without", sampled(["attn.proj.bias", "mlp"], 2, "slow"))
def test_timm_has_one_argument_for_biases_that_dinov2_has_apart(without, swiglu, tmp_path):
    tensors = dinov2(swiglu=swiglu)
    left = {n: t for n, t in tensors.items() if without not in n or not n.endswith("bias")}
    torch.save(left, tmp_path / "source.pt")
    with pytest.raises(NotRepresentable) as error:
        vitconvert.convert(
            tmp_path / "source.pt",
            to="timm",
            output=tmp_path / "out",
            overrides=STATED,
            verify=False,
        )
    fact = "timm: proj_bias == mlp_bias is always True there, and False here"
    assert any(line.startswith(fact) for line in error.value.details)
    assert vitconvert.load_checkpoint(tmp_path / "source.pt", overrides=STATED).ledger


def test_a_decoder_is_told_and_left_behind(tmp_path):
    ignored = converted(WRITTEN["MAE"], tmp_path, to="mae", verify=False).ledger.ignored
    assert set(ignored) == set(mae_decoder())


def test_a_plan_tells_the_wrapper(tmp_path):
    torch.save(vit(), tmp_path / "source.pt")
    plan = vitconvert.plan_conversion(tmp_path / "source.pt", to="mae", overrides=STATED)
    assert (plan.wrapper, plan.to_dict()["wrapper"], plan.streamed) == ("model", "model", True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_constants_go_from_file_to_file_too(dtype, tmp_path):
    source = dinov3(swiglu=True, bias=False)
    torch.save({name: t.to(dtype) for name, t in source.items()}, tmp_path / "source.pt")
    assert vitconvert.plan_conversion(
        tmp_path / "source.pt", to="dinov3", overrides=DINOV3
    ).streamed
    folder = {"output": tmp_path / "out", "overrides": DINOV3, "verify": False}
    vitconvert.convert(tmp_path / "source.pt", to="dinov3", **folder)
    file = {name: t.to(dtype) for name, t in dinov3_7b().items()}
    require_same(torch.load(tmp_path / "out" / "model.pt", weights_only=True), file)


def test_periods_that_were_computed_are_stored(tmp_path):
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 72, "image_size": 24, "patch_size": 8, "num_register_tokens": 4}
    model = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sizes))
    model.save_pretrained(tmp_path / "hf")
    conversion = vitconvert.convert(
        tmp_path / "hf", to="dinov3", output=tmp_path / "out", verify=False
    )
    assert conversion.ledger.changed == (
        "store-rope-periods: the periods of the rotary embedding, which were computed, were "
        "stored; logits change by 0.0e+00",
    )
    periods = torch.load(tmp_path / "out" / "model.pt", weights_only=True)["rope_embed.periods"]
    assert torch.equal(periods, 100.0 ** (torch.arange(4) / 4))
    plan = vitconvert.plan_conversion(tmp_path / "hf", to="dinov3")
    planned = {t.assembly.target: t for t in plan.tensors}
    assert planned["rope_embed.periods"].steps == ("step",)
    mask = planned["blocks.1.attn.qkv.bias_mask"].assembly
    assert str(mask) == "blocks.1.attn.qkv.bias_mask : (qkv head dim) = 1 0 1"


CONFIG = small_config(
    image_size=(24, 24),
    num_classes=0,
    embed_dim=64,
    depth=11,
    num_heads=1,
    head_dim=64,
    mlp_dim=256,
)
CLIP = {"activation": "quick_gelu", "norm_eps": 1e-5, "pre_norm": True, "patch_bias": False}
CLIP |= {"final_norm": False, "fc_norm": True, "num_classes": 5, "head_bias": False}
TURNED = {"rope": "dinov3", "rope_half": True, "rope_temperature": 100.0, "num_registers": 4}
TURNED |= {"position_embedding": "none", "norm_eps": 1e-5}
DIFFERENT = {
    "a head that forward does not read": (
        *("dino_backbone", {"num_classes": 7}),
        "no place for 2 tensors of this model; tensors head.weight, head.bias",
    ),
    "an oblong image": (
        *("dino_backbone", {"image_size": (24, 16)}),
        "square is always True there, and False here",
    ),
    "another epsilon": (
        *("msn_encoder", {"norm_eps": 1e-12}),
        "norm_eps: the weights need 1e-12, and there it is 1e-06",
    ),
    "a mean that is not normed": (
        *("mae_encoder", {"pooling": "avg"}),
        "pooling: the weights need avg, and there it is token",
    ),
    "two last norms": (
        *("mae_encoder", {"pooling": "avg", "fc_norm": True}),
        "final_norm != fc_norm is always True there, and False here",
    ),
    "registers": (
        *("deit3", {"num_registers": 4, "no_embed_class": True, "layer_scale": True}),
        "no place for 1 tensors of this model; tensors reg_token",
    ),
    "a narrower MLP": (
        *("openai_clip_visual", CLIP | {"mlp_dim": 128}),
        "mlp_dim == 4 * embed_dim is always True there, and False here",
    ),
    "exact GELU": (
        *("openai_clip_visual", CLIP | {"activation": "gelu"}),
        "activation is always quick_gelu there, and gelu here",
    ),
    "no bias in q, k and v": (
        *("openclip", CLIP | {"qkv_bias": False}),
        "qkv_bias is always True there, and False here",
    ),
    "periods that no file holds": ("dinov3", TURNED, "tensors that this model lacks"),
}


@pytest.mark.parametrize(("dialect", "change", "why"), DIFFERENT.values(), ids=DIFFERENT)
def test_another_function_is_refused_by_name(dialect, change, why):
    with pytest.raises(NotRepresentable) as error:
        fit_target(builtin_tables()[dialect], CONFIG.replace(**change))
    assert why in error.value.in_one_line()


@pytest.mark.parametrize(
    ("dialect", "change"),
    [
        ("dino_backbone", {}),
        ("mae_encoder", {"image_size": (24, 16), "in_channels": 4}),
        ("mae_encoder", {"pooling": "avg", "final_norm": False, "fc_norm": True}),
        ("openai_clip_visual", CLIP),
        ("dinov3", TURNED | {"rope_periods": True}),
    ],
)
def test_the_same_function_is_not(dialect, change):
    assert fit_target(builtin_tables()[dialect], CONFIG.replace(**change)).table.name == dialect
