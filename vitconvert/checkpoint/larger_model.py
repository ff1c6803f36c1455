"""What the files of a larger model say of the ViT inside it, besides its configuration."""

from collections.abc import Mapping
from typing import Any

from vitconvert.checkpoint.companions import Companions
from vitconvert.config import ViTConfig
from vitconvert.conversion.statements import Statements
from vitconvert.errors import VitConvertError, size_text
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.stated import preprocessing_of_name, stated_preprocessing
from vitconvert.tables.parts import Part, sections
from vitconvert.tables.table import Table


def preprocessing_of(
    companions: Companions, part: Part, config: ViTConfig, said: Statements
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """What turns a photograph into the ViT's input, and why it is unknown.

    A larger model may cut photographs into tiles or pad them: that is no reason to refuse its ViT.

    Raises:
        MissingFact, ConflictingFact, NotRepresentable: The files are about the ViT alone, and what
            they say of photographs cannot be read.
    """
    table = part.recognised.table
    larger = part.tower.prefix or isinstance(companions.whole_config.get("vision_config"), Mapping)
    try:
        stated = stated_preprocessing(companions, table, config)
    except VitConvertError as error:
        if not larger:
            raise
        return None, (f"preprocessing is unknown: the larger model's is not read ({error.fact})",)
    if larger and stated is not None and stated.image_size != config.image_size:
        sizes = [size_text(size) for size in (stated.image_size, config.image_size)]
        return None, (
            f"preprocessing is unknown: the larger model's gives {sizes[0]} pixels, and the ViT "
            f"reads {sizes[1]}",
        )
    if stated is None and (said.architecture or "preprocessing" not in companions.own):
        return _of_name(table, config, said)
    return stated, ()


def _of_name(
    table: Table, config: ViTConfig, said: Statements
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """What the project does with photographs for an architecture of this name."""
    for name in said.names(table):
        try:
            found = preprocessing_of_name(table, name, config, arguments=said.arguments)
        except VitConvertError as error:  # of arguments, which the tensors do without
            return None, (f"preprocessing is unknown: the training's is not read ({error.fact})",)
        if found:
            return found, (f"preprocessing is {found.origin}, as nothing else says it",)
    return None, ()


def what_is_read(companions: Companions, part: Part) -> tuple[str, ...]:
    """What the larger model reads of the ViT, by its config.json or else by its code."""
    read = _stated(companions.whole_config) or part.tower.reads
    return (f"the larger model reads {read}; here is the ViT's own output",) if read else ()


def _stated(config: Mapping[str, Any]) -> str:
    """The layer that config.json names, and which of its tokens."""
    said = sections()["reads"]
    layer = next((config[key] for key in said["layer"] if config.get(key) is not None), None)
    numbers = layer if isinstance(layer, list) else [layer]
    if not numbers or not all(type(number) is int for number in numbers):
        return ""
    layers = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    chosen = (said["tokens"].get(str(config.get(key))) for key in said["chosen_by"])
    return f"{layers} of this ViT{next(filter(None, chosen), '')}"
