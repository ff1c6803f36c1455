"""What two tensors share: numbers, in whatever order and shape they are.

A fingerprint is the sum of a hash of each number, so it does not depend on their order, and that of
a tensor is the sum of those of its rows. Rows that a model and a file share are found by it;
whether they really are the same is looked at afterwards.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Prints = NDArray[np.uint64]
Matrices = list[tuple[str, int]]  # a tensor of the file, and which of `by_rows`
_PART = 2**22  # numbers
_LOW = {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for, dense: of one that is sparse or quantised, too."""
    tensor = tensor.detach()
    if tensor.is_quantized or type(tensor) is not Tensor:  # a class of torchao, and such
        tensor = tensor.dequantize()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu()


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The numbers of a tensor in their order, some millions at once, flat: so memory is bounded."""
    if tensor.is_contiguous():
        flat = tensor.reshape(-1)
        yield from (flat[at : at + _PART] for at in range(0, len(flat), _PART))
        return
    rows = max(1, _PART * len(tensor) // max(1, tensor.numel()))
    for at in range(0, len(tensor), rows):
        part = tensor[at : at + rows]
        if part.numel() <= _PART:
            yield part.reshape(-1)
        else:
            yield from parts_of(part[0])


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
    while values.ndim > 2 and values.shape[-1] == 1:  # kernels of one pixel are matrices
        values = values.squeeze(-1)
    shape = values.shape
    if values.ndim < 2:
        yield "", values.reshape(-1, 1)
        return
    yield "", values.reshape(shape[0], -1)
    yield "transposed", values.reshape(-1, shape[-1]).T
    if values.ndim > 2:
        yield "", values.reshape(shape[0] * shape[1], -1)
        yield "transposed", values.reshape(-1, shape[-2] * shape[-1]).T


_ZEROS = "zeros"  # in words
NOTHING = -2  # the place of rows of zeros that no tensor of the file has; no row follows it


@dataclass(frozen=True, kw_only=True)
class Rows:
    """All rows of one length in a file: the sum of their fingerprints, and their places.

    A place is a number: rows that follow one another in a matrix have numbers that do so.

    Attributes:
        prints: Of each row, sorted.
        places: Of each, those of equal prints in the order of the file.
    """

    prints: Prints
    places: NDArray[np.int64]


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
    def _found(self) -> tuple[Matrices, NDArray[np.int64], Mapping[int, Rows]]:
        """The matrices of the file, the place of the first row of each, and all rows by length."""
        matrices, begins, end = list[tuple[str, int]](), [], 0
        of_length: dict[int, list[tuple[Prints, int]]] = defaultdict(list)
        for name in self._names:
            prints = torch.from_numpy(fingerprints(self.values(name)).view(np.int64))
            for way, (_, matrix) in enumerate(by_rows(prints)):
                matrices.append((name, way))
                begins.append(end)
                of_length[matrix.shape[1]].append((matrix.sum(1).numpy().view(np.uint64), end))
                end += len(matrix) + 1  # the last row of one is not before the first of the next
        rows = {}
        for length, parts in of_length.items():
            prints_of_all = np.concatenate([part for part, _ in parts])
            places = np.concatenate([np.arange(at, at + len(part)) for part, at in parts])
            order = np.argsort(prints_of_all, kind="stable")
            rows[length] = Rows(prints=prints_of_all[order], places=places[order])
        return matrices, np.array(begins, np.int64), rows

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
        rows = self._found[2].get(matrix.shape[1])
        if rows is None:
            return None
        prints = fingerprints(matrix).sum(1, dtype=np.uint64)
        first = np.searchsorted(rows.prints, prints, "left")
        last = np.searchsorted(rows.prints, prints, "right")
        there, zero = last > first, (matrix == 0).all(1).numpy()
        if not there.any() or not (there | zero).all():
            return None
        # A row that stands in several tensors is taken from the one that has most of the others.
        votes = self._votes(rows, first[there], last[there], preferred)
        chosen = np.full(len(prints), NOTHING, np.int64)
        chosen[there] = rows.places[first[there]]
        for row in np.flatnonzero(last - first > 1).tolist():
            among = rows.places[first[row] : last[row]]
            of_each = votes[self._matrix_of(among)]
            among = among[of_each == of_each.max()]
            follows = chosen[row - 1] + 1 if row else NOTHING
            chosen[row] = follows if (among == follows).any() else among[0]
        return self._described(matrix, chosen)

    def _matrix_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the matrices that have these rows."""
        return np.searchsorted(self._found[1], places, "right") - 1

    def _votes(
        self,
        rows: Rows,
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        preferred: Sequence[str],
    ) -> NDArray[np.float64]:
        """How many of the rows each matrix has; `first` and `last` bound those alike in `rows`."""
        first, index, times = np.unique(first, return_index=True, return_counts=True)
        lengths = last[index] - first
        ends = lengths.cumsum()
        alike = np.arange(ends[-1]) + np.repeat(first - (ends - lengths), lengths)
        matrices = self._found[0]
        votes = np.bincount(
            self._matrix_of(rows.places[alike]), np.repeat(times, lengths), len(matrices)
        )
        named = np.array([name in preferred for name, _ in matrices])
        return (votes + (named & (votes > 0))).astype(np.float64)

    def _described(self, matrix: Tensor, chosen: NDArray[np.int64]) -> Origin:
        matrices, begins, _ = self._found
        of_file = chosen != NOTHING
        which = np.where(of_file, self._matrix_of(chosen), -1)
        order = np.where(of_file, chosen - begins[which], chosen)
        theirs, done, counts = torch.zeros_like(matrix), dict[str, None](), list[int]()
        for number in dict.fromkeys(which[of_file].tolist()):
            name, way = matrices[number]
            how, found = list(by_rows(self.values(name)))[way]
            taken = which == number
            theirs[torch.from_numpy(taken)] = found[torch.from_numpy(order[taken])]
            done[how] = None
            counts.append(len(found))
        names = [matrices[number][0] if number >= 0 else _ZEROS for number in which.tolist()]
        same, reordered = torch.equal(theirs, matrix), False
        if len({*names}) == 1:
            count = counts[0]
            words = [_order(order.tolist(), count)]
            whole = np.arange(count)
            as_it_is = len(order) == count and bool((order == whole).all())
            every = len(order) == count and bool((np.sort(order) == whole).all())
            reordered = not same or (every and not as_it_is)
        else:
            words = [f"joined of {', '.join(name for name, _ in groupby(names))}"]
        words += done
        if not same:
            words.append("the numbers of each row in another order")
        how = ", ".join(word for word in words if word)
        tensors = tuple(
            dict.fromkeys(name for name, there in zip(names, of_file, strict=True) if there)
        )
        return Origin(names=tensors, how=how, reordered=reordered)


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
