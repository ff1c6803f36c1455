"""The `config.json` with which transformers builds a ViT, DeiT or I-JEPA."""

from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.inference.labels import Labels
from vitconvert.tables.table import Table


def huggingface_config(
    table: Table, config: ViTConfig, *, labels: Labels | None = None
) -> dict[str, Any]:
    """Say to transformers what this configuration says, in the keys that the table maps.

    Raises:
        NotRepresentable: The table is of a class whose config.json is not written yet.
    """
    if table.config_file is None or not _written(table):
        raise NotRepresentable(f"{table.title} is read, and not written yet.")
    model_type, architecture = _class(config)
    written: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    for field, paths in table.config_file.fields.items():
        written[paths[0]] = _translate(table, field, getattr(config, field))
    if config.representation_size:
        written["pooler_output_size"] = config.representation_size
    if not config.even_heads:
        written["head_dim"] = config.head_dim
    if config.num_classes:
        names = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
        written["id2label"] = {str(index): name for index, name in enumerate(names)}
        written["label2id"] = {name: index for index, name in enumerate(names)}
        written["num_labels"] = config.num_classes
    written["dtype"] = "float32"
    return written


def _written(table: Table) -> bool:
    marks = table.config_file.identify if table.config_file else {}
    return "vit" in marks.get("model_type", ())


def _class(config: ViTConfig) -> tuple[str, str]:
    """Model type and class that compute what the configuration says."""
    if config.dist_token:
        teacher = "WithTeacher" if config.dist_head else ""
        classifier = f"DeiTForImageClassification{teacher}"
        return "deit", classifier if config.num_classes else "DeiTModel"
    if not config.class_token:
        return "ijepa", "IJepaForImageClassification" if config.num_classes else "IJepaModel"
    return "vit", "ViTForImageClassification" if config.num_classes else "ViTModel"


def _translate(table: Table, field: str, value: Any) -> Any:
    assert table.config_file is not None
    words = table.config_file.values.get(field, {})
    theirs = next((theirs for theirs, ours in words.items() if ours == value), value)
    if isinstance(theirs, tuple):
        return theirs[0] if len(set(theirs)) == 1 else list(theirs)
    return theirs
