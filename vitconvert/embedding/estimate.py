"""How long a run will take, and how much it will write, from the first images of its plan."""

import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vitconvert.embedding.embedder import LoadedTask
from vitconvert.embedding.folders import Folder
from vitconvert.embedding.plan import Plan
from vitconvert.embedding.shard import STORES

IMAGES = 32
# Bytes of a number after zstd, of float32 with split bytes and of float16: features of a ViT-B,
# 2,599 and 1,413 for 768 numbers, measured with pyarrow 26.
_PACKED = {"float32": 0.85, "float16": 0.92}
_ROW = 16  # bytes of a key and the like


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will take.

    Attributes:
        images, shards: In the plan.
        tried: How many images the figures are from.
        seconds: For all images, in one process like this one.
        bytes: Of all shards.
    """

    images: int
    shards: int
    tried: int
    seconds: float
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return dict(vars(self))


def estimate(folder: Folder, plan: Plan, loaded: LoadedTask, *, store: str) -> Estimate:
    """Compute the first images twice, and take the time of the second: then all is warm."""
    items = list(islice(plan.items(folder, plan.units[0]), IMAGES))
    compute = loaded.classes if loaded.task.computed == "classes" else loaded.features
    for _ in range(2):
        start = time.perf_counter()
        answers = list(compute(item.picture for item in items))
        seconds = time.perf_counter() - start
    numbers = math.prod(loaded.shape)
    row = _ROW + numbers * STORES[store].bit_width // 8 * _PACKED[store]
    return Estimate(
        images=plan.rows,
        shards=len(plan.units),
        tried=len(answers),
        seconds=seconds / len(answers) * plan.rows,
        bytes=round(row * plan.rows),
    )
