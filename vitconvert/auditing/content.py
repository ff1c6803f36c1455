"""What two tensors share: numbers, in whatever order and shape they are.

A fingerprint is the sum of a hash of each number, so it does not depend on their order, and that of
a tensor is the sum of those of its rows. Rows that a model and a file share are found by it;
whether they really are the same is looked at afterwards.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Prints = NDArray[np.uint64]
_LOW = {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for, dense: of one that is sparse or quantised, too."""
    tensor = tensor.detach()
    if tensor.is_quantized or type(tensor) is not Tensor:  # a class of torchao, and such
        tensor = tensor.dequantize()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu()


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor holds fractions, or whole numbers that may stand for some (quantised)."""
    packed = tensor.ndim > 1 and tensor.dtype.itemsize < 8 and tensor.dtype != torch.bool
    return tensor.is_floating_point() or packed


def numbers(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as it is in a dtype, in float32: what is compared."""
    return (tensor.to(dtype) if dtype in _LOW else tensor).float()


def fingerprints(values: Tensor) -> Prints:
    """A hash of each number of a float32 tensor, in its shape (splitmix64, Steele 2014)."""
    bits = (values + 0.0).contiguous().numpy().view(np.uint32).astype(np.uint64)  # -0 becomes 0
    bits += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


def is_constant(values: Tensor) -> bool:
    """Whether all numbers are the same: then content does not say where they come from."""
    flat = values.flatten()
    few = flat[:64]  # of most tensors, these say it
    return not len(flat) or (bool((few == flat[0]).all()) and bool((flat == flat[0]).all()))


