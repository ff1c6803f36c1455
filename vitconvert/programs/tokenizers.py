"""Tokenizers: their files are copied, for which transformers and KerasHub have other names.

Only what says how to use them is written anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitconvert.documents import read_object
from vitconvert.programs.target import Target

Tokenizer = Mapping[str, Path | Mapping[str, Any]]
"""Names in an output -> what is copied there, or JSON."""

CONFIG = "tokenizer_config.json"
CLIP, SIGLIP = ("vocab.json", "merges.txt"), ("spiece.model",)
"""The files of their tokenizers that both have, by transformers' names."""
_END = "<|endoftext|>"  # of CLIP's vocabulary


def for_transformers(files: Mapping[str, Path], target: Target) -> Tokenizer:
    """All of them; for a preset of KerasHub, with what its class is called there.

    What CLIP reads after the end of a text plays no part. It is the end again, also where KerasHub
    fills up with the first word, "!", which transformers would then read in other texts, too.
    """
    stated = files.get(CONFIG)
    if stated is None or stated.name == CONFIG or target.text is None:
        return files
    name = "CLIPTokenizer" if "merges.txt" in files else "SiglipTokenizer"
    length = target.text.plan.sizes["position"]
    return {**files, CONFIG: {"tokenizer_class": name, "model_max_length": length}}


def fills_with_end(stated: Path | None) -> bool:
    """Whether a tokenizer of CLIP fills texts up with their end, by its configuration.

    Raises:
        SourceError, CorruptFile: It cannot be read.
    """
    said = {} if stated is None else read_object(stated)
    if isinstance(own := said.get("config"), Mapping):
        return bool(own.get("pad_with_end_token"))
    pad = said.get("pad_token", _END)
    return (pad.get("content") if isinstance(pad, Mapping) else pad) == _END
