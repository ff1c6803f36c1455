"""Larger models of transformers that hold a ViT, tiny and random, with the ViT inside them.

What is expected of each is stated here from transformers' sources, not from weights_map/.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.packages import transformers as t
from tests.small_models import randomise_calmly

VISION = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 24,
    "patch_size": 8,
}
DEEP = VISION | {"num_hidden_layers": 11}  # block 10 comes after block 1 in no dictionary
TEXT = {
    "hidden_size": 20,
    "intermediate_size": 30,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 70,
}
LANGUAGE = TEXT | {"num_key_value_heads": 2, "pad_token_id": 0}
HEADLESS = {"vision_use_head": False}
DINOV2 = {k: v for k, v in VISION.items() if k != "intermediate_size"} | {"mlp_ratio": 2}
STAGES = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}
NECK = {"neck_hidden_sizes": [4, 4, 8, 8], "fusion_hidden_size": 8}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A larger model, where its ViT is in memory, and what must be found out about it."""

    make: Callable[[], nn.Module]
    tower: str
    dialect: str
    start: str | None = None  # what stands before its names on disk, if another
    pooled: bool = False  # whether the class's pooled output is vitconvert's output
    renamed: Mapping[str, str] = field(default_factory=dict)  # names of 5.x -> of 4.x, beginnings
    only_in_5: str = "-"  # what names begin with that 4.x does not write
    dialect_in_4: str = ""  # where it is another

    @property
    def prefix(self) -> str:
        """What stands before the tower's names on disk."""
        own = f"{self.tower}." if self.tower else ""
        return own if self.start is None else self.start

    @property
    def start_in_4(self) -> str:
        """What stands before the tower's names in files of transformers 4."""
        return self.renamed.get(self.prefix, self.prefix) or "vision_model."

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        return randomise_calmly(self.make())


def save(model: nn.Module, folder: Path, *, disk: bool = True, shard: str = "60KB") -> Path:
    """Write several shards, in the names on disk or in those in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, save_original_format=disk, max_shard_size=shard)
    return folder


def save_as_4(model: nn.Module, folder: Path, name: str) -> Path:
    """Write one file, as transformers 4 writes it: `files_of_4.json` has its names and config."""
    family, written = FAMILIES[name], FILES_OF_4[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(written["config"]))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors = {n: t for n, t in tensors.items() if not n.startswith(family.only_in_5)}
    for new, old in family.renamed.items():
        tensors = {n.replace(new, old) if n.startswith(new) else n: t for n, t in tensors.items()}
    assert names_of_tower(tensors, family.start_in_4) == written["tower"]
    save_file(tensors, file)
    return folder


def names_of_tower(names: Iterable[str], start: str) -> list[str]:
    """The names under a tower's prefix, without it, and with {} for numbers."""
    inside = (name.removeprefix(start) for name in names if name.startswith(start))
    return sorted({re.sub(r"\d+", "{}", name) for name in inside})


FILES_OF_4: Any = json.loads((Path(__file__).parent / "files_of_4.json").read_text())


