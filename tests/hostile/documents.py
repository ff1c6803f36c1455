"""Checkpoints with documents beside them, and what hostile hands put into those."""

import copy
import json
import math
from pathlib import Path
from typing import Any

from tests.packages import transformers
from tests.small_models import randomise
from vitconvert.api import convert, load_checkpoint
from vitconvert.demo.demonstration import DIGITS
from vitconvert.preprocessing import Preprocessing

Place = tuple[str | int, ...]  # keys and positions from the top of a document

_SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
_OF_TRANSFORMERS = {
    "beit": "BeitConfig",
    "dinov2": "Dinov2Config",
    "siglip": "SiglipVisionConfig",
}


def make_checkpoint(kind: str, directory: Path) -> Path:
    """A small checkpoint of a project, with the documents that it has beside the weights.

    `vit` is the demo's, `timm`, `hf` and `open_clip` are its conversions without vitconvert.json.
    """
    place = directory / kind
    if kind in _OF_TRANSFORMERS:
        config = getattr(transformers, _OF_TRANSFORMERS[kind])(**_SIZES)
        randomise(transformers.AutoModel.from_config(config)).save_pretrained(place)
        processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 18}}
        (place / "preprocessor_config.json").write_text(json.dumps(processor))
        return place
    convert(DIGITS, to="timm" if kind == "vit" else kind, output=place, verify=False)
    if kind != "vit":
        (place / "vitconvert.json").unlink()
    return place


def use(directory: Path) -> None:
    """Do what needs all that the documents say, from the header alone."""
    checkpoint = load_checkpoint(directory)
    assert checkpoint.labels is None or all(isinstance(name, str) for name in checkpoint.labels)
    if isinstance(steps := checkpoint.preprocessing, Preprocessing):
        assert all(map(math.isfinite, (*steps.mean, *steps.std)))
        steps.at_size((64, 48))
    assert math.isfinite(checkpoint.config.norm_eps)
    assert checkpoint.config.axes() and checkpoint.config.function()


def changed(document: Any, place: Place, value: Any) -> Any:
    """The document with another value at a place."""
    if not place:
        return value
    whole = copy.deepcopy(document)
    part = whole
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return whole
