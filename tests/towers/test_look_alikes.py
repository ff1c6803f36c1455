"""What only looks like a known ViT is refused, whatever tells it and however it is read."""

import json
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import timm, transformers
from tests.small_models import randomise
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    TensorMismatch,
    UnknownDialect,
    VitConvertError,
)

TOWER = "backbone.0.encoder.encoder."
FACTS = {"num_heads": 4, "norm_eps": 1e-6}


def dinov2():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Dinov2Config(image_size=28, patch_size=14, **sizes)
    return randomise(transformers.Dinov2Model(config)).state_dict()


def rf_detr(arguments, queries=True, wrap="model", prefix=""):
    """As the scripts of Roboflow save it, or Lightning in later releases."""
    tensors = {f"{prefix}{TOWER}{name}": tensor for name, tensor in dinov2().items()}
    tensors[f"{prefix}class_embed.weight"] = torch.randn(5, 8)
    if queries:
        tensors[f"{prefix}refpoint_embed.weight"] = torch.randn(30, 4)
    return {wrap: tensors, **arguments}


WINDOWED = {"encoder": "dinov2_windowed_small", "num_windows": 4}
RF_DETR = {
    "arguments": rf_detr({"args": Namespace(**WINDOWED)}, queries=False),
    "registers": rf_detr(
        {"args": Namespace(encoder="dinov2_registers_windowed_small")}, queries=False
    ),
    "Lightning": rf_detr(
        {"hyper_parameters": {"model_config": WINDOWED}}, False, "state_dict", "model."
    ),
    "queries beside it": rf_detr({}),
    "all": rf_detr({"args": Namespace(**WINDOWED), "epoch": 3}),
}


@pytest.mark.parametrize("case", RF_DETR)
def test_rf_detr_attends_within_windows(case, tmp_path):
    """Its own table reads it, and asks for the windows; no other table may."""
    path, prefix = tmp_path / "rf-detr.pth", "model." * (case == "Lightning")
    torch.save(RF_DETR[case], path)
    ways = [{}, {"tower": prefix + TOWER}, {"tower": prefix + TOWER, "dialect": "hf"}]
    ways += [{"tower": prefix + TOWER, "ignore": ["*class_embed*"]}]
    for reading in ways:
        with pytest.raises(MissingFact, match=r"window_count(.|\n)*global_blocks"):
            vitconvert.load_model(path, overrides=FACTS, **reading)
        assert vitconvert.inspect(path, **reading).dialect == "hf_rf_detr"
    (tmp_path / "team.toml").write_text('[dialect]\nextends = "hf_dinov2"\n')
    others = [{"dialect": "hf_dinov2"}, {"table": tmp_path / "team.toml"}]
    for reading in others:
        with pytest.raises(NotRepresentable, match="RF-DETR"):
            vitconvert.load_model(path, overrides=FACTS, tower=prefix + TOWER, **reading)
    with pytest.raises(NotRepresentable, match="RF-DETR"):
        vitconvert.load_model(path, overrides=FACTS, tower=(prefix + TOWER)[: -len("encoder.")])


def test_a_plain_dinov2_at_the_same_place_is_read(tmp_path):
    torch.save(rf_detr({"args": Namespace(encoder="dinov2_small")}, queries=False), tmp_path / "a")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "a", tower=TOWER, overrides=FACTS)
    assert checkpoint.dialect == "hf_dinov2"


