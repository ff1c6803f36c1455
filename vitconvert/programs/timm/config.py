"""The `config.json` with which timm, and transformers' TimmWrapper, build a model.

The schema is timm's (`save_config_for_hf`, 1.0.31), but `num_classes` stands at the root alone:
inside `model_args` it makes TimmWrapper of transformers 5.23 fail.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.errors import NotRepresentable, OtherFunction
from vitconvert.facts.project_config import their_word, written_besides
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.program import DescribedModel
from vitconvert.programs.target import check_place
from vitconvert.programs.timm.architectures import fitting_architecture, with_defaults
from vitconvert.tables.architectures import Architectures, architectures, find_architecture
from vitconvert.tables.canonical import first_kernel
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

# Dialects whose models the arguments of timm's VisionTransformer describe: plain ViTs, as `[only]`
# of the tables says.
BY_ARGUMENTS = ("timm", "timm_root_stem")

_POOLING = {name: name for name in ("token", "avg", "avgmax", "max", "map")} | {"none": ""}

# What comes with an architecture's name and with no argument, and what it is by default.
_FIXED_BY_NAME = {"norm_eps": None, "dist_token": False, "stem": False, "stem_depths": ()}

# Where the arguments of several architectures can describe a model, one that is like it is named.
_LIKENESS = (
    *("embed_dim", "depth", "num_heads", "patch_size", "pooling", "image_size", "activation"),
    *("layer_scale", "pre_norm", "class_token", "num_registers", "no_embed_class"),
)


def config_by_arguments(table: Table, model: DescribedModel) -> dict[str, Any]:
    """An architecture's name, and every argument that describes the model.

    Raises:
        NotRepresentable: timm has no architecture with this LayerNorm eps, stem or tokens.
    """
    name = _architecture(model.config, _name(model))
    besides = written_besides(table, model.config)["model_args"]
    return _written(table, name, model_args(model.config) | besides, model)


def config_by_name(table: Table, model: DescribedModel) -> dict[str, Any]:
    """An architecture's name, and the arguments that it needs.

    For models that only an architecture's name describes: rotary embeddings, SwiGLU and so on. It
    is the name that the checkpoint came with, if it was read in this dialect, or one that fits.

    Raises:
        NotRepresentable: The architecture is not known, or there is none that computes this.
    """
    config = model.config
    came_with = _name(model) if model.dialect == table.name else None
    if came_with is None:
        name, arguments = fitting_architecture(table, config)
        arguments |= written_besides(table, config)["model_args"]
    else:
        name = came_with.split(".")[0]
        arguments = _came_with_arguments(name, model)
    if config.in_channels != 3:
        arguments["in_chans"] = config.in_channels
    return _written(table, name, arguments, model)


def _name(model: DescribedModel) -> str | None:
    """The architecture that the checkpoint came with, if any."""
    return model.name or model.their_config.get("architecture")


def _came_with_arguments(name: str, model: DescribedModel) -> dict[str, Any]:
    """The arguments that the checkpoint came with, and the sizes where they changed since."""
    config, row = model.config, find_architecture("timm", name)
    came_with = model.their_config.get("model_args") or {}
    arguments = {key: value for key, value in came_with.items() if key != "num_classes"}
    if row["image_size"] != config.image_size:
        arguments["img_size"] = list(config.image_size)
    if row["patch_size"] != config.patch_size:
        arguments["patch_size"] = _one_or_both(config.patch_size)
    return arguments


def _written(
    table: Table, name: str, arguments: Mapping[str, Any], model: DescribedModel
) -> dict[str, Any]:
    """The whole file; of timm's own record of the checkpoint, what is not replaced is kept."""
    config, came_with = model.config, model.their_config.get("pretrained_cfg")
    record = {**(came_with if isinstance(came_with, dict) else {})}
    record |= _input(config, model.preprocessing)
    record |= {"num_classes": config.num_classes, "custom_load": False}
    record.pop("file", None)  # weights on the machine of who saved it
    record |= {"first_conv": _first_conv(table, config), "classifier": _classifier(config)}
    written = {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": config.embed_dim,
        "global_pool": _pooling_in(table, config),
        "model_args": dict(arguments),
        "pretrained_cfg": record,
    }
    if model.labels and not model.labels.assumed:
        written["label_names"] = list(model.labels)
    return written