def by_rows(values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor as a matrix, (rows, numbers of each), in the ways that projects lay layers out.

    Yields:
        What was done to the axes, and the matrix: by its first axis, by its first two, and
        transposed by its last one, by its last two.
    """
    shape = values.shape
    if values.ndim < 2:
        yield "", values.reshape(-1, 1)
        return
    yield "", values.reshape(shape[0], -1)
    yield "transposed", values.reshape(-1, shape[-1]).T
    if values.ndim > 2:
        yield "", values.reshape(shape[0] * shape[1], -1)
        yield "transposed", values.reshape(-1, shape[-2] * shape[-1]).T


@dataclass(frozen=True)
class Place:
    """A row of a tensor of the file: its name, which of `by_rows`, and the number of the row."""

    name: str
    way: int
    row: int


ZEROS = Place("", 0, -2)  # rows of zeros that no tensor of the file has


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the numbers of a parameter come from.

    Attributes:
        names: Tensors of the file.
        how: What was done to them; "" if nothing was.
        reordered: Whether it is one whole tensor whose parts are in another order.
    """

    names: tuple[str, ...]
    how: str = ""
    reordered: bool = False


class FileContent:
    """The tensors of a file, to be found by their numbers as these are in one dtype."""

    def __init__(self, read: Callable[[str], Tensor], names: Sequence[str], dtype: torch.dtype):
        self.dtype = dtype
        self._read, self._names = read, names
        self._wholes: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name in names:
            values = self.values(name)
            self._wholes[values.numel(), int(fingerprints(values).sum())].append(name)

    def values(self, name: str) -> Tensor:
        """A tensor of the file, as it is in the dtype."""
        return numbers(self._read(name), self.dtype)

    def alike(self, values: Tensor) -> list[str]:
        """Tensors of the file with the same numbers in any order."""
        return self._wholes.get((values.numel(), int(fingerprints(values).sum())), [])

    @cached_property
    def _rows(self) -> Mapping[tuple[int, int], list[Place]]:
        places: dict[tuple[int, int], list[Place]] = defaultdict(list)
        for name in self._names:
            for way, (_, matrix) in enumerate(by_rows(self.values(name))):
                prints = fingerprints(matrix).sum(1, dtype=np.uint64)
                for row, number in enumerate(prints.tolist()):
                    places[matrix.shape[1], number].append(Place(name, way, row))
        return places

    def whole(self, values: Tensor, name: str) -> Origin | None:
        """How a parameter is one tensor of the file: as it is, reshaped or transposed."""
        theirs = self.values(name)
        if torch.equal(theirs.flatten(), values.flatten()):
            same = theirs.shape == values.shape
            shapes = f"reshaped from {tuple(theirs.shape)} to {tuple(values.shape)}"
            return Origin(names=(name,), how="" if same else shapes)
        plain = theirs.squeeze()
        for order in permutations(range(plain.ndim)) if plain.ndim <= 5 else ():
            turned = plain.permute(order)
            if torch.equal(turned.flatten(), values.flatten()):
                return Origin(names=(name,), how=f"transposed: axes {', '.join(map(str, order))}")
        return None

    def of_rows(self, values: Tensor, preferred: Sequence[str]) -> Origin | None:
        """How a parameter is made of rows of tensors of the file, if all of them are there."""
        for _, matrix in by_rows(values):
            found = self._of_matrix(matrix, preferred)
            if found is not None:
                return found
        return None

    def _of_matrix(self, matrix: Tensor, preferred: Sequence[str]) -> Origin | None:
        prints = fingerprints(matrix).sum(1, dtype=np.uint64).tolist()
        hits = [self._rows.get((matrix.shape[1], number), []) for number in prints]
        zero = (matrix == 0).all(1).tolist()
        if not any(hits) or not all(
            hit or nothing for hit, nothing in zip(hits, zero, strict=True)
        ):
            return None
        # A row that stands in several tensors is taken from the one that has most of the others.
        votes = Counter((hit.name, hit.way) for row in hits for hit in row)
        votes.update({key: 1 for key in votes if key[0] in preferred})
        last, chosen = ZEROS, []
        for row in hits:
            most = max((votes[hit.name, hit.way] for hit in row), default=0)
            among = [hit for hit in row if votes[hit.name, hit.way] == most] or [ZEROS]
            follows = Place(last.name, last.way, last.row + 1)
            last = follows if follows in among else among[0]
            chosen.append(last)
        return self._described(matrix, chosen)

    def _described(self, matrix: Tensor, chosen: Sequence[Place]) -> Origin:
        names = tuple(dict.fromkeys(place.name for place in chosen if place != ZEROS))
        found = {name: list(by_rows(self.values(name))) for name in names}
        rows = [
            matrix.new_zeros(matrix.shape[1]) if p == ZEROS else found[p.name][p.way][1][p.row]
            for p in chosen
        ]
        same, reordered = torch.equal(torch.stack(rows), matrix), False
        if len(names) == 1 and ZEROS not in chosen:
            order = [place.row for place in chosen]
            every = list(range(len(found[names[0]][chosen[0].way][1])))
            words = [_order(order, len(every))]
            reordered = not same or (order != every and sorted(order) == every)
        else:
            pieces = [key for key, _ in groupby(chosen, lambda place: place.name or "zeros")]
            words = [f"joined of {', '.join(pieces)}"]
        words += dict.fromkeys(found[p.name][p.way][0] for p in chosen if p != ZEROS)
        if not same:
            words.append("the numbers of each row in another order")
        how = ", ".join(word for word in words if word)
        return Origin(names=names, how=how, reordered=reordered)


def _order(rows: Sequence[int], count: int) -> str:
    """Rows of one tensor of so many, in words."""
    first, most = rows[0], len(rows)
    if list(rows) == list(range(first, first + most)):
        return "" if most == count else f"rows {first} to {first + most - 1} of {count}"
    if sorted(rows) != list(range(count)):
        return f"{most} rows of {count}"
    if (heads := interleaved(rows)) is not None:
        return heads
    starts = [i for i in range(most) if i == 0 or rows[i] != rows[i - 1] + 1]
    if len(starts) > 4:
        return "rows in another order"
    ends = [*starts[1:], most]
    pieces = [f"{rows[a]} to {rows[b - 1]}" for a, b in zip(starts, ends, strict=True)]
    return f"rows in another order: {', '.join(pieces)}"


def interleaved(rows: Sequence[int]) -> str | None:
    """Whether rows are those of (parts, heads, rest) as (heads, parts, rest), or back."""
    order, count = np.asarray(rows), len(rows)
    for parts in (3, 2):
        for heads in (h for h in range(2, count // parts + 1) if count % (parts * h) == 0):
            for shape, words in (
                ((parts, heads, -1), f"{parts} parts of {heads} heads, head by head"),
                ((heads, parts, -1), f"{heads} heads of {parts} parts, part by part"),
            ):
                if np.array_equal(np.arange(count).reshape(shape).swapaxes(0, 1).ravel(), order):
                    return f"rows in another order: {words}"
    return None
