"""Write goldens/NAME.pth: a tiny model of a project's own code, and what it computes.

All parameters are random, and whole numbers of float16. Each name is run alone, with the project's
code at the revision below where Python finds it, and einops, timm and torchvision beside it:

    git clone https://github.com/apple/ml-mobileclip
    git -C ml-mobileclip checkout 4144bb1
    PYTHONPATH=.:ml-mobileclip python -m tests.originals.make_originals mobileclip
"""

import dataclasses
import math
import sys
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tests.small_models import randomise

FOLDER = Path(__file__).parent / "goldens"


def picture(*size: int) -> Tensor:
    """An image of (C, Y, X) numbers that any machine makes alike, in a batch of one."""
    numbers = torch.arange(math.prod(size), dtype=torch.float64)
    return (0.7 * numbers + 0.05 * numbers.sqrt()).sin().mul(1.5).float().reshape(1, *size)


def stand_in(name: str, **contents: Any) -> ModuleType:
    """A module in the place of one that is not needed."""
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(contents)
    return module


def mobileclip() -> nn.Module:
    """PYTHONPATH: apple/ml-mobileclip."""
    from mobileclip.models.vit import VisionTransformer
    from mobileclip.modules.common.transformer import PositionalEmbedding

    sizes = {"embed_dim": 16, "n_transformer_layers": 2, "n_attn_heads": 2}
    model = VisionTransformer({"norm_layer": "layer_norm_fp32", **sizes}, projection_dim=5)
    model.pos_embed = PositionalEmbedding(6, 16)  # of 3 by 2 patches, and not of 14 by 14
    return nn.ModuleDict({"image_encoder": nn.ModuleDict({"model": model})})


