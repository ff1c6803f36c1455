"""Every class of transformers that the tables cover, by its own lists, tiny and random."""

import functools
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.huggingface.classes import TEXT
from tests.packages import transformers
from tests.small_models import randomise_calmly
from tests.towers.families import DINOV2, FAMILIES, NECK, OPT, STAGES, VISION
from vitconvert.tables.dialects import builtin_tables

# Ends of the names of classes that hold no ViT of images.
WITHOUT_VIT = {
    "PreTrainedModel": "the base of its family",
    "TextModel": "a text tower",
    "TextModelWithProjection": "a text tower",
    "QFormerModel": "what reads a ViT",
    "AudioModel": "a tower of sounds",
    "AudioEncoder": "a tower of sounds",
    "ResamplerModel": "what reads a ViT",
    "TalkerModel": "what speaks",
    "TalkerForConditionalGeneration": "what speaks",
    "TalkerCodePredictorModel": "what speaks",
    "TalkerCodePredictorModelForConditionalGeneration": "what speaks",
    "Code2Wav": "what speaks",
    "FlavaImageCodebook": "convolutions that make words of images",
    "JanusVQVAE": "convolutions that make words of images",
    "FlavaMultimodalModel": "what reads two towers",
    "SLAHead": "what reads a ViT",
    "Molmo2Adapter": "what reads a ViT",
    "Code2WavDecoderBlock": "what speaks",
    "Code2WavTransformerModel": "what speaks",
    "PreTrainedModelForConditionalGeneration": "the base of its family",
    "Token2WavModel": "what speaks",
    "Token2WavBigVGANModel": "what speaks",
    "Token2WavDiTModel": "what speaks",
    "Cosmos3OmniForConditionalGeneration": "a model, which is tried by itself",
    "Qwen2_5OmniForConditionalGeneration": "a thinker, which is tried by itself, and what speaks",
    "Qwen3OmniMoeForConditionalGeneration": "a thinker, which is tried by itself, and what speaks",
    "GitForCausalLM": "a model with words, whose ViT is tried by itself",
    "UnlimitedOcrForConditionalGeneration": "two encoders, in tests/towers/test_ocr.py",
    "UnlimitedOcrModel": "two encoders, in tests/towers/test_ocr.py",
    "UnlimitedOcrVisionModel": "two encoders, in tests/towers/test_ocr.py",
    "ForCausalLM": "a text model",
    "ForSequenceClassification": "a text model",
    "ForTokenClassification": "a text model",
}
_CLASSIFIED = VISION | {"num_labels": 7}
_WIDE = TEXT | {"hidden_size": 36, "num_attention_heads": 3}
_LANGUAGE = TEXT | {"num_key_value_heads": 2, "head_dim": 10}
_EXPERTS = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_experts": 4}
_LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
_LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
_DINOV2 = DINOV2 | {"num_labels": 7}
# Its adapter joins four patches, and is as wide as the blocks' MLPs
_LLAMA_4 = VISION | {"image_size": 32, "intermediate_size": 144, "projector_input_dim": 20}
_LLAMA_4 |= {"projector_output_dim": 20, "vision_output_dim": 20}
_DECODER = {
    "decoder_hidden_size": 20,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 30,
}
_BEIT = _CLASSIFIED | {"use_relative_position_bias": True}
_GEMMA = VISION | {"num_key_value_heads": 3, "head_dim": 12, "position_embedding_size": 7}
_GEMMA_TEXT = {"vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 4}
_QWEN_3_5 = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "depth": 2,
    "num_heads": 3,
    "patch_size": 8,
    "out_hidden_size": 20,
    "num_position_embeddings": 16,
}
_QWEN = _QWEN_3_5 | {"deepstack_visual_indexes": [1]}
_QWEN_2 = {"embed_dim": 36, "hidden_size": 20, "mlp_ratio": 2}
_QWEN_2 |= {"depth": 2, "num_heads": 3, "patch_size": 8}
_QWEN_2_5 = {"hidden_size": 36, "intermediate_size": 50, "out_hidden_size": 20, "window_size": 40}
_QWEN_2_5 |= {"depth": 2, "num_heads": 3, "patch_size": 8, "fullatt_block_indexes": [1]}
_GLM = {"hidden_size": 36, "intermediate_size": 50, "out_hidden_size": 20, "depth": 2}
_GLM |= {"num_heads": 3, "patch_size": 8, "image_size": 32}
_ERNIE = _QWEN_2_5 | {"rms_norm_eps": 1e-5}
_ERNIE = {k: v for k, v in _ERNIE.items() if k not in ("out_hidden_size", "fullatt_block_indexes")}
_AUDIO = {"d_model": 20, "encoder_layers": 1, "encoder_attention_heads": 2, "output_dim": 20}
_AUDIO |= {"encoder_ffn_dim": 20, "num_mel_bins": 8, "max_source_positions": 20}
_TURNED = {"rope_type": "default", "rope_theta": 1e4}
_WINDOWS = {k: v for k, v in VISION.items() if k != "intermediate_size"}
_WINDOWS |= {"patch_size": 4, "window_size": 2}
_SAM = _WINDOWS | {"mlp_dim": 50, "global_attn_indexes": [1], "output_channels": 9}
_KEYS = {"num_key_value_heads": 3, "head_dim": 12}
_MOLMO = VISION | _KEYS | {"image_size": [24, 24]}
_STEP = {name: value for name, value in VISION.items() if name != "intermediate_size"}
_STEP |= {"mlp_ratio": 1.4}
_OCR_2 = {
    "sam_config": VISION | _SAM | {"downsample_channels": [10, 20]},
    "encoder_config": TEXT | {"num_key_value_heads": 2},
}
_SAM_3 = VISION | {"model_type": "sam3_vit_model", "image_size": 48, "pretrain_image_size": 24}
_SAM_3 |= {"window_size": 3, "global_attn_indexes": [1]}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 1]}
_MOONVIT = {k: v for k, v in VISION.items() if k != "image_size"}
_MOONVIT |= {"pos_emb_height": 4, "pos_emb_width": 4}
_DEEPSEEK = {"n_routed_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2}
_DEEPSEEK |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
_DEEPSEEK |= {"v_head_dim": 4, "n_group": 1, "topk_group": 1}
_HUNYUAN = {k: v for k, v in VISION.items() if k != "image_size"} | {"max_image_size": 24}
_COSMOS = {k: v for k, v in VISION.items() if k != "image_size"} | {"num_patches": 16}
_CODEBOOK = {"hidden_size": 4, "num_groups": 4, "num_blocks_per_group": 1, "vocab_size": 9}
_KOSMOS = {"vocab_size": 70, "embed_dim": 20, "layers": 1, "ffn_dim": 30, "attention_heads": 2}
_VITDET = {"pretrain_image_size": 24, "mlp_ratio": 2, "window_block_indices": [0]}
_VITDET |= {"use_relative_position_embeddings": True}
_RF_DETR = {"hidden_size": 24, "num_attention_heads": 3, "patch_size": 4, "mlp_ratio": 2}
_RF_DETR |= {"num_hidden_layers": 4, "image_size": 24, "num_windows": 2, "out_indices": [2, 4]}
_TWO: dict[str, Any] = {"vision_config": VISION, "text_config": _WIDE}
_PROJECTED = _TWO | {"projection_dim": 20, "num_labels": 7}
_Q_FORMER = {**TEXT, "encoder_hidden_size": 36}
_Q_READER = {"vision_config": VISION, "qformer_config": _Q_FORMER, "text_config": OPT}


def vision_of_sam_3(backbone: Any) -> dict[str, Any]:
    """Arguments of Sam3VisionConfig: a ViT, and a neck of convolutions."""
    return {"backbone_config": backbone, "fpn_hidden_size": 24}


def parts_of_sam_3(backbone: Any) -> dict[str, Any]:
    """Arguments of Sam3Config."""
    size = {"hidden_size": 24, "num_attention_heads": 2}
    small = size | {"intermediate_size": 30, "num_layers": 1}
    return {
        "vision_config": vision_of_sam_3(backbone),
        "text_config": TEXT | size | {"projection_dim": 24},
        "mask_decoder_config": size,
        **dict.fromkeys(("geometry_encoder_config", "detr_encoder_config"), small),
        "detr_decoder_config": small | {"num_queries": 5},
    }


# The arguments of each class's configuration, by the name of that; of towers by themselves, VISION.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "ViTConfig": _CLASSIFIED | {"encoder_stride": 8},
    "DeiTConfig": _CLASSIFIED | {"encoder_stride": 8},
    "ViTMSNConfig": _CLASSIFIED,
    "IJepaConfig": _CLASSIFIED,
    "ViTMAEConfig": VISION | _DECODER,
    "BeitConfig": _BEIT,
    "Data2VecVisionConfig": _BEIT,
    "Dinov2Config": _DINOV2,
    "Dinov2WithRegistersConfig": _DINOV2,
    "DINOv3ViTConfig": VISION | {"num_register_tokens": 4},
    "ASTConfig": _CLASSIFIED | {"num_mel_bins": 24, "max_length": 37},
    "DPTConfig": VISION
    | NECK
    | {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "auxiliary_loss_weight": 0.4},
    "CLIPVisionConfig": VISION | {"projection_dim": 20},
    "MetaClip2VisionConfig": VISION | {"projection_dim": 20},
    "CLIPConfig": _PROJECTED,
    "MetaClip2Config": _PROJECTED,
    "ChineseCLIPConfig": _PROJECTED,
    "AltCLIPConfig": _PROJECTED | {"text_config": TEXT | {"project_dim": 20}},
    "OwlViTConfig": _PROJECTED,
    "Owlv2Config": _PROJECTED,
    "CLIPSegConfig": _PROJECTED | {"extract_layers": [0, 1], "reduce_dim": 8},
    "GitConfig": TEXT | {"vision_config": VISION},
    "Kosmos2Config": {"vision_config": VISION, "text_config": _KOSMOS, "latent_query_num": 5},
    "FlavaImageConfig": VISION,
    "FlavaConfig": {
        "image_config": VISION,
        "text_config": TEXT,
        "multimodal_config": TEXT,
        "image_codebook_config": _CODEBOOK,
        "projection_dim": 20,
    },
    "SiglipConfig": _TWO | {"num_labels": 7},
    "Siglip2Config": _TWO | {"num_labels": 7, "vision_config": VISION | {"num_patches": 9}},
    "Siglip2VisionConfig": VISION | {"num_patches": 9},
    "Aimv2Config": _PROJECTED,
    "BlipConfig": _TWO | {"text_config": TEXT | {"encoder_hidden_size": 36}},
    "Blip2Config": _Q_READER,
    "InstructBlipConfig": _Q_READER,
    "InstructBlipVideoConfig": _Q_READER,
    "InternVLVisionConfig": VISION | {"image_size": [24, 24], "patch_size": [8, 8]},
    "QianfanOCRVisionConfig": VISION,
    "QianfanOCRConfig": {
        "vision_config": VISION,
        "text_config": _LANGUAGE | {"model_type": "qwen3"},
    },
    "Cosmos3EdgeVisionConfig": _COSMOS,
    "Cosmos3EdgeConfig": {
        "vision_config": _COSMOS,
        "text_config": _LANGUAGE | {"rope_parameters": _MROPE},
    },
    "HunYuanVLVisionConfig": _HUNYUAN,
    "HunYuanVLConfig": {"vision_config": _HUNYUAN, "text_config": _LANGUAGE},
    "Kimi_K25VisionConfig": _MOONVIT,
    "Kimi_K25Config": {
        "vision_config": _MOONVIT,
        "text_config": _LANGUAGE | _DEEPSEEK | {"model_type": "deepseek_v3"},
        "projection_hidden_size": 36,
    },
    "PaddleOCRVLConfig": {
        "vision_config": VISION,
        "text_config": _LANGUAGE | {"rope_parameters": _MROPE},
    },
    "Gemma4VisionConfig": _GEMMA,
    "Gemma4Config": {
        "vision_config": _GEMMA,
        "audio_config": None,
        "text_config": _LANGUAGE | _GEMMA_TEXT,
    },
    "Glm4vVisionConfig": _GLM,
    "Glm4vMoeVisionConfig": _GLM,
    "Glm4vConfig": {"vision_config": _GLM, "text_config": _LANGUAGE},
    "Glm4vMoeConfig": {"vision_config": _GLM, "text_config": _LANGUAGE | _EXPERTS},
    "GlmOcrVisionConfig": _GLM,
    "GlmOcrConfig": {"vision_config": _GLM, "text_config": _LANGUAGE},
    "Glm46VConfig": {"vision_config": _GLM, "text_config": _LANGUAGE},
    "Ernie4_5_VLMoeVisionConfig": _ERNIE,
    "Ernie4_5_VLMoeConfig": {
        "vision_config": _ERNIE,
        "text_config": _LANGUAGE
        | {"mlp_layer_types": ["dense"], "rope_parameters": _TURNED | {"mrope_section": [2, 2, 1]}},
    },
    "ColQwen2Config": {
        "vlm_config": {
            "model_type": "qwen2_vl",
            "vision_config": _QWEN_2,
            "text_config": _LANGUAGE,
        },
        "embedding_dim": 20,
    },
    "CohereCompassVisionConfig": _QWEN,
    "CohereCompassConfig": {
        "vision_config": _QWEN,
        "text_config": _LANGUAGE
        | {"layer_types": ["sliding_attention"], "rope_parameters": {"sliding_attention": _TURNED}},
    },
    "Cosmos3OmniConfig": {"vision_config": _QWEN, "text_config": _LANGUAGE},
    "HyperCLOVAXVisionV2Config": {"vision_config": _QWEN_2_5, "text_config": _LANGUAGE},
    "Qwen4ExpVisionConfig": _QWEN_3_5,
    "Qwen4ExpConfig": {
        "vision_config": _QWEN_3_5,
        "text_config": _LANGUAGE | _EXPERTS | _LINEAR | {"num_experts_per_tok": 2},
    },
    "Qwen2_5OmniVisionEncoderConfig": _QWEN_2_5,
    "Qwen2_5OmniThinkerConfig": {
        "vision_config": _QWEN_2_5,
        "audio_config": _AUDIO,
        "text_config": _LANGUAGE,
    },
    "Qwen3OmniMoeVisionEncoderConfig": _QWEN,
    "Qwen3OmniMoeThinkerConfig": {
        "vision_config": _QWEN,
        "audio_config": _AUDIO,
        "text_config": _LANGUAGE | _EXPERTS,
    },
    "Qwen2VLConfig": {"vision_config": _QWEN_2, "text_config": _LANGUAGE},
    "Qwen2_5_VLVisionConfig": _QWEN_2_5,
    "Qwen2_5_VLConfig": {"vision_config": _QWEN_2_5, "text_config": _LANGUAGE},
    "Qwen3VLVisionConfig": _QWEN,
    "Qwen3VLMoeVisionConfig": _QWEN,
    "Qwen3_5VisionConfig": _QWEN_3_5,
    "Qwen3_5MoeVisionConfig": _QWEN_3_5,
    "Qwen3VLConfig": {"vision_config": _QWEN, "text_config": _LANGUAGE},
    "Qwen3VLMoeConfig": {"vision_config": _QWEN, "text_config": _LANGUAGE | _EXPERTS},
    "Qwen3_5Config": {"vision_config": _QWEN_3_5, "text_config": _LANGUAGE | _LINEAR},
    "Qwen3_5MoeConfig": {
        "vision_config": _QWEN_3_5,
        "text_config": _LANGUAGE | _EXPERTS | _LINEAR,
    },
    "JanusConfig": {
        "vision_config": VISION | {"mlp_ratio": 1.5},
        "text_config": _LANGUAGE,
        "vq_config": {"embed_dim": 4, "num_embeddings": 9, "latent_channels": 4}
        | {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
        | {"projection_dim": 20, "num_patches": 3, "image_token_embed_dim": 20},
    },
    "Phi4MultimodalVisionConfig": VISION | {"attn_implementation": "eager"},  # others are causal
    "Phi4MultimodalConfig": _LANGUAGE
    | {
        "attn_implementation": "eager",
        "vision_config": VISION,
        "audio_config": {"hidden_size": 16, "intermediate_size": 9, "num_blocks": 1}
        | {"num_attention_heads": 2, "ext_pw_out_channel": 16, "nemo_conv_channels": 8},
    },
    "Llama4VisionConfig": _LLAMA_4,
    "Llama4Config": {
        "vision_config": _LLAMA_4,
        "text_config": _LANGUAGE | {"intermediate_size_mlp": 30, "num_local_experts": 2},
    },
    "Idefics2Config": {
        "vision_config": VISION,
        "text_config": _LANGUAGE,
        "perceiver_config": {"hidden_size": 20, "resampler_n_heads": 2, "resampler_head_dim": 10}
        | {"num_key_value_heads": 2, "resampler_n_latents": 3, "resampler_depth": 1},
    },
    "VideoLlama3Config": {"vision_config": VISION, "text_config": _LANGUAGE},
    "VitPoseBackboneConfig": VISION | {"image_size": [24, 24]},
    "VitPoseConfig": {"backbone_config": VISION | {"model_type": "vitpose_backbone"}},
    "Sam3ViTConfig": _SAM_3,
    "Sam3VisionConfig": vision_of_sam_3(_SAM_3),
    "Sam3Config": parts_of_sam_3(_SAM_3),
    "PixioConfig": VISION,
    "MLCDVisionConfig": VISION,
    "Tipsv2Config": {"vision_config": VISION, "text_config": _WIDE},
    "VJEPA2Config": VISION
    | {"crop_size": 24, "pred_hidden_size": 24, "pred_num_hidden_layers": 1, "num_labels": 7}
    | {"pred_num_attention_heads": 2},
    "VideoMAEConfig": VISION
    | {"num_frames": 4, "decoder_hidden_size": 24, "decoder_num_attention_heads": 2}
    | {"decoder_num_hidden_layers": 1, "decoder_intermediate_size": 9, "num_labels": 7},
    "VivitConfig": VISION | {"num_frames": 4, "tubelet_size": [2, 8, 8], "num_labels": 7},
    "RadioConfig": VISION | {"mlp_ratio": 2.0, "num_registers": 5, "max_img_size": 40},
    "SamVisionConfig": _SAM,
    "SamConfig": {"vision_config": _SAM},
    "SamHQVisionConfig": _SAM,
    "SamHQConfig": {"vision_config": _SAM},
    "GotOcr2Config": {
        "vision_config": _SAM,
        "text_config": _LANGUAGE | {"model_type": "qwen2"},
    },
    "Molmo2VisionConfig": _MOLMO,
    "Molmo2Config": {
        "vision_config": _MOLMO,
        "text_config": _LANGUAGE,
        "adapter_config": _KEYS
        | {"intermediate_size": 30, "text_hidden_size": 20}
        | {"hidden_size": 36, "num_attention_heads": 3, "vision_feature_layer": [0, 1]},
    },
    "Step3p7VisionConfig": _STEP,
    "Step3p7Config": {
        "vision_config": _STEP,
        "text_config": _LANGUAGE
        | {"layer_types": ["full_attention"], "mlp_layer_types": ["dense"]},
    },
    **{
        f"{name}Config": {
            "vision_config": VISION | {"image_size": 32},
            "text_config": _LANGUAGE | _LINEAR | {"model_type": "qwen3_5_text"},
        }
        for name in ("MiniCPMV4_6", "MiniCPMV4_7", "MiniCPMOcr")
    },
    "DeepseekOcr2VisionConfig": _OCR_2,
    "DeepseekOcr2Config": {"vision_config": _OCR_2}
    | {"text_config": _LANGUAGE | {"mlp_layer_types": ["dense"]}},
    "SLANeXtConfig": {"vision_config": _SAM, "post_conv_in_channels": 9}
    | {"post_conv_out_channels": 11, "out_channels": 5, "hidden_size": 12, "max_text_length": 3},
    "VitDetConfig": _WINDOWS | _VITDET,
    "RfDetrDinov2Config": _RF_DETR,
    "RfDetrConfig": {
        "backbone_config": _RF_DETR | {"model_type": "rf_detr_dinov2"},
        "num_queries": 5,
        "d_model": 16,
        "decoder_layers": 2,
    },
}
# Configurations that hold others: of a larger model that has one.
_OF_FAMILY = {
    "InternVLConfig": "internvl",
    "Idefics3Config": "idefics3",
    "SmolVLMConfig": "smolvlm",
}
# What a class asks for besides.
_OF_CLASS = {
    "ForMaskedImageModeling": {"use_mask_token": True},
    "ForSemanticSegmentation": {"num_hidden_layers": 4, "out_indices": STAGES["out_indices"]},
}
# What nothing tells, by beginnings of names
STATED = {"Gemma4": {"image_size": (24, 24)}}
STATED |= {name: {"image_size": (32, 48)} for name in ("Qwen2V", "Qwen2_", "ColQwe", "VideoL")}
STATED |= {name: {"image_size": (32, 48)} for name in ("GlmOcr", "Ernie4", "HyperC")}


def model_types() -> set[str]:
    """The types of config.json that the tables of Hugging Face identify."""
    marks = (t.config_file for t in builtin_tables().values() if t.ecosystem == "hf")
    return {word for mark in marks if mark for word in mark.identify.get("model_type", ())}


@functools.cache
def classes() -> dict[str, Any]:
    """Each class that stands beside those of these model types: name -> class."""
    auto = import_module("transformers.models.auto.configuration_auto")
    found: dict[str, Any] = {}
    for model_type in sorted(model_types() & auto.CONFIG_MAPPING_NAMES.keys()):
        config = type(transformers.AutoConfig.for_model(model_type))
        module = import_module(config.__module__.replace(".configuration_", ".modeling_"))
        found |= {name: getattr(module, name) for name in module.__all__}
    former = "Ernie4_5_VL_Moe"  # begins deprecated names of the same classes
    found = {n: c for n, c in found.items() if not n.startswith(former)}
    return {n: c for n, c in found.items() if not n.endswith(tuple(WITHOUT_VIT))}


def made(name: str, **changes: Any) -> nn.Module:
    """A model of a class; a class whose configuration is in no list is a KeyError."""
    kind = classes()[name]
    config = kind.config_class.__name__
    torch.manual_seed(5)
    if config in _OF_FAMILY:
        return randomise_calmly(kind(FAMILIES[_OF_FAMILY[config]].make().config))
    arguments = VISION if config.endswith("VisionConfig") else {}
    arguments = dict(ARGUMENTS[config] if config in ARGUMENTS or not arguments else arguments)
    if not name.startswith("DPT"):
        for end, more in _OF_CLASS.items():
            arguments |= more if name.endswith(end) else {}
    return randomise_calmly(kind(kind.config_class(**arguments | changes)))


def saved(name: str, folder: Path) -> Path:
    """A model of a class, as `save_pretrained` writes it."""
    with warnings.catch_warnings(action="ignore"):
        made(name).save_pretrained(folder)
    return folder
