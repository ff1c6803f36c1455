"""CLIP's image tower from OpenAI's archives and OpenCLIP's directories: equal to open_clip."""

import re
import warnings
from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn

from tests.packages import open_clip
from tests.sampling import sampled
from tests.small_models import randomise_calmly, relative, save_openclip, with_numbers
from vitconvert import load_checkpoint, load_model, verify
from vitconvert.errors import (
    MissingFact,
    NotRepresentable,
    TensorMismatch,
    UnknownDialect,
)
from vitconvert.tables.dialects import builtin_tables

ROUNDING = 2e-5
TEXT = {"context_length": 7, "vocab_size": 40, "width": 16, "heads": 2, "layers": 2}
VISION = {"image_size": 24, "layers": 11, "width": 48, "head_width": 16, "patch_size": 8}
TIMM = {"image_size": 32, "timm_proj": "none"}
TINY = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}


def clip(vision, *, quick_gelu=False, custom_text=False, text=TEXT):
    kind = open_clip.CustomTextCLIP if custom_text else open_clip.CLIP
    config = {"embed_dim": 20, "vision_cfg": vision, "text_cfg": text}
    config |= {"quick_gelu": True} if quick_gelu else {}
    torch.manual_seed(5)
    return randomise_calmly(kind(**config)), config


def images(size=24):
    torch.manual_seed(1)
    return torch.randn(2, 3, size, size)


CLIPA = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
OPENCLIP = {
    "plain": (VISION, {}, "openclip", {"activation": "gelu", "pooling": "token"}),
    "quick": (VISION, {"quick_gelu": True}, "openclip", {"activation": "quick_gelu"}),
    "text tower apart": (VISION, {"custom_text": True}, "openclip", {"num_classes": 20}),
    "LayerScale": (VISION | {"ls_init_value": 0.1}, {}, "openclip", {"layer_scale": True}),
    "token pooling said": (VISION | {"pool_type": "tok"}, {}, "openclip", {"pooling": "token"}),
    "CLIPA": (VISION | CLIPA, {}, "openclip_clipa", {"pooling": "avg", "pre_norm": False}),
}


@pytest.mark.parametrize(
    ("vision", "options", "dialect", "expected"), OPENCLIP.values(), ids=OPENCLIP
)
@torch.no_grad()
def test_openclips_own_towers(vision, options, dialect, expected, tmp_path):
    model, config = clip(vision, **options)
    folder = save_openclip(model, config, tmp_path)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.dialect == dialect
    common = {"num_heads": 3, "head_dim": 16, "depth": 11, "norm_eps": 1e-5, "patch_bias": False}
    for name, value in {**common, **expected}.items():
        assert getattr(checkpoint.config, name) == value, name
    assert all(not name.startswith("visual.") for name in checkpoint.ledger.ignored)
    assert relative(load_model(folder)(images()), model.visual(images())) <= ROUNDING


@pytest.fixture
def tiny_timm(monkeypatch):
    """open_clip builds timm's models by name; this makes them small."""
    create = open_clip.timm_model.timm.create_model
    small = lambda name, **options: create(name, **{**options, **TINY})  # noqa: E731
    monkeypatch.setattr(open_clip.timm_model.timm, "create_model", small)


TOWERS = {
    "SigLIP": {"timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map"},
    "projected token": {
        "timm_model_name": "vit_base_patch16_clip_224",
        "timm_pool": "token",
        "timm_proj": "linear",
    },
}


@pytest.mark.parametrize("tower", TOWERS.values(), ids=TOWERS)
@torch.no_grad()
def test_towers_of_timm(tower, tiny_timm, tmp_path):
    model, config = clip(TIMM | tower, custom_text=True)
    nameless = {k: v for k, v in config["vision_cfg"].items() if k != "timm_model_name"}
    folder = save_openclip(model, config | {"vision_cfg": nameless}, tmp_path)
    stated = {"num_heads": 3}
    assert load_checkpoint(folder, overrides=stated).dialect == "openclip_timm"
    ours = load_model(folder, overrides=stated)
    assert relative(ours(images(32)), model.visual(images(32))) <= ROUNDING


def towers_by_name():
    """Every ViT of timm that open_clip's configs name, at the smallest size each is named with."""
    towers = [open_clip.get_model_config(name)["vision_cfg"] for name in open_clip.list_models()]
    of_timm = [t for t in towers if re.match(r"vit_|eva", t.get("timm_model_name", ""))]
    largest_first = sorted(of_timm, key=lambda tower: -tower["image_size"])
    return {re.sub(r"_\d+$", "", tower["timm_model_name"]): tower for tower in largest_first}


