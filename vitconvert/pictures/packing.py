"""Maps as 8-bit data for a page, small enough to be sent to somebody.

Each row (what one query attends to) is scaled between its own smallest and largest patch, so that
a row with small numbers keeps its picture. How many levels lie between them, the page says.

Letters: H heads, N tokens, P patches, R rows of all planes together.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitconvert.errors import UsageError
from vitconvert.pictures.features import FeatureMaps, component_pixels
from vitconvert.pictures.maps import ROLLOUT, AttentionMaps
from vitconvert.pictures.tokens import PATCH, Query, tokens_of

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


def planes_of(
    maps: AttentionMaps, features: FeatureMaps | None, heads: Sequence[int] | None
) -> Iterator[Plane]:
    """All that a page shows of a photograph; the mean over heads is always among it.

    Raises:
        UsageError: The model has not all of these heads.
    """
    for layer, attention in maps.attention.items():
        yield from _by_head("attention", layer, attention, heads)
    flow = maps.flow
    if maps.pooling is not None:
        flow = torch.cat([flow, maps.pooling.mean(0, keepdim=True) @ flow])
        yield from _by_head("pooling", 0, maps.pooling[:, None], None)
    yield Plane(what=ROLLOUT, rows=flow)
    if features is not None:
        unit = F.normalize(features.tokens, dim=-1)
        yield Plane(what="similarity", rows=unit @ unit.T)
        yield Plane(what="norms", rows=features.norms[None])


def _by_head(
    what: str, layer: int, attention: Tensor, heads: Sequence[int] | None
) -> Iterator[Plane]:
    yield Plane(what=what, layer=layer, rows=attention.mean(0))
    chosen = range(len(attention)) if heads is None else heads
    if absent := [head for head in chosen if not 0 <= head < len(attention)]:
        raise UsageError(
            f"There is no head {absent[0]}.", evidence={"heads": f"0 to {len(attention) - 1}"}
        )
    for head in chosen:
        yield Plane(what=what, layer=layer, head=head, rows=attention[head])


def packed(
    maps: AttentionMaps,
    features: FeatureMaps | None = None,
    heads: Sequence[int] | None = None,
    query: Query = None,
    *,
    most: int = MOST_CHARACTERS,
) -> dict[str, Any]:
    """Maps as JSON types: what each plane is, and all numbers deflated, in base64.

    The numbers are, one array after another: the smallest and the largest patch of each row, (R,)
    float32 each; what each row gives to the prefix tokens, (R, prefix) float32; the levels of the
    patches, (R, P) uint8. All are little-endian.

    Raises:
        UsageError: They do not fit into `most` characters, with 16 levels either.
    """
    planes = list(planes_of(maps, features, heads))
    count = sum(len(plane.rows) for plane in planes)
    if count * planes[0].rows.shape[1] > _MOST_NUMBERS:
        raise _too_many(count, maps.grid)
    rows = torch.cat([plane.rows for plane in planes]).float().numpy()
    prefix = len(maps.prefix)
    fitting = _fitting(rows[:, :prefix], rows[:, prefix:], most)
    if fitting is None:
        raise _too_many(count, maps.grid)
    levels, data = fitting
    found: dict[str, Any] = {
        "grid": list(maps.grid),
        "prefix": list(maps.prefix),
        "query": _first_query(maps, query),
        "levels": levels,
        "planes": [[p.what, p.layer, p.head, len(p.rows)] for p in planes],
        "data": data,
    }
    if features is not None:
        pixels = component_pixels(features).tobytes()
        found["components"] = base64.b64encode(pixels).decode("ascii")
    return found


def _first_query(maps: AttentionMaps, query: Query) -> str | list[int]:
    """A name, or the row and column of a patch."""
    name = maps.query(query)
    if name.startswith(PATCH):
        (token,) = tokens_of(name, maps.prefix, maps.grid)
        return list(divmod(token - len(maps.prefix), maps.grid[1]))
    maps.weights(ROLLOUT, None, name)  # which refuses a token that there is not
    return name


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


def _too_many(maps: int, grid: tuple[int, int]) -> UsageError:
    return UsageError(
        "The maps are too many for a page.",
        evidence={"maps": maps, "patches of each": f"{grid[0]}x{grid[1]}"},
        hint="show fewer blocks or heads: --layers last, --heads mean (in Python, layers=1).",
    )
