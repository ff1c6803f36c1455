"""Encoders of transformers that are ViTs and little known as such, each by its own class."""

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.huggingface.classes import TEXT
from tests.huggingface.every_class import parts_of_sam_3, vision_of_sam_3
from tests.packages import transformers
from tests.small_models import assert_same_tensors, relative
from tests.towers.families import LANGUAGE, NECK
from tests.uses import embedded, in_onnx_runtime
from vitconvert.errors import MissingFact, NotRepresentable, TensorMismatch, UnknownDialect
from vitconvert.programs.reference import as_tokens
from vitconvert.programs.transformers.modules import MODULES
from vitconvert.programs.transformers.running import class_named, run_opened

SAM = {"mlp_dim": 50, "output_channels": 9, "window_size": 2, "global_attn_indexes": [3, 10]}
SIZES = {"hidden_size": 60, "num_hidden_layers": 11, "num_attention_heads": 3, "patch_size": 8}


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A class, and what it is made with and held by."""

    kind: str
    dialect: str
    sizes: tuple[tuple[int, int], ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    size: str = "image_size"  # its word for it
    targets: tuple[str, ...] = ("vit",)
    changed: str = "(?!)"  # names of tensors that are not written as they were
    listed: bool = False  # whether a size is a list, of a square too
    prefix: str = ""  # what is written before names, as older releases had it
    oblong: bool = False  # whether it fits its positions to other images
    merged: bool = False  # whether its class has a merger, which is not read, and is not written

    def made(self, size, kind=None, **changes):
        """A model with every parameter random, and calm: float32 of deep models differs."""
        of_kind = class_named(kind or self.kind)
        height, width = size
        square = height == width and not self.listed
        said = {self.size: height if square else [height, width]}
        if self.size == "num_patches":
            said = {self.size: height * width // 64}
        if self.size == "pos_emb_height":
            said = {self.size: height // 8, "pos_emb_width": width // 8}
        model = of_kind(of_kind.config_class(**SIZES | self.arguments | said | changes))
        torch.manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.1).add_(0.1 if parameter.ndim == 1 else 0.0)
        return model.eval()


ENCODERS = {
    "V-JEPA 2": Encoder(
        kind="VJEPA2Model",
        dialect="hf_vjepa2",
        sizes=((24, 24), (40, 40)),
        arguments={"mlp_ratio": 2, "pred_hidden_size": 24}
        | {"pred_num_hidden_layers": 1, "pred_num_attention_heads": 2},
        size="crop_size",
        changed=r"predictor|patch_embeddings\.proj\.weight",
    ),
    "ViTPose": Encoder(
        kind="VitPoseBackbone",
        dialect="hf_vitpose",
        sizes=((32, 24), (24, 48)),
        arguments={"mlp_ratio": 2},
        changed="position_embeddings",
    ),
    "SAM 3": Encoder(
        kind="Sam3ViTModel",
        dialect="hf_sam3",
        sizes=((24, 24), (64, 64)),
        arguments={"intermediate_size": 50, "pretrain_image_size": 24}
        | {"window_size": 3, "global_attn_indexes": [3, 7]},
    ),
    "Pixio": Encoder(
        kind="PixioModel",
        dialect="hf_pixio",
        sizes=((24, 24), (40, 40)),
        arguments={"mlp_ratio": 2},
        oblong=True,
    ),
    "TIPSv2": Encoder(
        kind="Tipsv2VisionModel",
        dialect="hf_tipsv2",
        sizes=((24, 24), (40, 40)),
        arguments={"mlp_ratio": 2},
        targets=("vit", "dinov2"),
        changed="mask_token",
        oblong=True,
    ),
    "TIPSv2 giant": Encoder(
        kind="Tipsv2VisionModel",
        dialect="hf_tipsv2_swiglu",
        sizes=((24, 24), (40, 40)),
        arguments={"mlp_ratio": 2, "use_swiglu_ffn": True},
        targets=("vit", "dinov2"),
        changed="mask_token",
        oblong=True,
    ),
    "MLCD": Encoder(
        kind="MLCDVisionModel",
        dialect="hf_mlcd",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "num_attention_heads": 5}
        | {"rope_parameters": {"rope_type": "axial", "rope_theta": 77.0}},
        prefix="vision_model.",
        oblong=True,
    ),
    "PaddleOCR-VL": Encoder(
        kind="PaddleOCRVisionModel",
        dialect="hf_paddleocr_vl",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "layer_norm_eps": 1e-4}
        | {"rope_parameters": {"rope_type": "axial", "rope_theta": 77.0}},
        oblong=True,
    ),
    "Hunyuan VL": Encoder(
        kind="HunYuanVLVisionTransformer",
        dialect="hf_hunyuan_vl",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "rms_norm_eps": 1e-4, "text_hidden_size": 20},
        size="max_image_size",
        oblong=True,
        merged=True,
    ),
    "Kimi K2.5": Encoder(
        kind="Kimi_K25VisionModel",
        dialect="hf_kimi_k25",
        sizes=((32, 32), (48, 48)),
        arguments={"intermediate_size": 50}
        | {"rope_parameters": {"rope_type": "axial", "rope_theta": 77.0}},
        size="pos_emb_height",
    ),
    "Idefics 2": Encoder(
        kind="Idefics2VisionTransformer",
        dialect="hf_siglip",
        sizes=((24, 24), (56, 56)),
        arguments={"intermediate_size": 50},
        targets=("vit", "timm"),
        prefix="vision_model.",
        oblong=True,
    ),
    "Idefics 3": Encoder(
        kind="Idefics3VisionTransformer",
        dialect="hf_siglip",
        sizes=((40, 40),),
        arguments={"intermediate_size": 50},
        prefix="vision_model.",
        oblong=True,
    ),
    "SmolVLM": Encoder(
        kind="SmolVLMVisionTransformer",
        dialect="hf_siglip",
        sizes=((40, 40),),
        arguments={"intermediate_size": 50},
        prefix="vision_model.",
        oblong=True,
    ),
    "Janus": Encoder(
        kind="JanusVisionModel",
        dialect="hf_janus",
        sizes=((24, 24), (40, 40)),
        arguments={"mlp_ratio": 1.7, "attention_bias": True},
        targets=("vit", "timm", "hf_siglip"),
        oblong=True,
    ),
    "Janus without biases of q, k and v": Encoder(
        kind="JanusVisionModel",
        dialect="hf_janus",
        sizes=((40, 40),),
        arguments={"mlp_ratio": 2, "attention_bias": False},
        targets=("vit", "timm"),
        oblong=True,
    ),
    "Phi-4 multimodal": Encoder(
        kind="Phi4MultimodalVisionModel",
        dialect="hf_siglip",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "attn_implementation": "eager"},
        targets=("vit", "timm"),
        prefix="vision_model.",
        oblong=True,
    ),
    "SAM-HQ": Encoder(
        kind="SamHQVisionModel",
        dialect="hf_sam",
        sizes=((24, 24), (40, 40)),
        arguments=SAM,
        targets=("vit", "sam"),
    ),
    "GOT-OCR 2": Encoder(
        kind="GotOcr2VisionEncoder",
        dialect="hf_sam",
        sizes=((24, 24), (40, 40)),
        arguments=SAM,
        targets=("vit", "sam"),
        prefix="vision_encoder.",
    ),
    "DeepSeek-OCR 2": Encoder(
        kind="DeepseekOcr2SamVisionEncoder",
        dialect="hf_deepseek_ocr2_sam",
        sizes=((24, 24), (40, 40)),
        arguments=SAM | {"downsample_channels": [10, 20]},
        targets=("vit", "sam"),
        changed=r"^proj\.",
        prefix="vision_encoder.",
    ),
    "SLANeXt": Encoder(
        kind="SLANeXtVisionEncoder",
        dialect="hf_sam",
        sizes=((24, 24), (40, 40)),
        arguments=SAM,
        targets=("vit", "sam"),
        prefix="vision_encoder.",
    ),
    "CLIPSeg": Encoder(
        kind="CLIPSegVisionModel",
        dialect="hf_clip",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50},
        targets=("vit", "openclip", "timm"),
        prefix="vision_model.",
        oblong=True,
    ),
    "Kosmos-2": Encoder(
        kind="Kosmos2VisionModel",
        dialect="hf_clip",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50},
        targets=("vit", "openclip", "timm"),
        prefix="model.|vision_model.",
        oblong=True,
    ),
    "GIT": Encoder(
        kind="GitVisionModel",
        dialect="hf_git",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50},
        oblong=True,
    ),
    "Qianfan-OCR": Encoder(
        kind="QianfanOCRVisionModel",
        dialect="hf_qianfan_ocr",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "use_mask_token": True},
        changed="mask_token",
        oblong=True,
    ),
    "Qianfan-OCR with RMS norms": Encoder(
        kind="QianfanOCRVisionModel",
        dialect="hf_qianfan_ocr",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "attention_bias": False, "use_qk_norm": True}
        | {"norm_type": "rms_norm"},
        oblong=True,
    ),
    "Molmo 2": Encoder(
        kind="Molmo2VisionModel",
        dialect="hf_molmo2",
        sizes=((24, 24), (40, 24)),
        arguments={"intermediate_size": 50, "num_key_value_heads": 3, "head_dim": 20},
        targets=("vit", "timm"),
        listed=True,
    ),
    "Molmo 2 of wider heads": Encoder(
        kind="Molmo2VisionModel",
        dialect="hf_molmo2",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50, "num_key_value_heads": 3, "head_dim": 11}
        | {"attention_bias": False},
        listed=True,
    ),
    "MiniCPM-V": Encoder(
        kind="MiniCPMV4_6VisionModel",
        dialect="hf_minicpm",
        sizes=((32, 32), (48, 48)),
        arguments={"intermediate_size": 50, "insert_layer_id": 6},
        targets=("vit", "timm"),
        changed=r"vit_merger|out_proj|projection_layer",  # a class of the same blocks names it
        prefix="vision_model.",
        oblong=True,
    ),
    "MiniCPM-OCR": Encoder(
        kind="MiniCPMOcrVisionModel",
        dialect="hf_minicpm",
        sizes=((32, 32), (48, 48)),
        arguments={"intermediate_size": 50, "insert_layer_id": 2},
        targets=("vit", "timm"),
        changed=r"vit_merger|out_proj|projection_layer",  # a class of the same blocks names it
        prefix="vision_model.",
        oblong=True,
    ),
    "FLAVA": Encoder(
        kind="FlavaImageModel",
        dialect="hf_vit_pooler",
        sizes=((24, 24), (40, 40)),
        arguments={"intermediate_size": 50},
        changed="mask_token",
        oblong=True,
    ),
    "Cosmos 3 Edge": Encoder(
        kind="Cosmos3EdgeVisionModel",
        dialect="hf_cosmos3_edge",
        sizes=((32, 32), (48, 48)),
        arguments={"intermediate_size": 50},
        size="num_patches",
        changed=r"patch_embedding\.weight",
        prefix="vision_model.",
    ),
}


# Those whose blocks are others' above
SLOW = ("SAM-HQ", "SLANeXt", "CLIPSeg", "Kosmos-2", "Qianfan-OCR", "FLAVA", "GOT-OCR 2")
SLOW += ("Qianfan-OCR with RMS norms", "DeepSeek-OCR 2", "Molmo 2 of wider heads")
SLOW += ("Idefics 3", "SmolVLM", "MiniCPM-OCR")
SLOW += ("Janus without biases of q, k and v",)


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request, tmp_path_factory):
    """What it is, transformers' model of the larger size, and its directory."""
    its = ENCODERS[request.param]
    model = its.made(its.sizes[-1])
    folder = tmp_path_factory.mktemp("encoder")
    model.save_pretrained(folder)
    return its, model, folder


