"""The ViT that a file of unknown names is said to be like."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, read_checkpoint
from vitconvert.config import ViTConfig
from vitconvert.facts.derivation import derive_config
from vitconvert.facts.statements import Statements
from vitconvert.sources import Located, locate
from vitconvert.sources.references import published
from vitconvert.sources.timm_names import shapes_of_timm
from vitconvert.tables.architectures import named
from vitconvert.tables.detection import recognise

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A ViT that is known.

    Attributes:
        name: As reports call it.
        config: Its configuration.
        tensors: Its weights by canonical name, or None for an architecture alone.
    """

    name: str
    config: ViTConfig
    tensors: "Mapping[str, torch.Tensor] | None"


def read_reference(like: str | PathLike[str] | Located | Checkpoint) -> Reference:
    """What `--like` names: an architecture of timm, or a checkpoint.

    Raises:
        SourceError: It leads to neither.
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    if isinstance(like, str | PathLike) and is_architecture(fspath(like)):
        return _architecture(fspath(like))
    checkpoint = like if isinstance(like, Checkpoint) else read_checkpoint(_located(like))
    return Reference(
        name=published(checkpoint.located.reference),
        config=checkpoint.config,
        tensors=None if checkpoint.random else checkpoint.tensors,
    )


def is_architecture(like: str) -> bool:
    """Whether this names an architecture of timm, and no file that is here."""
    return like in named("timm") and not Path(like).exists()


def _located(like: str | PathLike[str] | Located) -> Located:
    return like if isinstance(like, Located) else locate(like)


def _architecture(name: str) -> Reference:
    """A model of timm, by its shapes alone."""
    recognised = recognise(shapes_of_timm(name))
    stated = Statements(architecture=name).facts(recognised.table)
    config, _ = derive_config(recognised.binding, stated)
    return Reference(name=f"timm's {name}, shapes alone", config=config, tensors=None)