def test_config_json_speaks_for_a_part_of_which_it_has_no_section(tmp_path):
    save_file({f"{TOWER}{n}": t for n, t in dinov2().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rf_detr"}))
    with pytest.raises(MissingFact, match="window_count"):
        vitconvert.load_model(tmp_path, tower=TOWER, overrides=FACTS)
    with pytest.raises(NotRepresentable) as error:
        vitconvert.load_model(tmp_path, tower=TOWER, overrides=FACTS, dialect="hf_dinov2")
    assert error.value.evidence == {"config.json": "model_type = 'rf_detr'"}


SIZES = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "depth": 2}


def backbone(**options):
    return timm.models.VisionTransformer(**SIZES, num_classes=0, **options).state_dict()


@pytest.mark.parametrize(("alt_start", "refused"), [(4, True), (-1, False)])
def test_depth_anything_3_is_a_dinov2_until_some_block(alt_start, refused, tmp_path):
    tensors = {f"model.backbone.pretrained.{name}": t for name, t in backbone().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_name": "da3", "config": {"net": {"name": "vitb", "alt_start": alt_start}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    reading = {"tower": "model.backbone.pretrained.", "overrides": {"num_heads": 2}}
    if not refused:
        assert vitconvert.load_checkpoint(tmp_path, **reading).dialect == "timm"
        return
    with pytest.raises(NotRepresentable, match="Depth Anything 3"):
        vitconvert.load_checkpoint(tmp_path, **reading)


def of_groups():
    """SatMAE's model of groups of channels (models_vit_group_channels.py)."""
    tensors = backbone()
    kernel, bias = (tensors.pop(f"patch_embed.proj.{part}") for part in ("weight", "bias"))
    for group, channels in enumerate((4, 4, 2)):
        tensors[f"patch_embed.{group}.proj.weight"] = kernel[:, :1].repeat(1, channels, 1, 1)
        tensors[f"patch_embed.{group}.proj.bias"] = bias
    tensors["pos_embed"] = tensors["pos_embed"][..., :24]
    return tensors | {"channel_embed": torch.randn(1, 3, 8), "channel_cls_embed": bias[None, None]}


def efficient_sam():
    """EfficientSAM (efficient_sam_encoder.py)."""
    tensors = {f"image_encoder.{n}": t for n, t in backbone().items() if "norm." not in n[:5]}
    del tensors["image_encoder.cls_token"]
    return tensors | {
        "image_encoder.neck.0.weight": torch.randn(16, 32, 1, 1),
        "image_encoder.neck.1.weight": torch.randn(16),
        "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix": torch.randn(2, 8),
    }


@pytest.mark.parametrize(
    ("make", "name"),
    [(of_groups, "SatMAE"), (efficient_sam, "EfficientSAM")],
    ids=["SatMAE", "EfficientSAM"],
)
def test_whole_files_of_other_models_are_called_by_their_names(make, name, tmp_path):
    torch.save({"model": make()}, tmp_path / "a.pth")
    with pytest.raises(UnknownDialect, match=name) as error:
        vitconvert.load_model(tmp_path / "a.pth", overrides={"num_heads": 2})
    assert "get it again" not in str(error.value)
    left_out = ["*channel*", "patch_embed.1.*", "patch_embed.2.*", "*neck*", "*prompt*"]
    found = [one for one in left_out if any(one.strip("*") in key for key in make())]
    with pytest.raises((NotRepresentable, UnknownDialect), match=name):
        vitconvert.load_model(tmp_path / "a.pth", ignore=found[:1], overrides={"num_heads": 2})


def without_positions(drop=("pos_embed",), **options):
    """A ViT as BEiT's code and those that follow it name it, without the positions."""
    tensors = {}
    for name, tensor in backbone(**options).items():
        if name.endswith("attn.qkv.bias"):
            tensors[name.replace("qkv.bias", "q_bias")] = tensor[:32]
            tensors[name.replace("qkv.bias", "v_bias")] = tensor[64:]
        elif name not in drop:
            tensors[name] = tensor
    return tensors


def test_positions_that_no_file_holds_are_asked_for(tmp_path):
    """MAE-pytorch (modeling_finetune.py) adds a sinusoid, and keeps it nowhere."""
    torch.save({"model": without_positions()}, tmp_path / "beit_like.pth")
    plain = {name: tensor for name, tensor in backbone().items() if name != "pos_embed"}
    torch.save(plain, tmp_path / "timm_like.pth")
    stated = {"num_heads": 2, "image_size": 24}
    for name in ("beit_like.pth", "timm_like.pth"):
        for reading in ({}, {"dialect": "timm"}):
            with pytest.raises(MissingFact) as error:
                vitconvert.load_checkpoint(tmp_path / name, overrides=stated, **reading)
            assert "position_embedding  no tensor holds positions" in str(error.value)
        answer = stated | {"position_embedding": "sincos2d_mae"}
        checkpoint = vitconvert.load_checkpoint(tmp_path / name, overrides=answer)
        assert checkpoint.config.position_embedding == "sincos2d_mae"


@pytest.mark.parametrize("stage", ["pre-training", "fine-tuning"])
def test_mae_pytorch_is_called_by_its_name(stage, tmp_path):
    tensors = without_positions()
    if stage == "pre-training":
        encoder = without_positions(drop=("pos_embed", "cls_token"))
        tensors = {f"{part}.{n}": t for part in ("encoder", "decoder") for n, t in encoder.items()}
        tensors |= {"mask_token": torch.randn(1, 1, 32)}
    args = Namespace(model="pretrain_mae_base_patch16_224", mask_ratio=0.75)
    torch.save({"model": tensors, "args": args, "epoch": 3}, tmp_path / "mae.pth")
    for reading in ({}, {"tower": "encoder"} if "encoder.norm.bias" in tensors else {}):
        with pytest.raises(NotRepresentable, match="MAE-pytorch"):
            vitconvert.load_model(tmp_path / "mae.pth", overrides={"num_heads": 2}, **reading)


@pytest.mark.parametrize("relative", [False, True])
def test_a_config_json_says_that_there_are_no_positions(relative, tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BeitConfig(
        **sizes, image_size=24, patch_size=8, use_relative_position_bias=relative
    )
    randomise(transformers.BeitModel(config)).save_pretrained(tmp_path)
    assert vitconvert.load_checkpoint(tmp_path).config.position_embedding == "none"


def test_timms_config_json_says_it_too(tmp_path):
    model = randomise(
        timm.create_model("vit_tiny_patch16_224", pos_embed="none", img_size=32, num_classes=5)
    )
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 5}
    config["model_args"] = {"img_size": 32, "pos_embed": "none"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vitconvert.load_checkpoint(tmp_path).config.position_embedding == "none"


def with_lora(a="lora_a", b="lora_b"):
    """qkv within qkv, and small matrices beside it."""
    tensors = {n.replace("attn.qkv.", "attn.qkv.qkv."): t for n, t in backbone().items()}
    for block in (0, 1):
        for part in "qv":
            tensors[f"blocks.{block}.attn.qkv.{a}_{part}.weight"] = torch.randn(4, 32)
            tensors[f"blocks.{block}.attn.qkv.{b}_{part}.weight"] = torch.randn(32, 4)
    return tensors


def sam_ed():
    """As SAMed's code names them (sam_lora_image_encoder.py, _LoRA_qkv)."""
    return with_lora("linear_a", "linear_b")


def partly_empty():
    """ZeRO-3 keeps small tensors whole, and leaves others empty."""
    large = {name: tensor for name, tensor in backbone().items() if tensor.numel() > 40}
    return backbone() | {name: torch.empty(0) for name in list(large)[::3]}


def without_a_norm():
    return {n: t for n, t in backbone().items() if not n.startswith("blocks.1.norm2")}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_lora, "which are not merged: merge them into the linear layers"),
        (sam_ed, "merge them into the linear layers"),
        (partly_empty, "zero_to_fp32.py"),
        (without_a_norm, "save the model again with them"),
    ],
    ids=["LoRA", "SAMed", "ZeRO", "a norm"],
)
def test_only_a_file_that_was_cut_is_to_be_got_again(make, said, tmp_path):
    torch.save(make(), tmp_path / "a.pth")
    with pytest.raises(VitConvertError) as error:
        vitconvert.load_model(tmp_path / "a.pth", overrides={"num_heads": 2})
    assert said in str(error.value) and "get it again" not in str(error.value)


