"""One small model of each ecosystem, as its project makes it by default, every number random.

Those of projects that can be installed are the projects' own classes; the others are spelled by
hand from their sources.
"""

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitconvert
from tests.equimo.models import saved as save_equimo
from tests.huggingface.every_class import saved as save_class
from tests.originals import rows
from tests.originals import spelling_of_others as others
from tests.originals.rows import Original
from tests.originals.spelling import (
    HEADS,
    dinov3,
    filled,
    pair,
    prefixed,
)
from tests.packages import keras_hub, open_clip, timm, torchvision, transformers, vit_pytorch
from tests.small_models import randomise, save_openclip, with_numbers
from tests.spelling import google_arrays
from tests.tables.make_architectures import config_of_card, of_card
from tests.tables.specimens.google import big_vision, jeonsworld
from tests.tables.specimens.specimen import fill
from tests.tables.specimens.windows import image_encoder, vitdet_shapes
from vitconvert.programs.transformers.running import class_named

STATED = {"num_heads": HEADS}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint that `write` puts into a folder, and what a user has to say about it."""

    title: str
    write: Callable[[Path], Path]
    dialect: str | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)


def randomised(model: nn.Module) -> nn.Module:
    """Noise around 0, around 1 for factors, so that no row or norm can hide."""
    torch.manual_seed(5)
    return randomise(model)


def write_timm(folder: Path) -> Path:
    sizes = {"img_size": 48, "embed_dim": 48, "depth": 11, "num_heads": 3, "mlp_ratio": 1.5}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, **sizes)
    timm.models.save_for_hf(randomised(model), str(folder), model_args=sizes)
    return folder


def write_audiomae(folder: Path) -> Path:
    """As published in timm's layout: a channel of times by frequencies."""
    sizes = {"img_size": [64, 24], "patch_size": 8, "in_chans": 1, "embed_dim": 48, "depth": 11}
    sizes |= {"num_heads": 3, "global_pool": "avg"}
    model = timm.create_model("vit_base_patch16_224", num_classes=0, **sizes)
    timm.models.save_for_hf(randomised(model), str(folder), model_args=sizes)
    return folder


def write_card(folder: Path, name: str) -> Path:
    """What the code of a card builds, but small, with the config.json beside it."""
    changes = {"img_size": 32 if name[-3:] in ("UNI", "ath") else 28}
    changes |= {"embed_dim": 48, "depth": 11, "num_heads": 3}
    folder.mkdir()
    torch.save(randomised(of_card(name, **changes)).state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config_of_card(name, **changes)))
    return folder


def card(name: str, **stated: str) -> Source:
    """A row of a model whose card has code, of which config.json does not tell all."""
    return Source(title=name.split("/")[1], write=partial(write_card, name=name), stated=stated)


def write_transformers(folder: Path, *, family: str, task: str, **changes: Any) -> Path:
    sizes = {"hidden_size": 48, "num_hidden_layers": 11, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 72, "image_size": 24, "patch_size": 8}
    kind = class_named(family + task)
    randomised(kind(kind.config_class(**sizes | changes))).save_pretrained(folder)
    return folder


def write_mlcd(folder: Path) -> Path:
    """In its authors' names, which every release reads; transformers 5 writes them shorter."""
    write_transformers(folder, family="MLCDVision", task="Model")
    file = folder / "model.safetensors"
    tensors = {f"vision_model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return folder


def write_mistral(folder: Path) -> Path:
    model = partial(write_transformers, family="PixtralVision", task="Model", hidden_act="silu")
    vitconvert.convert(model(folder / "hf"), to="mistral", output=folder / "own", verify=False)
    return folder / "own"


def write_keras_hub(folder: Path) -> Path:
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(24, 24, 3),
        patch_size=8,
        num_layers=11,
        num_heads=3,
        hidden_dim=48,
        mlp_dim=72,
    )
    return preset(keras_hub.models.ViTImageClassifier(backbone, num_classes=7), folder)