EVAS = {
    "eva_giant": "openclip_timm_eva",
    "eva02_enormous": "openclip_timm_eva",
    "eva02": "openclip_timm_eva_split",
    "relpos": "openclip_timm_relpos",
}
OF_TIMM_ALONE = ("vit_base_mci",)  # no table has it under OpenCLIP's names: its trunk is read


# In this order, every third, which the default run takes, is of another dialect or refused.
TOWERS_BY_NAME = (
    *("vit_base_patch16_siglip", "vit_large_patch16_siglip", "vit_so400m_patch16_siglip"),
    *("vit_pe_core_gigantic_patch14", "vit_so400m_patch14_siglip", "vit_pe_core_small_patch16"),
    *("vit_pe_core_tiny_patch16", "vit_giantopt_patch16_siglip", "eva02_large_patch14_clip"),
    *("eva_giant_patch14", "vit_base_patch32_siglip", "vit_medium_patch16_gap"),
    *("eva02_base_patch16_clip", "vit_pe_core_large_patch14", "eva02_enormous_patch14_clip"),
    *("vit_base_mci", "vit_large_patch14_clip", "vit_pe_core_base_patch16"),
    "vit_relpos_medium_patch16_cls",
)


def test_every_tower_that_openclips_configs_name_is_listed():
    assert set(TOWERS_BY_NAME) == set(towers_by_name())


@pytest.mark.parametrize("name", sampled(TOWERS_BY_NAME, 3))
@torch.no_grad()
def test_towers_that_openclips_configs_name(name, monkeypatch, tmp_path):
    narrow = {"depth": 2} if "mci" in name else {"depth": 2, "embed_dim": 48, "num_heads": 3}
    create = open_clip.timm_model.timm.create_model
    monkeypatch.setattr(
        open_clip.timm_model.timm, "create_model", lambda name, **o: create(name, **o, **narrow)
    )
    tower = towers_by_name()[name]
    model, config = clip(tower, custom_text=True)
    folder = save_openclip(model, config, tmp_path)
    if name in OF_TIMM_ALONE:
        read = load_checkpoint(folder, overrides=narrow | {"num_heads": 12})
        assert any("read below the prefix 'visual.trunk.'" in note for note in read.ledger.notes)
        x = images(tower["image_size"])
        assert relative(load_model(read)(x), model.visual.trunk(x)) <= ROUNDING
        return
    dialect = next((d for part, d in EVAS.items() if part in name), "openclip_timm")
    assert load_checkpoint(folder, overrides=narrow).dialect == dialect
    ours = load_model(folder, overrides=narrow)
    assert ours.config.rope == ("axial" if re.search("eva02_[bl]|pe_core", name) else "none")
    x = images(tower["image_size"])
    assert relative(ours(x), model.visual(x)) <= ROUNDING


@pytest.mark.slow
@torch.no_grad()
def test_the_named_architecture_of_a_tower_says_what_its_tensors_do_not(tmp_path):
    tower = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token"}
    model, config = clip({"image_size": 224, "timm_proj": "linear"} | tower, custom_text=True)
    folder = save_openclip(model, config, tmp_path)
    config = load_checkpoint(folder).config
    assert (config.num_heads, config.num_classes, config.pooling) == (3, 20, "token")
    assert config.origins["num_heads"] == "architecture vit_tiny_patch16_224"
    report = verify(folder)
    assert report.ok and report.reference == f"open_clip {open_clip.__version__} TimmModel"
    assert "blocks.11.attn" in {difference.layer for difference in report.layers}
    assert relative(load_model(folder)(images(224)), model.visual(images(224))) <= ROUNDING


OPENAI = VISION | {"width": 128, "head_width": 64}


def openai_model():
    return clip(OPENAI, quick_gelu=True, text=TEXT | {"width": 64, "heads": 1})[0]


