"""What a reference says of a function, and the tensors of a file do not show."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.drafting.draft_text import draft_text, parse_draft
from vitconvert.drafting.rows import DraftRow
from vitconvert.facts.derivation import DEFAULTS, gather_facts
from vitconvert.facts.tensor_evidence import TENSORS
from vitconvert.tables.axes import Shape
from vitconvert.tables.binding import bind

# Sizes: the tensors of each file show them, as far as they are not asked for.
_SIZES = {"image_size", "patch_size", "in_channels", "num_classes", "embed_dim", "depth"}
_SIZES |= {"head_dim", "num_heads"}


def facts_of(
    config: ViTConfig,
    rows: Sequence[DraftRow],
    ignored: Mapping[str, str],
    shapes: Mapping[str, Shape],
) -> dict[str, Any]:
    """Lines of `[config]`: the reference's value of what no tensor shows, where it is not usual."""
    believed = [row_as_certain(row) for row in rows]
    shown = {n for n, (_, origin) in _gather(believed, ignored, shapes, {}) if origin == TENSORS}
    facts: dict[str, Any] = {}
    for name in (n for n in field_names() if n in (*config.function(), "position_resampling")):
        value = getattr(config, name)
        usual = name in DEFAULTS and DEFAULTS[name] == value
        if not usual and name not in shown and name not in _SIZES:
            facts[name] = value
    if "num_heads" not in shown:  # another width has other heads
        facts[f"num_heads if embed_dim == {config.embed_dim}"] = config.num_heads
    table = parse_draft(draft_text("", "", believed, ignored, {}, (), facts))
    asked = gather_facts(bind(table, shapes), {}).asked
    return facts | {name: getattr(config, name) for name in asked if name in field_names()}


def _gather(
    rows: Sequence[DraftRow],
    ignored: Mapping[str, str],
    shapes: Mapping[str, Shape],
    facts: Mapping[str, Any],
) -> list[tuple[str, tuple[Any, str]]]:
    table = parse_draft(draft_text("", "", rows, ignored, {}, (), facts))
    return list(gather_facts(bind(table, shapes), {}).facts.items())


def row_as_certain(row: DraftRow) -> DraftRow:
    """A row as if it were no guess."""
    return DraftRow(name=row.name, spelling=row.spelling, certain=True, reason=row.reason)