def write_keras_dinov3(folder: Path) -> Path:
    sizes = {"patch_size": 8, "num_layers": 11, "num_heads": 3, "hidden_dim": 48}
    sizes |= {"intermediate_dim": 72, "image_shape": (24, 24, 3), "use_key_bias": False}
    return preset(keras_hub.models.DINOV3Backbone(**sizes), folder)


def write_keras_clip(folder: Path) -> Path:
    models = keras_hub.models
    sizes = {"num_heads": 3, "hidden_dim": 48, "intermediate_dim": 72}
    images = models.CLIPVisionEncoder(8, num_layers=11, image_shape=(24, 24, 3), **sizes)
    texts = {"vocabulary_size": 71, "embedding_dim": 48, "max_sequence_length": 9}
    model = models.CLIPBackbone(images, models.CLIPTextEncoder(num_layers=2, **texts, **sizes), 20)
    images.embedding.position_ids.assign(np.arange(10)[None])  # which presets hold
    return preset(model, folder)


def write_equimo(folder: Path) -> Path:
    save_equimo("vit_tiny_patch16_224", folder)
    return folder


def preset(model: Any, folder: Path) -> Path:
    rng = np.random.default_rng(5)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(rng.normal(0, 0.2, weight.shape) + ("gamma" in weight.path))
    model.save_to_preset(str(folder))
    return folder


def unpacked(folder: Path, *, archive: str, member: str) -> Path:
    """What a project wrote that is not installed here, by the script beside the archive."""
    with zipfile.ZipFile(Path(__file__).parent / archive) as files:
        files.extractall(folder, [n for n in files.namelist() if n.startswith(member)])
    return folder / member


def write_both_towers(folder: Path, *, family: str, **changes: Any) -> Path:
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 72}
    text = sizes | {"vocab_size": 50, "max_position_embeddings": 7}
    text |= {"bos_token_id": 1, "eos_token_id": 49}
    vision = sizes | {"num_hidden_layers": 11, "image_size": 24, "patch_size": 8}
    kind = getattr(transformers, f"{family}Config")
    model = getattr(transformers, f"{family}Model")
    randomised(model(kind(text_config=text, vision_config=vision, **changes))).save_pretrained(
        folder
    )
    return folder


def write_naflex(folder: Path) -> Path:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 11, "num_heads": 3}
    sizes |= {"pos_embed_grid_size": [4, 4]}
    model = timm.create_model("naflexvit_base_patch16_siglip", **sizes)
    timm.models.save_for_hf(randomised(model), str(folder), model_args=sizes)
    return folder


def sam() -> dict[str, torch.Tensor]:
    """Whole, as published: the image encoder beside the others."""
    tensors = prefixed("image_encoder.", randomised(image_encoder()).state_dict())
    return tensors | filled({"prompt_encoder.no_mask_embed.weight": (1, 8)})


def deepseek() -> dict[str, torch.Tensor]:
    """Of two heads, since the width of a head is 64 there."""
    shapes = {"patch_embed.proj.weight": (128, 192), "patch_embed.proj.bias": (128,)}
    for block in (f"blocks.{i}" for i in range(11)):
        shapes |= {f"{block}.norm1.weight": (128,), f"{block}.norm2.weight": (128,)}
        shapes |= pair(f"{block}.attn.wqkv", 384, 128) | pair(f"{block}.attn.wo", 128, 128)
        shapes |= {f"{block}.mlp.w1.weight": (140, 128), f"{block}.mlp.w2.weight": (128, 70)}
    return prefixed("vision.", filled(shapes | {"norm.weight": (128,)}))


def write_npz(folder: Path, arrays: Callable[[], Mapping[str, Any]]) -> Path:
    folder.mkdir()
    np.savez(folder / "model.npz", **{name: np.asarray(a) for name, a in arrays().items()})
    return folder / "model.npz"


def write_torch(folder: Path, tensors: Callable[[], Any]) -> Path:
    folder.mkdir()
    made = tensors()
    torch.save(
        randomised(made).state_dict() if isinstance(made, nn.Module) else made, folder / "m.pt"
    )
    return folder / "m.pt"


