"""The `config.json` with which timm, and transformers' TimmWrapper, build a model.

The schema is timm's (`save_config_for_hf`, 1.0.31), but `num_classes` stands at the root alone:
inside `model_args` it makes TimmWrapper of transformers 5.23 fail.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import written_besides
from vitconvert.errors import NotRepresentable
from vitconvert.export.timm_architectures import fitting_architecture, with_defaults
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.architectures import Architectures, architectures, find_architecture
from vitconvert.tables.canonical import first_kernel
from vitconvert.tables.table import Table

_POOLING = {name: name for name in ("token", "avg", "avgmax", "max", "map")} | {"none": ""}

# What comes with an architecture's name: as the model has it, and as a plain ViT has it.
_SPECIAL = ("norm_eps", "dist_token", "stem", "stem_depths")
_PLAIN = {
    "norm": "layer",
    "gated_mlp": False,
    "block_order": "pre",
    "branches": 1,
    "rope": "none",
    "relative_positions": "none",
    "differential": False,
}
_USUAL = {**_PLAIN, "dist_token": False, "stem": False, "stem_depths": ()}

# Of two architectures whose arguments can say the same, the one that says more by itself.
_LIKENESS = (
    *("embed_dim", "depth", "num_heads", "patch_size", "pooling", "image_size", "activation"),
    *("layer_scale", "pre_norm", "class_token", "num_registers", "no_embed_class"),
)


def timm_config(
    table: Table,
    config: ViTConfig,
    *,
    preprocessing: Preprocessing | None = None,
    labels: Labels | None = None,
    architecture: str | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Say to timm what this configuration says.

    Args:
        table: The dialect to be written.
        config: The model's configuration.
        preprocessing: How its images are made.
        labels: Names of the classes, if the checkpoint has any.
        architecture: The timm architecture that the checkpoint came with, if any.
        pretrained_cfg: timm's own record of the checkpoint, whose provenance is kept.

    Raises:
        NotRepresentable: timm has no architecture with this LayerNorm eps, stem or tokens.
    """
    name = _architecture(config, architecture)
    arguments = model_args(config) | written_besides(table, config)["model_args"]
    return _written(table, name, arguments, config, preprocessing, labels, pretrained_cfg)