OFTEN = [name for name in ENCODERS if name not in SLOW]


@pytest.fixture(
    params=[
        *OFTEN,
        *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW[::2]),
        *(pytest.param(n, marks=pytest.mark.coverage) for n in SLOW[1::2]),
    ]
)
def its(request):
    return ENCODERS[request.param]


def images_for(size):
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(7))


@torch.inference_mode()
def test_outputs_are_those_of_its_class_at_every_size(its, tmp_path):
    for size in its.sizes:
        model = its.made(size)
        model.save_pretrained(tmp_path)
        found = vitconvert.load_checkpoint(tmp_path)
        assert (found.table.name, found.config.image_size) == (its.dialect, size)
        images = images_for(size)
        for fast in (False, True):
            ours = vitconvert.load_model(tmp_path, fast=fast)
            assert relative(ours(images), run_opened(model, images)) < 1e-6
    if its.oblong:
        images = images_for((24, 56))
        ours = vitconvert.load_model(tmp_path, image_size=(24, 56))
        assert relative(ours(images), run_opened(model, images)) < 1e-6


@pytest.mark.coverage
def test_it_is_written_again_and_for_all_that_hold_it(encoder, tmp_path):
    its, model, folder = encoder
    images = images_for(its.sizes[-1])
    for to in its.targets if its.merged else ("hf", *its.targets):
        done = vitconvert.convert(folder, output=tmp_path / to, to=to, verify=True)
        unopened = {"vit"} if its.merged else {"dinov2"}
        assert done.opened and {o.consumer for o in done.opened if o.why_not} <= unopened
        with torch.inference_mode():
            ours = vitconvert.load_model(tmp_path / to)
            assert relative(ours(images), run_opened(model, images)) < 1e-6
    assert vitconvert.verify(folder).verdict == "equal"
    if its.merged:
        with pytest.raises(NotRepresentable, match="No dialect of 'hf' computes the function"):
            vitconvert.convert(folder, output=tmp_path / "hf", to="hf")
        return
    before, after = (load_file(d / "model.safetensors") for d in (folder, tmp_path / "hf"))
    kept = (
        {
            re.sub(f"^({its.prefix})", "", k): t
            for k, t in d.items()
            if not re.search(its.changed, k)
        }
        for d in (after, before)
    )
    assert_same_tensors(*kept)


