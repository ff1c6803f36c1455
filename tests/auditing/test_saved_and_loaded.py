"""Models of many kinds that transformers saves and loads: whole, or with one tensor less."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.small_models import randomise

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
LAYERS = {**SMALL, "num_hidden_layers": 11}
IMAGE = {"image_size": 48, "patch_size": 16}
WORDS = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 1, "vocab_size": 99}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    "d_model": 24,
    "vocab_size": 99,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]}
QWEN = {
    "text_config": {
        **WORDS,
        "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default"},
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 24,
        "num_heads": 3,
        "intermediate_size": 40,
        "out_hidden_size": 24,
        "patch_size": 4,
        "fullatt_block_indexes": [1],
    },
}


def backbone(kind="ResNet", sizes=RESNET, **more):
    return getattr(transformers, f"{kind}Config")(**sizes, **more)


def detr():
    return {
        **{key: BART[key] for key in BART if key != "vocab_size"},
        "num_queries": 7,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "backbone_config": backbone(out_features=["stage4"]),
    }


def mask2former():
    swin = {**SWIN, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 3, 3]}
    stages = [f"stage{stage}" for stage in range(1, 5)]
    return {
        "backbone_config": backbone("Swin", swin, out_features=stages),
        "feature_size": 96,
        "mask_feature_size": 96,
        "hidden_dim": 96,
        "num_queries": 7,
        "num_attention_heads": 3,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "dim_feedforward": 40,
        "encoder_feedforward_dim": 40,
    }


# Class -> the arguments of its configuration.
MODELS = {
    "ViTForImageClassification": lambda: {**LAYERS, **IMAGE, "num_channels": 1},
    "DeiTForImageClassificationWithTeacher": lambda: {**LAYERS, **IMAGE},
    "BeitForImageClassification": lambda: {**LAYERS, **IMAGE, "use_mask_token": True},
    "Dinov2Model": lambda: {**LAYERS, **IMAGE, "num_channels": 4},
    "DINOv3ViTModel": lambda: {**LAYERS, **IMAGE},
    "ViTMAEForPreTraining": lambda: {
        **LAYERS,
        **IMAGE,
        "decoder_hidden_size": 24,
        "decoder_num_attention_heads": 3,
        "decoder_num_hidden_layers": 2,
        "decoder_intermediate_size": 40,
    },
    "VideoMAEForVideoClassification": lambda: {**LAYERS, **IMAGE, "num_frames": 4},
    "SwinForImageClassification": lambda: SWIN,
    "ConvNextForImageClassification": lambda: {"hidden_sizes": [8, 12, 16, 24], "depths": [1] * 4},
    "ResNetForImageClassification": lambda: RESNET,
    "CLIPModel": lambda: {
        "text_config": {**LAYERS, "vocab_size": 99, **SPECIAL, "projection_dim": 20},
        "vision_config": {**LAYERS, **IMAGE, "projection_dim": 20},
        "projection_dim": 20,
    },
    "SiglipModel": lambda: {
        "text_config": {**LAYERS, "vocab_size": 99, **SPECIAL},
        "vision_config": {**LAYERS, **IMAGE},
    },
    "DetrForObjectDetection": detr,
    "Mask2FormerForUniversalSegmentation": mask2former,
    "Qwen2_5_VLForConditionalGeneration": lambda: QWEN,
    "Florence2ForConditionalGeneration": lambda: {
        "text_config": {**BART, "model_type": "bart", **SPECIAL},
        "vision_config": {
            "embed_dim": [8, 12, 16, 24],
            "num_heads": [2, 2, 2, 3],
            "depths": [1] * 4,
            "num_groups": [2, 2, 2, 3],
            "projection_dim": 24,
        },
    },
    "LlamaForCausalLM": lambda: {**WORDS, "tie_word_embeddings": True},
    "MixtralForCausalLM": lambda: {**WORDS, "num_local_experts": 3},
    "GPT2LMHeadModel": lambda: {"vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 3},
    "BertForMaskedLM": lambda: {**LAYERS, "vocab_size": 99},
    "T5ForConditionalGeneration": lambda: {
        "vocab_size": 99,
        "d_model": 24,
        "d_kv": 8,
        "d_ff": 40,
        "num_layers": 2,
        "num_heads": 3,
    },
    "WhisperForConditionalGeneration": lambda: {**BART, "num_mel_bins": 8, **SPECIAL},
    "Wav2Vec2ForCTC": lambda: {
        **LAYERS,
        "vocab_size": 99,
        "conv_dim": [8, 8],
        "conv_kernel": [5, 3],
        "conv_stride": [2, 2],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 3,
    },
}


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    """The class of a model, and the directory where one of it is saved, every parameter random."""
    kind = getattr(transformers, request.param)
    torch.manual_seed(0)
    model = randomise(kind(kind.config_class(**MODELS[request.param]())))
    model.save_pretrained(tmp_path)
    return kind, tmp_path


def test_whole_by_a_function_and_in_a_block(saved):
    kind, folder = saved
    audit = vitconvert.audit_load(lambda: kind.from_pretrained(folder), folder)
    assert audit.complete and not audit.unused and audit.count, audit
    model = kind(kind.config_class.from_pretrained(folder))
    with vitconvert.audit_load(model, folder) as audit:
        model.load_state_dict(kind.from_pretrained(folder).state_dict())
    assert audit.complete and not audit.unused, audit


def test_one_tensor_less(saved):
    """The largest one, which transformers initialises then."""
    kind, folder = saved
    path = folder / "model.safetensors"
    whole = load_file(path)
    lost = max(whole, key=lambda name: whole[name].numel())
    save_file({n: t for n, t in whole.items() if n != lost}, path, metadata={"format": "pt"})
    model = kind.from_pretrained(folder)
    save_file(whole, path, metadata={"format": "pt"})
    audit = vitconvert.audit_load(lambda: model, folder)
    assert not audit.complete and lost in audit.unused, audit
