"""Tiny models of the vision classes of transformers, timm and OpenCLIP that are used most.

Each is a class, its configuration, and inputs of its `forward`. `benchmarks.lost` saves them by one
release and loads them by others.
"""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

Inputs = dict[str, Any]
Config = dict[str, Any]


def images(
    *shape: int, name: str = "pixel_values", **more: Tensor | bool
) -> Callable[[], dict[str, Any]]:
    """Random images of a shape, and other inputs."""
    return lambda: {name: numbers(*shape), **more}


def numbers(*shape: int) -> Tensor:
    """Normal numbers, the same on every machine."""
    drawn = np.random.default_rng(crc32(str(shape).encode())).standard_normal(shape)
    return torch.from_numpy(drawn.astype(np.float32))


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def prompt(
    image_token: int, count: int, *, start: int | None = None, end: int | None = None
) -> Tensor:
    """Two words, the places of an image, three words."""
    around = [[] if one is None else [one] for one in (start, end)]
    return torch.tensor([[5, 6, *around[0], *[image_token] * count, *around[1], 7, 8, 9]])


IMAGE = images(2, 3, 32, 32)
_VIDEO = images(2, 4, 3, 32, 32)
_WIDTHS: Config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDTHS |= {"intermediate_size": 40}
_VISION: Config = _WIDTHS | {"image_size": 32, "patch_size": 8}
_LABELS: Config = _VISION | {"num_labels": 7}
_TEXT: Config = _WIDTHS | {"vocab_size": 99, "max_position_embeddings": 64}
_TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LLM: Config = _TEXT | {"num_key_value_heads": 2, "head_dim": 8}
WORDS = ids([1, 5, 6, 7, 2], [1, 8, 9, 2, 0])
_MASK = ids([1, 1, 1, 1, 1], [1, 1, 1, 1, 0])
_PAIR = images(2, 3, 32, 32, input_ids=WORDS, attention_mask=_MASK)
_STAGES: Config = {"depths": [1, 2], "num_labels": 7}
_SWIN: Config = _STAGES | {"image_size": 32, "patch_size": 2, "embed_dim": 16, "window_size": 4}
_SWIN |= {"num_heads": [2, 4]}
_RESNET: Config = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32]}
_RESNET |= {"depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"]}
_DETR: Config = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_labels": 7}
_DETR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 6}
_DETR |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "use_timm_backbone": False}
_DETR |= {"use_pretrained_backbone": False, "backbone": None}
_DEFORMABLE: Config = _DETR | {"num_feature_levels": 3, "encoder_n_points": 2}
_DEFORMABLE |= {"decoder_n_points": 2, "two_stage_num_proposals": 6}
_RT_BACKBONE: Config = _RESNET | {"model_type": "rt_detr_resnet", "layer_type": "basic"}
_RT_DETR: Config = {"backbone_config": _RT_BACKBONE, "encoder_hidden_dim": 32, "d_model": 32}
_RT_DETR |= {"encoder_in_channels": [16, 24, 32], "decoder_in_channels": [32, 32, 32]}
_RT_DETR |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "num_queries": 6, "num_labels": 7}
_RT_DETR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_layers": 2}
_RT_DETR |= {"num_denoising": 0, "backbone": None, "feat_strides": [8, 16, 32]}
_SWIN_BACKBONE: Config = _SWIN | {"model_type": "swin", "depths": [1, 1, 1, 1]}
_SWIN_BACKBONE |= {"num_heads": [2, 2, 4, 4], "image_size": 64}
_SWIN_BACKBONE |= {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
_CLIP_VISION: Config = _VISION | {"model_type": "clip_vision_model"}
_SIGLIP_VISION: Config = _VISION | {"model_type": "siglip_vision_model"}
_LLAMA: Config = _LLM | {"model_type": "llama"}
_QWEN2: Config = _LLM | {"model_type": "qwen2"}
_SAM_VISION: Config = _WIDTHS | {"image_size": 32, "patch_size": 8, "mlp_dim": 40}
_SAM_VISION |= {
    "num_pos_feats": 8,
    "output_channels": 16,
    "global_attn_indexes": [1],
    "window_size": 3,
}
_SAM: Config = {
    "vision_config": _SAM_VISION,
    "prompt_encoder_config": {
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 8,
        "image_embedding_size": 4,
        "mask_input_channels": 4,
    },
    "mask_decoder_config": {
        "hidden_size": 16,
        "mlp_dim": 24,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
}
_POINTS = {"input_points": torch.tensor([[[[5.0, 6.0]]]] * 2), "input_labels": ids([[1]], [[1]])}
_HIERA_DET: Config = {
    "model_type": "sam2_hiera_det_model",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "image_size": [64, 64],
    "blocks_per_stage": [1, 1, 2, 1],
    "embed_dim_per_stage": [16, 24, 32, 40],
    "num_attention_heads_per_stage": [2, 2, 4, 4],
    "window_size_per_stage": [4, 4, 2, 2],
    "global_attention_blocks": [3],
    "window_positional_embedding_background_size": [4, 4],
}
_SAM2: Config = {
    "vision_config": {
        "backbone_config": _HIERA_DET,
        "backbone_channel_list": [40, 32, 24, 16],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "fpn_hidden_size": 16,
    },
    "prompt_encoder_config": {
        "hidden_size": 16,
        "image_size": 64,
        "patch_size": 16,
        "mask_input_channels": 4,
    },
    "mask_decoder_config": {
        "hidden_size": 16,
        "mlp_dim": 24,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
}
_QWEN_VISION: Config = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}
_QWEN_VISION |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN_VISION |= {"mlp_ratio": 2, "intermediate_size": 40, "window_size": 8}
_ROPE: Config = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}
_QWEN_TOKENS: Config = {"image_token_id": 90, "video_token_id": 91}
_QWEN_TOKENS |= {"vision_start_token_id": 92, "vision_end_token_id": 93}
_QWEN_INPUTS = images(
    *(16, 3 * 2 * 4 * 4),
    image_grid_thw=ids([1, 4, 4]),
    input_ids=prompt(90, 4, start=92, end=93),
    mm_token_type_ids=(prompt(90, 4, start=92, end=93) == 90).int(),
)
_LLAVA_TOKENS: Config = {"image_token_index": 90, "image_token_id": 90}
_LLAVA = images(1, 3, 32, 32, input_ids=prompt(90, 16))

# Of each name: the class, its configuration, and its inputs.
TRANSFORMERS: dict[str, tuple[str, Config, Callable[[], Inputs]]] = {
    "ViT": ("ViTForImageClassification", _LABELS, IMAGE),
    "ViT with pooler": ("ViTModel", _VISION, IMAGE),
    "ViT-MAE": (
        "ViTMAEForPreTraining",
        _VISION
        | {"decoder_hidden_size": 24, "decoder_num_hidden_layers": 1}
        | {"decoder_num_attention_heads": 4, "decoder_intermediate_size": 40},
        images(2, 3, 32, 32, noise=numbers(2, 16)),
    ),
    "ViT-MSN": ("ViTMSNForImageClassification", _LABELS, IMAGE),
    "I-JEPA": ("IJepaForImageClassification", _LABELS, IMAGE),
    "DeiT": ("DeiTForImageClassificationWithTeacher", _LABELS, IMAGE),
    "BEiT": (
        "BeitForImageClassification",
        _LABELS | {"use_relative_position_bias": True, "use_mask_token": False},
        IMAGE,
    ),
    "BEiT, absolute positions": (
        "BeitForMaskedImageModeling",
        _VISION
        | {"use_absolute_position_embeddings": True, "use_mask_token": True}
        | {"vocab_size": 50, "use_shared_relative_position_bias": True},
        images(2, 3, 32, 32, bool_masked_pos=torch.arange(16).repeat(2, 1) % 3 == 0),
    ),
    "Data2Vec": (
        "Data2VecVisionForImageClassification",
        _LABELS | {"use_relative_position_bias": True},
        IMAGE,
    ),
    "DINOv2": ("Dinov2ForImageClassification", _LABELS, IMAGE),
    "DINOv2, SwiGLU": ("Dinov2Model", _VISION | {"use_swiglu_ffn": True}, IMAGE),
    "DINOv2 with registers": ("Dinov2WithRegistersForImageClassification", _LABELS, IMAGE),
    "DINOv3 ViT": ("DINOv3ViTModel", _VISION | {"num_register_tokens": 4}, IMAGE),
    "DINOv3 ConvNeXt": (
        "DINOv3ConvNextModel",
        {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]},
        IMAGE,
    ),
    "CLIP": (
        "CLIPModel",
        {"vision_config": _VISION, "text_config": _TEXT, "projection_dim": 24},
        _PAIR,
    ),
    "CLIP, image classes": (
        "CLIPForImageClassification",
        {"vision_config": _VISION, "text_config": _TEXT, "num_labels": 7},
        IMAGE,
    ),
    "CLIPSeg": (
        "CLIPSegForImageSegmentation",
        {"vision_config": _VISION, "text_config": _TEXT, "projection_dim": 24}
        | {"extract_layers": [0, 1], "reduce_dim": 16, "decoder_num_attention_heads": 4}
        | {"decoder_intermediate_size": 40},
        _PAIR,
    ),
    "SigLIP": ("SiglipModel", {"vision_config": _VISION, "text_config": _TEXT}, _PAIR),
    "SigLIP, image classes": (
        "SiglipForImageClassification",
        {"vision_config": _VISION, "text_config": _TEXT, "num_labels": 7},
        IMAGE,
    ),
    "SigLIP 2": (
        "Siglip2Model",
        {"vision_config": _VISION | {"num_patches": 16}, "text_config": _TEXT},
        images(
            *(2, 16, 192),
            pixel_attention_mask=torch.ones(2, 16, dtype=torch.int64),
            spatial_shapes=ids([4, 4], [2, 8]),
            input_ids=WORDS,
        ),
    ),
    "AltCLIP": (
        "AltCLIPModel",
        {"vision_config": _VISION, "projection_dim": 24}
        | {"text_config": _TEXT | {"project_dim": 24, "type_vocab_size": 1}},
        _PAIR,
    ),
    "Chinese-CLIP": (
        "ChineseCLIPModel",
        {"vision_config": _VISION, "text_config": _TEXT, "projection_dim": 24},
        _PAIR,
    ),
    "X-CLIP": (
        "XCLIPModel",
        {"text_config": _TEXT, "projection_dim": 24, "prompt_layers": 1}
        | {
            "vision_config": _VISION
            | {"num_frames": 4, "mit_hidden_size": 24}
            | {"mit_num_hidden_layers": 1, "mit_num_attention_heads": 4}
            | {"mit_intermediate_size": 40}
        }
        | {"prompt_num_attention_heads": 4},
        images(2, 4, 3, 32, 32, input_ids=WORDS, attention_mask=_MASK),
    ),
    "ALIGN": (
        "AlignModel",
        {"text_config": _TEXT, "projection_dim": 32}
        | {
            "vision_config": {
                "image_size": 32,
                "kernel_sizes": [3, 3],
                "in_channels": [32, 16],
                "out_channels": [16, 32],
                "strides": [1, 2],
                "num_block_repeats": [1, 2],
                "expand_ratios": [1, 6],
                "depthwise_padding": [],
                "hidden_dim": 32,
                "width_coefficient": 1.0,
                "depth_coefficient": 1.0,
            }
        },
        _PAIR,
    ),
    "GroupViT": (
        "GroupViTModel",
        {"text_config": _TEXT, "projection_dim": 32, "projection_intermediate_dim": 40}
        | {
            "vision_config": _VISION
            | {"depths": [1, 1, 1], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]}
        },
        _PAIR,
    ),
    "OWL-ViT": (
        "OwlViTForObjectDetection",
        {"vision_config": _VISION, "text_config": _TEXT | {"max_position_embeddings": 5}}
        | {"projection_dim": 32},
        _PAIR,
    ),
    "OWLv2": (
        "Owlv2ForObjectDetection",
        {"vision_config": _VISION, "text_config": _TEXT | {"max_position_embeddings": 5}}
        | {"projection_dim": 32},
        _PAIR,
    ),
    "SAM": ("SamModel", _SAM, images(2, 3, 32, 32, **_POINTS)),
    "SAM-HQ": (
        "SamHQModel",
        _SAM | {"mask_decoder_config": _SAM["mask_decoder_config"] | {"vit_dim": 32}},
        images(2, 3, 32, 32, **_POINTS),
    ),
    "SAM 2": ("Sam2Model", _SAM2, images(2, 3, 64, 64, **_POINTS)),
    "SAM 2 video": (
        "Sam2VideoModel",
        _SAM2
        | {"image_size": 64, "memory_attention_hidden_size": 16}
        | {"memory_attention_num_layers": 1, "memory_attention_num_attention_heads": 1}
        | {"memory_attention_feed_forward_hidden_size": 24, "memory_encoder_hidden_size": 16}
        | {"memory_encoder_output_channels": 8, "mask_downsampler_embed_dim": 16}
        | {"memory_fuser_embed_dim": 16, "memory_fuser_intermediate_dim": 24}
        | {"memory_fuser_num_layers": 1, "memory_attention_rope_feat_sizes": [4, 4]}
        | {"memory_attention_downsample_rate": 1},
        images(2, 3, 64, 64, **_POINTS),
    ),
    "SAM 3": (
        "Sam3Model",
        {
            "vision_config": {
                "backbone_config": _VISION
                | {"model_type": "sam3_vit_model", "image_size": 32, "pretrain_image_size": 32}
                | {"global_attn_indexes": [1], "window_size": 2},
                "fpn_hidden_size": 16,
                "scale_factors": [4.0, 2.0, 1.0, 0.5],
                "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            },
            "text_config": _TEXT | {"projection_dim": 16},
            "geometry_encoder_config": {"hidden_size": 16, "num_layers": 1}
            | {"num_attention_heads": 2, "intermediate_size": 24},
            "detr_encoder_config": {"hidden_size": 16, "num_layers": 1}
            | {"num_attention_heads": 2, "intermediate_size": 24},
            "detr_decoder_config": {"hidden_size": 16, "num_layers": 2, "num_queries": 6}
            | {"num_attention_heads": 2, "intermediate_size": 24},
            "mask_decoder_config": {"hidden_size": 16, "num_upsampling_stages": 3}
            | {"num_attention_heads": 2},
        },
        images(2, 3, 32, 32, input_ids=WORDS, attention_mask=_MASK),
    ),
    "VideoMAE": (
        "VideoMAEForVideoClassification",
        _LABELS | {"num_frames": 4, "tubelet_size": 2},
        _VIDEO,
    ),
    "VideoMAE, pretraining": (
        "VideoMAEForPreTraining",
        _VISION
        | {"num_frames": 4, "tubelet_size": 2, "decoder_hidden_size": 24}
        | {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
        | {"decoder_intermediate_size": 40, "norm_pix_loss": False},
        images(2, 4, 3, 32, 32, bool_masked_pos=torch.arange(32).repeat(2, 1) % 2 == 0),
    ),
    "ViViT": (
        "VivitForVideoClassification",
        _LABELS | {"num_frames": 4, "tubelet_size": [2, 8, 8]},
        _VIDEO,
    ),
    "TimeSformer": ("TimesformerForVideoClassification", _LABELS | {"num_frames": 4}, _VIDEO),
    "V-JEPA 2": (
        "VJEPA2ForVideoClassification",
        {"patch_size": 8, "crop_size": 32, "frames_per_clip": 4, "tubelet_size": 2}
        | {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "mlp_ratio": 2}
        | {"num_labels": 7, "num_pooler_layers": 1, "pred_hidden_size": 24}
        | {"pred_num_attention_heads": 2, "pred_num_hidden_layers": 1, "pred_num_mask_tokens": 2},
        images(2, 4, 3, 32, 32, name="pixel_values_videos"),
    ),
    "Swin": ("SwinForImageClassification", _SWIN, IMAGE),
    "Swin V2": ("Swinv2ForImageClassification", _SWIN, IMAGE),
    "Swin2SR": (
        "Swin2SRForImageSuperResolution",
        {"image_size": 16, "patch_size": 1, "embed_dim": 16, "depths": [1, 2]}
        | {"num_heads": [2, 4], "window_size": 4, "upscale": 2},
        images(2, 3, 16, 16),
    ),
    "Hiera": (
        "HieraForImageClassification",
        {"image_size": [32, 32], "patch_size": [3, 3], "patch_stride": [2, 2]}
        | {"patch_padding": [1, 1], "embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4]}
        | {"masked_unit_size": [4, 4], "query_stride": [2, 2], "num_query_pool": 2}
        | {"num_labels": 7},
        IMAGE,
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 24, 32, 40]} | {"depths": [1, 1, 2, 1], "num_labels": 7},
        IMAGE,
    ),
    "ConvNeXt V2": (
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [16, 24, 32, 40]} | {"depths": [1, 1, 2, 1], "num_labels": 7},
        IMAGE,
    ),
    "ResNet": (
        "ResNetForImageClassification",
        {name: _RESNET[name] for name in ("embedding_size", "hidden_sizes", "depths")}
        | {"num_labels": 7},
        IMAGE,
    ),
    "RegNet": (
        "RegNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
        | {"groups_width": 4, "layer_type": "y", "num_labels": 7},
        IMAGE,
    ),
    "EfficientNet": (
        "EfficientNetForImageClassification",
        {
            "image_size": 32,
            "kernel_sizes": [3, 3],
            "in_channels": [32, 16],
            "out_channels": [16, 24],
            "strides": [1, 2],
            "num_block_repeats": [1, 2],
            "expand_ratios": [1, 6],
            "depthwise_padding": [],
            "hidden_dim": 1280,
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "num_labels": 7,
        },
        IMAGE,
    ),
    "BiT": (
        "BitForImageClassification",
        {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 8}
        | {"num_labels": 7},
        IMAGE,
    ),
    "LeViT": (
        "LevitForImageClassificationWithTeacher",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 4]}
        | {"depths": [1, 1, 1], "key_dim": [8, 8, 8], "num_labels": 7},
        images(2, 3, 64, 64),
    ),
    "MobileViT": (
        "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": 4}
        | {"neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32], "num_labels": 7},
        images(2, 3, 64, 64),
    ),
    "MobileViT V2": (
        "MobileViTV2ForImageClassification",
        {"image_size": 64, "width_multiplier": 0.25, "num_labels": 7},
        images(2, 3, 64, 64),
    ),
    "PVT": (
        "PvtForImageClassification",
        {"image_size": 32, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 2, 4, 4], "mlp_ratios": [2, 2, 2, 2], "num_labels": 7},
        IMAGE,
    ),
    "PVT V2": (
        "PvtV2ForImageClassification",
        {"image_size": 32, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 2, 4, 4], "mlp_ratios": [2, 2, 2, 2], "num_labels": 7},
        IMAGE,
    ),
    "Segformer": (
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "num_labels": 7}
        | {"num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 24},
        IMAGE,
    ),
    "YOLOS": (
        "YolosForObjectDetection",
        _LABELS | {"image_size": [32, 32], "num_detection_tokens": 5},
        IMAGE,
    ),
    "DETR": ("DetrForObjectDetection", _DETR | {"backbone_config": _RESNET}, IMAGE),
    "Conditional DETR": (
        "ConditionalDetrForObjectDetection",
        _DETR | {"backbone_config": _RESNET},
        IMAGE,
    ),
    "Deformable DETR": (
        "DeformableDetrForObjectDetection",
        _DEFORMABLE | {"backbone_config": _RESNET},
        images(2, 3, 64, 64),
    ),
    "Deformable DETR, two stages": (
        "DeformableDetrForObjectDetection",
        _DEFORMABLE | {"backbone_config": _RESNET, "with_box_refine": True, "two_stage": True},
        images(2, 3, 64, 64),
    ),
    "Table Transformer": (
        "TableTransformerForObjectDetection",
        _DETR | {"backbone_config": _RESNET},
        IMAGE,
    ),
    "RT-DETR": ("RTDetrForObjectDetection", _RT_DETR, images(2, 3, 64, 64)),
    "RT-DETR v2": ("RTDetrV2ForObjectDetection", _RT_DETR, images(2, 3, 64, 64)),
    "D-FINE": (
        "DFineForObjectDetection",
        {name: value for name, value in _RT_DETR.items() if name != "feat_strides"}
        | {"feat_strides": [8, 16, 32]}
        | {
            "backbone_config": {
                "model_type": "hgnet_v2",
                "stem_channels": [3, 8, 8],
                "hidden_sizes": [8, 16, 24, 32],
                "stage_in_channels": [8, 8, 16, 24],
                "stage_mid_channels": [8, 8, 8, 8],
                "stage_out_channels": [8, 16, 24, 32],
                "stage_num_blocks": [1, 1, 1, 1],
                "stage_numb_of_layers": [2, 2, 2, 2],
                "out_features": ["stage2", "stage3", "stage4"],
            }
        },
        images(2, 3, 64, 64),
    ),
    "RF-DETR": (
        "RfDetrForObjectDetection",
        {
            "backbone_config": _VISION
            | {"model_type": "rf_detr_dinov2", "num_windows": 2, "out_features": ["stage2"]},
            "d_model": 32,
            "num_queries": 6,
            "num_labels": 7,
            "decoder_layers": 2,
            "decoder_ffn_dim": 40,
            "decoder_self_attention_heads": 4,
            "decoder_cross_attention_heads": 4,
            "decoder_n_points": 2,
            "group_detr": 2,
        },
        IMAGE,
    ),
    "Grounding DINO": (
        "GroundingDinoForObjectDetection",
        _DEFORMABLE
        | {"backbone_config": _SWIN_BACKBONE | {"out_features": ["stage2", "stage3", "stage4"]}}
        | {"text_config": _TEXT | {"model_type": "bert"}, "max_text_len": 5},
        images(2, 3, 64, 64, input_ids=ids([5, 6, 7, 8, 9], [5, 6, 7, 8, 9])),
    ),
    "Mask2Former": (
        "Mask2FormerForUniversalSegmentation",
        {"backbone_config": _SWIN_BACKBONE, "feature_size": 32, "mask_feature_size": 32}
        | {"hidden_dim": 32, "encoder_feedforward_dim": 40, "encoder_layers": 2}
        | {"decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 40}
        | {"num_queries": 5, "num_labels": 7},
        images(2, 3, 64, 64),
    ),
    "MaskFormer": (
        "MaskFormerForInstanceSegmentation",
        {
            "backbone_config": _SWIN_BACKBONE,
            "decoder_config": {"model_type": "detr"} | _DETR | {"backbone_config": _RESNET},
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "num_labels": 7,
        },
        images(2, 3, 64, 64),
    ),
    "OneFormer": (
        "OneFormerForUniversalSegmentation",
        {"backbone_config": _SWIN_BACKBONE, "conv_dim": 32, "mask_dim": 32, "hidden_dim": 32}
        | {"encoder_feedforward_dim": 40, "encoder_layers": 2, "decoder_layers": 3}
        | {"num_attention_heads": 4, "dim_feedforward": 40, "num_queries": 5, "num_labels": 7}
        | {"text_encoder_width": 32, "text_encoder_num_layers": 1, "task_seq_len": 5}
        | {"text_encoder_vocab_size": 99, "max_seq_len": 5, "text_encoder_context_length": 5}
        | {"query_dec_layers": 1, "is_training": False},
        images(2, 3, 64, 64, task_inputs=ids([1, 5, 6, 7, 2], [1, 5, 6, 7, 2])),
    ),
    "UPerNet": (
        "UperNetForSemanticSegmentation",
        {"backbone_config": _SWIN_BACKBONE, "hidden_size": 16, "auxiliary_channels": 8}
        | {"auxiliary_in_channels": 64, "num_labels": 7, "pool_scales": [1, 2]},
        images(2, 3, 64, 64),
    ),
    "DPT": (
        "DPTForDepthEstimation",
        _WIDTHS
        | {"num_hidden_layers": 4, "image_size": 32, "patch_size": 8, "fusion_hidden_size": 16}
        | {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 12, 16, 16]}
        | {"is_hybrid": False},
        IMAGE,
    ),
    "DPT, segmentation": (
        "DPTForSemanticSegmentation",
        _WIDTHS
        | {"num_hidden_layers": 4, "image_size": 32, "patch_size": 8, "fusion_hidden_size": 16}
        | {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 12, 16, 16]}
        | {"is_hybrid": False, "num_labels": 7},
        IMAGE,
    ),
    "Depth Anything": (
        "DepthAnythingForDepthEstimation",
        {
            "backbone_config": _VISION
            | {"model_type": "dinov2", "num_hidden_layers": 4}
            | {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
            | {"reshape_hidden_states": False}
        }
        | {"reassemble_hidden_size": 32, "patch_size": 8, "fusion_hidden_size": 16}
        | {"neck_hidden_sizes": [8, 12, 16, 16], "head_hidden_size": 8},
        IMAGE,
    ),
    "ZoeDepth": (
        "ZoeDepthForDepthEstimation",
        {
            "backbone_config": _VISION
            | {"model_type": "beit", "num_hidden_layers": 4}
            | {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
            | {"reshape_hidden_states": False, "use_relative_position_bias": True}
        }
        | {"backbone_hidden_size": 32, "fusion_hidden_size": 16, "bottleneck_features": 16}
        | {"neck_hidden_sizes": [8, 12, 16, 16], "num_relative_features": 8}
        | {"num_attractors": [4, 3, 2, 1], "bin_embedding_dim": 16}
        | {"bin_configurations": [{"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0}]},
        IMAGE,
    ),
    "GLPN": (
        "GLPNForDepthEstimation",
        {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}
        | {"num_attention_heads": [1, 2, 4, 4]},
        IMAGE,
    ),
    "ViTPose": (
        "VitPoseForPoseEstimation",
        {
            "backbone_config": _WIDTHS
            | {"model_type": "vitpose_backbone", "image_size": [32, 32]}
            | {"patch_size": [8, 8], "out_features": ["stage2"]}
        }
        | {"num_labels": 5, "use_simple_decoder": False},
        IMAGE,
    ),
    "TrOCR": (
        "VisionEncoderDecoderModel",
        {
            "encoder": _VISION | {"model_type": "vit"},
            "decoder": {"model_type": "trocr", "d_model": 32, "decoder_layers": 2}
            | {"decoder_attention_heads": 4, "decoder_ffn_dim": 40, "vocab_size": 99}
            | {"max_position_embeddings": 16, "use_cache": False, "cross_attention_hidden_size": 32}
            | {"is_decoder": True, "add_cross_attention": True},
        },
        images(2, 3, 32, 32, decoder_input_ids=WORDS),
    ),
    "Donut": (
        "VisionEncoderDecoderModel",
        {
            "encoder": {name: value for name, value in _SWIN.items() if name != "num_labels"}
            | {"model_type": "donut-swin", "hidden_size": 32},
            "decoder": {"model_type": "mbart", "d_model": 32, "decoder_layers": 2}
            | {"decoder_attention_heads": 4, "decoder_ffn_dim": 40, "vocab_size": 99}
            | {"max_position_embeddings": 16, "use_cache": False, "is_decoder": True}
            | {"add_cross_attention": True, "encoder_layers": 1},
        },
        images(2, 3, 32, 32, decoder_input_ids=WORDS),
    ),
    "BLIP": (
        "BlipForConditionalGeneration",
        {"vision_config": _VISION, "projection_dim": 24}
        | {
            "text_config": _TEXT
            | {"encoder_hidden_size": 32, "projection_dim": 24}
            | {"sep_token_id": 2}
        }
        | {"image_text_hidden_size": 24},
        _PAIR,
    ),
    "BLIP-2": (
        "Blip2ForConditionalGeneration",
        {
            "vision_config": _VISION,
            "qformer_config": _TEXT | {"encoder_hidden_size": 32, "cross_attention_frequency": 1},
            "text_config": {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2}
            | {"num_attention_heads": 4, "ffn_dim": 40, "vocab_size": 99}
            | {"max_position_embeddings": 64, "word_embed_proj_dim": 32, "use_cache": False}
            | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
            "num_query_tokens": 4,
            "image_token_index": 90,
        },
        images(
            1, 3, 32, 32, input_ids=prompt(90, 4), attention_mask=torch.ones_like(prompt(90, 4))
        ),
    ),
    "InstructBLIP": (
        "InstructBlipForConditionalGeneration",
        {
            "vision_config": _VISION,
            "qformer_config": _TEXT | {"encoder_hidden_size": 32, "cross_attention_frequency": 1},
            "text_config": _LLAMA,
            "num_query_tokens": 4,
            "image_token_index": 90,
        },
        images(
            *(1, 3, 32, 32),
            input_ids=prompt(90, 4),
            attention_mask=torch.ones_like(prompt(90, 4)),
            qformer_input_ids=ids([1, 5, 6, 2]),
            qformer_attention_mask=ids([1, 1, 1, 1]),
        ),
    ),
    "LLaVA": (
        "LlavaForConditionalGeneration",
        {"vision_config": _CLIP_VISION, "text_config": _LLAMA, **_LLAVA_TOKENS}
        | {"image_seq_length": 16},
        _LLAVA,
    ),
    "LLaVA-NeXT": (
        "LlavaNextForConditionalGeneration",
        {"vision_config": _CLIP_VISION, "text_config": _LLAMA, **_LLAVA_TOKENS}
        | {"image_grid_pinpoints": [[32, 32], [32, 64]]},
        # 16 places of the small image, 16 of the large, and 4 ends of its lines
        images(1, 2, 3, 32, 32, image_sizes=ids([32, 32]), input_ids=prompt(90, 36)),
    ),
    "LLaVA-OneVision": (
        "LlavaOnevisionForConditionalGeneration",
        {"vision_config": _SIGLIP_VISION, "text_config": _QWEN2, **_LLAVA_TOKENS}
        | {"image_grid_pinpoints": [[32, 32], [32, 64]], "video_token_index": 91}
        | {"video_token_id": 91},
        images(1, 2, 3, 32, 32, image_sizes=ids([32, 32]), input_ids=prompt(90, 36)),
    ),
    "Qwen2-VL": (
        "Qwen2VLForConditionalGeneration",
        {
            "vision_config": _QWEN_VISION,
            "text_config": _LLM | {"rope_scaling": _ROPE, "model_type": "qwen2_vl_text"},
            **_QWEN_TOKENS,
        },
        _QWEN_INPUTS,
    ),
    "Qwen2.5-VL": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "vision_config": _QWEN_VISION | {"out_hidden_size": 32, "fullatt_block_indexes": [1]},
            "text_config": _LLM | {"rope_scaling": _ROPE, "model_type": "qwen2_5_vl_text"},
            **_QWEN_TOKENS,
        },
        _QWEN_INPUTS,
    ),
    "Qwen3-VL": (
        "Qwen3VLForConditionalGeneration",
        {
            "vision_config": _QWEN_VISION
            | {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "intermediate_size": 40}
            | {"num_position_embeddings": 16},
            "text_config": _LLM | {"rope_scaling": _ROPE | {"mrope_interleaved": True}},
            **_QWEN_TOKENS,
        },
        _QWEN_INPUTS,
    ),
    "Qwen3-VL of experts": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            "vision_config": _QWEN_VISION
            | {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "intermediate_size": 40}
            | {"num_position_embeddings": 16},
            "text_config": _LLM
            | {"rope_scaling": _ROPE | {"mrope_interleaved": True}, "num_experts": 4}
            | {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": []},
            **_QWEN_TOKENS,
        },
        _QWEN_INPUTS,
    ),
    "InternVL": (
        "InternVLForConditionalGeneration",
        {
            "vision_config": _VISION | {"image_size": [32, 32], "patch_size": [8, 8]},
            "text_config": _QWEN2,
            "image_token_id": 90,
            "image_seq_length": 4,
        },
        images(1, 3, 32, 32, input_ids=prompt(90, 4)),
    ),
    "PaliGemma": (
        "PaliGemmaForConditionalGeneration",
        {
            "vision_config": _SIGLIP_VISION | {"projection_dim": 32, "vision_use_head": False},
            "text_config": _LLM | {"model_type": "gemma"},
            "image_token_index": 90,
            "projection_dim": 32,
            "hidden_size": 32,
        },
        images(
            *(1, 3, 32, 32),
            input_ids=prompt(90, 16),
            attention_mask=torch.ones_like(prompt(90, 16)),
            token_type_ids=torch.zeros_like(prompt(90, 16)),
        ),
    ),
    "Gemma 3": (
        "Gemma3ForConditionalGeneration",
        {
            "vision_config": _SIGLIP_VISION | {"vision_use_head": False},
            "text_config": _LLM
            | {"model_type": "gemma3_text", "sliding_window": 8}
            | {"query_pre_attn_scalar": 8},
            "mm_tokens_per_image": 4,
            "image_token_index": 90,
            "boi_token_index": 91,
            "eoi_token_index": 92,
        },
        images(
            *(1, 3, 32, 32),
            input_ids=prompt(90, 4, start=91, end=92),
            token_type_ids=(prompt(90, 4, start=91, end=92) == 90).long(),
        ),
    ),
    "SmolVLM": (
        "SmolVLMForConditionalGeneration",
        {"vision_config": _VISION, "text_config": _LLAMA, "scale_factor": 2}
        | {"image_token_id": 90},
        images(1, 1, 3, 32, 32, input_ids=prompt(90, 4)),
    ),
    "Idefics 2": (
        "Idefics2ForConditionalGeneration",
        {"vision_config": _VISION, "image_token_id": 90}
        | {"text_config": _LLM | {"model_type": "mistral"}}
        | {
            "perceiver_config": {"hidden_size": 32, "resampler_n_latents": 4}
            | {"resampler_depth": 1, "resampler_n_heads": 4, "resampler_head_dim": 8}
            | {"num_key_value_heads": 2}
        },
        images(1, 1, 3, 32, 32, input_ids=prompt(90, 4)),
    ),
    "Idefics 3": (
        "Idefics3ForConditionalGeneration",
        {"vision_config": _VISION, "text_config": _LLAMA, "scale_factor": 2}
        | {"image_token_id": 90},
        images(1, 1, 3, 32, 32, input_ids=prompt(90, 4)),
    ),
    "Mistral 3 with Pixtral": (
        "Mistral3ForConditionalGeneration",
        {
            "vision_config": _VISION | {"model_type": "pixtral", "head_dim": 8},
            "text_config": _LLM | {"model_type": "mistral"},
            "image_token_index": 90,
            "spatial_merge_size": 2,
        },
        images(1, 3, 32, 32, image_sizes=ids([32, 32]), input_ids=prompt(90, 4)),
    ),
    "Florence-2": (
        "Florence2ForConditionalGeneration",
        {
            "vision_config": {"depths": [1, 1], "embed_dim": [16, 24], "num_heads": [2, 4]}
            | {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
            | {"patch_prenorm": [False, True], "num_groups": [2, 4], "window_size": 4}
            | {"projection_dim": 32, "max_position_embeddings": 8},
            "text_config": {"model_type": "bart", "d_model": 32, "encoder_layers": 2}
            | {"decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
            | {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "vocab_size": 99}
            | {"max_position_embeddings": 64, "use_cache": False, "forced_eos_token_id": None},
            "image_token_id": 90,
        },
        images(1, 3, 32, 32, input_ids=prompt(90, 17), decoder_input_ids=ids([2, 5, 6])),
    ),
    "timm's ViT in transformers": (
        "TimmWrapperForImageClassification",
        {"architecture": "test_vit", "num_labels": 7, "do_pooling": True}
        | {"model_args": {"img_size": 32}},
        IMAGE,
    ),
}
_TIMM_SIZES: Config = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "depth": 2}
_TIMM_SIZES |= {"num_classes": 7}
TIMM: dict[str, tuple[str, Config]] = {
    "ViT": ("vit_base_patch16_224", _TIMM_SIZES),
    "SigLIP's ViT": ("vit_base_patch16_siglip_224", _TIMM_SIZES),
    "NaFlex ViT": ("naflexvit_base_patch16_siglip", _TIMM_SIZES),
    "DeiT distilled": ("deit_base_distilled_patch16_224", _TIMM_SIZES),
    "BEiT": ("beit_base_patch16_224", _TIMM_SIZES),
    "DINOv2 with registers": ("vit_base_patch14_reg4_dinov2", _TIMM_SIZES),
    "DINOv3": ("vit_base_patch16_dinov3", _TIMM_SIZES),
    "EVA-02": ("eva02_base_patch14_224", _TIMM_SIZES),
    "Perception Encoder": ("vit_pe_core_base_patch16_224", _TIMM_SIZES),
    "SAM encoder": (
        "samvit_base_patch16",
        _TIMM_SIZES | {"global_attn_indexes": (1,), "window_size": 3},
    ),
    "ConvNeXt": ("test_convnext", {"num_classes": 7}),
    "ResNet": ("test_resnet", {"num_classes": 7}),
    "EfficientNet": ("test_efficientnet", {"num_classes": 7}),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4)}
        | {"window_size": 4, "num_classes": 7},
    ),
}
_CLIP: Config = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 2, "width": 48, "head_width": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 99, "layers": 2, "width": 48, "heads": 3},
}
OPEN_CLIP: dict[str, Config] = {
    "CLIP": _CLIP,
    "CLIP of OpenAI": _CLIP | {"quick_gelu": True},
    "CoCa's vision encoder": _CLIP
    | {"vision_cfg": _CLIP["vision_cfg"] | {"attentional_pool": True, "attn_pooler_heads": 3}},
    "ResNet": _CLIP
    | {"vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16, "head_width": 16}},
    "SigLIP by timm": {
        "embed_dim": 64,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {"image_size": 32, "timm_model_name": "test_vit", "timm_pool": ""}
        | {"timm_proj": "none"},
        "text_cfg": _CLIP["text_cfg"]
        | {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
    },
}
