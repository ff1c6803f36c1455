"""Maps as 8-bit data for a page, small enough to be sent to somebody.

Each row (what one query attends to) is scaled between its own smallest and largest patch, so that
a row with small numbers keeps its picture. How many levels lie between them, the page says.

Letters: H heads, N tokens, P patches, R rows of all planes together.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitconvert.errors import UsageError

MOST_CHARACTERS = 4_500_000  # of base64 for one photograph and model; a page has 5 MB then
_MOST_NUMBERS = 2**26  # a browser holds them, too
LEVELS = (256, 128, 64, 32, 16)


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One matrix of maps: what each query (row) attends to.

    Attributes:
        what: "attention", "rollout", "pooling", "similarity" or "norms".
        layer: The block, or 0 where there are none.
        head: A number, or "mean".
        rows: (rows, N): a row for each token; of a rollout, one more for map pooling's query; of
            pooling and norms, one alone.
    """

    what: str
    layer: int = 0
    head: int | str = "mean"
    rows: Tensor


def planes_by_head(
    what: str, layer: int, attention: Tensor, heads: Sequence[int] | None
) -> Iterator[Plane]:
    """The mean over heads, and the heads that are asked for, of attention (H, rows, N).

    Raises:
        UsageError: There are not all of these heads.
    """
    yield Plane(what=what, layer=layer, rows=attention.mean(0))
    for head in chosen_heads(heads, len(attention)):
        yield Plane(what=what, layer=layer, head=head, rows=attention[head])


def chosen_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Heads counted from 0, each once, of such as may be counted from the end too; None: all.

    Raises:
        UsageError: There are not all of these heads.
    """
    if heads is None:
        return list(range(count))
    if absent := [head for head in heads if not _is_of(head, count)]:
        raise UsageError(
            f"There is no head {absent[0]!r}.", evidence={"heads": f"0 to {count - 1}"}
        )
    return sorted({head % count for head in heads})


def _is_of(head: object, count: int) -> bool:
    return isinstance(head, Integral) and -count <= int(head) < count


def packed(planes: Sequence[Plane], prefix: int, *, most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """Planes as JSON types: what each is, and all numbers deflated, in base64.

    The numbers are, one array after another: the smallest and the largest patch of each row, (R,)
    float32 each; what each row gives to the prefix tokens, (R, prefix) float32; the levels of the
    patches, (R, P) uint8. All are little-endian.

    Args:
        planes: All of the same tokens.
        prefix: How many of these stand before the patches.
        most: Characters of base64.

    Raises:
        UsageError: They do not fit, with 16 levels either.
    """
    count = sum(len(plane.rows) for plane in planes)
    patches = planes[0].rows.shape[1] - prefix
    if count * patches > _MOST_NUMBERS:
        raise _too_many(count, patches)
    rows = torch.cat([plane.rows for plane in planes]).float().numpy()
    fitting = _fitting(rows[:, :prefix], rows[:, prefix:], most)
    if fitting is None:
        raise _too_many(count, patches)
    levels, data = fitting
    named = [[p.what, p.layer, p.head, len(p.rows)] for p in planes]
    return {"levels": levels, "planes": named, "data": data}


def _fitting(
    prefix: NDArray[np.float32], patches: NDArray[np.float32], most: int
) -> tuple[int, str] | None:
    """As many levels as fit, and the numbers; None if 16 levels do not."""
    least, largest = patches.min(1), patches.max(1)
    numbers = b"".join(part.astype("<f4").tobytes() for part in (least, largest, prefix))
    span = np.where(largest > least, largest - least, 1)[:, None]
    share = (patches - least[:, None]) / span
    for levels in LEVELS:
        content = numbers + np.rint(share * (levels - 1)).astype(np.uint8).tobytes()
        # For maps, looking for repeated bytes takes ten times as long and mostly saves nothing.
        deflate = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
        data = base64.b64encode(deflate.compress(content) + deflate.flush()).decode("ascii")
        if len(data) <= most:
            return levels, data
    return None


def _too_many(maps: int, patches: int) -> UsageError:
    return UsageError(
        "The maps are too many for a page.",
        evidence={"maps": maps, "patches of each": patches},
        hint="show fewer blocks or heads: --layers last, --heads mean (in Python, layers=1).",
    )