WIDE = {"hidden_size": 60, "num_attention_heads": 3}


def at_four_stages(vit):
    said = {name: value for name, value in vit.to_dict().items() if name != "out_features"}
    return said | {"out_indices": [3, 6, 9, 11], "reshape_hidden_states": False}


def of_sam_3_for_videos(vit):
    # A tracker sets the image size of the ViT that it has: one of its own.
    tracker = {"vision_config": vision_of_sam_3(vit.to_dict()), "model_type": "sam3_tracker_video"}
    detector = {"model_type": "sam3"} | parts_of_sam_3(vit)
    return {"detector_config": detector, "tracker_config": tracker}


def of_sam_3_lite(vit):
    # Its text tower, of a mobile CLIP, is small by itself.
    return {name: part for name, part in parts_of_sam_3(vit).items() if name != "text_config"}


MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [24, 20, 20]}
QWEN_2 = {"model_type": "qwen2"} | LANGUAGE
DEEPSEEK = LANGUAGE | {"model_type": "deepseek_v3", "n_routed_experts": 4, "kv_lora_rank": 8}
DEEPSEEK |= {"moe_intermediate_size": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "n_group": 1}
DEEPSEEK |= {"qk_nope_head_dim": 4, "v_head_dim": 4, "num_experts_per_tok": 2, "topk_group": 1}
WORDS_OF_IMAGES = {"embed_dim": 4, "num_embeddings": 9, "latent_channels": 4, "base_channels": 32}
WORDS_OF_IMAGES |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "projection_dim": 20}
WORDS_OF_IMAGES |= {"num_patches": 3, "image_token_embed_dim": 20}
SOUNDS = {"hidden_size": 16, "intermediate_size": 9, "num_blocks": 1, "num_attention_heads": 2}
SOUNDS |= {"ext_pw_out_channel": 16, "nemo_conv_channels": 8}
PERCEIVER = {"hidden_size": 20, "resampler_n_latents": 3, "resampler_depth": 1}
PERCEIVER |= {"resampler_n_heads": 2, "resampler_head_dim": 10, "num_key_value_heads": 2}
KOSMOS = {"vocab_size": 70, "embed_dim": 20, "layers": 1, "ffn_dim": 30, "attention_heads": 2}
ADAPTER = {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20}
ADAPTER |= {"intermediate_size": 30, "text_hidden_size": 20, "vision_feature_layer": [8, 3]}
DECODER = TEXT | {"num_key_value_heads": 2}
LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
QWEN_3_5 = {"model_type": "qwen3_5_text"} | LANGUAGE | LINEAR | {"head_dim": 10}
SLA = {"post_conv_in_channels": 9, "post_conv_out_channels": 11, "out_channels": 5}
SLA |= {"hidden_size": 12, "max_text_length": 3}
CODEBOOK = {"hidden_size": 4, "num_groups": 4, "num_blocks_per_group": 1, "vocab_size": 9}
# By model types: the encoder, a class that has it, where, and the arguments around it
LARGER = {
    "vjepa2": (
        "V-JEPA 2",
        "VJEPA2ForVideoClassification",
        "vjepa2",
        lambda vit: vit.to_dict(),
    ),
    "vitpose": (
        "ViTPose",
        "VitPoseForPoseEstimation",
        "backbone",
        lambda vit: {"backbone_config": vit, "num_labels": 3},
    ),
    "tipsv2": (
        "TIPSv2",
        "Tipsv2Model",
        "vision_model",
        lambda vit: {"vision_config": vit, "text_config": TEXT | WIDE},
    ),
    "tipsv2_dpt": (
        "TIPSv2",
        "Tipsv2DptForDepthEstimation",
        "backbone",
        lambda vit: NECK | {"backbone_config": at_four_stages(vit)},
    ),
    "llava": (
        "MLCD",
        "LlavaForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE},
    ),
    "paddleocr_vl": (
        "PaddleOCR-VL",
        "PaddleOCRVLForConditionalGeneration",
        "model.visual",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE | {"rope_parameters": MROPE}},
    ),
    "hunyuan_vl": (
        "Hunyuan VL",
        "HunYuanVLForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE | {"head_dim": 10}},
    ),
    "kimi_k25": (
        "Kimi K2.5",
        "Kimi_K25ForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {"vision_config": vit, "text_config": DEEPSEEK, "projection_hidden_size": 60},
    ),
    "kimi_k25 without a head": (
        "Kimi K2.5",
        "Kimi_K25Model",
        "vision_tower",
        lambda vit: {"vision_config": vit, "text_config": DEEPSEEK, "projection_hidden_size": 60},
    ),
    "molmo2": (
        "Molmo 2",
        "Molmo2ForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {
            "vision_config": vit,
            "text_config": LANGUAGE | {"head_dim": 10},
            "adapter_config": ADAPTER,
        },
    ),
    "idefics2": (
        "Idefics 2",
        "Idefics2ForConditionalGeneration",
        "model.vision_model",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE, "perceiver_config": PERCEIVER},
    ),
    "janus": (
        "Janus",
        "JanusForConditionalGeneration",
        "model.vision_model",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE, "vq_config": WORDS_OF_IMAGES},
    ),
    "phi4_multimodal": (
        "Phi-4 multimodal",
        "Phi4MultimodalForCausalLM",
        "model.embed_tokens_extend.image_embed.img_processor",
        lambda vit: (
            LANGUAGE
            | {"vision_config": vit, "audio_config": SOUNDS, "attn_implementation": "eager"}
        ),
    ),
    **{
        name: (
            "MiniCPM-V",
            f"{kind}ForConditionalGeneration",
            "model.vision_tower",
            lambda vit: {"vision_config": vit.to_dict(), "text_config": QWEN_3_5},
        )
        for name, kind in (("minicpmv4_6", "MiniCPMV4_6"), ("minicpmv4_7", "MiniCPMV4_7"))
    },
    "sam_hq": ("SAM-HQ", "SamHQModel", "vision_encoder", lambda vit: {"vision_config": vit}),
    "got_ocr2": (
        "GOT-OCR 2",
        "GotOcr2ForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {"vision_config": vit, "text_config": QWEN_2},
    ),
    "deepseek_ocr2": (
        "DeepSeek-OCR 2",
        "DeepseekOcr2ForConditionalGeneration",
        "model.vision_tower.sam_encoder",
        lambda vit: {
            "vision_config": {"sam_config": vit, "encoder_config": DECODER},
            "text_config": DECODER | {"mlp_layer_types": ["dense"]},
        },
    ),
    "slanext": (
        "SLANeXt",
        "SLANeXtForTableRecognition",
        "backbone.vision_tower",
        lambda vit: SLA | {"vision_config": vit},
    ),
    "clipseg": (
        "CLIPSeg",
        "CLIPSegForImageSegmentation",
        "clip.vision_model",
        lambda vit: (
            {"vision_config": vit, "text_config": TEXT, "projection_dim": 20}
            | {"extract_layers": [1, 4]}
        ),
    ),
    "kosmos-2": (
        "Kosmos-2",
        "Kosmos2Model",
        "vision_model",
        lambda vit: {"vision_config": vit, "text_config": KOSMOS},
    ),
    "git": ("GIT", "GitModel", "image_encoder", lambda vit: {"vision_config": vit} | TEXT),
    "git with words": (
        "GIT",
        "GitForCausalLM",
        "git.image_encoder",
        lambda vit: {"vision_config": vit} | TEXT,
    ),
    "qianfan_ocr": (
        "Qianfan-OCR",
        "QianfanOCRForConditionalGeneration",
        "model.vision_tower",
        lambda vit: {"vision_config": vit, "text_config": {"model_type": "qwen3"} | LANGUAGE},
    ),
    "flava": (
        "FLAVA",
        "FlavaForPreTraining",
        "flava.image_model",
        lambda vit: (
            dict.fromkeys(("text_config", "multimodal_config"), TEXT)
            | {"image_config": vit, "projection_dim": 20, "image_codebook_config": CODEBOOK}
        ),
    ),
    "cosmos3_edge": (
        "Cosmos 3 Edge",
        "Cosmos3EdgeForConditionalGeneration",
        "model.visual",
        lambda vit: {"vision_config": vit, "text_config": LANGUAGE | {"rope_parameters": MROPE}},
    ),
    "sam3_vision_model": ("SAM 3", "Sam3VisionModel", "backbone", vision_of_sam_3),
    "sam3": ("SAM 3", "Sam3Model", "vision_encoder.backbone", parts_of_sam_3),
    "sam3_lite_text": ("SAM 3", "Sam3LiteTextModel", "vision_encoder.backbone", of_sam_3_lite),
    "sam3_video": (
        "SAM 3",
        "Sam3VideoModel",
        "detector_model.vision_encoder.backbone",
        of_sam_3_for_videos,
    ),
    "sam3_tracker": (
        "SAM 3",
        "Sam3TrackerModel",
        "vision_encoder.backbone",
        lambda vit: {"vision_config": vision_of_sam_3(vit)},
    ),
    "sam3_tracker_video": (
        "SAM 3",
        "Sam3TrackerVideoModel",
        "vision_encoder.backbone",
        lambda vit: {"vision_config": vision_of_sam_3(vit), "image_size": vit.image_size},
    ),
}


