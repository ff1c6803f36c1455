"""What a larger model reads of the ViT inside it."""

from collections.abc import Mapping
from typing import Any

from vitconvert.checkpoint.companions import Companions
from vitconvert.tables.parts import Part, sections


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
