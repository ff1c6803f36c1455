"""The `open_clip_config.json` with which OpenCLIP builds an image tower."""

from dataclasses import replace
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import put, written_config
from vitconvert.errors import NotRepresentable
from vitconvert.export.timm_architectures import fitting_architecture
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table


def openclip_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """Say to open_clip what this configuration says, of the image tower alone.

    open_clip 3.3: the arguments of `_build_vision_tower` as `model_cfg`. Of a tower of timm's, it
    passes on the name of an architecture and its pooling.

    Raises:
        NotRepresentable: open_clip has no word for a value, or timm no architecture that is this
            model by its name alone.
    """
    written = written_config(table, config)
    if table.config_file and table.config_file.architecture:
        put(written, table.config_file.architecture, _trunk(table, config))
    return written


def _trunk(table: Table, config: ViTConfig) -> str:
    """The architecture of a tower, whose projection is open_clip's own."""
    # The tables of timm's towers are called after those of timm's files.
    own = builtin_tables()[table.name.removeprefix("openclip_")]
    headless = replace(config, num_classes=0)
    name, told = fitting_architecture(own, headless, repooled=config.num_classes > 0)
    untold = {size for size in told if size != "global_pool"}
    if untold or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip builds timm's models by name alone, and none of them has these sizes.",
            evidence={"nearest": name},
            details=[f"{size} would be {told[size]}" for size in sorted(untold)],
        )
    return name
