"""Checkpoints written by torch.save, whose file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.atomic_write import atomic_file
from vitconvert.formats.container import ITEM_SIZE, tensor_from_buffer
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Surroundings

if TYPE_CHECKING:
    import torch


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    surroundings: Surroundings = ALONE,
) -> str:
    """Write tensors as a dict, in the order of the mapping.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: A name that is not text, or no place for the file.
    """
    import torch

    contents = checked_contents(tensors, list(ITEM_SIZE), "torch")
    held: dict[str, object] = {
        name: tensor_from_buffer(content.whole(), 0, content.info)
        for name, content in contents.items()
    }
    if surroundings.wrapper:
        held = {surroundings.wrapper: held, **surroundings.extras}
    with atomic_file(path) as file:
        torch.save(held, file)  # type: ignore[arg-type]  # it needs `write` alone
    return file.sha256
