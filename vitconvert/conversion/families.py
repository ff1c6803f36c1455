"""Which family's class a model is written for: its own, where several compute the same function."""

import re
from collections.abc import Set
from dataclasses import replace
from typing import Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.facts.project_config import look_up
from vitconvert.facts.target import Target
from vitconvert.programs import DescribedModel
from vitconvert.tables.dialects import tables_of
from vitconvert.tables.table import Table

_PLAIN = "vit"  # the family of models that are called nothing else


def names_of(source: Checkpoint) -> tuple[str, ...]:
    """What a checkpoint is called: what marks it in its project's own file, or else its names."""
    mapping = source.table.config_file
    marks = [look_up(source.their_config, key) for key in mapping.identify] if mapping else []
    if any(marks):
        return tuple(str(mark) for mark in marks if mark)
    named = look_up(source.their_config, mapping.architecture) if mapping else None
    told = (o for o in source.config.origins.values() if o.startswith("architecture "))
    return tuple(str(name) for name in (named, source.located.name, *told, source.dialect) if name)


def nearness(table: Table, model: DescribedModel) -> tuple[bool, int]:
    """How far the class that a dialect writes is from the model's family; the least is nearest."""
    mark = _mark(table, model.config)
    return mark not in model.called, -len(_family(mark)) if _is_of(mark, model) else 0


def with_family(source: Checkpoint, target: Target, model: DescribedModel) -> Checkpoint:
    """The checkpoint with a note, where the class that it is written for is of another family."""
    mark = _mark(target.table, model.config)
    plain = _family(mark) == _PLAIN and source.dialect in model.called
    # Words of the same language are compared whole: BLIP and BLIP-2 have a class each.
    words = _marks(target.table.ecosystem)
    said = {_without_part(name) for name in model.called if name in words}
    same = _without_part(mark) in said if said else _is_of(mark, model)
    if not mark or plain or same:
        return source
    kinds: Any = target.their_config.get("architectures") or [mark]
    note = (
        f"it is written for {kinds[0]}, a class of another family ({mark}; the source says "
        f"{model.called[0]}) that computes the same function"
    )
    ledger = replace(source.ledger, notes=(*source.ledger.notes, note))
    return replace(source, ledger=ledger)


def _mark(table: Table, config: ViTConfig) -> str:
    """What a dialect writes that would identify it; "" if nothing does."""
    mapping = table.config_file
    written = (w for w in mapping.writes if w.name in mapping.identify) if mapping else ()
    return next((str(w.value) for w in written if w.holds_for(config)), "")


def _marks(ecosystem: str) -> Set[str]:
    """Every word that identifies a model of an ecosystem."""
    files = (table.config_file for table in tables_of(ecosystem))
    return {word for file in files if file for words in file.identify.values() for word in words}


def _without_part(mark: str) -> str:
    """A mark without the part of the model that it is of: siglip of siglip_vision_model."""
    return re.sub(r"([-_]vision)?(_model)?$", "", mark)


def _family(mark: str) -> str:
    """The word that a mark begins with: siglip of siglip_vision_model and SigLIPVisionEncoder."""
    return re.split("[-_]|(?<=[a-zA-Z0-9])(?=Vision|Backbone|Image)", mark)[0].lower()


def _is_of(mark: str, model: DescribedModel) -> bool:
    return bool(mark) and any(_family(mark) in name.lower() for name in model.called)
