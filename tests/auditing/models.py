"""Small models that the tests of `vitconvert audit` save, and code of users that loads them."""

from pathlib import Path

import torch

from tests.packages import timm, transformers

SIZES = {"hidden_size": 24, "num_hidden_layers": 11, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "image_size": 32, "patch_size": 8}
OURS = """
import torch, timm

SIZES = dict(img_size=32, patch_size=8, embed_dim=24, depth=11, num_heads=3, num_classes=7)

def build():
    return timm.models.VisionTransformer(**SIZES)
"""


def drawn(model, seed=0):
    """A model of which every tensor of fractions is random."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return model


def saved_vit(folder, kind="ViTForImageClassification"):
    config = transformers.ViTConfig(**SIZES, num_labels=7)
    drawn(getattr(transformers, kind)(config)).save_pretrained(folder)
    return folder


def own(text):
    Path("ours.py").write_text(OURS + text)
    return "ours.py:load"


def own_vit():
    torch.manual_seed(1)
    Path("build.py").write_text(OURS)
    return drawn(
        timm.models.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=24, depth=11, num_heads=3, num_classes=7
        )
    ).state_dict()


def llama(tied=False):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 11}
    sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=tied)
    return transformers.LlamaForCausalLM(config)