# Within the larger model
ON_DISK = {"qianfan_ocr": "hf_qianfan_ocr_disk", "kimi_k25": "hf_moonvit"}
ON_DISK |= {"kimi_k25 without a head": "hf_kimi_k25_base"}
ON_DISK |= {"molmo2": "hf_molmo2_disk", "deepseek_ocr2": "hf_deepseek_ocr_sam"}


@pytest.mark.coverage
@pytest.mark.parametrize("model_type", LARGER)
@torch.inference_mode()
def test_it_is_found_in_the_larger_model(model_type, tmp_path):
    encoder, name, place, around = LARGER[model_type]
    its = ENCODERS[encoder]
    inner = its.made(its.sizes[0])
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**around(inner.config))).eval()
    bare = getattr(inner, "vision_encoder", inner)  # SAM's
    model.get_submodule(place).load_state_dict(bare.state_dict())
    model.save_pretrained(tmp_path)
    images = images_for(its.sizes[0])
    assert vitconvert.load_checkpoint(tmp_path).dialect == ON_DISK.get(model_type, its.dialect)
    ours = vitconvert.load_model(tmp_path)
    assert relative(ours(images), run_opened(inner, images)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"


@pytest.mark.coverage
def test_it_is_exported_and_embedded(encoder, tmp_path):
    its, model, folder = encoder
    images = images_for(its.sizes[-1])
    found = in_onnx_runtime(folder, images, tmp_path)
    with torch.inference_mode():
        assert relative(found, run_opened(model, images)) < 1e-5
    features = embedded(folder, tmp_path, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert features.shape == (1, *found.shape[1:])


@pytest.mark.parametrize("name", ["Idefics 2", "SmolVLM"])
def test_positions_that_rounding_moves(name, tmp_path):
    its = ENCODERS[name]
    model, images = its.made((200, 200), num_hidden_layers=1), images_for((200, 200))
    model.save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="gives some patches the position of another"):
        vitconvert.load_checkpoint(tmp_path)
    # Others are as they are there, and the class moves those of 25 rows.
    ours = vitconvert.load_model(tmp_path, overrides={"position_resampling": "bicubic"})
    with torch.inference_mode():
        assert relative(ours(images), run_opened(model, images)) > 1e-3


@torch.inference_mode()
def test_the_positions_of_idefics_without_a_config(tmp_path):
    vit, images = ENCODERS["Idefics 3"].made((40, 40)), images_for((24, 56))
    file, stated = tmp_path / "idefics.safetensors", {"num_heads": 3}
    save_file(vit.state_dict(), file)
    with pytest.raises(MissingFact, match="that of Idefics 2 and 3, SmolVLM and Phi-4 multimodal"):
        vitconvert.load_model(file, overrides=stated, image_size=(24, 56))
    stated["position_resampling"] = "bucketed"
    ours = vitconvert.load_model(file, overrides=stated, image_size=(24, 56))
    assert relative(ours(images), run_opened(vit, images)) < 1e-6


@torch.inference_mode()
def test_the_attention_of_phi_4_multimodal(tmp_path):
    its, images = ENCODERS["Phi-4 multimodal"], images_for((40, 40))
    model = its.made((40, 40))
    model.save_pretrained(tmp_path)
    report = vitconvert.verify(tmp_path)
    said = "Phi4MultimodalVisionModel's default attention is causal here"
    assert report.verdict == "equal" and said in report.summary()
    by_default = type(model).from_pretrained(tmp_path).eval()  # and this is so:
    changed = images.clone()
    changed[..., 32:, :] = 0.5  # the last patches
    before, after = (by_default(one).last_hidden_state[:, 0] for one in (images, changed))
    assert torch.equal(before, after)
    ours = vitconvert.load_model(tmp_path)
    before, after = (ours.forward_features(one)[:, 0] for one in (images, changed))
    assert relative(before, after) > 1e-3


@torch.inference_mode()
def test_phi_4_multimodal_as_microsoft_publishes_it(tmp_path):
    vit = ENCODERS["Phi-4 multimodal"].made((24, 24), hidden_size=48, num_attention_heads=16)
    start = "model.embed_tokens_extend.image_embed."
    names = {f"{start}img_processor.{n}": tensor for n, tensor in vit.state_dict().items()}
    names[f"{start}glb_GN"] = torch.ones(1, 1, 48)
    save_file(names, tmp_path / "model.safetensors")
    config = {"model_type": "phi4mm", "hidden_size": 3072, "num_attention_heads": 24}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 32}))
    found = vitconvert.load_checkpoint(tmp_path)
    assert "the code of Phi-4 multimodal" in found.config.origins["num_heads"]
    assert "behind the last block but one of this ViT" in " ".join(found.ledger.notes)
    for size in ((24, 24), (40, 16)):
        ours, images = vitconvert.load_model(tmp_path, image_size=size), images_for(size)
        assert relative(ours(images), run_opened(vit, images)) < 1e-6


