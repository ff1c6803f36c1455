"""Families of models: where several classes compute a function, a model is written for its own."""

import re

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.programs.program import DescribedModel
from vitconvert.programs.target import Target
from vitconvert.tables.dialects import tables_of
from vitconvert.tables.table import Table

_PLAIN = "vit"  # the family of models that are called nothing else


def family_note(source: Checkpoint, target: Target, model: DescribedModel) -> str:
    """A note where the class that a model is written for is of another family, or ""."""
    mark = identifying_mark(target.table, model.config)
    plain = family_word(mark) == _PLAIN and source.dialect in model.called
    # Words of the same language are compared whole: BLIP and BLIP-2 have a class each.
    files = [table.config_file for table in tables_of(target.table.ecosystem) if table.config_file]
    words = {word for file in files for several in file.identify.values() for word in several}
    called = {_without_part(name) for name in model.called if name in words}
    same = _without_part(mark) in called if called else is_of_family(mark, model)
    if not mark or plain or same:
        return ""
    kind = (target.their_config.get("architectures") or [mark])[0]
    return (
        f"it is written for {kind}, a class of another family ({mark}; the source says "
        f"{model.called[0]}) that computes the same function"
    )


def identifying_mark(table: Table, config: ViTConfig) -> str:
    """What a dialect writes that would identify it; "" if nothing does."""
    mapping = table.config_file
    written = (w for w in mapping.writes if w.name in mapping.identify) if mapping else ()
    return next((str(w.value) for w in written if w.value and w.holds_for(config)), "")


def _without_part(mark: str) -> str:
    """A mark without the part of the model that it is of: siglip of siglip_vision_model."""
    return re.sub(r"([-_]vision)?(_model)?$", "", mark)


def family_word(mark: str) -> str:
    """The word that a mark begins with: siglip of siglip_vision_model and SigLIPVisionEncoder."""
    return re.split("[-_]|(?<=[a-zA-Z0-9])(?=Vision|Backbone|Image)", mark)[0].lower()


def is_of_family(mark: str, model: DescribedModel) -> bool:
    """Whether one of the names of a model begins, or goes on, with the word of a mark."""
    return bool(mark) and any(family_word(mark) in name.lower() for name in model.called)