def write_row(row: Original, folder: Path) -> Path:
    folder.mkdir()
    return row.saved(folder)


def of(row: Original, title: str = "ViT") -> Source:
    """A file that tests/originals read."""
    dialect = row.dialect if row.named else None
    return Source(title=title, write=partial(write_row, row), dialect=dialect, stated=row.stated)


def of_code(name: str, title: str) -> Source:
    """A file of a project's own code, in float32."""
    row = rows.OF_CODE[name]

    def tensors() -> dict[str, torch.Tensor]:
        file = torch.load(row.file(), weights_only=True)["model"]
        return {key: tensor.float() for key, tensor in file.items()}

    return Source(title=title, write=partial(write_torch, tensors=tensors), stated=row.stated)


def eat() -> dict[str, torch.Tensor]:
    """With positions of as many times as published files have."""
    file = torch.load(rows.OF_CODE["eat"].file(), weights_only=True)["model"]
    positions = "modality_encoders.IMAGE.fixed_positional_encoder.positions"
    longer = {positions: torch.randn(1, 768 * 8, 12)}
    return {key: tensor.float() for key, tensor in (file | longer).items()}


def jeonsworld_vit() -> dict[str, torch.Tensor]:
    square = {"transformer.embeddings.patch_embeddings.weight": (30, 3, 8, 8)}
    return fill(jeonsworld() | square)


def torchvision_vit() -> nn.Module:
    sizes = {"image_size": 24, "patch_size": 8, "num_layers": 11, "num_heads": 3}
    return torchvision.models.VisionTransformer(hidden_dim=48, mlp_dim=70, num_classes=7, **sizes)


def lucidrains_vit() -> nn.Module:
    sizes = {"image_size": (32, 24), "patch_size": 8, "num_classes": 7, "dim": 20, "depth": 11}
    return vit_pytorch.ViT(heads=3, dim_head=11, mlp_dim=50, **sizes)


TEXT = {"context_length": 7, "vocab_size": 40, "width": 64, "heads": 1, "layers": 2}
VISION = {"image_size": 24, "layers": 11, "width": 128, "head_width": 64, "patch_size": 8}


def clip(**options: Any) -> nn.Module:
    return open_clip.model.CLIP(embed_dim=20, vision_cfg=VISION, text_cfg=TEXT, **options)


def openai_clip() -> dict[str, torch.Tensor]:
    return with_numbers(randomised(clip(quick_gelu=True)))


def write_openclip(folder: Path) -> Path:
    config = {"embed_dim": 20, "vision_cfg": VISION, "text_cfg": TEXT}
    return save_openclip(randomised(clip()), config, folder)


def keyless() -> dict[str, torch.Tensor]:
    """Meta's keys have a bias of zero, which the mask keeps so in training."""
    tensors = dinov3()
    for name, tensor in tensors.items():
        if name.endswith("qkv.bias"):
            tensor.view(3, -1)[1] = 0
    return tensors


def write_flax(folder: Path) -> Path:
    """Hugging Face's Flax classes do not stand beside transformers 5: a file that they wrote."""
    return Path(shutil.copytree(Path(__file__).parent / "flax" / "files" / "vit", folder))


def write_scenic(folder: Path) -> Path:
    """A file of Scenic's own class."""
    folder.mkdir()
    return Path(shutil.copy(Path(__file__).parent / "flax" / "scenic" / "token.msgpack", folder))


def write_mmproj(folder: Path) -> Path:
    from tests.llama_cpp import writing

    folder.mkdir()
    return writing.write(folder / "mmproj.gguf", writing.clip(), writing.F32)


def write_mlx(folder: Path) -> Path:
    from tests.mlx import making

    folder.mkdir()
    return making.saved(folder / "model.safetensors", making.made())


def of_class(
    family: str, task: str, *, stated: Mapping[str, object] | None = None, **changes: Any
) -> Source:
    """A row of a class of transformers, whose name is that of its family and its task."""
    write = partial(write_transformers, family=family, task=task, **changes)
    return Source(title=family + task, write=write, stated=stated or {})


