"""Tables of the rotary embedding that a project stores beside its weights: what they show."""

from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.facts.tensor_evidence import TENSORS, USER, show
from vitconvert.formats import Container
from vitconvert.tables.detection import Recognised

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_GRID = 128  # patches a side to which positions may be scaled
_ROUNDING = 1e-2  # of a cosine or sine in bfloat16, of an angle that was rounded too


def with_stored_grid(container: Container, recognised: Recognised, config: ViTConfig) -> ViTConfig:
    """The configuration with the grid to which positions are scaled in the stored tables.

    Raises:
        ConflictingFact: The user states another grid.
        NotRepresentable: The tables are of no square grid.
    """
    keys = {
        key: kind
        for key in recognised.binding.ignored
        for template, kind in recognised.table.rotations
        if template.match(key) is not None
    }
    if not keys or config.rope != "axial":
        return config
    stored = [(container.read(recognised.prefix + key), kind) for key, kind in keys.items()]
    squares = ((side, side) for side in range(1, _LARGEST_GRID + 1))
    off = {
        grid: _difference(config.replace(rope_reference=grid), stored[:1])
        for grid in dict.fromkeys((config.rope_reference, *squares))
    }
    found = min(off, key=lambda grid: off[grid])
    if not (most := _difference(config.replace(rope_reference=found), stored)) <= _ROUNDING:
        raise NotRepresentable(
            "The rotary embedding that the file stores is of no square grid of patches.",
            evidence={
                "tensors": f"{next(iter(keys))} {list(stored[0][0].shape)}",
                "images": show(config.image_size),
                "nearest": f"positions scaled to {show(found)}, off by {most:.2g}",
            },
            hint="--set image_size=... states the size, if it is another one.",
        )
    if found == config.rope_reference:
        return config
    if config.origins.get("rope_reference") == USER:
        raise ConflictingFact(
            "What is stated contradicts the tensors.",
            details=[
                f"rope_reference = {show(config.rope_reference)} ({USER}), but "
                f"{next(iter(keys))} has {show(found)}"
            ],
            hint="leave it out.",
        )
    return config.replace(
        rope_reference=found, origins={**config.origins, "rope_reference": TENSORS}
    )


def _difference(config: ViTConfig, stored: "list[tuple[Tensor, str]]") -> float:
    """The largest difference between what the model computes and tables of cosines or sines."""
    import torch

    from vitconvert.model.rope import RotaryEmbedding

    computed = next(RotaryEmbedding(config).tables(torch.empty(0)))
    of_kind = dict(zip(("sin", "cos"), computed.chunk(2, dim=-1), strict=True))
    if any(table.shape != of_kind[kind].shape for table, kind in stored):
        return float("inf")
    return max(float((table.float() - of_kind[kind]).abs().max()) for table, kind in stored)
