"""Which architecture of timm computes a function, and the arguments that it needs to do so."""

import functools
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable, OtherFunction
from vitconvert.tables.architectures import FILE, architectures, named
from vitconvert.tables.table import Table

# Fields that all of timm's ViT, Eva and Beit classes take as arguments, in this order. An
# architecture of the right size is preferred to one that needs them.
_ARGUMENTS = ("image_size", "pooling", "patch_size", "embed_dim", "depth", "num_heads")
# And those that some classes have: the table of such a class says what they are called.
_OF_SOME = (
    *("window_size", "global_blocks", "neck_dim", "relative_mlp_dim"),
    *("rope_reference", "kv_heads"),
)
_SHOWN = 3  # differences; an architecture of another kind has many
_DEFAULTS = {f.name: f.default for f in fields(ViTConfig) if f.default is not MISSING}


def fitting_architecture(
    table: Table, config: ViTConfig, *, repooled: bool = False
) -> tuple[str, dict[str, Any]]:
    """The architecture of a dialect that needs the fewest arguments, and these arguments.

    Args:
        table: The dialect.
        config: What the architecture should compute.
        repooled: Its pooling is set after it is built, by `reset_classifier`: its norms, and
            whether it has an attention pooling, are then those of its own pooling.

    Raises:
        NotRepresentable: None computes this, whatever the arguments. Names the nearest.
    """
    differing = {
        name: _differences(table, row, config, row["pooling"] if repooled else config.pooling)
        for name, row in architectures().get(table.name, {}).items()
        if not repooled or (row["pooling"] == "map") == config.map_pooling
    }
    if not differing:
        raise NotRepresentable(
            f"timm names no architecture of {table.title}.", evidence={"listed in": FILE}
        )
    arguments = _arguments(table)
    name = min(differing, key=lambda name: _distance(differing[name], config, arguments))
    fixed = {field: v for field, v in differing[name].items() if field not in arguments}
    if fixed:
        ours = config.function()
        shown = [
            f"{field} {value} and not {ours[field]}"
            for field, value in list(fixed.items())[:_SHOWN]
        ]
        raise OtherFunction(
            f"No architecture of {table.title} computes this.",
            evidence={"listed in": FILE},
            details=[f"the nearest is {name}, with {', '.join(shown)}"],
        )
    return name, {
        _argument(table, field): _value(getattr(config, field)) for field in differing[name]
    }


def with_defaults(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of architectures.toml with what it leaves out because it is as usual."""
    return {**_DEFAULTS, **row}


def _arguments(table: Table) -> set[str]:
    known = table.config_file.fields if table.config_file else {}
    return {*_ARGUMENTS, *(field for field in _OF_SOME if field in known)}


def _distance(
    differences: Mapping[str, Any], config: ViTConfig, arguments: set[str]
) -> tuple[int, int, int]:
    """What no argument changes weighs most, then sizes; pooling counts nothing."""
    fixed, sizes = differences.keys() - arguments, differences.keys() - {"pooling"}
    width = config.embed_dim
    return len(fixed), len(sizes), abs(differences.get("embed_dim", width) - width)


def _differences(
    table: Table, row: Mapping[str, Any], config: ViTConfig, pooling_when_built: str
) -> dict[str, Any]:
    """Fields of which an architecture has another value: field -> that value."""
    theirs = with_defaults(row) | _norms(row, pooling_when_built)
    told = table.config_file is not None and "head_dim" in table.config_file.fields
    theirs["head_dim"] = config.head_dim if told else config.embed_dim // config.num_heads
    theirs["attention_scale"] = theirs["attention_scale"] or theirs["head_dim"] ** -0.5
    if theirs["rope_reference"] == config.grid_size:  # as ViTConfig.function has it
        theirs["rope_reference"] = ()
    theirs["pool_heads"] = theirs["pool_heads"] or config.num_heads
    theirs["final_norm_eps"] = theirs["final_norm_eps"] or theirs["norm_eps"]
    stated = _stated_fields() | {"head_dim", "attention_scale", "head_bias"}
    if "kv_heads" in _arguments(table):  # one number for each block, whatever the architecture has
        stated |= {"kv_heads"}
    return {
        field: theirs[field]
        for field, value in config.function().items()
        if field in stated and theirs[field] != value
    }


def _norms(row: Mapping[str, Any], pooling: str) -> dict[str, bool]:
    """timm norms the mean of the tokens, unless the architecture says to norm all of them."""
    fc_norm, final_norm = row.get("fc_norm", False), row.get("final_norm", True)
    if fc_norm != (row["pooling"] == "avg") or fc_norm == final_norm:
        return {"fc_norm": fc_norm, "final_norm": final_norm}
    return {"fc_norm": pooling == "avg", "final_norm": pooling != "avg"}


def _argument(table: Table, field: str) -> str:
    """What timm calls a field: where the table reads it first."""
    assert table.config_file
    return table.config_file.fields[field][0].removeprefix(f"{table.config_file.arguments}.")


def _value(value: Any) -> Any:
    if value == "none":
        return ""
    return list(value) if isinstance(value, tuple) else value


@functools.cache
def _stated_fields() -> frozenset[str]:
    """Fields that some row states; in all other rows they have their default."""
    return frozenset(field for row in named("timm").values() for field in row)
