"""The JSON files of a preset: of its backbone, and of the task that is put on it."""

from collections.abc import Mapping
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import written_config
from vitconvert.tables.table import Table


def preset_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """A `task.json`, with the `config.json` of the backbone in it."""
    written = written_config(table, config)
    backbone = written["config"]["backbone"]["config"]
    backbone.pop("image_shape[:2]")  # read so; written with the channels
    backbone["image_shape"] = [*config.image_size, config.in_channels]
    backbone["patch_size"] = list(config.patch_size)
    if not written["config"].get("intermediate_dim"):
        written["config"].pop("intermediate_dim", None)
    return written


def preset_files(their_config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The files of a preset, by name, from its `task.json`; a backbone alone has none."""
    files = {"config.json": their_config["config"]["backbone"]}
    return files | ({"task.json": their_config} if "class_name" in their_config else {})
