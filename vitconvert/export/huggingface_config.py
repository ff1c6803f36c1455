"""The `config.json` with which transformers builds the class that computes a function."""

from collections.abc import Mapping
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import written_config
from vitconvert.errors import NotRepresentable
from vitconvert.labels import Labels
from vitconvert.tables.table import Table


def huggingface_config(
    table: Table, config: ViTConfig, *, labels: Labels | None = None
) -> dict[str, Any]:
    """Say to transformers what this configuration says, in the keys that the table maps.

    Raises:
        NotRepresentable: The table names no class that computes this, or a size that its
            config.json can only say by a ratio has none.
    """
    written = written_config(table, config)
    if not written.get("architectures"):
        raise NotRepresentable(
            f"{table.title} has no class that computes this.", evidence={"table": table.file}
        )
    # CLIP's projection is a head without labels.
    if "ForImageClassification" in written["architectures"][0]:
        written |= _labels(config, labels)
    return written | {"dtype": "float32"}


def reads_patches(their_config: Mapping[str, Any]) -> bool:
    """Whether the class is SigLIP 2's, which reads patches that its own processor cuts."""
    return bool(their_config["architectures"][0].startswith("Siglip2"))


def _labels(config: ViTConfig, labels: Labels | None) -> dict[str, Any]:
    names = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "num_labels": config.num_classes,
    }