# As transformers' convert_janus_weights_to_hf.py reads them (v4.57)
OF_DEEPSEEK = (
    (r"^encoder\.layers\.", "blocks."),
    (r"\.layer_norm([12])\.", r".norm\1."),
    (r"\.self_attn\.projection_layer\.", ".attn.proj."),
    (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^post_layernorm\.", "norm."),
)


@torch.inference_mode()
def test_janus_as_deepseek_publishes_it(tmp_path):
    vit = ENCODERS["Janus"].made((40, 40), hidden_size=64, num_attention_heads=16)
    theirs = dict(vit.state_dict())
    tensors = {"pos_embed": theirs.pop("embeddings.position_embedding.weight")[None]}
    for i in range(11):
        for kind in ("weight", "bias"):
            parts = [theirs.pop(f"encoder.layers.{i}.self_attn.{x}_proj.{kind}") for x in "qkv"]
            tensors[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
    for name, tensor in theirs.items():
        for pattern, new in OF_DEEPSEEK:
            name = re.sub(pattern, new, name)
        tensors[name] = tensor
    pool = {"latent": (1, 1, 64)} | {f"{n}.bias": (64,) for n in ("q", "proj", "norm", "mlp.fc2")}
    pool |= {f"{n}.weight": (64, 64) for n in ("q", "proj")} | {"kv.weight": (128, 64)}
    pool |= {"kv.bias": (128,), "norm.weight": (64,), "mlp.fc1.weight": (256, 64)}
    pool |= {"mlp.fc1.bias": (256,), "mlp.fc2.weight": (64, 256)}
    tensors |= {f"attn_pool.{name}": torch.rand(shape) for name, shape in pool.items()}
    tensors = {f"vision_model.vision_tower.{n}": t.contiguous() for n, t in tensors.items()}
    tensors["aligner.layers.0.weight"] = torch.rand(20, 64)
    save_file(tensors, tmp_path / "model.safetensors")
    params = {"image_size": 40, "model_name": "siglip_large_patch16_384", "select_layer": -1}
    said = {"cls": "CLIPVisionTower", "model_type": "vision", "params": params}
    config = {"model_type": "multi_modality", "vision_config": said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, images = vitconvert.load_model(tmp_path), images_for((40, 40))
    assert "the code of Janus" in ours.config.origins["num_heads"]
    assert relative(ours.forward_features(images), vit(images).last_hidden_state) < 1e-6


def test_what_janus_has_besides(tmp_path):
    its = ENCODERS["Janus"]
    its.made((24, 24), use_qk_norm=True).save_pretrained(tmp_path)
    with pytest.raises(TensorMismatch, match=r"self_attn\.[qk]_norm"):
        vitconvert.load_checkpoint(tmp_path)
    its.made((24, 24)).save_pretrained(tmp_path)
    transformers.JanusImageProcessor().save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path)
    assert found.preprocessing is None and "pads to a square" in " ".join(found.ledger.notes)


def test_the_frames_of_v_jepa_2(tmp_path):
    its = ENCODERS["V-JEPA 2"]
    its.made((24, 24)).save_pretrained(tmp_path)
    notes = vitconvert.load_checkpoint(tmp_path).ledger.notes
    assert [note for note in notes if "reads 2 frames, and an image is the same frame" in note]
    with pytest.raises(NotRepresentable, match="not square: VJEPA2RopeAttention numbers"):
        vitconvert.load_checkpoint(tmp_path, overrides={"image_size": (24, 40)})
    its.made((24, 24), tubelet_size=1).save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path)  # of other patches, clips are read: test_clips.py
    assert (found.dialect, found.config.frames) == ("hf_vjepa2_clips", 64)


@pytest.mark.parametrize("width", [10, 14, 22])
def test_heads_of_v_jepa_2_that_4_does_not_divide(width, tmp_path):
    its = ENCODERS["V-JEPA 2"]
    model = its.made((40, 40), hidden_size=3 * width)
    model.save_pretrained(tmp_path / "hf")
    ours = vitconvert.load_model(tmp_path / "hf")
    assert ours.config.head_dim == width
    images = images_for((40, 40))
    with torch.inference_mode():
        assert relative(ours(images), run_opened(model, images)) < 1e-6
    assert vitconvert.verify(tmp_path / "hf").verdict == "equal"


def test_the_positions_and_experts_of_vitpose(tmp_path):
    its = ENCODERS["ViTPose"]
    its.made((32, 24)).save_pretrained(tmp_path)
    found = vitconvert.load_checkpoint(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")["embeddings.position_embeddings"]
    assert torch.equal(found.tensors["pos_embed"], (stored[:, 1:].double() + stored[:, :1]).float())
    said = "the first row of embeddings.position_embeddings was added to all others, in float64"
    assert said in found.ledger.notes
    plan = vitconvert.plan_conversion(tmp_path, to="hf")
    assert "which is added to all others, is zero: its earlier values are lost" in str(
        plan.to_dict()
    )
    its.made((32, 24), num_experts=2, part_features=8).save_pretrained(tmp_path)
    with pytest.raises(
        UnknownDialect, match=r"ViTPose\+, which has experts, one for each data set"
    ):
        vitconvert.load_checkpoint(tmp_path)


@torch.inference_mode()
def test_the_norms_of_pixios_backbone(tmp_path):
    its, images = ENCODERS["Pixio"], images_for((24, 24))
    model = its.made((24, 24), kind="PixioBackbone")
    model.save_pretrained(tmp_path)
    assert vitconvert.load_checkpoint(tmp_path).dialect == "hf_pixio_backbone"
    ours = vitconvert.load_model(tmp_path)
    assert relative(ours(images), run_opened(model.pixio, images)) < 1e-6
    # transformers 5.24 exchanges its norms
    loaded = transformers.PixioBackbone.from_pretrained(tmp_path).eval()
    (patches,) = loaded(images).feature_maps
    assert relative(ours.forward_features(images)[:, 8:], as_tokens(patches)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"
    its.made((24, 24), kind="PixioBackbone", apply_layernorm=False).save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="says apply_layernorm = False"):
        vitconvert.load_checkpoint(tmp_path)


@torch.inference_mode()
def test_the_class_token_of_mlcd(tmp_path):
    its = ENCODERS["MLCD"]
    model = its.made((24, 24), rope_parameters=None)
    model.save_pretrained(tmp_path)
    file, images = tmp_path / "model.safetensors", images_for((24, 24))
    tensors, config = load_file(file), json.loads((tmp_path / "config.json").read_text())
    # Its authors' files: names of an older transformers, and no word of the rotation.
    save_file({f"vision_model.{name}": tensor for name, tensor in tensors.items()}, file)
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mlcd"}))
    ours = vitconvert.load_model(tmp_path)
    assert relative(ours(images), run_opened(model, images)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"
    ours.rope.class_angles.add_(1.0)
    assert relative(ours(images), run_opened(model, images)) > 1e-4


@torch.inference_mode()
def test_a_file_of_mlcd_alone_is_known_by_its_angles(tmp_path):
    its = ENCODERS["MLCD"]
    model, images = its.made((24, 24)), images_for((24, 24))
    save_file(model.state_dict(), tmp_path / "mlcd.safetensors")
    stated = {"image_size": (24, 24), "activation": "gelu", "rope_temperature": 77.0}
    file = tmp_path / "mlcd.safetensors"
    found = vitconvert.load_checkpoint(file, overrides=stated | {"num_heads": 5})
    assert found.table.name == "hf_mlcd"
    ours = vitconvert.load_model(file, overrides=stated | {"num_heads": 5})
    assert relative(ours(images), run_opened(model, images)) < 1e-6
    with pytest.raises(TensorMismatch, match="class_pos_emb"):  # heads of another width
        vitconvert.load_checkpoint(file, overrides=stated | {"num_heads": 3})


@torch.inference_mode()
def test_the_norm_of_git_without_a_config(tmp_path):
    vit, images = ENCODERS["GIT"].made((24, 24)), images_for((24, 24))
    names = {f"git.image_encoder.{name}": tensor for name, tensor in vit.state_dict().items()}
    save_file(names, tmp_path / "git.safetensors")
    stated = {"num_heads": 3, "activation": "quick_gelu"}
    found = vitconvert.load_checkpoint(tmp_path / "git.safetensors", overrides=stated)
    assert found.dialect == "hf_git"
    ours = vitconvert.load_model(tmp_path / "git.safetensors", overrides=stated)
    assert relative(ours(images), run_opened(vit, images)) < 1e-6


@pytest.mark.parametrize("model_type", ["kosmos-2", "clipseg"])
def test_what_a_larger_model_reads_is_reported(model_type, tmp_path):
    encoder, name, _, around = LARGER[model_type]
    kind = getattr(transformers, name)
    vit = ENCODERS[encoder].made((24, 24)).config
    kind(kind.config_class(**around(vit))).save_pretrained(tmp_path)
    said = {"kosmos-2": "through its last norm", "clipseg": "behind some blocks"}[model_type]
    assert said in " ".join(vitconvert.load_checkpoint(tmp_path).ledger.notes)


@pytest.mark.parametrize("whole", [False, True])
def test_qianfan_norms_queries_with_an_eps_of_its_own(whole, tmp_path):
    its = ENCODERS["Qianfan-OCR with RMS norms"]
    model = its.made((24, 24), layer_norm_eps=1e-5)
    if whole:
        _, name, _, around = LARGER["qianfan_ocr"]
        kind = getattr(transformers, name)
        model = kind(kind.config_class(**around(model.config)))
    model.save_pretrained(tmp_path)
    with pytest.raises(NotRepresentable, match="QianfanOCRVisionAttention norms q and k with"):
        vitconvert.load_checkpoint(tmp_path)


@torch.inference_mode()
def test_a_whole_qianfan_with_a_last_norm(tmp_path):
    its = ENCODERS["Qianfan-OCR"]
    inner = its.made((24, 24), use_mean_pooling=False)
    _, name, place, around = LARGER["qianfan_ocr"]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**around(inner.config))).eval()
    model.get_submodule(place).load_state_dict(inner.state_dict())
    model.save_pretrained(tmp_path)
    images = images_for((24, 24))
    ours = vitconvert.load_model(tmp_path)
    assert relative(ours(images), run_opened(inner, images)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"


@pytest.mark.slow
def test_windows_whose_tables_have_other_sizes_explain_no_difference(tmp_path, monkeypatch):
    ENCODERS["GOT-OCR 2"].made((24, 24)).save_pretrained(tmp_path)
    places = MODULES["got_ocr2_vision"]  # float64 is apart then, by the softmax in float32
    monkeypatch.setitem(MODULES, "got_ocr2_vision", replace(places, rounded=""))
    report = vitconvert.verify(tmp_path)
    assert report.verdict == "not equal" and "likely cause   unknown" in report.summary()


SAID = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
SAID |= {"patch_size", "image_size", "layer_norm_eps", "hidden_act", "num_channels"}


@pytest.mark.slow
@torch.inference_mode()
def test_paddleocr_vl_as_its_authors_publish_it(tmp_path):
    its = ENCODERS["PaddleOCR-VL"]
    model, images = its.made((40, 40), rope_parameters=None), images_for((24, 56))
    tensors = {f"visual.{name}": tensor for name, tensor in model.state_dict().items()}
    start = "visual.vision_model."
    unread = {
        f"{start}embeddings.packing_position_embedding.weight": torch.rand(99, 60),
        f"{start}head.probe": torch.rand(1, 1, 60),
        f"{start}head.attention.in_proj_weight": torch.rand(180, 60),
    }
    layer = "model.layers.0.self_attn"
    others = {f"{layer}.{name}_proj.weight": torch.rand(9, 9) for name in "qkvo"}
    others |= {"mlp_AR.pre_norm.weight": torch.rand(60), "model.norm.weight": torch.rand(9)}
    others |= {"model.layers.0.mlp.gate_proj.weight": torch.rand(9, 9)}
    others |= {"model.embed_tokens.weight": torch.rand(7, 9)}
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    save_file(tensors | unread | others, file)
    section = {"model_type": "paddleocr_vl", "architectures": ["SiglipVisionModel"]} | {
        name: getattr(model.config, name) for name in model.config.to_dict().keys() & SAID
    }
    config.write_text(json.dumps({"model_type": "paddleocr_vl", "vision_config": section}))
    for size in ((40, 40), (24, 56)):
        images = images_for(size)
        ours = vitconvert.load_model(tmp_path, image_size=size)
        assert relative(ours(images), run_opened(model, images)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"
    ignored = vitconvert.load_checkpoint(tmp_path).ledger.ignored
    assert {name.removeprefix("visual.") for name in unread} < ignored.keys(), ignored
    # Tables of this library explain most names of its text model, which is none of its ViTs.
    assert vitconvert.load_checkpoint(tmp_path, dialect="hf").dialect == "hf_paddleocr_vl"
    # It is known by what stands beside it, and never taken for SigLIP.
    config.unlink()
    stated = {"num_heads": 3, "norm_eps": 1e-4}
    ours = vitconvert.load_model(tmp_path, image_size=(24, 56), overrides=stated)
    assert relative(ours(images), run_opened(model, images)) < 1e-6
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: hf, vit"):
        vitconvert.convert(tmp_path, output=tmp_path / "no", to="timm", overrides=stated)


VT = {"hidden_size": 60, "intermediate_size": 50, "num_hidden_layers": 11}
VT |= {"num_attention_heads": 3}
POSITIONS = {"init_pos_emb_height": 6, "init_pos_emb_width": 6, "patch_size": 8}
# As config.json of MoonViT-SO-400M, of Kimi-VL and of Kimi K2.5 have it, and their names' beginning
MOONSHOTS = {
    "MoonViT": ("", {"model_type": "moonvit"} | VT | POSITIONS),
    "Kimi-VL": (
        "vision_tower.",
        {"model_type": "kimi_vl", "vision_config": {"model_type": "moonvit"} | VT | POSITIONS},
    ),
    "Kimi K2.5": (
        "vision_tower.",
        {
            "model_type": "kimi_k25",
            "vision_config": {f"vt_{name}": size for name, size in VT.items()} | POSITIONS,
        },
    ),
}


@pytest.fixture(scope="module")
def moonvit(tmp_path_factory):
    """transformers' class, and its tensors as the larger model writes them: in Moonshot's names."""
    its = ENCODERS["Kimi K2.5"]
    model = its.made((48, 48), rope_parameters=None)
    _, name, place, around = LARGER["kimi_k25"]
    kind = getattr(transformers, name)
    larger = kind(kind.config_class(**around(model.config)))
    larger.get_submodule(place).load_state_dict(model.state_dict())
    folder = tmp_path_factory.mktemp("moonvit")
    larger.save_pretrained(folder)
    saved = load_file(folder / "model.safetensors")
    start = "vision_tower."
    tensors = {name[len(start) :]: x for name, x in saved.items() if name.startswith(start)}
    # transformers 5.24 puts a word before these, which it takes away where it is not
    return model, {
        name.replace("encoder.patch_embed", "patch_embed"): x for name, x in tensors.items()
    }


@pytest.mark.parametrize("name", MOONSHOTS)
@torch.inference_mode()
def test_moonvit_as_moonshot_publishes_it(name, moonvit, tmp_path):
    model, tensors = moonvit
    start, config = MOONSHOTS[name]
    save_file({start + n: x for n, x in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vitconvert.load_checkpoint(tmp_path).dialect == "hf_moonvit"
    for size in ((48, 48), (32, 64)):
        images = images_for(size)
        ours = vitconvert.load_model(tmp_path, image_size=size)
        assert relative(ours(images), run_opened(model, images)) < 1e-6
    assert vitconvert.verify(tmp_path).verdict == "equal"
    done = vitconvert.convert(tmp_path, output=tmp_path / "hf", to="hf")
    assert [opened.consumer for opened in done.opened] == ["transformers"]
    assert done.ledger.changed[0].startswith("rotary-pairs: ")
    assert_same_tensors(load_file(tmp_path / "hf" / "model.safetensors"), model.state_dict())


@pytest.mark.slow
def test_what_moonvits_class_does_not_compute(moonvit, tmp_path):
    _, tensors = moonvit
    rows = {"patch_embed.pos_emb.weight": tensors["patch_embed.pos_emb.weight"][:4].clone()}
    save_file(tensors | rows, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(MOONSHOTS["MoonViT"][1]))
    assert vitconvert.load_checkpoint(tmp_path).config.position_grid == (4, 6)
    said = vitconvert.verify(tmp_path)
    assert said.verdict == "not verified" and "counts the rows" in said.summary()
    with pytest.raises(NotRepresentable, match="Targets that hold it as it is: vit"):
        vitconvert.convert(tmp_path, output=tmp_path / "hf", to="hf")
