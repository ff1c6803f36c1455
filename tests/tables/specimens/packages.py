"""The own models of transformers and torchvision, small."""

from functools import partial
from typing import Any

from torch import nn

from tests.packages import torchvision, transformers
from tests.tables.specimens.specimen import PLAIN, USER, Specimen

HF_SIZES = {
    "hidden_size": 30,
    "num_hidden_layers": 11,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": 24,
    "patch_size": 8,
}
HF_STATED = {"num_heads": 3, "norm_eps": 1e-12}


def hf(family: str, task: str, **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**HF_SIZES | changes)
    return getattr(transformers, family + task)(config)


def hf_disk_name(name: str) -> str:
    """transformers' names before version 5, which it still writes; from its documentation."""
    for new, old in (
        ("layers.", "encoder.layer."),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ):
        name = name.replace(new, old)
    return name


def torchvision_vit(**changes: Any) -> "torchvision.models.VisionTransformer":
    options = {
        "image_size": 24,
        "patch_size": 8,
        "num_layers": 11,
        "num_heads": 3,
        "hidden_dim": 30,
        "mlp_dim": 50,
        "num_classes": 7,
    }
    return torchvision.models.VisionTransformer(**options | changes)


def torchvision_old_name(name: str) -> str:
    return name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2")


TRANSFORMERS = {
    "hf ViT classifier": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViT", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"pooling": "token", "representation_size": 0},
        outputs=lambda found: found.logits,
    ),
    "hf ViT classifier on disk, four channels, no bias": Specimen(
        dialect="hf_vit",
        make=partial(
            hf,
            "ViT",
            "ForImageClassification",
            num_labels=2,
            num_channels=4,
            image_size=[24, 32],
            qkv_bias=False,
        ),
        stated=HF_STATED | {"image_size": (24, 32)},
        expected=PLAIN
        | {"num_classes": 2, "in_channels": 4, "image_size": (24, 32), "qkv_bias": False},
        rename=hf_disk_name,
        outputs=lambda found: found.logits,
    ),
    "hf ViT with pooler": Specimen(
        dialect="hf_vit_pooler_memory",
        make=partial(hf, "ViT", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0, "representation_size": 30},
        outputs=lambda found: found.pooler_output,
    ),
    "hf ViT with pooler on disk": Specimen(
        dialect="hf_vit_pooler",
        make=partial(hf, "ViT", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0, "representation_activation": "tanh"},
        rename=hf_disk_name,
        outputs=lambda found: found.pooler_output,
    ),
    "hf DeiT with pooler on disk": Specimen(
        dialect="hf_vit_pooler",
        make=partial(hf, "DeiT", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "num_classes": 0, "representation_size": 30},
        rename=hf_disk_name,
        written="hf_deit_pooler",
        outputs=lambda found: found.pooler_output,
    ),
    "hf DeiT with teacher": Specimen(
        dialect="hf_deit_teacher_memory",
        make=partial(hf, "DeiT", "ForImageClassificationWithTeacher", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": True},
        outputs=lambda found: found.logits,
    ),
    "hf DeiT with teacher on disk": Specimen(
        dialect="hf_deit_teacher",
        make=partial(hf, "DeiT", "ForImageClassificationWithTeacher", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": True},
        rename=hf_disk_name,
        outputs=lambda found: found.logits,
    ),
    "hf DeiT classifier on disk": Specimen(
        dialect="hf_vit",
        make=partial(hf, "DeiT", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"dist_token": True, "dist_head": False, "pooling": "token"},
        rename=hf_disk_name,
        written="hf_deit",
        outputs=lambda found: found.logits,
    ),
    "hf I-JEPA on disk": Specimen(
        dialect="hf_vit",
        make=partial(hf, "IJepa", "ForImageClassification", num_labels=7),
        stated=HF_STATED,
        expected=PLAIN | {"class_token": False, "pooling": "avg"},
        rename=hf_disk_name,
        written="hf_ijepa",
        outputs=lambda found: found.logits,
    ),
    "hf MSN": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViTMSN", "ForImageClassification", num_labels=7),
        stated=HF_STATED | {"norm_eps": 1e-6},
        expected=PLAIN,
        outputs=lambda found: found.logits,
    ),
    "hf MAE encoder": Specimen(
        dialect="hf_vit_memory",
        make=partial(hf, "ViTMAE", "Model"),
        stated=HF_STATED,
        expected=PLAIN | {"num_classes": 0},
        outputs=lambda found: None,  # it shuffles and drops patches
    ),
}
TORCHVISION = {
    "torchvision": Specimen(
        dialect="torchvision",
        make=torchvision_vit,
        stated=USER,
        expected=PLAIN | {"pooling": "token"},
    ),
    "torchvision with representation": Specimen(
        dialect="torchvision",
        make=partial(torchvision_vit, representation_size=20),
        stated=USER,
        expected=PLAIN | {"representation_size": 20, "representation_activation": "tanh"},
    ),
    "torchvision, older names": Specimen(
        dialect="torchvision",
        make=torchvision_vit,
        stated=USER,
        expected=PLAIN,
        rename=torchvision_old_name,
        rewritten=lambda name: name.replace("linear_1", "0").replace("linear_2", "3"),
    ),
}