SOURCES: Mapping[str, Source] = {
    "timm": Source(title="ViT", write=write_timm),
    "timm NaFlex": Source(title="NaFlexVit at the size of its positions", write=write_naflex),
    "timm AudioMAE": Source(title="AudioMAE, a spectrogram of one channel", write=write_audiomae),
    "timm UNI": card("MahmoodLab/UNI"),
    "timm UNI2-h": card("MahmoodLab/UNI2-h", activation="silu"),
    "timm Virchow": card("paige-ai/Virchow", activation="silu"),
    "timm Virchow2": card("paige-ai/Virchow2", activation="silu"),
    "timm Prov-GigaPath": card("prov-gigapath/prov-gigapath"),
    "timm H-optimus": card("bioptimus/H-optimus-0"),
    "timm H-optimus-1": card("bioptimus/H-optimus-1"),
    "hf": of_class("ViT", "ForImageClassification"),
    "hf CLIP": of_class("CLIPVision", "ModelWithProjection", projection_dim=20),
    "hf CLIPModel": Source(
        title="CLIPModel", write=partial(write_both_towers, family="CLIP", projection_dim=20)
    ),
    "hf SiglipModel": Source(
        title="SiglipModel", write=partial(write_both_towers, family="Siglip")
    ),
    "hf DINOv2": of_class("Dinov2", "Model", mlp_ratio=2),
    "hf DINOv3": of_class("DINOv3ViT", "Model", num_register_tokens=4),
    "hf_tf": Source(
        title="TFViTForImageClassification",
        write=partial(unpacked, archive="huggingface/tf_files.zip", member="vit/"),
    ),
    "keras_hub": Source(title="ViTImageClassifier", write=write_keras_hub),
    "keras_hub CLIPBackbone": Source(title="CLIPBackbone", write=write_keras_clip),
    "keras_hub DINOv3": Source(title="DINOV3Backbone", write=write_keras_dinov3),
    "equimo": Source(title="VisionTransformer", write=write_equimo),
    "vit_keras": Source(
        title="ViT",
        write=partial(unpacked, archive="keras_hub/vit_keras.zip", member="plain.weights.h5"),
        stated={"num_heads": 2, "image_size": (16, 24)},
    ),
    "vit_keras Keras 2": Source(
        title="ViT of Keras 2",
        write=partial(unpacked, archive="keras_hub/vit_keras_2.zip", member="weights.h5"),
        stated={"num_heads": 2},
    ),
    "hf Gemma 4": of_class(
        "Gemma4Vision",
        "Model",
        stated={"image_size": (24, 24)},
        num_key_value_heads=3,
        head_dim=20,
        position_embedding_size=7,
    ),
    "hf AST": of_class(
        "AST", "ForAudioClassification", num_mel_bins=24, max_length=37, num_labels=7
    ),
    "hf RF-DETR": of_class(
        "RfDetrDinov2",
        "Backbone",
        image_size=32,
        mlp_ratio=2,
        num_windows=2,
        out_indices=[1, 5, 11],
    ),
    "hf GLM-4V": of_class(
        "Glm4vVision", "Model", stated={"image_size": (32, 48)}, image_size=40, out_hidden_size=20
    ),
    "hf Qwen2-VL": of_class(
        "Qwen2Vision",
        "TransformerPretrainedModel",
        stated={"image_size": (32, 48)},
        embed_dim=48,
        hidden_size=20,
        mlp_ratio=2,
        depth=11,
        num_heads=3,
    ),
    "hf Qwen2.5-VL": of_class(
        "Qwen2_5_Vision",
        "TransformerPretrainedModel",
        stated={"image_size": (32, 48)},
        out_hidden_size=20,
        window_size=32,
        fullatt_block_indexes=[3, 7],
    ),
    "hf Qwen3-VL": of_class(
        "Qwen3VLVision",
        "Model",
        stated={"image_size": (32, 48)},
        num_position_embeddings=25,
        out_hidden_size=20,
        deepstack_visual_indexes=[1, 3],
    ),
    "hf Qwen4": of_class(
        "Qwen4ExpVision",
        "Model",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
        num_position_embeddings=25,
        out_hidden_size=20,
    ),
    "hf Cohere Compass": of_class(
        "CohereCompassVision",
        "Model",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
        num_position_embeddings=25,
        out_hidden_size=20,
        deepstack_visual_indexes=[1, 3],
    ),
    **{
        f"hf {name}": Source(
            title=name,
            write=partial(save_class, name),
            dialect="hf",
            stated={"image_size": (32, 48)},
        )
        for name in (
            *("ColQwen2ForRetrieval", "Cosmos3OmniModel", "Glm46VModel"),
            "HyperCLOVAXVisionV2Model",
        )
    },
    "hf Qwen2.5-Omni": of_class(
        "Qwen2_5Omni",
        "VisionEncoder",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
        out_hidden_size=20,
        window_size=32,
        fullatt_block_indexes=[3, 7],
    ),
    "hf Qwen3-Omni": of_class(
        "Qwen3OmniMoe",
        "VisionEncoder",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
        num_position_embeddings=25,
        out_hidden_size=20,
        deepstack_visual_indexes=[1, 3],
    ),
    "hf GLM-OCR": of_class(
        "GlmOcrVision",
        "Model",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
        out_hidden_size=20,
    ),
    "hf ERNIE 4.5 VL": of_class(
        "Ernie4_5_VLMoeVision",
        "TransformerPretrainedModel",
        stated={"image_size": (32, 48)},
        depth=11,
        num_heads=3,
    ),
    "hf Pixtral": of_class("PixtralVision", "Model", hidden_act="silu"),
    "hf VideoLLaMA 3": of_class("VideoLlama3Vision", "Model", stated={"image_size": (32, 48)}),
    "hf V-JEPA 2": of_class(
        "VJEPA2",
        "Model",
        crop_size=24,
        pred_hidden_size=24,
        pred_num_hidden_layers=1,
        pred_num_attention_heads=2,
    ),
    "hf V-JEPA 2, clips": replace(
        of_class(
            "VJEPA2",
            "Model",
            crop_size=24,
            frames_per_clip=4,
            pred_hidden_size=24,
            pred_num_hidden_layers=1,
            pred_num_attention_heads=2,
        ),
        title="VJEPA2Model of clips",
        dialect="hf_vjepa2_clips",
    ),
    "hf VideoMAE": of_class("VideoMAE", "Model", num_frames=4, layer_norm_eps=1e-6),
    "hf VideoMAE, classes": of_class("VideoMAE", "ForVideoClassification", num_frames=4),
    "hf ViViT": of_class("Vivit", "ForVideoClassification", num_frames=4, tubelet_size=[2, 8, 8]),
    "hf ViTPose": of_class("VitPose", "Backbone", image_size=[32, 24], mlp_ratio=2),
    "hf SAM 3": of_class(
        "Sam3ViT",
        "Model",
        image_size=64,
        pretrain_image_size=24,
        window_size=3,
        global_attn_indexes=[3, 7],
    ),
    "hf Pixio": of_class("Pixio", "Model", mlp_ratio=2),
    "hf TIPSv2": of_class("Tipsv2Vision", "Model", mlp_ratio=2),
    "hf MLCD": Source(
        title="MLCDVisionModel",
        write=write_mlcd,
    ),
    "hf BLIP": of_class("BlipVision", "Model"),
    "hf InternVL": of_class("InternVLVision", "Model", image_size=(24, 24), patch_size=(8, 8)),
    "hf_flax": Source(title="FlaxViTForImageClassification", write=write_flax),
    "llama_cpp": Source(title="CLIP's vision encoder", write=write_mmproj),
    "mlx_image": Source(title="VisionTransformer", write=write_mlx, stated=STATED),
    "jax": Source(
        title="published .npz files",
        write=partial(
            write_npz, arrays=partial(google_arrays, depth=11, heads=3, width=48, size=24)
        ),
    ),
    "big_vision": Source(
        title="ViT, mean of the patches",
        write=partial(write_npz, arrays=lambda: fill(big_vision("params/"))),
    ),
    "scenic": Source(
        title="ViViT", write=write_scenic, stated={"frames": 5, "image_size": (8, 12)}
    ),
    "jeonsworld": Source(
        title="ViT-pytorch",
        write=partial(write_torch, tensors=jeonsworld_vit),
        stated=STATED,
    ),
    **{name: of(rows.GOLDENS[name]) for name in ("asyml", "lukemelas", "tintn")},
    "lucidrains": Source(
        title="ViT of the current release",
        write=partial(write_torch, tensors=lucidrains_vit),
        stated=STATED | {"image_size": (32, 24)},
    ),
    "torchvision": Source(
        title="VisionTransformer",
        write=partial(write_torch, tensors=torchvision_vit),
        stated=STATED,
    ),
    "openai_clip": Source(title="CLIP", write=partial(write_torch, tensors=openai_clip)),
    "openclip": Source(title="CLIP, GELU", write=write_openclip),
    "dino": of(rows.META["DINO, full"]),
    "dinov2": of(rows.META["DINOv2"]),
    "dinov3": Source(title="ViT", write=partial(write_torch, tensors=keyless), stated=STATED),
    "deimv2": of_code("deimv2", "small ViT"),
    "ast": of_code("ast", "ASTModel"),
    "m2d": of_code("m2d", "LocalViT"),
    "eat": Source(
        title="encoder",
        write=partial(write_torch, tensors=eat),
        stated={"num_heads": 3, "image_size": (48, 128)},
    ),
    "ibot": of(rows.GOLDENS["ibot"], "ViT with LayerScale"),
    "deit3": of(rows.META["DeiT III"]),
    "mmpretrain": of(rows.MMPRETRAIN["plain"], "VisionTransformer"),
    "mmseg": Source(
        title="VisionTransformer",
        write=partial(write_torch, tensors=lambda: {"state_dict": others.mmseg()}),
        stated=STATED,
    ),
    "eva": of(rows.OTHERS["EVA-02"], "EVA-02"),
    "sapiens2": of(rows.OTHERS["Sapiens 2"]),
    "videomae": of(rows.OF_CODE["videomae"], "VideoMAE"),
    "vjepa2": replace(
        of(rows.OF_CODE["vjepa2"], "V-JEPA 2"),
        stated={"num_heads": 2, "image_size": (12, 12), "frames": 6},  # transformers' are square
    ),
    "vjepa2 2.1": of(rows.OF_CODE["vjepa2_1"], "V-JEPA 2.1"),
    "aimv2": of(rows.OTHERS["AIMv2"]),
    "mobileclip": Source(
        title="ViT", write=partial(write_torch, tensors=others.mobileclip), stated=STATED
    ),
    "pe": of(replace(rows.OTHERS["Perception Encoder"], file=rows.pe), "PE-Core"),
    "beit3": of(rows.OTHERS["BEiT-3"], "classifier"),
    "mae": of(rows.META["MAE, with decoder"], "pre-training"),
    "msn": of(rows.META["MSN"], "encoder"),
    "mistral": Source(title="VisionTransformer", write=write_mistral),
    "moco_v3": of(rows.META["MoCo v3"], "encoder"),
    "sam": Source(title="ImageEncoderViT", write=partial(write_torch, tensors=sam)),
    "vitdet": Source(
        title="a detector's ViT, its positions fitted",
        write=partial(
            write_torch, tensors=lambda: prefixed("backbone.net.", filled(vitdet_shapes(40, 40)))
        ),
    ),
    "deepseek": Source(
        title="vision encoder",
        write=partial(write_torch, tensors=deepseek),
        stated={"image_size": (24, 32)},
    ),
    "hf GIT": of_class("GitVision", "Model"),
    "hf Qianfan-OCR": of_class("QianfanOCRVision", "Model"),
}