def _first_conv(table: Table, config: ViTConfig) -> str:
    """The layer that timm adapts to another number of input channels."""
    kernel = table.row_of[first_kernel(config)].alternatives[0].parts[0].key
    return kernel.write({}, table.first_texts(config)).removesuffix(".weight")


def _classifier(config: ViTConfig) -> str | list[str]:
    """The layers that timm leaves out for another number of classes."""
    if config.windowed or config.decomposed_positions:
        return "head.fc"
    return ["head", "head_dist"] if config.dist_token else "head"


def model_args(config: ViTConfig) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer: all of them, since architectures differ in defaults.

    `[config_json.fields]` of cores/timm.toml reads them; the width of the MLPs is added from there.

    Raises:
        NotRepresentable: timm does not pool tokens like this.
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
    if config.dist_token:  # VisionTransformerDistilled fixes these itself
        del arguments["class_token"], arguments["no_embed_class"], arguments["reg_tokens"]
        del arguments["fc_norm"], arguments["pool_include_prefix"]
    if config.layer_scale:
        arguments["init_values"] = 1e-5
    return arguments


def require_plain(config: ViTConfig) -> None:
    """Raise NotRepresentable unless arguments describe the model, without any name."""
    root_only = config.standardised_stem and not config.stem_depths
    table = builtin_tables()["timm_root_stem" if root_only else "timm"]
    # A layer before the head is put back by whoever needs it.
    plain = dataclasses.replace(config, representation_size=0)
    try:
        check_place(table, plain)
    except NotRepresentable as error:
        raise NotRepresentable(
            "timm builds such a model by the name of an architecture only, and nothing names one: "
            f"{error.in_one_line()}."
        ) from None


def _pooling(config: ViTConfig) -> str:
    if config.pooling == "token_avg":
        # No linear layer of one of the two computes what one of both does.
        raise OtherFunction(
            "a head of timm reads one vector, and this one reads the class token and the mean of "
            "the patches side by side.",
            evidence={"pooling": config.pooling},
        )
    if config.pooling not in _POOLING:
        raise NotRepresentable(
            "timm does not pool tokens like this.", evidence={"pooling": config.pooling}
        )
    return _POOLING[config.pooling]


def _pooling_in(table: Table, config: ViTConfig) -> str:
    """timm's word; an encoder for language models has one for the merging of its patches."""
    merges = config.merge_size and config.pooling == "none"
    return str(their_word(table, "pooling", "none")) if merges else _pooling(config)


def _one_or_both(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _input(config: ViTConfig, preprocessing: Preprocessing | None) -> dict[str, Any]:
    size = {"input_size": [config.in_channels, *config.image_size], "fixed_input_size": True}
    if preprocessing is None:
        return size
    return {**preprocessing.to_timm(), **size}


def _architecture(config: ViTConfig, preferred: str | None) -> str:
    """An architecture with the fixed parts of the model; all else is arguments."""
    texts = [architectures()[dialect].texts for dialect in BY_ARGUMENTS]
    rows = Architectures(dict(itertools.chain(*(several.items() for several in texts))))
    bare = (preferred or "").split(".")[0]
    if bare in rows and _has_fixed_parts(rows[bare], config):
        return bare
    fitting = {name: row for name, row in rows.items() if _has_fixed_parts(row, config)}
    if not fitting:
        fixed = {field: getattr(config, field) for field in _FIXED_BY_NAME}
        raise OtherFunction(
            "timm has no architecture with these fixed parts.",
            evidence={field: value for field, value in fixed.items() if value},
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
    """Whether an architecture is the model in whatever no argument changes."""
    only = builtin_tables()[BY_ARGUMENTS[0]].only
    fixed = {a.predicate.text: a.value for a in only if a.predicate.text in field_names()}
    plain = all(row.get(field, value) == value for field, value in fixed.items())
    same = (
        row.get(field, default) == getattr(config, field)
        for field, default in _FIXED_BY_NAME.items()
    )
    # Nothing switches LayerScale off: transformers reads a null in model_args as "not stated".
    return plain and (config.layer_scale or not row.get("layer_scale")) and all(same)