def _vlm(name: str, vision: Any, language: Any, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(t, f"{name}Config")
        kind = getattr(t, f"{name}ForConditionalGeneration")
        return kind(config(vision_config=vision(), text_config=language(), **more))

    return make


def _clip(**more: Any) -> Any:
    return t.CLIPVisionConfig(**VISION | more)


def _siglip() -> Any:
    return t.SiglipVisionConfig(**VISION, **HEADLESS)


def _llama() -> Any:
    return t.LlamaConfig(**LANGUAGE)


def _two_towers(name: str, kind: str, vision: Any = VISION, **text: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(t, f"{name}Config")
        return getattr(t, kind)(
            config(vision_config=vision, text_config=TEXT | text, projection_dim=20)
        )

    return make


def _q_former(name: str, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(t, f"{name}Config")(
            vision_config=VISION,
            qformer_config={**TEXT, "encoder_hidden_size": 36, **more},
            text_config=OPT,
        )
        return getattr(t, f"{name}ForConditionalGeneration")(config)

    return make


OPT = {k: v for k, v in TEXT.items() if k != "intermediate_size"}
OPT |= {
    "model_type": "opt",
    "ffn_dim": 30,
    "word_embed_proj_dim": 20,
    "max_position_embeddings": 30,
}


def _clipseg() -> nn.Module:
    config = t.CLIPSegConfig(
        vision_config=DEEP, text_config=TEXT, projection_dim=20, extract_layers=[1, 4, 7]
    )
    return t.CLIPSegForImageSegmentation(config)


def _kosmos() -> nn.Module:
    text = {"vocab_size": 70, "embed_dim": 20, "layers": 1, "ffn_dim": 30, "attention_heads": 2}
    config = t.Kosmos2Config(vision_config=VISION, text_config=text, latent_query_num=5)
    return t.Kosmos2ForConditionalGeneration(config)


def _flava(kind: str) -> nn.Module:
    parts = {"image_config": VISION, "text_config": TEXT, "multimodal_config": TEXT}
    codebook = {"hidden_size": 4, "num_groups": 4, "num_blocks_per_group": 1, "vocab_size": 9}
    config = t.FlavaConfig(**parts, projection_dim=20, image_codebook_config=codebook)
    return getattr(t, kind)(config)


def _depth(name: str, backbone: Any, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(t, f"{name}Config")(backbone_config=backbone(), **NECK | more)
        return getattr(t, f"{name}ForDepthEstimation")(config)

    return make


def _dinov2() -> Any:
    return t.Dinov2Config(**DINOV2 | STAGES, apply_layernorm=True)


def _beit() -> Any:
    return t.BeitConfig(**VISION | STAGES, use_relative_position_bias=True, use_mean_pooling=False)


def _dpt() -> nn.Module:
    sizes = VISION | {"num_hidden_layers": 4}
    return t.DPTForDepthEstimation(t.DPTConfig(**sizes, **NECK, backbone_out_indices=[0, 1, 2, 3]))


def _trocr() -> nn.Module:
    decoder = t.TrOCRConfig(
        d_model=20,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=30,
        vocab_size=70,
        cross_attention_hidden_size=36,
    )
    of_two = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs
    return t.VisionEncoderDecoderModel(of_two(t.ViTConfig(**DEEP), decoder))


def _encoder_decoder(encoder: Callable[[], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        decoder = t.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
        of_two = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs
        return t.VisionEncoderDecoderModel(of_two(encoder(), decoder))

    return make


def _dual(vision: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        of_two = t.VisionTextDualEncoderConfig.from_vision_text_configs
        return t.VisionTextDualEncoderModel(of_two(vision(), t.BertConfig(**TEXT)))

    return make


def internvl(**more: Any) -> nn.Module:
    vision = VISION | {"image_size": [24, 24], "patch_size": [8, 8]} | more
    config = t.InternVLConfig(vision_config=vision, text_config=t.Qwen2Config(**LANGUAGE))
    return t.InternVLForConditionalGeneration(config)


def _colpali() -> nn.Module:
    text = t.GemmaConfig(**LANGUAGE, head_dim=10)
    vlm = t.PaliGemmaConfig(vision_config=_siglip(), text_config=text)
    return t.ColPaliForRetrieval(t.ColPaliConfig(vlm_config=vlm))


def _gemma(name: str = "Gemma") -> Any:
    return getattr(t, f"{name}Config")(**LANGUAGE, head_dim=10)


_VISION_MODEL_4 = {"vision_tower.": "vision_tower.vision_model."}
_IN_VLM: dict[str, Any] = {
    "tower": "model.vision_tower",
    "start": "vision_tower.",
    "renamed": _VISION_MODEL_4,
}
_LLAVA: dict[str, Any] = _IN_VLM | {"dialect": "hf_clip", "pooled": True}
_PALI: dict[str, Any] = _IN_VLM | {"dialect": "hf_siglip"}
_CLIP_LIKE: dict[str, Any] = {"tower": "", "dialect": "hf_clip", "pooled": True}
_BLIP: dict[str, Any] = {"tower": "vision_model", "dialect": "hf_blip"}

_INTERN: dict[str, Any] = {
    "tower": "model.vision_tower",
    "start": "vision_tower.",
    "dialect": "hf_internvl",
}
_DEPTH: dict[str, Any] = {"tower": "backbone", "dialect": "hf_dinov2"}
_SMALL = {"reassemble_hidden_size": 36, "head_hidden_size": 4}
_ENCODER: dict[str, Any] = {"tower": "encoder", "pooled": True}
_PAIR: dict[str, Any] = {"tower": "vision_model"}
_TWICE = {"vision_model.": "vision_model.vision_model."}
FAMILIES: Mapping[str, Family] = {
    "llava": Family(make=_vlm("Llava", _clip, _llama), **_LLAVA),
    "llava with siglip": Family(make=_vlm("Llava", _siglip, _llama), **_PALI),
    "llava_next": Family(make=_vlm("LlavaNext", _clip, _llama), **_LLAVA),
    "vipllava": Family(make=_vlm("VipLlava", lambda: _clip(**DEEP), _llama), **_LLAVA),
    "llava_onevision": Family(
        make=_vlm("LlavaOnevision", _siglip, lambda: t.Qwen2Config(**LANGUAGE)), **_PALI
    ),
    "paligemma": Family(make=_vlm("PaliGemma", _siglip, _gemma), **_PALI),
    "gemma3": Family(make=_vlm("Gemma3", _siglip, lambda: _gemma("Gemma3Text")), **_PALI),
    "aya_vision": Family(
        make=_vlm("AyaVision", _siglip, lambda: t.Cohere2Config(**LANGUAGE)), **_PALI
    ),
    "colpali": Family(
        make=_colpali,
        tower="vlm.vision_tower",
        dialect="hf_siglip",
        renamed={"vlm.vision_tower.": "vlm.vision_tower.vision_model."},
    ),
    "idefics3": Family(
        make=_vlm("Idefics3", lambda: dict(VISION), _llama),
        tower="model.vision_model",
        dialect="hf_siglip",
    ),
    "smolvlm": Family(
        make=_vlm("SmolVLM", lambda: dict(VISION), _llama),
        tower="model.vision_model",
        dialect="hf_siglip",
    ),
    "internvl": Family(make=lambda: internvl(attention_bias=True), **_INTERN),
    "internvl with rms norms": Family(make=lambda: internvl(norm_type="rms_norm"), **_INTERN),
    "internvl with norms of whole queries": Family(
        make=lambda: internvl(norm_type="rms_norm", use_qk_norm=True), **_INTERN
    ),  # as the 6B tower
    "internvl with a last norm": Family(make=lambda: internvl(use_mean_pooling=False), **_INTERN),
    "chinese_clip": Family(make=_two_towers("ChineseCLIP", "ChineseCLIPModel"), **_CLIP_LIKE),
    "metaclip_2": Family(make=_two_towers("MetaClip2", "MetaClip2Model"), **_CLIP_LIKE),
    "altclip": Family(
        make=_two_towers("AltCLIP", "AltCLIPModel", project_dim=20),
        renamed={"vision_model.encoder.layer.": "vision_model.encoder.layers."},
        **_CLIP_LIKE,
    ),
    "owlvit": Family(
        make=_two_towers("OwlViT", "OwlViTForObjectDetection"),
        **_CLIP_LIKE | {"tower": "owlvit"},
    ),
    "owlv2": Family(
        make=_two_towers("Owlv2", "Owlv2ForObjectDetection"),
        **_CLIP_LIKE | {"tower": "owlv2"},
    ),
    "clipseg": Family(make=_clipseg, tower="clip.vision_model", dialect="hf_clip", pooled=True),
    "git": Family(
        make=lambda: t.GitForCausalLM(t.GitConfig(vision_config=VISION, **TEXT)),
        tower="git.image_encoder",
        dialect="hf_git",
    ),
    "kosmos2": Family(make=_kosmos, tower="vision_model.model", dialect="hf_clip", pooled=True),
    "flava": Family(
        make=lambda: _flava("FlavaModel"), tower="image_model", dialect="hf_vit_pooler", pooled=True
    ),
    "flava with a codebook": Family(
        make=lambda: _flava("FlavaForPreTraining"),
        tower="flava.image_model",
        dialect="hf_vit_pooler",
        pooled=True,
    ),
    "blip": Family(make=_two_towers("Blip", "BlipModel", encoder_hidden_size=36), **_BLIP),
    "blip-2": Family(make=_q_former("Blip2"), **_BLIP),
    "instructblip": Family(make=_q_former("InstructBlip", vocab_size=70), **_BLIP),
    "depth_anything": Family(make=_depth("DepthAnything", _dinov2, **_SMALL), **_DEPTH),
    "prompt_depth_anything": Family(
        make=_depth("PromptDepthAnything", _dinov2, **_SMALL), **_DEPTH
    ),
    "zoedepth": Family(
        make=_depth("ZoeDepth", _beit, bottleneck_features=8, num_relative_features=8),
        tower="backbone",
        dialect="hf_beit",
        only_in_5="backbone.beit.layernorm.",
        dialect_in_4="hf_beit_bare",
    ),
    "dpt": Family(make=_dpt, tower="dpt", dialect="hf_vit"),
    "trocr": Family(make=_trocr, dialect="hf_vit_pooler", **_ENCODER),
    "encoder and decoder with deit": Family(
        make=_encoder_decoder(lambda: t.DeiTConfig(**VISION)), dialect="hf_vit_pooler", **_ENCODER
    ),
    "encoder and decoder with beit": Family(
        make=_encoder_decoder(lambda: t.BeitConfig(**VISION, use_relative_position_bias=True)),
        dialect="hf_beit",
        **_ENCODER,
    ),
    "encoder and decoder with dinov2": Family(
        make=_encoder_decoder(lambda: t.Dinov2Config(**DINOV2)), dialect="hf_dinov2", **_ENCODER
    ),
    "vision-text dual encoder": Family(
        make=_dual(lambda: t.ViTConfig(**VISION)), dialect="hf_vit_pooler", pooled=True, **_PAIR
    ),
    "vision-text dual encoder with clip": Family(
        make=_dual(_clip), dialect="hf_clip", pooled=True, renamed=_TWICE, **_PAIR
    ),
    "vision-text dual encoder with siglip": Family(
        make=_dual(_siglip), dialect="hf_siglip", renamed=_TWICE, **_PAIR
    ),
}