def eva02(*, side: int, grid: int, pretraining: bool) -> nn.Module:
    """PYTHONPATH: EVA-02/asuka of baaivision/EVA. Apex's norm is torch's; xformers is not used."""
    layers = {"trunc_normal_": nn.init.trunc_normal_, "drop_path": None}
    stand_in("timm.models.layers", **layers, to_2tuple=lambda size: (size, size))
    stand_in("timm.models.registry", register_model=lambda make: make)
    stand_in("apex")
    stand_in("apex.normalization", FusedLayerNorm=nn.LayerNorm)
    stand_in("xformers")
    stand_in("xformers.ops")
    from modeling_finetune import VisionTransformer
    from modeling_pretrain import VisionTransformerForMaskedImageModeling

    sizes = {"img_size": 4 * side, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    sizes |= {"mlp_ratio": 1.5, "qkv_bias": True, "naiveswiglu": True, "subln": True, "rope": True}
    sizes |= {"norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    if pretraining:
        return VisionTransformerForMaskedImageModeling(**sizes, predict_feature_dim=3)
    scaled = {"pt_hw_seq_len": grid, "intp_freq": grid != side}
    return VisionTransformer(**sizes, **scaled, num_classes=3)


def lucidrains() -> nn.Module:
    """PYTHONPATH: vit-pytorch of the release that the name says."""
    from vit_pytorch import ViT

    sizes = {"image_size": 12, "patch_size": 4, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 24}
    return ViT(**sizes, dim_head=4, num_classes=3, pool="mean")


def timm_small() -> nn.Module:
    """PYTHONPATH: timm 0.3.2. As its vit_small_patch16_224, but for the sizes."""
    stand_in("torch._six", container_abcs=abc)
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return VisionTransformer(**sizes, mlp_ratio=3.0, num_classes=3, qk_scale=16**-0.5)


def dino() -> nn.Module:
    """PYTHONPATH: facebookresearch/dino."""
    from vision_transformer import VisionTransformer

    sizes = {"img_size": [16], "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    norm = partial(nn.LayerNorm, eps=1e-6)
    return VisionTransformer(**sizes, mlp_ratio=1.5, qkv_bias=True, norm_layer=norm)


def dinov3() -> nn.Module:
    """PYTHONPATH: facebookresearch/dinov3. The norm is that of its ssl_default_config.yaml."""
    from dinov3.models.vision_transformer import DinoVisionTransformer

    sizes = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "ffn_ratio": 1.5}
    kind = {"n_storage_tokens": 1, "mask_k_bias": True, "norm_layer": "layernorm"}
    model = DinoVisionTransformer(**sizes, **kind, pos_embed_rope_dtype="fp32")
    model.init_weights()
    return model


def aimv2(**sizes: Any) -> nn.Module:
    """PYTHONPATH: aim-v1 and aim-v2 of apple/ml-aim."""
    from aim.v2.torch.models import AIMv2VisionEncoder

    sizes |= {"patch_size": 4, "embed_dim": 8, "mlp_hidden_dim": 6, "num_blocks": 2, "num_heads": 2}
    return AIMv2VisionEncoder(**sizes)


def beit3() -> nn.Module:
    """PYTHONPATH: beit3 of microsoft/unilm, microsoft/torchscale 4d1e0e8. Nothing is in shards."""
    stand_in("timm.models.layers", drop_path=None, trunc_normal_=nn.init.trunc_normal_)
    stand_in("timm.models.registry", register_model=lambda make: make)
    stand_in("fairscale")
    stand_in("fairscale.nn", checkpoint_wrapper=None, wrap=lambda layer: layer)
    stand_in("utils")
    from modeling_finetune import BEiT3ForImageClassification
    from torchscale.architecture.config import EncoderConfig

    sizes = {"img_size": 12, "patch_size": 4, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 6}
    sizes |= {"encoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 3}
    kind = {"multiway": True, "layernorm_embedding": False, "no_output_layer": True}
    config = EncoderConfig(**sizes, **kind, normalize_output=True, max_source_positions=3)
    return BEiT3ForImageClassification(config, num_classes=3)


def eva01() -> nn.Module:
    """PYTHONPATH: EVA-01/eva of baaivision/EVA. As its eva_g_patch14, but for the sizes."""
    stand_in("timm.models.layers", trunc_normal_=nn.init.trunc_normal_, drop_path=None)
    vars(sys.modules["timm.models.layers"])["to_2tuple"] = lambda size: (size, size)
    stand_in("timm.models.registry", register_model=lambda make: make)
    from modeling_finetune import VisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    kind = {"mlp_ratio": 0.75, "qkv_bias": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    return VisionTransformer(**sizes, **kind, num_classes=3, use_checkpoint=False)


def eva_clip(**kind: Any) -> nn.Module:
    """PYTHONPATH: EVA-CLIP/rei of baaivision/EVA."""
    stand_in("eva_clip").__path__ = [
        str(Path(place) / "eva_clip") for place in sys.path if (Path(place) / "eva_clip").is_dir()
    ]
    stand_in("xformers")
    stand_in("xformers.ops")
    from eva_clip.eva_vit_model import EVAVisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    kind |= {"qkv_bias": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    tower = EVAVisionTransformer(**sizes, **kind, mlp_ratio=0.75, num_classes=3)
    return nn.ModuleDict({"visual": tower.eval()})


def perception(**kind: Any) -> nn.Module:
    """PYTHONPATH: facebookresearch/perception_models."""
    from core.vision_encoder.pe import VisionTransformer

    sizes = {"image_size": 12, "patch_size": 4, "width": 16, "layers": 1, "heads": 2}
    return VisionTransformer(**sizes, **kind, mlp_ratio=0.75, attn_pooler_heads=2)


def sapiens2() -> nn.Module:
    """PYTHONPATH: sapiens/backbones/standalone of facebookresearch/sapiens2, which has 17 blocks.

    Rotary tables are in float32, which its own default rounds to bfloat16.
    """
    from sapiens2 import Sapiens2

    sizes = {"embed_dims": 16, "num_layers": 2, "num_heads": 2, "feedforward_channels": 9}
    Sapiens2.arch_zoo = {"tiny": sizes}
    shared = [{"num_kv_heads": None}, {"num_kv_heads": 1}]
    kind = {"patch_size": 4, "n_storage_tokens": 2, "out_type": "cls_token"}
    return Sapiens2("tiny", (12, 8), layer_cfgs=shared, pos_embed_rope_dtype="fp32", **kind)


def videomae(*, frames: int, **kind: Any) -> nn.Module:
    """PYTHONPATH: MCG-NJU/VideoMAE, or models of OpenGVLab/VideoMAEv2."""
    stand_in("timm.models.layers", drop_path=None, trunc_normal_=nn.init.trunc_normal_)
    vars(sys.modules["timm.models.layers"])["to_2tuple"] = lambda size: (size, size)
    stand_in("timm.models.registry", register_model=lambda make: make)
    from modeling_finetune import VisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    kind |= {"mlp_ratio": 1.5, "qkv_bias": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    return VisionTransformer(**sizes, **kind, num_classes=3, init_scale=1.0, all_frames=frames)


def vjepa2() -> nn.Module:
    """PYTHONPATH: facebookresearch/vjepa2, with einops."""
    from src.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 28, "depth": 2, "num_heads": 2}
    kind = {"norm_layer": partial(nn.LayerNorm, eps=1e-6), "use_rope": True, "use_sdpa": False}
    model = VisionTransformer(**sizes, **kind, mlp_ratio=1.5, num_frames=6)
    return nn.ModuleDict({"module": nn.ModuleDict({"backbone": model})})  # as training saves it


def vjepa2_1() -> nn.Module:
    """PYTHONPATH: facebookresearch/vjepa2, with einops."""
    stand_in("timm.models.layers", drop_path=None)
    from app.vjepa_2_1.models.vision_transformer import VisionTransformer

    # Of so many blocks it has four norms, and it knows the grid of patches of 16 pixels.
    sizes = {"img_size": 32, "patch_size": 16, "in_chans": 1, "embed_dim": 28, "depth": 12}
    sizes |= {"num_heads": 2, "mlp_ratio": 1.5, "num_frames": 6, "img_temporal_dim_size": 1}
    kind = {"norm_layer": partial(nn.LayerNorm, eps=1e-6), "use_rope": True, "use_sdpa": False}
    model = VisionTransformer(**sizes, **kind, interpolate_rope=True)
    return nn.ModuleDict({"module": nn.ModuleDict({"backbone": model})})  # as training saves it


def videomae_pretraining() -> nn.Module:
    """PYTHONPATH: MCG-NJU/VideoMAE."""
    videomae(frames=2)  # for what it imports
    from modeling_pretrain import PretrainVisionTransformer

    encoder = {"encoder_embed_dim": 16, "encoder_depth": 2, "encoder_num_heads": 2}
    decoder = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 2}
    sizes = {"img_size": 8, "patch_size": 4, "mlp_ratio": 1.5, "decoder_num_classes": 96}
    kind = {"qkv_bias": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6), "init_values": 0.0}
    return PretrainVisionTransformer(**sizes, **encoder, **decoder, **kind)


def eupe() -> nn.Module:
    """PYTHONPATH: facebookresearch/EUPE. As its hub/backbones.py has them, but for the sizes."""
    from eupe.models.vision_transformer import DinoVisionTransformer

    sizes = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "ffn_ratio": 1.5}
    kind = {"n_storage_tokens": 4, "mask_k_bias": True, "norm_layer": "layernormbf16"}
    model = DinoVisionTransformer(
        **sizes, **kind, layerscale_init=1e-5, pos_embed_rope_dtype="fp32"
    )
    model.init_weights()
    return model


def deimv2() -> nn.Module:
    """PYTHONPATH: engine/backbone of Intellindust-AI-Lab/DEIMv2."""
    from vit_tiny import VisionTransformer

    sizes = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5}
    return VisionTransformer(**sizes, return_layers=[1])


def inside(names: str, model: nn.Module) -> nn.Module:
    """A model under names with dots between them."""
    for name in reversed(names.split(".")):
        model = nn.ModuleDict({name: model})
    return model


def rf_detr(*, registers: int) -> nn.Module:
    """PYTHONPATH: rfdetr 1.11.2, transformers 5.24.0."""
    for name in ("rfdetr", "rfdetr.models", "rfdetr.models.backbone"):
        folders = (Path(place, *name.split(".")) for place in sys.path)
        stand_in(name).__path__ = [str(folder) for folder in folders if folder.is_dir()]
    from rfdetr.models.backbone import dinov2_with_windowed_attn as code

    config = code.WindowedDinov2WithRegistersConfig(
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=3,
        mlp_ratio=2,
        image_size=24,
        patch_size=4,
        num_register_tokens=registers,
        num_windows=2,
        window_block_indexes=[0, 2],
        out_features=["stage3"],
    )
    detector = code.WindowedDinov2WithRegistersBackbone(config)
    queries = nn.ModuleDict({"refpoint_embed": nn.Embedding(2, 4)})
    return nn.ModuleDict({**inside("backbone.0.encoder.encoder", detector), **queries})


def depth_anything_3() -> nn.Module:
    """PYTHONPATH: depth-anything-3 0.1.1. As its mono and metric models, but for the sizes."""
    for name in ("depth_anything_3", "depth_anything_3.model"):
        folders = (Path(place, *name.split(".")) for place in sys.path)
        stand_in(name).__path__ = [str(folder) for folder in folders if folder.is_dir()]
    from depth_anything_3.model.dinov2.vision_transformer import DinoVisionTransformer

    sizes = {"img_size": 12, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}
    model = DinoVisionTransformer(**sizes, mlp_ratio=1.5, init_values=1.0, cat_token=False)
    return inside("model.backbone.pretrained", model)


def ast(**shape: int) -> nn.Module:
    """PYTHONPATH: src/models of YuanGongND/ast, timm 0.4.5, for which its models are large."""
    stand_in("torch._six", container_abcs=abc)
    stand_in("wget")
    import timm
    from ast_models import ASTModel

    sizes = {"img_size": 32, "embed_dim": 12, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5}
    kind = timm.models.vision_transformer.DistilledVisionTransformer
    timm.create_model = lambda name, pretrained: kind(**sizes, num_classes=2)
    # As traintest.py saves it.
    return nn.DataParallel(ASTModel(3, **shape, imagenet_pretrain=False, verbose=False))


def m2d() -> nn.Module:
    """PYTHONPATH: examples of nttcslab/m2d, timm 1.0.31."""
    stand_in("nnAudio")
    stand_in("nnAudio.features")
    from portable_m2d import LocalViT

    sizes = {"in_chans": 1, "img_size": [8, 20], "patch_size": [4, 4], "embed_dim": 12}
    sizes |= {"depth": 2, "num_heads": 3, "mlp_ratio": 1.5}
    return LocalViT(**sizes, norm_layer=partial(nn.LayerNorm, eps=1e-6))


def eat() -> nn.Module:
    """PYTHONPATH: cwx-worst-one/EAT, timm 1.0.31. fairseq's classes are not needed."""
    import timm  # noqa: F401  (now: torch is loaded by it, and is not to get such hashes)

    # Its dataclasses are defaults of others, which Python 3.11 allows with a hash alone.
    dataclasses.dataclass = partial(dataclass, unsafe_hash=True)
    stand_in("fairseq")
    stand_in("fairseq.modules", EMAModule=None, EMAModuleConfig=None)
    stand_in("fairseq.dataclass", FairseqDataclass=object)
    named = {"register_model": lambda *_, **__: lambda kind: kind}
    stand_in("fairseq.models", BaseFairseqModel=nn.Module, **named)
    stand_in("fairseq.models.wav2vec")
    stand_in("fairseq.models.wav2vec.wav2vec2", TransformerSentenceEncoderLayer=None)
    stand_in("fairseq.tasks", FairseqTask=None)
    stand_in("fairseq.data")
    stand_in("fairseq.data.data_utils", compute_mask_indices=None)
    stand_in("fairseq.utils", index_put=None)
    utils = dict.fromkeys(("GradMultiply", "SamePad", "TransposeLast", "SamePad2d"))
    vars(sys.modules["fairseq.modules"]).update(utils, LayerNorm=nn.LayerNorm)
    stand_in("omegaconf", II=lambda text: text, MISSING=None)
    from models.EAT_pretraining import Data2VecMultiConfig, Data2VecMultiModel, Modality

    config = Data2VecMultiConfig(depth=2, num_heads=3, embed_dim=12, mlp_ratio=1.5)
    # As pretraining_AS2M.yaml, but for the sizes.
    config.mae_init, image = True, config.modalities.image
    image.in_chans, image.patch_size, image.embed_dim = 1, 16, 12
    image.num_extra_tokens, image.prenet_depth, image.use_alibi_encoder = 1, 0, False
    image.target_length, image.max_length, image.decoder = 48, 5, None
    return Data2VecMultiModel(config, [Modality.IMAGE], skip_ema=True)


@dataclass(frozen=True, kw_only=True)
class Original:
    """A model of a project's own code.

    Attributes:
        revision: Of the project, whose code it is.
        make: Builds it.
        image: Channels, rows and columns of what it reads; of a clip, the frames after channels.
        compute: What is kept of it for these images.
        others: What else is.
    """

    revision: str
    make: Callable[[], nn.Module]
    image: tuple[int, ...]
    compute: Callable[[Any, Tensor], Tensor] = lambda model, images: model(images)
    others: Mapping[str, Callable[[Any, Tensor], Tensor]] = field(default_factory=dict)


def unmasked(model: Any, images: Tensor) -> Tensor:
    """All tokens of EVA-02 in its pre-training, of which none is masked."""
    patches = model.patch_embed.num_patches
    tokens: Tensor = model.forward_features(images, torch.zeros(1, patches, dtype=torch.bool))
    return tokens


def unmasked_clip(model: Any, clips: Tensor) -> Tensor:
    """All tokens of VideoMAE's encoder in its pre-training, of which none is masked."""
    count = model.encoder.patch_embed(clips).shape[1]
    tokens: Tensor = model.encoder(clips, torch.zeros(1, count, dtype=torch.bool))
    return tokens


def tokens_of_v_jepa_2(model: Any, clips: Tensor) -> Tensor:
    """All tokens of the encoder."""
    tokens: Tensor = model["module"]["backbone"](clips)
    return tokens


def tokens_of_deimv2(model: Any, images: Tensor) -> Tensor:
    """The class token and the patches after the last block."""
    [(patches, class_token)] = model(images)
    return torch.cat([class_token[:, None], patches], dim=1)


def patches_of_rf_detr(model: Any, images: Tensor) -> Tensor:
    """What a detector reads of the last block."""
    detector = model["backbone"]["0"]["encoder"]["encoder"]
    features: Tensor = detector(images).feature_maps[-1]
    return features.flatten(2).transpose(1, 2)


def patches_of_depth_anything(model: Any, images: Tensor) -> Tensor:
    """The patches of the one view of each image, after the last block and the norm."""
    vit = model["model"]["backbone"]["pretrained"]
    [(patches, _)], _ = vit.get_intermediate_layers(images[:, None], [1])
    return patches[:, 0]


VIDEOMAE = "MCG-NJU/VideoMAE 14ef8d8"
AIM = "apple/ml-aim bd9e068"
PERCEPTION = "facebookresearch/perception_models 3e352cc"
PE_SPATIAL = {"use_cls_token": False, "use_ln_post": False, "ls_init_value": 0.1}
EVA = "baaivision/EVA 5623d08"
ROTATED = {"rope": True, "pt_hw_seq_len": 5, "intp_freq": True}
EVA_CLIP = {  # what the class has of EVA01-CLIP-g, of EVA02-CLIP-L and of EVA02-CLIP-bigE
    "g": {"use_mean_pooling": False},
    "l": {"use_mean_pooling": False, "naiveswiglu": True, "subln": True, **ROTATED},
    "e": {"use_mean_pooling": False, "postnorm": True},
}
ORIGINALS: Mapping[str, Original] = {
    "mobileclip": Original(
        revision="apple/ml-mobileclip 4144bb1",
        make=mobileclip,
        image=(3, 48, 32),
        compute=lambda model, images: model["image_encoder"]["model"](images),
    ),
    "eva02_pretraining": Original(
        revision=EVA,
        make=partial(eva02, side=3, grid=3, pretraining=True),
        image=(3, 12, 12),
        compute=unmasked,
    ),
    "eva02_finetuned": Original(
        revision=EVA, make=partial(eva02, side=3, grid=5, pretraining=False), image=(3, 12, 12)
    ),
    **{
        f"lucidrains_{release.replace('.', '_')}": Original(
            revision=f"vit-pytorch {release}", make=lucidrains, image=(3, 12, 12)
        )
        for release in ("0.7.4", "0.40.2", "1.0.0", "1.7.14")
    },
    "timm_small": Original(revision="timm 0.3.2", make=timm_small, image=(3, 12, 12)),
    "dino": Original(revision="facebookresearch/dino 7c446df", make=dino, image=(3, 24, 20)),
    "dinov3": Original(revision="facebookresearch/dinov3 6876159", make=dinov3, image=(3, 12, 20)),
    "aimv2": Original(revision=AIM, make=partial(aimv2, img_size=(12, 8)), image=(3, 12, 8)),
    "aimv2_native": Original(
        revision=AIM, make=partial(aimv2, pos_embed_type="sincos"), image=(3, 8, 20)
    ),
    "beit3": Original(revision="microsoft/unilm 768a3c8", make=beit3, image=(3, 12, 12)),
    "eva01": Original(revision=EVA, make=eva01, image=(3, 12, 12)),
    **{
        f"eva_clip_{name}": Original(
            revision=EVA,
            make=partial(eva_clip, **kind),
            image=(3, 12, 12),
            compute=lambda model, images: model["visual"](images),
        )
        for name, kind in EVA_CLIP.items()
    },
    "perception": Original(
        revision=PERCEPTION,
        make=partial(perception, use_cls_token=True, output_dim=3),
        image=(3, 12, 12),
    ),
    "perception_tokens": Original(
        revision=PERCEPTION,
        make=partial(perception, pool_type="none", output_dim=None, **PE_SPATIAL),
        image=(3, 12, 12),
    ),
    "sapiens2": Original(
        revision="facebookresearch/sapiens2 3098c14",
        make=sapiens2,
        image=(3, 12, 8),
        compute=lambda model, images: model(images)[0],
    ),
    "videomae": Original(revision=VIDEOMAE, make=partial(videomae, frames=4), image=(3, 4, 12, 12)),
    "vjepa2": Original(
        revision="facebookresearch/vjepa2 c2963a4",
        make=vjepa2,
        image=(3, 6, 12, 20),
        compute=tokens_of_v_jepa_2,
    ),
    "vjepa2_1": Original(
        revision="facebookresearch/vjepa2 204698b",
        make=vjepa2_1,
        image=(1, 6, 48, 80),
        compute=tokens_of_v_jepa_2,
        others={
            "five frames of another size": lambda model, clips: tokens_of_v_jepa_2(
                model, clips[:, :, :5, :, :32]
            ),
            "the first frame": lambda model, clips: tokens_of_v_jepa_2(model, clips[:, :, :1]),
        },
    ),
    "videomae_v2": Original(
        revision="OpenGVLab/VideoMAEv2 29eab1e",
        make=partial(videomae, frames=6, init_values=0.1),
        image=(3, 6, 12, 12),
    ),
    "videomae_pretraining": Original(
        revision=VIDEOMAE,
        make=videomae_pretraining,
        image=(3, 16, 8, 8),
        compute=unmasked_clip,
    ),
    "eupe": Original(
        revision="facebookresearch/EUPE f6cdf04",
        make=eupe,
        image=(3, 12, 20),
        others={"20x8": lambda model, _images: model(picture(3, 20, 8))},
    ),
    "deimv2": Original(
        revision="Intellindust-AI-Lab/DEIMv2 0fff8d4",
        make=deimv2,
        image=(3, 12, 20),
        compute=tokens_of_deimv2,
    ),
    **{
        name: Original(
            revision="rfdetr 1.11.2",
            make=partial(rf_detr, registers=registers),
            image=(3, 24, 24),
            compute=patches_of_rf_detr,
        )
        for name, registers in {"rf_detr": 0, "rf_detr_registers": 2}.items()
    },
    "depth_anything_3": Original(
        revision="depth-anything-3 0.1.1",
        make=depth_anything_3,
        image=(3, 12, 12),
        compute=patches_of_depth_anything,
        others={
            "20x16": lambda model, _images: patches_of_depth_anything(model, picture(3, 20, 16))
        },
    ),
    **{  # by strides down and across, and sizes
        name: Original(
            revision="YuanGongND/ast 31088be",
            make=partial(ast, fstride=down, tstride=across, input_fdim=rows, input_tdim=times),
            image=(1, rows, times),
            compute=lambda model, images: model.module(images[:, 0].transpose(1, 2)),
        )
        for name, down, across, rows, times in (
            ("ast", 10, 9, 37, 52),
            ("ast_long", 16, 12, 34, 77),
        )
    },
    **{  # of whole and of shorter spectrograms
        name: Original(
            revision="nttcslab/m2d f0c4128",
            make=m2d,
            image=(1, 8, times),
            compute=lambda model, images: model.forward_encoder(images),
        )
        for name, times in {"m2d": 20, "m2d_short": 12}.items()
    },
    **{
        name: Original(
            revision="cwx-worst-one/EAT 06c1c34",
            make=eat,
            image=(1, times, 128),
            compute=lambda model, images: model(
                images, mode="IMAGE", mask=False, features_only=True, remove_extra_tokens=False
            )["x"],
        )
        for name, times in {"eat": 48, "eat_short": 32}.items()
    },
}


@torch.no_grad()
def main(name: str) -> None:
    """Write one file anew."""
    original = ORIGINALS[name]
    torch.manual_seed(len(name))
    model = randomise(original.make())
    for parameter in model.parameters():
        parameter.copy_(parameter.half())
    kept = {"rope", "freqs", "running", "mask", "periods"}  # not rounded: buffers
    tensors = {
        key: tensor if any(word in key for word in kept) else tensor.half()
        for key, tensor in model.state_dict().items()
    }
    images = picture(*original.image)
    output = original.compute(model, images)
    file = {"model": tensors, "output": output, "revision": original.revision}
    if original.others:
        file["others"] = {name: make(model, images) for name, make in original.others.items()}
    torch.save(file, FOLDER / f"{name}.pth")


if __name__ == "__main__":
    main(sys.argv[1])
