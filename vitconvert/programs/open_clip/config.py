"""The `open_clip_config.json` with which OpenCLIP builds an image tower."""

from dataclasses import replace
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import put, written_config
from vitconvert.errors import NotRepresentable
from vitconvert.programs.timm.architectures import fitting_architecture
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table


def openclip_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """The file for an image tower alone: the arguments of `_build_vision_tower` (open_clip 3.3).

    Of a tower of timm's, open_clip passes on the name of an architecture and its pooling.

    Raises:
        NotRepresentable: open_clip has no word for a value, or timm has no architecture that is
            this model by its name alone.
    """
    written = written_config(table, config)
    if table.config_file and table.config_file.architecture:
        put(written, table.config_file.architecture, _trunk(table, config))
    return written


def timm_dialect(table: Table) -> str:
    """The dialect of timm's own files of a tower: the tables are called after it."""
    return table.name.removeprefix("openclip_")


def _trunk(table: Table, config: ViTConfig) -> str:
    """The architecture of a tower, whose projection is open_clip's own."""
    own = builtin_tables()[timm_dialect(table)]
    headless = replace(config, num_classes=0)
    name, arguments = fitting_architecture(own, headless, repooled=config.num_classes > 0)
    sizes = sorted(arguments.keys() - {"global_pool"})
    if sizes or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip builds timm's models by name alone, and none of them has these sizes.",
            evidence={"nearest": name},
            details=[f"{size} would be {arguments[size]}" for size in sizes],
        )
    return name
