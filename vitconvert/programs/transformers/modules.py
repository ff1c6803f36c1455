"""transformers' classes by the type of their config.json: how each is called, and where what is
compared is in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitconvert.programs.program import Foreign

TOWER = "_vision_model"  # ends the model type of an image tower by itself
Inputs = dict[str, Tensor | bool]


def _pixels(_: Foreign, images: Tensor) -> Inputs:
    return {"pixel_values": images}


def _spectrograms(_: Foreign, images: Tensor) -> Inputs:
    return {"input_values": images[:, 0].transpose(1, 2)}  # (B, time, frequencies)


def _frames(_: Foreign, images: Tensor) -> Inputs:
    return {"pixel_values_videos": images[:, None], "skip_predictor": True}


def _pixels_in_order(model: Foreign, images: Tensor) -> Inputs:
    """Masks nothing, but the class sorts patches by this noise: keep them in order."""
    noise = torch.arange(model.embeddings.patch_embeddings.num_patches).expand(len(images), -1)
    return {"pixel_values": images, "noise": noise}


def _grid(images: Tensor, side: int) -> Tensor:
    """Patches of images, (B, rows, columns, channel, y, x)."""
    return images.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5)


def _patches_with_mask(model: Foreign, images: Tensor) -> Inputs:
    """As the processor of SigLIP 2 prepares images: flattened patches, (y x channel)."""
    config = model.config
    grid = _grid(images, getattr(config, "vision_config", config).patch_size)
    B, rows, columns = grid.shape[:3]
    patches = grid.movedim(3, 5).flatten(1, 2).flatten(2)
    return {
        "pixel_values": patches,
        "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, columns]] * B),
    }


def _patches_with_places(model: Foreign, images: Tensor) -> Inputs:
    """As the processor of Gemma 4 prepares images: flattened patches, (channel y x), and (x, y).

    transformers 5.23, `image_processing_gemma4.py`.
    """
    grid = _grid(images, model.config.patch_size)
    B, rows, columns = grid.shape[:3]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack((x, y), dim=-1).flatten(0, 1)
    return {
        "pixel_values": grid.flatten(1, 2).flatten(2),
        "pixel_position_ids": places.expand(B, -1, -1),
    }


def _patches_in_squares(model: Foreign, images: Tensor) -> Inputs:
    """As the processor of Qwen-VL prepares images: patches, (channel frame y x), in squares.

    transformers 5.23, `image_processing_qwen2_vl.py`: squares of patches that are merged follow one
    another.
    """
    config = model.config
    merged = getattr(config, "spatial_merge_size", 1)
    frames = getattr(config, "temporal_patch_size", 1)
    grid = _grid(images, config.patch_size)
    squares = grid.unfold(1, merged, merged).unfold(2, merged, merged)
    patches = squares.permute(0, 1, 2, 6, 7, 3, 4, 5).flatten(0, 4)[:, :, None]
    return {
        "hidden_states": patches.expand(-1, -1, frames, -1, -1).flatten(1),
        "grid_thw": torch.tensor([[1, *grid.shape[1:3]]] * len(images)),
    }


def _patches_of_one_frame(model: Foreign, images: Tensor) -> Inputs:
    """As the processor of VideoLLaMA 3 prepares images, of which it merges no tokens."""
    given = _patches_in_squares(model, images)
    merges = torch.ones(len(images), dtype=torch.int64)
    return {"pixel_values": given.pop("hidden_states"), "merge_sizes": merges, **given}


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
    in_one_row: bool = False  # whether it gives the tokens of all images one after another
    in_squares: bool = False  # whether its tokens come in squares that nothing merges
    tapped: bool = True  # whether the tokens of its blocks are in the order of vitconvert's
    rounded: str = ""  # what it computes in float32, whatever the dtype of the weights
    summed: str = ""  # what vitconvert computes of it in float32


_VIT = Modules()
_DINOV2 = Modules(block="encoder.layer.{i}", norm2="norm2", pooled=True)
_SIGLIP = Modules(
    patches="embeddings.patch_embedding",
    block="encoder.layers.{i}",
    norm2="layer_norm2",
    norm="post_layernorm",
)
_CLIP = replace(_SIGLIP, norm="", pooled=True)
_MERGED = replace(
    _VIT,
    pooled=True,
    inputs=_patches_in_squares,
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
MODULES = {
    **dict.fromkeys(("vit", "deit", "vit_msn", "ijepa", "beit"), _VIT),
    "vit_mae": replace(_VIT, inputs=_pixels_in_order),
    "data2vec-vision": Modules(block="encoder.layer.{i}"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), _DINOV2),
    "dinov3_vit": Modules(
        block="model.layer.{i}", norm2="norm2", norm="norm", pooled=True, rounded="rotary angles"
    ),
    **dict.fromkeys(("clip", "chinese_clip"), _CLIP),
    "metaclip_2": replace(_CLIP, kind="MetaClip2VisionModel"),
    "altclip": replace(_CLIP, kind="AltCLIPVisionModel"),
    "owlvit": replace(_CLIP, kind="OwlViTVisionModel"),
    "owlv2": replace(_CLIP, kind="Owlv2VisionModel"),
    "siglip": _SIGLIP,
    "siglip2": replace(_SIGLIP, inputs=_patches_with_mask),
    **dict.fromkeys(
        ("idefics3", "idefics3_vision"), replace(_SIGLIP, kind="Idefics3VisionTransformer")
    ),
    **dict.fromkeys(
        ("smolvlm", "smolvlm_vision"), replace(_SIGLIP, kind="SmolVLMVisionTransformer")
    ),
    "mlcd": replace(_CLIP, kind="MLCDVisionModel", rounded="rotary angles"),
    "blip": replace(_CLIP, kind="BlipVisionModel", pooled=False),
    "blip_2": replace(_CLIP, kind="Blip2VisionModel", pooled=False),
    "instructblip": replace(_CLIP, kind="InstructBlipVisionModel", pooled=False),
    "instructblipvideo": replace(_CLIP, kind="InstructBlipVideoVisionModel", pooled=False),
    "internvl_vision": Modules(block="encoder.layer.{i}"),
    "audio-spectrogram-transformer": replace(_VIT, pooled=True, inputs=_spectrograms),
    "dpt": Modules(block="encoder.layer.{i}"),
    "sam": Modules(
        patches="vision_encoder.patch_embed",
        block="vision_encoder.layers.{i}",
        norm2="layer_norm2",
        norm="",
        within="vision_encoder.",
        last=("",),
        kind="SamVisionModel",
    ),
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
    "vjepa2": replace(
        _DINOV2,
        patches="encoder.embeddings.patch_embeddings",
        norm="encoder.layernorm",
        pooled=False,
        inputs=_frames,
        summed="sum over frames",
    ),
    **{name: replace(_MERGED, kind=kind) for name, kind in _WITH_MERGERS.items()},
    "video_llama_3_vision": replace(
        _MERGED, kind="VideoLlama3VisionModel", inputs=_patches_of_one_frame
    ),
    "ernie4_5_vl_moe_vision": replace(
        _MERGED, kind="Ernie4_5_VLMoeVisionTransformerPretrainedModel", in_squares=True
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
