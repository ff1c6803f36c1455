"""The `config.json` with which timm, and transformers' TimmWrapper, build a model.

It names an architecture of timm, and the arguments that it needs to compute the function. The
schema is timm's (`save_config_for_hf`, 1.0.31), but `num_classes` stands at the root alone: inside
`model_args` it makes TimmWrapper of transformers 5.23 fail.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

from vitconvert.config import ViTConfig, field_names
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable, OtherFunction
from vitconvert.facts.gathering import DEFAULTS
from vitconvert.facts.project_config import their_word, written_besides
from vitconvert.programs.program import DescribedModel
from vitconvert.programs.target import check_place
from vitconvert.tables.architectures import (
    FILE,
    Architectures,
    Fields,
    architectures,
    find_architecture,
    named,
)
from vitconvert.tables.canonical import first_kernel
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

# Dialects whose models the arguments of timm's VisionTransformer describe: plain ViTs, as `[only]`
# of the tables says, and those that are built on an architecture with gated MLPs.
PLAIN = ("timm", "timm_root_stem")
BY_ARGUMENTS = (*PLAIN, "timm_swiglu_packed")

# Fields that all of timm's ViT, Eva and Beit classes take as arguments, in this order. An
# architecture of the right size is preferred to one that needs them.
_ARGUMENTS = ("image_size", "pooling", "patch_size", "embed_dim", "depth", "num_heads")
# And those that some classes have: the table of such a class says what they are called.
_OF_SOME = (
    *("window_size", "global_blocks", "neck_dim", "relative_mlp_dim"),
    *("rope_reference", "kv_heads"),
)
_SHOWN = 3  # differences; an architecture of another kind has many

_POOLING = {name: name for name in ("token", "avg", "avgmax", "max", "map")} | {"none": ""}

# What comes with an architecture's name and with no argument, and what it is by default.
_FIXED_BY_NAME = {"norm_eps": None, "dist_token": False, "stem": False, "stem_depths": ()}

# Where the arguments of several architectures can describe a model, one that is like it is named.
_LIKENESS = (
    *("embed_dim", "depth", "num_heads", "patch_size", "pooling", "image_size", "activation"),
    *("layer_scale", "pre_norm", "class_token", "num_registers", "no_embed_class"),
)


# By arguments


def config_by_arguments(table: Table, model: DescribedModel) -> JsonDict:
    """An architecture's name, and every argument that describes the model.

    Raises:
        NotRepresentable: timm has no architecture with this LayerNorm eps, stem or tokens.
    """
    config = model.config
    tables = PLAIN if table.name in PLAIN else [table.name]
    stated = (architectures()[name].rows.items() for name in tables)
    rows = Architectures(dict(itertools.chain(*stated)))
    name = (_stated_name(model) or "").split(".")[0]
    if name not in rows or not _has_fixed_parts(rows[name], config):
        fitting = {name: row for name, row in rows.items() if _has_fixed_parts(row, config)}
        if not fitting:
            fixed = {field: getattr(config, field) for field in _FIXED_BY_NAME}
            raise OtherFunction(
                "timm has no architecture with these fixed parts.",
                evidence={field: value for field, value in fixed.items() if value},
                meaning="timm's config.json cannot state them; they come with an architecture's "
                "name.",
            )
        wanted = {field: getattr(config, field) for field in _LIKENESS}

        def likeness(name: str) -> tuple[int, bool]:
            theirs = {**DEFAULTS, **fitting[name]}
            return sum(theirs[f] == v for f, v in wanted.items()), name.startswith("vit_")

        name = max(fitting, key=likeness)
    besides = written_besides(table, config)["model_args"]
    return _written(table, name, model_args(config) | besides, model)


def _stated_name(model: DescribedModel) -> str | None:
    """The architecture that the checkpoint came with, if any."""
    return model.name or model.their_config.get("architecture")


def _has_fixed_parts(row: Fields, config: ViTConfig) -> bool:
    """Whether an architecture is the model in whatever no argument changes."""
    only = builtin_tables()[PLAIN[0]].only
    fixed = {a.predicate.text: a.value for a in only if a.predicate.text in field_names()}
    plain = all(row.get(field, value) == value for field, value in fixed.items())
    same = (
        row.get(field, default) == getattr(config, field)
        for field, default in _FIXED_BY_NAME.items()
    )
    # Nothing switches LayerScale off: transformers reads a null in model_args as "not stated".
    return plain and (config.layer_scale or not row.get("layer_scale")) and all(same)


def model_args(config: ViTConfig) -> JsonDict:
    """Arguments of timm's VisionTransformer: all of them, since architectures differ in defaults.

    `[config_json.fields]` of cores/timm.toml reads them; the width of the MLPs is added from there.

    Raises:
        NotRepresentable: timm does not pool tokens like this.
    """
    arguments: JsonDict = {
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
        "global_pool": pooling_word(config),
        "pool_include_prefix": config.pool_include_prefix,
        "act_layer": config.activation,
    }
    if config.dist_token:  # VisionTransformerDistilled fixes these itself
        del arguments["class_token"], arguments["no_embed_class"], arguments["reg_tokens"]
        del arguments["fc_norm"], arguments["pool_include_prefix"]
    if config.layer_scale:
        arguments["init_values"] = 1e-5  # any: the tensors replace it
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


# By name


def config_by_name(table: Table, model: DescribedModel) -> JsonDict:
    """An architecture's name, and the arguments that it needs.

    For models that only an architecture's name describes: rotary embeddings, SwiGLU and so on. It
    is the name that the checkpoint came with, if it was read in this dialect, or one that fits.

    Raises:
        NotRepresentable: The architecture is not known, or there is none that computes this.
    """
    config = model.config
    stated = _stated_name(model) if model.dialect == table.name else None
    if stated is None:
        name, arguments = fitting_architecture(table, config)
        arguments |= written_besides(table, config)["model_args"]
    else:  # with the arguments that it came with, and the sizes where they changed since
        name = stated.split(".")[0]
        row, came_with = find_architecture("timm", name), model.their_config.get("model_args") or {}
        arguments = {key: value for key, value in came_with.items() if key != "num_classes"}
        if row["image_size"] != config.image_size:
            arguments["img_size"] = list(config.image_size)
        if row["patch_size"] != config.patch_size:
            arguments["patch_size"] = _one_or_both(config.patch_size)
    if config.in_channels != 3:
        arguments["in_chans"] = config.in_channels
    return _written(table, name, arguments, model)


def fitting_architecture(
    table: Table, config: ViTConfig, *, repooled: bool = False
) -> tuple[str, JsonDict]:
    """The architecture of a dialect that needs the fewest arguments, and these arguments.

    Args:
        table: The dialect.
        config: What the architecture should compute.
        repooled: Its pooling is set after it is built, by `reset_classifier`: its norms, and
            whether it has an attention pooling, are then those of its own pooling.

    Raises:
        NotRepresentable: None computes this, whatever the arguments. Names the nearest.
    """
    ours, their_words = config.function(), table.config_file.fields if table.config_file else {}
    known = {*_ARGUMENTS, *(field for field in _OF_SOME if field in their_words)}
    differing = {
        name: _differences(row, config, row["pooling"] if repooled else config.pooling, their_words)
        for name, row in architectures().get(table.name, {}).items()
        if not repooled or (row["pooling"] == "map") == config.map_pooling
    }
    if not differing:
        raise NotRepresentable(
            f"timm names no architecture of {table.title}.", evidence={"listed in": FILE}
        )

    def distance(name: str) -> tuple[int, int, int]:
        """Fields that no argument changes weigh most, then sizes; pooling counts nothing."""
        fields, width = differing[name], config.embed_dim
        narrower = abs(fields.get("embed_dim", width) - width)
        return len(fields.keys() - known), len(fields.keys() - {"pooling"}), narrower

    name = min(differing, key=distance)
    fixed = [(field, v) for field, v in differing[name].items() if field not in known]
    if fixed:
        shown = [f"{field} {value} and not {ours[field]}" for field, value in fixed[:_SHOWN]]
        raise OtherFunction(
            f"No architecture of {table.title} computes this.",
            evidence={"listed in": FILE},
            details=[f"the nearest is {name}, with {', '.join(shown)}"],
        )
    arguments: JsonDict = {}
    for field in differing[name]:
        assert table.config_file
        # What timm calls it: where the table reads it first.
        word = their_words[field][0].removeprefix(f"{table.config_file.arguments}.")
        value = getattr(config, field)
        if field == "rope_reference":  # timm fails at an empty one; the model's own scales nothing
            value = value or config.grid_size
        arguments[word] = list(value) if isinstance(value, tuple) else value
        if value == "none":
            arguments[word] = ""
    return name, arguments


def _differences(
    row: Fields, config: ViTConfig, pooling: str, their_words: Mapping[str, object]
) -> JsonDict:
    """Fields of which an architecture, pooled like this, has another value: field -> that value."""
    theirs = {**DEFAULTS, **row}
    # timm norms the mean of the tokens, unless the architecture says to norm all of them.
    fc_norm, final_norm = row.get("fc_norm", False), row.get("final_norm", True)
    if fc_norm == (row["pooling"] == "avg") and fc_norm != final_norm:
        fc_norm, final_norm = pooling == "avg", pooling != "avg"
    theirs |= {"fc_norm": fc_norm, "final_norm": final_norm}
    theirs["head_dim"] = config.embed_dim // config.num_heads
    if "head_dim" in their_words:
        theirs["head_dim"] = config.head_dim
    theirs["attention_scale"] = theirs["attention_scale"] or theirs["head_dim"] ** -0.5
    if theirs["rope_reference"] == config.grid_size:  # as ViTConfig.function has it
        theirs["rope_reference"] = ()
    theirs["pool_heads"] = theirs["pool_heads"] or config.num_heads
    theirs["final_norm_eps"] = theirs["final_norm_eps"] or theirs["norm_eps"]
    stated = _stated_fields() | {"head_dim", "attention_scale", "head_bias"}
    if "kv_heads" in their_words:  # one number for each block, whatever the architecture has
        stated |= {"kv_heads"}
    return {
        field: theirs[field]
        for field, value in config.function().items()
        if field in stated and theirs[field] != value
    }


@functools.cache
def _stated_fields() -> frozenset[str]:
    """Fields that some row states; in all other rows they have their default."""
    return frozenset(field for row in named("timm").values() for field in row)


# The whole file


def _written(table: Table, name: str, arguments: JsonObject, model: DescribedModel) -> JsonDict:
    """The whole file; of timm's own record of the checkpoint, what is not replaced is kept."""
    config, came_with = model.config, model.their_config.get("pretrained_cfg")
    record = {**(came_with if isinstance(came_with, dict) else {})}
    if model.preprocessing and not model.preprocessing.pad:  # in which timm has its defaults
        record |= model.preprocessing.to_timm()
    record |= {"input_size": [config.in_channels, *config.image_size], "fixed_input_size": True}
    record |= {"num_classes": config.num_classes, "custom_load": False}
    record.pop("file", None)  # weights on the machine of who saved it
    # The layer that timm adapts to another number of input channels,
    kernel = table.row_of[first_kernel(config)].alternatives[0].parts[0].key
    first_conv = kernel.write({}, table.first_texts(config)).removesuffix(".weight")
    # and those that it leaves out for another number of classes.
    classifier = ["head", "head_dist"] if config.dist_token else "head"
    if config.windowed or config.decomposed_positions:
        classifier = "head.fc"
    record |= {"first_conv": first_conv, "classifier": classifier}
    # An encoder for language models has a word of its own for the merging of its patches.
    merges = config.merge_size and config.pooling == "none"
    written = {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": config.embed_dim,
        "global_pool": their_word(table, "pooling", "none") if merges else pooling_word(config),
        "model_args": dict(arguments),
        "pretrained_cfg": record,
    }
    if model.labels and not model.labels.assumed:
        written["label_names"] = list(model.labels)
    if config.stated_problem:  # timm has no word for it, and transformers' wrapper of timm has
        written["problem_type"] = config.stated_problem
    return written


def pooling_word(config: ViTConfig) -> str:
    """How timm calls what the head reads; NotRepresentable if it has no word for it."""
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


def _one_or_both(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
