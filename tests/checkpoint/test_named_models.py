"""Models that people know by name and no package builds: their files, small, in their spelling."""

import json

import pytest
import torch

from tests.packages import timm, transformers
from tests.small_models import randomise_calmly, relative
from vitconvert import inspect, load_checkpoint, load_model, verify
from vitconvert.errors import MissingFact, NotRepresentable, UnknownDialect

ROUNDING = 1e-6
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
_DROPS = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
_COMMON = _DROPS | {"hidden_act": "gelu", "initializer_range": 0.02, "num_channels": 3}
_COMMON |= {"qkv_bias": True, "torch_dtype": "float32"}
# A Dinov2Config of transformers 4 says which of its stages a backbone would give.
_DINOV2 = _COMMON | {"apply_layernorm": True, "drop_path_rate": 0.0, "layer_norm_eps": 1e-6}
_DINOV2 |= {"layerscale_value": 1.0, "mlp_ratio": 4, "model_type": "dinov2"}
_DINOV2 |= {"out_features": ["stage2"], "out_indices": [2], "reshape_hidden_states": True}
_DINOV2 |= {"stage_names": ["stem", "stage1", "stage2", "stage3"], "use_swiglu_ffn": False}
# As their config.json on the Hub have them, but for sizes: the class that has the same tensors, its
# arguments, and the file.
CONFIGS = {
    "owkin/phikon": (
        "ViTModel",
        {"image_size": 32, "patch_size": 16, "intermediate_size": 96},
        _COMMON
        | {"_name_or_path": "owkin/ibot-vit-base-patch16-224-pancancer", "encoder_stride": 16}
        | {"architectures": ["ViTModel"], "layer_norm_eps": 1e-12, "model_type": "vit"}
        | {"transformers_version": "4.34.0"},
    ),
    "owkin/phikon-v2": (
        "Dinov2Model",
        {"image_size": 32, "patch_size": 16},
        _DINOV2 | {"architectures": ["Dinov2Model"], "transformers_version": "4.40.2"},
    ),
    # Code of their own, of a name that transformers has not (https://huggingface.co/histai/hibou-b).
    "histai/hibou-b": (
        "Dinov2WithRegistersModel",
        {"image_size": 28, "patch_size": 14},
        _DINOV2
        | {"architectures": ["Dinov2ModelWithRegisters"], "num_register_tokens": 4}
        | {
            "auto_map": {
                "AutoConfig": "configuration_dinov2.Dinov2Config",
                "AutoModel": "modeling_dinov2.Dinov2ModelWithRegisters",
            }
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_config_of_the_hub_says_all(name, tmp_path):
    kind, arguments, config = CONFIGS[name]
    of_kind = getattr(transformers, kind)
    bare = {"add_pooling_layer": False} if kind == "ViTModel" else {}  # as Phikon's card loads it
    model = randomise_calmly(of_kind(of_kind.config_class(**SIZES | arguments), **bare)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | SIZES | arguments))
    images = torch.randn(2, 3, arguments["image_size"], arguments["image_size"])
    wanted = model(images).last_hidden_state[:, 0]
    assert relative(load_model(tmp_path)(images), wanted) <= ROUNDING
    own = "auto_map" in config  # `verify` runs no code of a repository
    assert verify(tmp_path).verdict == ("not verified" if own else "equal")


def vit_small(channels, **changes):
    made = timm.create_model("vit_small_patch16_224", in_chans=channels, num_classes=0, **changes)
    return randomise_calmly(made).eval()


def prefixed(start, tensors):
    return {f"{start}{name}": tensor for name, tensor in tensors.items()}


def dino(vit):
    shapes = {"mlp.0.weight": (8, 48), "mlp.2.weight": (8, 8), "mlp.4.weight": (8, 8)}
    shapes |= {f"mlp.{i}.bias": (8,) for i in (0, 2, 4)}
    shapes |= {"last_layer.weight_g": (9, 1), "last_layer.weight_v": (9, 8)}
    head = {f"head.{name}": torch.ones(shape) for name, shape in shapes.items()}
    teacher = prefixed("backbone.", vit) | head
    return {"teacher": teacher, "student": prefixed("module.", teacher), "epoch": 100}


def moco(vit):
    encoder = vit | {"head.0.weight": torch.ones(8, 48)}
    encoders = [prefixed(f"module.{name}_encoder.", encoder) for name in ("base", "momentum")]
    predictor = {"module.predictor.0.weight": torch.ones(8, 8)}
    return {"arch": "vit_small", "state_dict": encoders[0] | encoders[1] | predictor}


def mae(vit):
    channels = vit["patch_embed.proj.weight"].shape[1]
    decoder = {"mask_token": (1, 1, 16), "decoder_pos_embed": (1, 5, 16)}
    decoder |= {"decoder_embed.weight": (16, 48), "decoder_embed.bias": (16,)}
    decoder |= {"decoder_norm.weight": (16,), "decoder_norm.bias": (16,)}
    decoder |= {"decoder_pred.weight": (256 * channels, 16), "decoder_pred.bias": (256 * channels,)}
    return {"model": vit | {name: torch.ones(shape) for name, shape in decoder.items()}}


# https://github.com/zhu-xlab/SSL4EO-S12: its files, by what they hold.
SSL4EO = {
    "B13_vits16_dino_0099_ckpt.pth": ("dino", 13, dino),
    "B13_vits16_moco_0099_ckpt.pth": ("moco_v3", 13, moco),
    "B13_vits16_mae_ep99.pth": ("mae", 13, mae),
    "B2_vits16_mae_ep99.pth": ("mae", 2, mae),
    "B2_vits16_mae_ep99_enc.pth": ("timm", 2, dict),
}


@pytest.mark.parametrize("name", SSL4EO)
@torch.no_grad()
def test_files_of_ssl4eo_tell_all_but_their_heads(name, tmp_path):
    """Six, MoCo v3's too, where Meta's has 12 (models/moco_v3/vits.py): no tensor shows it."""
    dialect, channels, wrapped = SSL4EO[name]
    model = vit_small(channels, img_size=32, embed_dim=48, depth=2)
    torch.save(wrapped(model.state_dict()), tmp_path / name)
    problem = inspect(tmp_path / name).problem
    assert isinstance(problem, MissingFact) and "num_heads" in str(problem)
    stated = {"overrides": {"num_heads": 6}}
    assert load_checkpoint(tmp_path / name, **stated).dialect == dialect
    images = torch.randn(1, channels, 32, 32)
    assert relative(load_model(tmp_path / name, **stated)(images), model(images)) <= ROUNDING


@torch.no_grad()
def test_a_file_of_torchgeo_is_known_by_its_name(tmp_path):
    """Of SSL4EO-S12 with 13 bands of Sentinel-2, trained as DINO."""
    model = vit_small(13)
    file = tmp_path / "vit_small_patch16_224_sentinel2_all_dino-36bcc127.pth"
    torch.save(model.state_dict(), file)
    images = torch.randn(1, 13, 224, 224)
    assert relative(load_model(file)(images), model(images)) <= ROUNDING


# transformers' names of a TimeSformer, and those of its authors, which are timm's.
_TIMM = {
    "patch_embeddings.projection": "patch_embed.proj",
    "position_embeddings": "pos_embed",
    "embeddings.": "",
    "encoder.layer": "blocks",
    "attention.attention.qkv": "attn.qkv",
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "layernorm": "norm",
}


@torch.no_grad()
def test_a_timesformer_of_space_only_is_read_in_its_authors_names_alone(tmp_path):
    """Of facebookresearch/TimeSformer: each frame by itself, so one frame is an image."""
    config = transformers.TimesformerConfig(
        **SIZES, image_size=32, patch_size=16, intermediate_size=96, attention_type="space_only"
    )
    model = randomise_calmly(transformers.TimesformerModel(config)).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match=r"This is TimeSformer: .* space_only") as named:
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UnknownDialect, match="TimeSformer of transformers, whose blocks") as seen:
        load_checkpoint(tmp_path)
    for error in (named, seen):
        assert "which in its authors' names, those of timm, is read" in error.value.hint
    tensors = {}
    for name, tensor in model.state_dict().items():
        for theirs, own in _TIMM.items():
            name = name.replace(theirs, own)
        tensors[f"model.{name}"] = tensor
    torch.save({"model_state": tensors}, tmp_path / "TimeSformer_spaceOnly.pyth")
    images = torch.randn(2, 3, 32, 32)
    ours = load_model(tmp_path / "TimeSformer_spaceOnly.pyth", overrides={"num_heads": 2})
    wanted = model(images[:, None]).last_hidden_state
    assert relative(ours.forward_features(images), wanted) <= ROUNDING