def archived(tensors):
    """A TorchScript archive in which modules nest as the names say."""

    class Holder(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    top = Holder()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = top
        for step in path:
            if not hasattr(module, step):
                module.add_module(step, Holder())
            module = getattr(module, step)
        module.register_buffer(leaf, tensor)
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        return torch.jit.trace(top.eval(), torch.ones(1))


@torch.no_grad()
def test_openais_archive(tmp_path):
    model = openai_model()
    open_clip.convert_weights_to_fp16(model)
    tensors = with_numbers(model)
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(archived(tensors), tmp_path / "ViT-B-8.pt")
    reference = open_clip.model.build_model_from_openai_state_dict(
        dict(tensors), cast_dtype=torch.float32
    )
    checkpoint = load_checkpoint(tmp_path / "ViT-B-8.pt")
    assert checkpoint.dialect == "openai_clip"
    by_name = load_checkpoint(tmp_path / "ViT-B-8.pt", dialect="openai_clip")
    assert by_name.dialect == "openai_clip"
    config = checkpoint.config
    assert (config.num_heads, config.head_dim, config.activation) == (2, 64, "quick_gelu")
    assert config.origins["head_dim"] == "weights_map/openai_clip.toml"
    ours = load_model(tmp_path / "ViT-B-8.pt")
    assert checkpoint.tensors["patch_embed.proj.weight"].dtype == torch.float16
    assert ours.patch_embed.proj.weight.dtype == torch.float32
    assert relative(ours(images()), reference.float().visual(images())) <= ROUNDING


def test_without_its_config_a_file_may_be_openais_or_openclips(tmp_path):
    model, _ = clip(VISION)
    path = tmp_path / "open_clip_pytorch_model.bin"
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, path)
    with pytest.raises(MissingFact) as error:
        load_checkpoint(path)
    assert str(error.value) == (
        "error: missing-fact\n"
        "  The file does not say everything that decides the function.\n"
        "  dialect  openclip (weights_map/openclip.toml)\n"
        "  num_heads   q has 48 rows, and the number of heads is unknown\n"
        "  activation  open_clip_config.json says quick_gelu, or nothing for gelu\n"
        "  hint: --set num_heads=... --set activation=... (in Python, overrides={...}) states it."
    )
    stated = {"num_heads": 3, "activation": "gelu"}
    assert relative(load_model(path, overrides=stated)(images()), model.visual(images())) < ROUNDING


def test_a_tower_by_itself(tmp_path):
    model, _ = clip(VISION)
    torch.save(model.visual.state_dict(), tmp_path / "visual.pt")
    stated = {"num_heads": 3, "activation": "gelu"}
    assert load_checkpoint(tmp_path / "visual.pt", overrides=stated).dialect == "openclip_tower"
    ours = load_model(tmp_path / "visual.pt", overrides=stated)
    assert relative(ours(images()), model.visual(images())) <= ROUNDING


REFUSED = {
    "CoCa's pooler": (
        {"attentional_pool": True, "attn_pooler_heads": 2},
        "attn_pool|attentional_pool",
    ),
    "norms of q and k": ({"qk_norm": True}, "ln_q|qk_norm"),
    "scaled heads": ({"scale_heads": True}, "head_scale|scale_heads"),
    "cosine attention": ({"scaled_cosine_attn": True}, "logit_scale|scaled_cosine_attn"),
    "norm inside attention": ({"scale_attn_inner": True}, "ln_inner|scale_attn_inner"),
    "norm after attention": ({"scale_attn": True}, "ln_attn|scale_attn"),
    "norm in the MLP": ({"scale_fc": True}, "mlp.ln|scale_fc"),
    "mean of normed tokens": ({"pool_type": "avg"}, "pooling"),
    "CLIPA of normed tokens": ({"no_ln_pre": True, "pool_type": "avg"}, "final_ln_after_pool"),
    "another epsilon": ({"norm_kwargs": {"eps": 1e-6}}, "norm_kwargs"),
    "another GELU": ({"act_kwargs": {"approximate": "tanh"}}, "act_kwargs"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "named"), REFUSED.values(), ids=REFUSED)
def test_another_function_is_refused_by_name(change, named, tmp_path):
    model, config = clip(VISION | change)
    with pytest.raises((NotRepresentable, TensorMismatch, UnknownDialect), match=named):
        load_checkpoint(save_openclip(model, config, tmp_path))


def test_every_argument_of_openclips_config_is_known_or_refused():
    refused = {argument for change, _ in REFUSED.values() for argument in change}
    known = set(builtin_tables()["openclip"].config_file.inert) | set(VISION)
    of_timm = {name for name in asdict(open_clip.CLIPVisionCfg()) if name.startswith("timm_")}
    harmless = {"attn_pooler_queries", "attn_pooler_heads", "block_type"}  # without a pooler
    assert set(asdict(open_clip.CLIPVisionCfg())) == refused | known | of_timm | harmless
