"""On a CPU in float32 the model equals Hugging Face's ViT, DeiT and MSN to the last bit."""

import pytest
import torch

from tests.packages import transformers
from vitconvert.model import ViT
from vitconvert.model.attention_maps import attentions

SMALL = {
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": (32, 24),
    "patch_size": 8,
    "num_labels": 7,
}
MODELS = {
    "ViT": ("ViTConfig", "ViTForImageClassification", {}),
    "DeiT": (
        "DeiTConfig",
        "DeiTForImageClassification",
        {"dist_token": True},
    ),
    "DeiT with teacher": (
        "DeiTConfig",
        "DeiTForImageClassificationWithTeacher",
        {"dist_token": True, "dist_head": True},
    ),
    "MSN": ("ViTMSNConfig", "ViTMSNForImageClassification", {}),
}


@pytest.mark.parametrize(("config", "model", "fields"), MODELS.values(), ids=MODELS)
def test_logits_equal_huggingfaces(config, model, fields, make_config, randomise, images):
    config = getattr(transformers, config)(**SMALL)
    theirs = randomise(getattr(transformers, model)(config))
    ours = _same_weights(make_config(norm_eps=theirs.config.layer_norm_eps, **fields), theirs)
    x = images(ours.config)
    assert torch.equal(ours(x), theirs(x).logits)


def test_class_token_beside_the_mean_of_patches_is_dinov2s(make_config, randomise, images):
    arguments = {**SMALL, "mlp_ratio": 2, "image_size": 32, "num_register_tokens": 2}
    del arguments["intermediate_size"]
    config = transformers.Dinov2WithRegistersConfig(**arguments)
    theirs = randomise(transformers.Dinov2WithRegistersForImageClassification(config))
    ours = ViT(make_config(pooling="token_avg", num_registers=2)).eval()
    ours.head.load_state_dict(theirs.classifier.state_dict())
    x = images(make_config(image_size=(32, 32)))
    tokens = theirs.base_model(x).last_hidden_state
    assert ours.head.in_features == 60
    torch.testing.assert_close(ours.forward_head(tokens), theirs(x).logits, rtol=1e-6, atol=1e-6)


def test_pooler_is_the_layer_before_the_head(make_config, randomise, images):
    theirs = randomise(transformers.ViTModel(transformers.ViTConfig(**SMALL)))
    config = make_config(norm_eps=1e-12, num_classes=0, representation_size=30)
    ours = _same_weights(config, theirs)
    x = images(config)
    assert torch.equal(ours.forward_features(x), theirs(x).last_hidden_state)
    assert torch.equal(ours(x), theirs(x).pooler_output)


@pytest.mark.parametrize(
    ("layers", "wanted_layers"), [(None, [0, 1, 2]), (2, [1, 2]), ([0, -1], [0, 2])]
)
def test_attention_maps_are_huggingfaces(layers, wanted_layers, make_config, randomise, images):
    config = transformers.ViTConfig(**SMALL, attn_implementation="eager")
    theirs = randomise(transformers.ViTForImageClassification(config))
    ours = _same_weights(make_config(norm_eps=1e-12), theirs)
    x = images(ours.config)
    wanted = theirs(x, output_attentions=True).attentions
    before = ours(x)
    maps = attentions(ours, x, layers)
    assert list(maps) == wanted_layers
    for layer, found in maps.items():
        assert found.shape == (2, 3, 13, 13)
        torch.testing.assert_close(found, wanted[layer], rtol=0, atol=1e-6)
    assert torch.equal(ours(x), before)


def test_hidden_states_are_huggingfaces(make_config, randomise, images):
    theirs = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)))
    ours = _same_weights(make_config(norm_eps=1e-12), theirs)
    x = images(ours.config)
    wanted = theirs(x, output_hidden_states=True).hidden_states
    found = ours.hidden_states(x)
    assert len(found) == len(wanted) == 4
    assert all(torch.equal(ours_, theirs_) for ours_, theirs_ in zip(found, wanted, strict=True))


def _same_weights(config, theirs):
    """Rename by hand; q, k and v become one matrix."""
    state = {
        name.split(".", 1)[1] if name.startswith(("vit.", "deit.")) else name: tensor
        for name, tensor in theirs.state_dict().items()
    }
    renamed = {_canonical(name): tensor for name, tensor in state.items() if "q_proj" not in name}
    for name, tensor in state.items():
        if "q_proj" in name:
            parts = [
                tensor,
                *(state[name.replace("q_proj", part)] for part in ("k_proj", "v_proj")),
            ]
            target = name.replace("layers", "blocks").replace("attention.q_proj", "attn.qkv")
            renamed[target] = torch.cat(parts)
    ours = ViT(config, device="meta").eval()
    wanted = ours.state_dict().keys()
    dropped = renamed.keys() - wanted
    assert all("k_proj" in name or "v_proj" in name for name in dropped), dropped
    ours.load_state_dict({name: renamed[name] for name in wanted}, strict=True, assign=True)
    return ours


def _canonical(name):
    for theirs, ours in (
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.distillation_token", "dist_token"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("layers.", "blocks."),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("layernorm.", "norm."),
        ("attention.o_proj", "attn.proj"),
        ("pooler.dense", "pre_logits.fc"),
        ("distillation_classifier", "head_dist"),
        ("cls_classifier", "head"),
        ("classifier", "head"),
    ):
        name = name.replace(theirs, ours)
    return name