MMPRETRAIN = {"patch_embed.proj": "patch_embed.projection", "blocks": "layers", "norm1": "ln1"}
MMPRETRAIN |= {"norm2": "ln2", "mlp.fc1": "ffn.layers.0.0", "mlp.fc2": "ffn.layers.1"}


@pytest.mark.parametrize(("padding", "refused"), [(2, True), (0, False)])
def test_sapiens_pads_images(padding, refused, tmp_path):
    """mmpretrain's names, with a padding that only the configuration says."""
    tensors = {"backbone.ln1.weight": torch.ones(32), "backbone.ln1.bias": torch.ones(32)}
    for name, tensor in backbone().items():
        for ours, theirs in MMPRETRAIN.items():
            name = name.replace(ours, theirs)
        if not name.startswith("norm."):
            tensors[f"backbone.{name}"] = tensor
    text = f"model = dict(\n    backbone=dict(arch='x', patch_cfg=dict(padding={padding})))\n"
    torch.save({"state_dict": tensors, "meta": {"cfg": text}}, tmp_path / "a.pth")
    reading = {"overrides": {"num_heads": 2}}
    if not refused:
        assert vitconvert.load_checkpoint(tmp_path / "a.pth", **reading).dialect == "mmpretrain"
        return
    with pytest.raises(NotRepresentable, match="Sapiens"):
        vitconvert.load_checkpoint(tmp_path / "a.pth", **reading)