def timm_config_by_name(
    table: Table,
    config: ViTConfig,
    *,
    architecture: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    labels: Labels | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Name a timm architecture, and the arguments that it needs.

    For models that only an architecture's name describes: rotary embeddings, SwiGLU and so on.

    Args:
        table: The dialect to be written.
        config: The model's configuration.
        architecture: The name that the checkpoint came with; by default, one that fits is chosen.
        arguments: Those that it came with.
        preprocessing, labels, pretrained_cfg: As for `timm_config`.

    Raises:
        NotRepresentable: The architecture is not known, or there is none that computes this.
    """
    if architecture is None:
        name, kept = fitting_architecture(table, config)
        kept |= written_besides(table, config)["model_args"]
    else:
        name = architecture.split(".")[0]
        row = find_architecture("timm", name)
        kept = {key: value for key, value in (arguments or {}).items() if key != "num_classes"}
        if row["image_size"] != config.image_size:
            kept["img_size"] = list(config.image_size)
        if row["patch_size"] != config.patch_size:
            kept["patch_size"] = _one_or_both(config.patch_size)
    if config.in_channels != 3:
        kept["in_chans"] = config.in_channels
    return _written(table, name, kept, config, preprocessing, labels, pretrained_cfg)


def _written(
    table: Table,
    name: str,
    arguments: Mapping[str, Any],
    config: ViTConfig,
    preprocessing: Preprocessing | None,
    labels: Labels | None,
    pretrained_cfg: Mapping[str, Any] | None,
) -> dict[str, Any]:
    record = {**(pretrained_cfg or {}), **_input(config, preprocessing)}
    record |= {"num_classes": config.num_classes, "custom_load": False}
    record.pop("file", None)  # weights on the machine of who saved it
    record |= {"first_conv": _first_conv(table, config), "classifier": _classifier(config)}
    written = {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": config.embed_dim,
        "global_pool": _pooling(config),
        "model_args": dict(arguments),
        "pretrained_cfg": record,
    }
    if labels and not labels.assumed:
        written["label_names"] = list(labels)
    return written


def _first_conv(table: Table, config: ViTConfig) -> str:
    """What timm adapts to other input channels."""
    kernel = table.row_of[first_kernel(config)].alternatives[0].parts[0].key
    return kernel.write({}, table.first_texts(config)).removesuffix(".weight")


def _classifier(config: ViTConfig) -> str | list[str]:
    """What timm leaves out for another number of classes."""
    return ["head", "head_dist"] if config.dist_token else "head"


def model_args(config: ViTConfig) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer, all of them, since architectures differ in defaults.

    Raises:
        NotRepresentable: timm's MLPs or representation layer cannot be like this.
    """
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": _one_or_both(config.patch_size),
        "in_chans": config.in_channels,
        "embed_dim": config.embed_dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "proj_bias": config.proj_bias,
        "class_token": config.class_token,
        "no_embed_class": config.no_embed_class,
        "reg_tokens": config.num_registers,
        "scale_attn_norm": config.attention_norm,
        "scale_mlp_norm": config.mlp_norm,
        "pos_embed": "learn" if config.learned_positions else "none",
        "pre_norm": config.pre_norm,
        "final_norm": config.final_norm or config.fc_norm,
        "fc_norm": config.fc_norm,
        "global_pool": _pooling(config),
        "pool_include_prefix": config.pool_include_prefix,
        "act_layer": config.activation,
    }
    if config.dist_token:  # VisionTransformerDistilled settles these itself
        del arguments["class_token"], arguments["no_embed_class"], arguments["reg_tokens"]
        del arguments["fc_norm"], arguments["pool_include_prefix"]
    if config.layer_scale:
        arguments["init_values"] = 1e-5
    return arguments


def _pooling(config: ViTConfig) -> str:
    if config.pooling not in _POOLING:
        raise NotRepresentable(
            "timm does not pool tokens like this.", evidence={"pooling": config.pooling}
        )
    return _POOLING[config.pooling]


def _one_or_both(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _input(config: ViTConfig, preprocessing: Preprocessing | None) -> dict[str, Any]:
    size = {"input_size": [config.in_channels, *config.image_size], "fixed_input_size": True}
    if preprocessing is None:
        return size
    return {**preprocessing.to_timm(), **size}


def _architecture(config: ViTConfig, preferred: str | None) -> str:
    """An architecture whose fixed parts are those of the model; all others are arguments."""
    texts = [architectures()[dialect].texts for dialect in ("timm", "timm_root_stem")]
    rows = Architectures(dict(itertools.chain(*(several.items() for several in texts))))
    bare = (preferred or "").split(".")[0]
    if bare in rows and _has_fixed_parts(rows[bare], config):
        return bare
    fitting = {name: row for name, row in rows.items() if _has_fixed_parts(row, config)}
    if not fitting:
        special = {field: getattr(config, field) for field in _SPECIAL}
        raise NotRepresentable(
            "timm has no architecture with these fixed parts.",
            evidence={field: value for field, value in special.items() if value},
            meaning="timm's config.json cannot state them; they come with an architecture's name.",
        )
    return max(
        fitting,
        key=lambda name: (
            sum(
                with_defaults(fitting[name])[field] == getattr(config, field) for field in _LIKENESS
            ),
            name.startswith("vit_"),
        ),
    )


def _has_fixed_parts(row: Mapping[str, Any], config: ViTConfig) -> bool:
    """Whether what no argument changes is the model's."""
    special = {field: getattr(config, field) for field in _SPECIAL}
    # Nothing switches LayerScale off: transformers takes a null in model_args for silence.
    return (config.layer_scale or not row.get("layer_scale")) and all(
        row.get(field, _USUAL.get(field)) == value for field, value in (_PLAIN | special).items()
    )
