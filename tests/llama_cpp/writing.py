"""Tiny towers of CLIP and SigLIP, and mmproj files as llama.cpp's converter writes them."""

from pathlib import Path

import gguf
import numpy as np
import torch

from tests.packages import transformers
from tests.small_models import randomise

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
SIZES |= {"num_hidden_layers": 11, "image_size": 24, "patch_size": 8}
# From names of transformers to those of gguf/tensor_mapping.py.
NAMES = {
    "encoder.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "embeddings.class_embedding": "class_embd",
    "embeddings.patch_embedding": "patch_embd",
    "embeddings.position_embedding": "position_embd",
    "pre_layrnorm": "pre_ln",
    "post_layernorm": "post_ln",
}
F32, F16, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0"))


def clip(**changes):
    torch.manual_seed(3)
    config = transformers.CLIPVisionConfig(**SIZES | changes)
    return randomise(transformers.CLIPVisionModel(config)).eval()


def siglip():
    torch.manual_seed(4)
    config = transformers.SiglipVisionConfig(**SIZES, vision_use_head=False)
    return randomise(transformers.SiglipVisionModel(config)).eval()


def theirs(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return f"v.{name}"


def write(
    path: Path,
    model,
    kind=F16,
    *,
    swapped=False,
    leave_out=(),
    projector="mlp",
    audio=None,
    **words,
) -> Path:
    """Matrices in the type asked for, vectors in float32, and a projector.

    Args:
        audio: Names of an audio tower's vectors, and how long each is.
    """
    config, writer = model.config, gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(projector)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(config.layer_norm_eps)
    writer.add_vision_image_size(config.image_size)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    for word, value in words.items():
        writer.add_bool(f"clip.{word}", value)
    for name, tensor in model.state_dict().items():
        new = theirs(name)
        if swapped:
            new = new.replace("ffn_up", "x").replace("ffn_down", "ffn_up").replace("x", "ffn_down")
        if any(part in new for part in leave_out):
            continue
        array = tensor.numpy()
        if array.ndim == 1 or "embd" in new:
            writer.add_tensor(new, array)
        elif kind == F16:
            writer.add_tensor(new, array.astype(np.float16))
        else:
            data = gguf.quantize(array, kind)
            writer.add_tensor(new, data, raw_dtype=kind)
    for name, length in (audio or {}).items():
        writer.add_tensor(name, np.ones(length, np.float32))
    writer.add_tensor("mm.0.weight", np.ones((5, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