@pytest.mark.parametrize("prefix", ["", "encoder."], ids=["Prithvi-EO-1.0", "Prithvi-EO-2.0"])
def test_prithvi_is_refused_by_its_name_beside_its_config(prefix, tmp_path):
    """Whose config.json (ibm-nasa-geospatial/Prithvi-EO-2.0-300M) looks like timm's."""
    vit = vit_small(6, img_size=32, embed_dim=48, depth=2).state_dict()
    vit["patch_embed.proj.weight"] = vit["patch_embed.proj.weight"][:, :, None]
    vit["pos_embed"] = torch.zeros(1, 13, 48)  # of three frames
    decoder = {"decoder.mask_token" if prefix else "mask_token": torch.zeros(1, 1, 16)}
    torch.save(prefixed(prefix, vit) | decoder, tmp_path / "Prithvi_EO.pt")
    sizes = {"img_size": 32, "num_frames": 3, "patch_size": [1, 16, 16], "in_chans": 6}
    said = {"architecture": "prithvi_eo_v2_300", "num_features": 48, "pretrained_cfg": sizes}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(UnknownDialect, match="Prithvi, or a masked autoencoder of its kind") as e:
        load_checkpoint(tmp_path)
    assert "the ViT of one image is in it: patch_embed.proj.weight[:, :, 0]" in e.value.hint
