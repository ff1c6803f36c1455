"""transformers' classes by the type of their config.json: how each is called, and where what is
compared is in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature

import torch
from torch import Tensor

from vitconvert.programs.program import Foreign

TOWER = "_vision_model"  # ends the model type of a vision encoder by itself
Inputs = dict[str, Tensor | bool]
_INTERPOLATE = "interpolate_pos_encoding"
_LEAST_TOKENS = 70  # that Gemma 4's processor pads to: image_processing_gemma4.py


def _pixels(model: Foreign, images: Tensor) -> Inputs:
    """With the word for images of another size, where the class has one (DINOv2 needs none)."""
    config = getattr(model.config, "vision_config", model.config)
    side = getattr(config, "image_size", None)
    size = (side, side) if isinstance(side, int) else tuple(side or images.shape[-2:])
    if size == tuple(images.shape[-2:]) or _INTERPOLATE not in signature(model.forward).parameters:
        return {"pixel_values": images}
    return {"pixel_values": images, _INTERPOLATE: True}


def _spectrograms(_: Foreign, images: Tensor) -> Inputs:
    return {"input_values": images[:, 0].transpose(1, 2)}  # (B, time, frequencies)


def _frames(_: Foreign, images: Tensor) -> Inputs:
    frames = images[:, None] if images.ndim == 4 else images.transpose(1, 2)
    return {"pixel_values_videos": frames, "skip_predictor": True}


def _clips(_: Foreign, clips: Tensor) -> Inputs:
    return {"pixel_values": clips.transpose(1, 2)}  # (B, frames, channels, height, width)


def _pixels_in_order(model: Foreign, images: Tensor) -> Inputs:
    """Masks nothing, but the class sorts patches by this noise: keep them in order."""
    noise = torch.arange(model.embeddings.patch_embeddings.num_patches).expand(len(images), -1)
    return {"pixel_values": images, "noise": noise}


def _processed(model: Foreign, images: Tensor, **sizes: int) -> Mapping[str, Tensor]:
    """What the image processor of a class makes of images that need no resizing.

    The order of pixels in a patch, of patches and of their places is the processor's own. A second
    reading of it here would agree with a table that has the same mistake.
    """
    package, name = import_module("transformers"), places_of(model).processor
    kind = getattr(package, f"{name}Pil", None) or getattr(package, name)  # Kimi's has none
    processor = kind(**sizes)
    made: Mapping[str, Tensor] = processor(
        list(images),
        do_convert_rgb=False,
        do_resize=False,
        do_rescale=False,
        do_normalize=False,
        input_data_format="channels_first",
        return_tensors="pt",
    )
    return made


def _patches_with_mask(model: Foreign, images: Tensor) -> Inputs:
    config = getattr(model.config, "vision_config", model.config)
    side = config.patch_size
    most = (images.shape[-2] // side) * (images.shape[-1] // side)  # so that none is padding
    return dict(_processed(model, images, patch_size=side, max_num_patches=most))


def _patches_of_molmo(model: Foreign, images: Tensor) -> Inputs:
    """As its image processor cuts crops, which it makes of every image."""
    processing = import_module("transformers.models.molmo2.image_processing_molmo2")
    side = model.config.patch_size
    return {"pixel_values": processing.batch_pixels_to_patches(images.movedim(1, -1), side)}


def _patches_in_a_row(model: Foreign, images: Tensor) -> Inputs:
    """Of MiniCPM-V, whose blocks have a merger between them, or none."""
    made = _processed(model, images, patch_size=model.config.patch_size, slice_mode=False)
    sizes = {"pixel_values": made["pixel_values"], "target_sizes": made["target_sizes"]}
    return {**sizes, "use_vit_merger": False}


def _patches_with_places(model: Foreign, images: Tensor) -> Inputs:
    config = model.config
    made = _processed(
        model,
        images,
        patch_size=config.patch_size,
        pooling_kernel_size=config.pooling_kernel_size,
        max_soft_tokens=_LEAST_TOKENS,
    )
    places = made["image_position_ids"]
    used = (places[0] >= 0).all(-1)  # the rest is padding, in each image of this size
    return {
        "pixel_values": made["pixel_values"][:, used],
        "pixel_position_ids": places[:, used],
    }


def _pixels_in_squares(model: Foreign, images: Tensor) -> Inputs:
    """Of Cosmos 3 Edge, which calls patches pixels."""
    patches, grid = _patches_in_squares(model, images).values()
    return {"pixel_values": patches, "grid_thw": grid}


def _patches_in_squares(model: Foreign, images: Tensor) -> Inputs:
    config = model.config
    made = _processed(
        model,
        images,
        patch_size=config.patch_size,
        merge_size=config.spatial_merge_size,
        temporal_patch_size=getattr(config, "temporal_patch_size", 1),
    )
    return {"hidden_states": made["pixel_values"], "grid_thw": made["image_grid_thw"]}


def _patches_as_images(model: Foreign, images: Tensor) -> Inputs:
    """Of PaddleOCR-VL, whose patches stay images, all in one row."""
    made = _processed(model, images, patch_size=model.config.patch_size, merge_size=1)
    return {"pixel_values": made["pixel_values"][None], "grid_thw": made["image_grid_thw"]}


def _patches_in_rows(model: Foreign, images: Tensor) -> Inputs:
    """Of Hunyuan VL, and of Kimi K2.5, whose patches stay images."""
    made = _processed(model, images, patch_size=model.config.patch_size, merge_size=1)
    return {"pixel_values": made["pixel_values"], "grid_thw": made["image_grid_thw"]}


def _patches_of_one_frame(model: Foreign, images: Tensor) -> Inputs:
    """Of VideoLLaMA 3, which merges no tokens of images."""
    made = _processed(model, images, patch_size=model.config.patch_size, merge_size=1)
    return {
        "pixel_values": made["pixel_values"],
        "grid_thw": made["image_grid_thw"],
        "merge_sizes": made["image_merge_sizes"],
    }


@dataclass(frozen=True, kw_only=True)
class Modules:
    """The modules of one model type whose outputs are compared."""

    patches: str = "embeddings.patch_embeddings"
    block: str = "layers.{i}"
    norm2: str = "layernorm_after"
    norm: str = "layernorm"  # of all tokens
    within: str = ""  # what stands before the tower's names in the class
    last: tuple[str, ...] = ()  # ends of layers where patches are a grid with the channels last
    kind: str = ""  # the class, where transformers' own lists have none
    pooled: bool = False  # whether it pools tokens as vitconvert's model does, without a head
    inputs: Callable[[Foreign, Tensor], Inputs] = _pixels  # what the class is called with
    processor: str = ""  # the class of its image processor, where that cuts images into patches
    in_one_row: bool = False  # whether it gives the tokens of all images one after another
    in_squares: bool = False  # whether its tokens come in squares that nothing merges
    renamed: tuple[tuple[str, str], ...] = ()  # patterns of names that the class does not read
    class_last: str = ""  # the module that gives this ViT's tokens, with its class token at the end
    eager: str = ""  # what its default attention is, where only the eager one is this ViT's
    tapped: bool = True  # whether the tokens of its blocks are in the order of vitconvert's
    rounded: str = ""  # what it computes in float32, whatever the dtype of the weights
    summed: str = ""  # what vitconvert computes of it in float32
    behind: tuple[str, ...] = ()  # modules behind the ViT, of which the first reads its tokens


_VIT = Modules()
_DINOV2 = Modules(block="encoder.layer.{i}", norm2="norm2", pooled=True)
_SIGLIP = Modules(
    patches="embeddings.patch_embedding",
    block="encoder.layers.{i}",
    norm2="layer_norm2",
    norm="post_layernorm",
)
_CLIP = replace(_SIGLIP, norm="", pooled=True)
_SAM = Modules(
    patches="vision_encoder.patch_embed",
    block="vision_encoder.layers.{i}",
    norm2="layer_norm2",
    norm="",
    within="vision_encoder.",
    last=("",),
)
_SAM_ALONE = replace(
    _SAM,
    patches="patch_embed",
    block="layers.{i}",
    within="",
    rounded="softmax of attention",
)
# Before two convolutions that halve the map of its neck
_SAM_OF_OCR = replace(_SAM_ALONE, behind=("proj",))
# OpenGVLab's names, which a whole Qianfan-OCR has on disk
_INTERNVIT = (
    (r"^encoder\.", ""),
    (r"embeddings\.class_embedding", "embeddings.cls_token"),
    (r"position_embedding$", "position_embeddings"),
    (r"patch_embedding\.", "patch_embeddings.projection."),
    (r"\.ls([12])$", r".lambda_\1"),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"\.attn\.proj\.", ".attention.projection_layer."),
    (r"\.attn\.", ".attention."),
)
_MERGED = replace(
    _VIT,
    pooled=True,
    inputs=_patches_in_squares,
    processor="Qwen2VLImageProcessor",
    in_one_row=True,
    tapped=False,
    rounded="rotary angles",
)
_WITH_MERGERS = {
    "qwen2_vl_vision": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl_vision": "Qwen2_5_VisionTransformerPretrainedModel",
    "glm4v_vision": "Glm4vVisionModel",
    "glm4v_moe_vision": "Glm4vMoeVisionModel",
    "qwen2_5_omni_vision_encoder": "Qwen2_5OmniVisionEncoder",
    "qwen3_omni_moe_vision_encoder": "Qwen3OmniMoeVisionEncoder",
    "qwen4_exp_vision": "Qwen4ExpVisionModel",
    "cohere_compass_vision": "CohereCompassVisionModel",
    "glm_ocr_vision": "GlmOcrVisionModel",
    "qwen3_vl_vision": "Qwen3VLVisionModel",
    "qwen3_vl_moe_vision": "Qwen3VLMoeVisionModel",
    "qwen3_5_vision": "Qwen3_5VisionModel",
    "qwen3_5_moe_vision": "Qwen3_5MoeVisionModel",
}
_MINICPM = {
    "minicpmv4_6": "MiniCPMV4_6",
    "minicpmv4_7": "MiniCPMV4_7",
    "minicpm_ocr": "MiniCPMOcr",
}
_PROCESSORS = {
    "glm4v_vision": "Glm4vImageProcessor",
    "glm4v_moe_vision": "Glm4vImageProcessor",
    "glm_ocr_vision": "Glm46VImageProcessor",
    "cohere_compass_vision": "CohereCompassImageProcessor",
}
MODULES = {
    **dict.fromkeys(("vit", "deit", "vit_msn", "ijepa", "beit"), _VIT),
    "vit_mae": replace(_VIT, inputs=_pixels_in_order),
    "data2vec-vision": Modules(block="encoder.layer.{i}"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), _DINOV2),
    "rf_detr_dinov2": replace(_DINOV2, kind="RfDetrDinov2Backbone", tapped=False),
    "dinov3_vit": Modules(
        block="model.layer.{i}", norm2="norm2", norm="norm", pooled=True, rounded="rotary angles"
    ),
    **dict.fromkeys(("clip", "chinese_clip"), _CLIP),
    "metaclip_2": replace(_CLIP, kind="MetaClip2VisionModel"),
    # 5.x writes a spelling that only the whole model reads
    "altclip": replace(
        _CLIP, kind="AltCLIPVisionModel", renamed=((r"encoder\.layer\.", "encoder.layers."),)
    ),
    "owlvit": replace(_CLIP, kind="OwlViTVisionModel"),
    "owlv2": replace(_CLIP, kind="Owlv2VisionModel"),
    "clipseg": replace(_CLIP, kind="CLIPSegVisionModel"),
    "kosmos_2": replace(
        _CLIP,
        kind="Kosmos2VisionModel",
        within="model.",
        patches="model.embeddings.patch_embedding",
        block="model.encoder.layers.{i}",
    ),
    "git": replace(
        _SIGLIP, kind="GitVisionModel", within="vision_model.", rounded="softmax of attention"
    ),
    "flava_image_model": replace(_VIT, kind="FlavaImageModel"),
    "siglip": _SIGLIP,
    "siglip2": replace(_SIGLIP, inputs=_patches_with_mask, processor="Siglip2ImageProcessor"),
    "molmo2_vision": replace(
        _SIGLIP,
        patches="patch_embedding",
        block="layers.{i}",
        norm="",
        kind="Molmo2VisionModel",
        inputs=_patches_of_molmo,
        renamed=(
            (r"^transformer\.resblocks\.", "layers."),
            (r"\.attention\.w([qkvo])\.", r".self_attn.\1_proj."),
            (r"\.feed_forward\.w([12])\.", r".mlp.fc\1."),
            (r"\.attention_norm\.", ".layer_norm1."),
            (r"\.ffn_norm\.", ".layer_norm2."),
        ),
    ),
    **{
        f"{name}_vision": replace(
            _SIGLIP,
            kind=f"{kind}VisionModel",
            pooled=True,
            inputs=_patches_in_a_row,
            processor="MiniCPMV4_6ImageProcessor",
            in_one_row=True,
            tapped=False,
        )
        for name, kind in _MINICPM.items()
    },
    **dict.fromkeys(
        ("idefics2", "idefics2_vision"), replace(_SIGLIP, kind="Idefics2VisionTransformer")
    ),
    **dict.fromkeys(
        ("idefics3", "idefics3_vision"), replace(_SIGLIP, kind="Idefics3VisionTransformer")
    ),
    **dict.fromkeys(
        ("smolvlm", "smolvlm_vision"), replace(_SIGLIP, kind="SmolVLMVisionTransformer")
    ),
    "llama4": replace(
        _VIT,
        kind="Llama4VisionModel",
        class_last="layernorm_post",
        tapped=False,
        rounded="rotation of queries and keys",
    ),
    "unlimited_ocr_vision_encoder": replace(_CLIP, kind="UnlimitedOcrVisionEncoder", pooled=False),
    "phi4_multimodal_vision": replace(
        _SIGLIP,
        kind="Phi4MultimodalVisionModel",
        eager="causal",  # transformers 5.24: sdpa, without a mask, asks `is_causal`
        rounded="softmax of attention",
    ),
    "janus": replace(_SIGLIP, kind="JanusVisionModel", norm=""),  # it norms the first token twice
    "mlcd": replace(_CLIP, kind="MLCDVisionModel", rounded="rotary angles"),
    "blip": replace(_CLIP, kind="BlipVisionModel", pooled=False),
    "blip_2": replace(_CLIP, kind="Blip2VisionModel", pooled=False),
    "instructblip": replace(_CLIP, kind="InstructBlipVisionModel", pooled=False),
    "instructblipvideo": replace(_CLIP, kind="InstructBlipVideoVisionModel", pooled=False),
    "internvl_vision": Modules(block="encoder.layer.{i}"),
    "qianfan_ocr_vision": replace(_VIT, kind="QianfanOCRVisionModel", renamed=_INTERNVIT),
    "audio-spectrogram-transformer": replace(_VIT, pooled=True, inputs=_spectrograms),
    "dpt": Modules(block="encoder.layer.{i}"),
    "sam": replace(_SAM, kind="SamVisionModel"),
    "sam_hq": replace(_SAM, kind="SamHQVisionModel"),
    "got_ocr2_vision": replace(_SAM_ALONE, kind="GotOcr2VisionEncoder"),
    "slanext_vision": replace(_SAM_ALONE, kind="SLANeXtVisionEncoder"),
    "deepseek_ocr2_sam": replace(
        _SAM_OF_OCR,
        kind="DeepseekOcr2SamVisionEncoder",
        renamed=(
            (r"^blocks\.(\d+)\.norm", r"layers.\1.layer_norm"),
            (r"^blocks\.", "layers."),
            (r"^patch_embed\.proj\.", "patch_embed.projection."),
            (r"^neck\.0\.", "neck.conv1."),
            (r"^neck\.1\.", "neck.layer_norm1."),
            (r"^neck\.2\.", "neck.conv2."),
            (r"^neck\.3\.", "neck.layer_norm2."),
        ),
    ),
    "unlimited_ocr_sam": replace(_SAM_OF_OCR, kind="UnlimitedOcrSamVisionEncoder"),
    "vitdet": Modules(
        patches="embeddings.projection",
        block="encoder.layer.{i}",
        norm2="norm2",
        norm="",
        last=(".attn",),
    ),
    "gemma4_vision": Modules(
        patches="patch_embedder.input_proj",
        block="encoder.layers.{i}",
        norm2="pre_feedforward_layernorm",
        norm="",
        kind="Gemma4VisionModel",
        pooled=True,
        inputs=_patches_with_places,
        processor="Gemma4ImageProcessor",
        in_one_row=True,
        rounded="norms",
    ),
    "pixtral": Modules(
        patches="patch_conv",
        block="transformer.layers.{i}",
        norm2="ffn_norm",
        norm="",
        kind="PixtralVisionModel",
        pooled=True,
        in_one_row=True,
        tapped=False,
        rounded="rotary angles",
    ),
    "step3p5_vision": Modules(
        patches="embeddings.patch_embedding",
        norm="",
        kind="Step3p7VisionModel",
        behind=("downsampler1", "downsampler2"),
        rounded="rotary angles",
    ),
    "radio": Modules(
        patches="embeddings.patch_projection",
        block="encoder.layer.{i}",
        norm2="norm2",
        norm="",
        kind="RadioModel",
        rounded="fitted positions",
    ),
    "sam3_vit_model": Modules(
        norm="",
        norm2="layer_norm2",
        kind="Sam3ViTModel",
        last=("",),
        rounded="rotation of queries and keys",
    ),
    "tipsv2": _DINOV2,
    "pixio": replace(_VIT, pooled=True),
    "vitpose_backbone": replace(
        _VIT, kind="VitPoseBackbone", block="encoder.layer.{i}", summed="sums of positions"
    ),
    "videomae": replace(_VIT, block="encoder.layer.{i}", inputs=_clips),
    "vivit": replace(_VIT, inputs=_clips),
    "vjepa2": replace(
        _DINOV2,
        patches="encoder.embeddings.patch_embeddings",
        norm="encoder.layernorm",
        pooled=False,
        inputs=_frames,
        summed="sum over frames and rotary angles",
    ),
    **{
        name: replace(_MERGED, kind=kind, processor=_PROCESSORS.get(name, _MERGED.processor))
        for name, kind in _WITH_MERGERS.items()
    },
    "video_llama_3_vision": replace(
        _MERGED,
        kind="VideoLlama3VisionModel",
        inputs=_patches_of_one_frame,
        processor="VideoLlama3ImageProcessor",
    ),
    "paddleocr_vl_vision": replace(
        _SIGLIP,
        kind="PaddleOCRVisionModel",
        within="vision_model.",
        pooled=True,
        inputs=_patches_as_images,
        processor="PaddleOCRVLImageProcessor",
        in_one_row=True,
        tapped=False,
        rounded="rotary angles",
    ),
    "hunyuan_vl_vision": replace(
        _SIGLIP,
        kind="HunYuanVLVisionTransformer",
        block="layers.{i}",
        norm="",
        inputs=_patches_in_rows,
        processor="HunYuanVLImageProcessor",
        in_one_row=True,
        tapped=False,
        rounded="fitted positions",
        renamed=(
            (r"\.input_layernorm\.", ".layer_norm1."),
            (r"\.post_attention_layernorm\.", ".layer_norm2."),
            (r"\.dense_h_to_4h\.", ".fc1."),
            (r"\.dense_4h_to_h\.", ".fc2."),
            (r"^perceive\.proj\.0\.", "patch_merger.proj_conv."),
            (r"^perceive\.proj\.2\.", "patch_merger.proj_out."),
            (r"^perceive\.", "patch_merger."),
        ),
    ),
    "kimi_k25_vision": Modules(
        kind="Kimi_K25VisionModel",
        inputs=_patches_in_rows,
        processor="Kimi_K25ImageProcessor",
        in_one_row=True,
        tapped=False,
        rounded="rotary angles",
        renamed=(  # Moonshot's names
            (r"^encoder\.", ""),
            (r"^blocks\.", "layers."),
            (r"^(patch_embed\.pos_emb)\.weight$", r"\1.position_embeddings"),
            (r"^(layers\.\d+)\.wqkv\.", r"\1.attn.qkv."),
            (r"^(layers\.\d+)\.wo\.", r"\1.attn.proj."),
        ),
    ),
    "cosmos3_edge_vision": replace(
        _SIGLIP,
        kind="Cosmos3EdgeVisionModel",
        pooled=True,
        inputs=_pixels_in_squares,
        processor="Cosmos3EdgeImageProcessor",
        in_one_row=True,
        in_squares=True,
        tapped=False,
        rounded="fitted positions",
        renamed=(
            (r"\.to_([qkv])\.", r".\1_proj."),
            (r"\.up_proj\.", ".fc1."),
            (r"\.down_proj\.", ".fc2."),
        ),
    ),
    "ernie4_5_vl_moe_vision": replace(
        _MERGED,
        kind="Ernie4_5_VLMoeVisionTransformerPretrainedModel",
        processor="Ernie4_5_VLMoeImageProcessor",
        in_squares=True,
    ),
    "aimv2": Modules(
        patches="embeddings.rms_norm",
        block="encoder.layers.{i}",
        norm2="rms_norm2",
        norm="rms_norm",
        rounded="norms",
    ),
}


def places_of(model: Foreign) -> Modules:
    """What is known of a model's class: by its type, or what most of them have in common."""
    return MODULES.get(model.config.model_type.removesuffix(TOWER), Modules())