@pytest.mark.parametrize(("to", "allow"), [("timm", []), ("jax", []), ("hf", ["drop-key-bias"])])
def test_a_model_without_positions_is_written_and_read_back(to, allow, tmp_path):
    options = {"num_classes": 5, "pos_embed": "none", "act_layer": "gelu_tanh"}
    model = randomise(timm.models.VisionTransformer(**SIZES, **options))
    torch.save(model.state_dict(), tmp_path / "a.pth")
    stated = {"num_heads": 2, "image_size": 24, "position_embedding": "none"}
    stated["activation"] = "gelu_tanh"
    source = tmp_path / "a.pth"
    how = {"verify": False, "overrides": stated, "allow": allow}
    vitconvert.convert(source, to=to, output=tmp_path / to, **how)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        ours, theirs = vitconvert.load_model(tmp_path / to)(images), model.eval()(images)
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    if to == "hf":  # a ViT of transformers would make up positions: BEiT has none
        loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / to).eval()
        with torch.no_grad():
            assert (loaded(images).logits - theirs).abs().max() < 1e-5 * theirs.abs().max()


SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 8}
SMALL |= {"image_size": 32, "intermediate_size": 50}
ABSOLUTE = {"use_absolute_position_embeddings": True}
WINDOWS = {"window_size": 2, "global_attn_indexes": [1], "output_channels": 16}


@pytest.mark.parametrize(
    ("family", "kind", "options"),
    [
        *(("ViT", kind, {}) for kind in ("Model", "ForImageClassification")),
        *((family, "Model", {}) for family in ("DeiT", "ViTMAE", "ViTMSN", "IJepa")),
        *((family, "Model", ABSOLUTE) for family in ("Beit", "Data2VecVision")),
        ("Beit", "Model", ABSOLUTE | {"use_relative_position_bias": True}),
        ("InternVLVision", "Model", {}),
        ("SamVision", "Model", WINDOWS),
    ],
)
def test_a_file_of_transformers_that_lacks_its_positions_is_refused(
    family, kind, options, tmp_path
):
    """transformers makes them up, and only warns."""
    config = getattr(transformers, f"{family}Config")(**SMALL, **options)
    model = getattr(transformers, f"{family}{kind}")(config)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    vitconvert.load_checkpoint(tmp_path)
    lacking = [name for name in tensors if "pos_embed" in name or "position_embeddings" in name]
    assert lacking
    kept = {name: tensor for name, tensor in tensors.items() if name not in lacking}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises((TensorMismatch, ConflictingFact)):
        vitconvert.load_checkpoint(tmp_path)
