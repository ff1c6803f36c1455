"""Models that normalise pixels themselves: their mean and deviation, read as preprocessing."""

import math
from dataclasses import replace

from vitconvert.containers import Container
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.table import Table


def with_own_scale(
    preprocessing: Preprocessing | None, container: Container, table: Table
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """What turns a photograph into the ViT's input, with what its project's model does first.

    Args:
        preprocessing: By the files beside the weights, which leave normalising to that model.
        container: The tensors, of which two may say how pixels are normalised.
        table: The dialect; `mean_in` and `std_in` of its `[preprocessing]` name them.

    Raises:
        ConflictingFact: They cannot be a mean and a deviation.
    """
    names = [table.preprocessing.get(name) for name in ("mean_in", "std_in")]
    keys = [key for name in names for key in container.manifest if name and key.endswith(name)]
    if preprocessing is None or len(keys) != len(names):
        return preprocessing, ()
    mean, std = (
        _numbers(container, key, (said, table.preprocessing[field]))
        for field, key, said in zip(
            ("mean", "std"), keys, (preprocessing.mean, preprocessing.std), strict=True
        )
    )
    scaled = replace(preprocessing, mean=mean, std=std, normalize=True)
    note = "the model normalises pixels itself: its mean and deviation are part of preprocessing"
    return scaled, (note,)


def _numbers(
    container: Container, key: str, known: tuple[tuple[float, ...], ...]
) -> tuple[float, ...]:
    """Those of a tensor, in the digits of numbers that are known, where they round to the same."""
    import torch

    found = container.read(key).flatten()
    for numbers in known:
        if torch.equal(torch.tensor(numbers, dtype=found.dtype), found):
            return tuple(numbers)
    return tuple(n if math.isfinite(n) else 0.0 for n in found.tolist())
