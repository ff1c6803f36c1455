"""transformers' ViT, DeiT, ViTMAE, ViTMSN and I-JEPA."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.loading import Reading
from vitconvert.parity.isolation import silent_transformers
from vitconvert.parity.references.reference import Reference, own_tensors, package
from vitconvert.parity.taps import Tap, Taps, block_taps

# model_type: the class without and with a classifier
_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassification"),
    "vit_mae": ("ViTMAEModel", ""),
    "vit_msn": ("ViTMSNModel", "ViTMSNForImageClassification"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
}
_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}


def huggingface_reference(reading: Reading) -> Reference:
    """Build the class that the tensors are of, from the config.json beside them.

    transformers 5.23. `from_pretrained` reads both spellings, on disk and in memory; what it
    would initialise anew or leave out is an error here.

    Raises:
        MissingPackage: transformers is not installed.
        NotRepresentable: transformers does not take these tensors.
    """
    transformers = package("transformers", install="transformers")
    tensors = own_tensors(reading)
    config = _their_config(transformers, reading)
    kind = _class_of(config.model_type, tensors)
    with silent_transformers():
        model, problems = getattr(transformers, kind).from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=next(iter(tensors.values())).dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            **_pooler(kind, tensors),
        )
    _check(kind, problems)
    return Reference(
        name=f"transformers {transformers.__version__} {kind}",
        model=model.eval(),
        taps=_taps(model, reading.config.depth),
        run=_run,
        reads="output" if _gives_output(model) else "tokens",
    )


def _their_config(transformers: Any, reading: Reading) -> Any:
    theirs = dict(reading.their_config)
    if theirs.get("model_type") not in _CLASSES:
        theirs = _config_from_ours(reading.config)
    theirs["num_labels"] = reading.config.num_classes  # a config.json does not write two classes
    theirs.pop("id2label", None)
    theirs.pop("label2id", None)
    if theirs["model_type"] == "vit_mae":
        theirs["mask_ratio"] = 0.0
    return transformers.AutoConfig.for_model(**theirs)


def _config_from_ours(config: ViTConfig) -> dict[str, Any]:
    """For tensors without a config.json, from what the user stated."""
    kind = "deit" if config.dist_token else "vit" if config.class_token else "ijepa"
    return {
        "model_type": kind,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": _ACTIVATIONS.get(config.activation, config.activation),
        "layer_norm_eps": config.norm_eps,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.in_channels,
        "qkv_bias": config.qkv_bias,
        "pooler_output_size": config.representation_size or config.embed_dim,
    }


def _class_of(model_type: str, tensors: Collection[str]) -> str:
    bare, classifier = _CLASSES[model_type]
    if "cls_classifier.weight" in tensors:
        return "DeiTForImageClassificationWithTeacher"
    return classifier if "classifier.weight" in tensors and classifier else bare


def _pooler(kind: str, tensors: Collection[str]) -> dict[str, bool]:
    if kind not in ("ViTModel", "DeiTModel", "IJepaModel"):
        return {}
    return {"add_pooling_layer": any(name.endswith("pooler.dense.weight") for name in tensors)}


def _check(kind: str, problems: Mapping[str, Any]) -> None:
    found = {key: value for key, value in problems.items() if value}
    if found:
        raise NotRepresentable(
            f"transformers' {kind} does not take these tensors.",
            details=[f"{key}: {', '.join(map(str, value))}" for key, value in found.items()],
        )


def _taps(model: nn.Module, depth: int) -> Taps:
    base = f"{model.base_model_prefix}." if hasattr(model, str(model.base_model_prefix)) else ""
    # Some releases have the blocks a level deeper, under the names that they have on disk.
    deep = f"{base}encoder.layer.0" in dict(model.named_modules())
    return {
        "patch_embed": Tap(f"{base}embeddings.patch_embeddings"),
        "features": Tap("classifier", input=True) if base else Tap("pooler"),
        **block_taps(
            depth,
            block=base + ("encoder.layer.{i}" if deep else "layers.{i}"),
            norm2="layernorm_after",
            norm=f"{base}layernorm",
        ),
    }


def _gives_output(model: nn.Module) -> bool:
    return hasattr(model, "num_labels") or getattr(model, "pooler", None) is not None


def _run(model: nn.Module, images: Tensor) -> Tensor:
    more = {}
    if "ViTMAE" in type(model).__name__:
        # Masks nothing, but sorts the patches by this noise: keep them in order.
        embeddings: Any = model.embeddings
        patches = embeddings.patch_embeddings.num_patches
        more["noise"] = torch.arange(patches).expand(len(images), -1)
    output = model(images, **more)
    for name in ("logits", "pooler_output", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            tensor: Tensor = getattr(output, name)
            return tensor
    raise AssertionError(type(output))
