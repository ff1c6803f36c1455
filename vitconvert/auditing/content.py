"""What two tensors share: numbers, in whatever order and shape they are.

A fingerprint is the sum of a hash of each number, so it does not depend on their order, and that of
a tensor is the sum of those of its rows. Rows that a model and a file share are found by it;
whether they really are the same is looked at afterwards.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, permutations
from math import prod
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitconvert.auditing.names import in_order

T = TypeVar("T")
Prints = NDArray[np.uint64]
_MOST_IN_HEADS = 2**14  # numbers of a bias, (heads, size of one)
Matrices = list[tuple[str, int]]  # a tensor of the file, and which of `by_rows`
_MOST_ROWS = 2**22
_THREADS = 2
_CHOICES = 1000  # of equal rows
_FIRST, _SPREAD = 64, 64  # numbers that a tensor is known by before it is compared
_FEW_ROWS = 8
_PART = 2**20  # numbers: those in work stay in a processor's cache
FLOATS_OF_8_BITS = {torch.float8_e4m3fn, torch.float8_e5m2}
_LOW = {torch.float16, torch.bfloat16, *FLOATS_OF_8_BITS}


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for, dense: of one that is sparse or quantised, too."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):  # a DTensor: of all processes, each of which comes here
        tensor = tensor.full_tensor()
    if is_quantised(tensor):
        tensor = tensor.dequantize()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).cpu()


def in_threads(work: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What two threads compute, in the order of the work, of which few pieces wait at a time.

    The pieces are made in the thread of the caller: processes that share a model meet in order.
    """
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for piece in work:
            pending.append(pool.submit(piece))
            if len(pending) > _THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
    return has_fractions(tensor) or packed


def is_quantised(tensor: Tensor) -> bool:
    """Whether a tensor stands for numbers that were rounded to few (torch's, torchao's)."""
    subclass = type(tensor) not in (Tensor, nn.Parameter) and not hasattr(tensor, "full_tensor")
    return tensor.is_quantized or subclass


def has_fractions(tensor: Tensor) -> bool:
    """Whether the numbers that a tensor stands for are no whole ones."""
    return tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized


def numbers(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as it is in a dtype, in float32: what is compared."""
    return (tensor.to(dtype) if dtype in _LOW else tensor).float()


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor has the numbers of another one, as these are in its dtype; NaN are alike.

    They have as many numbers, which are compared in their order, and shapes do not count.
    """
    if one.shape != other.shape:
        if not one.is_contiguous():
            return other.is_contiguous() and equal(one, other.view(one.shape))
        one = one.view(other.shape)
    if one.numel() <= _PART or not one.ndim:
        return _equal(one, other)
    if len(one) == 1:
        return equal(one[0], other[0])
    rows = max(1, _PART * len(one) // one.numel())
    places = (slice(at, at + rows) for at in range(0, len(one), rows))
    return all(equal(one[place], other[place]) for place in places)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype == other.dtype and torch.equal(*(_bits(tensor) for tensor in (one, other))):
        return True
    if one.is_floating_point():
        other = other.to(one.dtype)
    if FLOATS_OF_8_BITS & {one.dtype, other.dtype}:  # for which torch has no ==
        one, other = one.float(), other.float()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _bits(tensor: Tensor) -> Tensor:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole[tensor.dtype.itemsize])


def fingerprints(tensor: Tensor, dtype: torch.dtype) -> Prints:
    """A hash of each number of a tensor, as it is in a dtype, in its shape."""
    if dtype not in _LOW:
        return _hashes(tensor.float())
    bits = _bits(tensor.to(dtype)).numpy()
    hashed: Prints = _all_hashes(dtype)[bits.view(f"u{dtype.itemsize}")]
    return hashed


@cache
def _all_hashes(dtype: torch.dtype) -> Prints:
    """The hash of each number that a short dtype can be."""
    whole, count = {1: (np.uint8, 2**8), 2: (np.uint16, 2**16)}[dtype.itemsize]
    return _hashes(torch.from_numpy(np.arange(count, dtype=whole)).view(dtype).float())


def _hashes(values: Tensor) -> Prints:
    """Those of float32 (splitmix64, Steele 2014)."""
    bits = (values + 0.0).contiguous().numpy().view(np.uint32).astype(np.uint64)  # -0 becomes 0
    bits += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


def is_constant(values: Tensor) -> bool:
    """Whether all numbers are the same: then content does not say where they come from."""
    if not values.numel():
        return True
    first = next(parts_of(values))[:64].float()  # of most tensors, these say it
    return bool((first == first[0]).all()) and all(
        bool((part.float() == first[0]).all()) for part in parts_of(values)
    )


def by_rows(values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor as a matrix, (rows, numbers of each), in the ways that projects lay layers out.

    Yields:
        What was done to the axes, and the matrix: by its first axis, by its first two, and
        transposed by its last one, by its last two; of few numbers in two axes, such as biases
        by heads, each number by itself; of three, each matrix of the stack transposed.
    """
    while values.ndim > 2 and values.shape[-1] == 1:  # kernels of one pixel are matrices
        values = values.squeeze(-1)
    shape = values.shape
    if values.ndim < 2:
        yield "", values.reshape(-1, 1)
        return
    yield "", values.reshape(shape[0], -1)
    yield "transposed", values.reshape(-1, shape[-1]).T
    if values.ndim == 2 and values.numel() <= _MOST_IN_HEADS:
        yield "", values.reshape(-1, 1)
    if values.ndim > 2:
        yield "", values.reshape(shape[0] * shape[1], -1)
        yield "transposed", values.reshape(-1, shape[-2] * shape[-1]).T
    if values.ndim == 3:  # a stack of matrices, as of experts
        yield "transposed", values.transpose(1, 2).reshape(-1, shape[1])


def prints_of_rows(values: Tensor, dtype: torch.dtype) -> list[Prints]:
    """The sums of the fingerprints of each row of each matrix of `by_rows`.

    A part of the tensor at a time, so that no large one has a hash of each number in memory. None
    for more rows than any layer has, as of weights that lie in one column.
    """
    while values.ndim > 2 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    values = values.reshape(values.shape or (1,))
    axes = range(values.ndim)
    count = {1: 1, 2: 2 + (values.numel() <= _MOST_IN_HEADS)}.get(values.ndim, 4)
    ways: list[Sequence[int]] = [axes[:1], axes[-1:], axes[:2], axes[-2:]]
    ways = ways[:count]
    if values.ndim == 3:
        ways.append((0, 2))  # of a stack of matrices, transposed
    shapes = [[values.shape[axis] for axis in kept] for kept in ways]
    sums = [np.zeros(shape if prod(shape) <= _MOST_ROWS else 0, np.uint64) for shape in shapes]
    for place in _places(values.shape):
        part = fingerprints(values[place], dtype)
        for kept, total in zip(ways, sums, strict=True):
            if total.size:
                others = tuple(axis for axis in axes if axis not in kept)
                total[tuple(place[axis] for axis in kept)] += part.sum(axis=others)
    return [total.reshape(-1) for total in sums]


def _places(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Slices that divide a tensor into parts of few numbers, along its first axes."""
    if not shape:
        yield ()
        return
    behind = prod(shape[1:])
    step = max(1, _PART // max(1, behind))
    for at in range(0, shape[0], step):
        first = slice(at, at + step)
        rest = _places(shape[1:]) if behind > _PART else [(slice(None),) * (len(shape) - 1)]
        yield from ((first, *others) for others in rest)


def sample(values: Tensor, dtype: torch.dtype) -> bytes:
    """Some numbers of a tensor, as they are in a dtype: its first, and others from all of it."""
    count = values.numel()
    places = np.concatenate([np.arange(min(count, _FIRST)), np.linspace(0, count - 1, _SPREAD)])
    at = np.unravel_index(places.astype(np.int64), tuple(values.shape) or (1,))
    taken = values.reshape(values.shape or (1,))[tuple(map(torch.from_numpy, at))]
    return (numbers(taken, dtype).nan_to_num() + 0.0).numpy().tobytes()  # -0 becomes 0


_ZEROS = "zeros"  # in words
OVERWRITTEN = "were replaced by"
_NUMBERS_IN_A_RUN = 8  # of rows that follow one another in the file, on average: no chance
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
        irregular: Whether parts are in an order that is that of no layout.
        needless: Whether it is transposed, and has the shape of the tensor as it is, too.
        unexplained: Whether numbers are others than those of the file.
        zeros: Whether rows of zeros are between those of the file.
        first: The first of its rows, of one tensor.
    """

    names: tuple[str, ...]
    how: str = ""
    reordered: bool = False
    irregular: bool = False
    needless: bool = False
    unexplained: bool = False
    zeros: bool = False
    first: int = 0


def as_a_whole(values: Tensor, theirs: Tensor, name: str) -> Origin | None:
    """How a parameter is one tensor of the file: as it is, reshaped or transposed."""
    if values.numel() != theirs.numel():
        return None
    if equal(values, theirs):
        same = theirs.shape == values.shape
        shapes = f"reshaped from {tuple(theirs.shape)} to {tuple(values.shape)}"
        return Origin(names=(name,), how="" if same else shapes)
    plain = theirs.squeeze()
    for order in permutations(range(plain.ndim)) if 1 < plain.ndim <= 5 else ():
        if equal(values, plain.permute(order)):
            how = f"transposed: axes {', '.join(map(str, order))}"
            needless = plain.shape == values.squeeze().shape
            return Origin(names=(name,), how=how, needless=needless)
    return None


def overwritten(values: Tensor, theirs: Tensor, name: str) -> Origin | None:
    """How a parameter is a tensor of the file, of which some numbers were replaced by one.

    As the row of a padding token is, that a class sets to zero after loading.
    """
    if values.shape != theirs.shape or not has_fractions(values) or values.ndim < 1:
        return None
    count, rows, put = 0, list[int](), None
    step = max(1, _PART * len(values) // max(1, values.numel()))
    for at in range(0, len(values), step):
        parts = (numbers(t[at : at + step], values.dtype) for t in (values, theirs))
        one, other = (part.reshape(len(part), -1) for part in parts)
        differ = (one != other) & ~(one.isnan() & other.isnan())
        replaced = one[differ]
        if not len(replaced):
            continue
        put = replaced[0] if put is None else put
        if not bool((replaced == put).all()):
            return None
        count += len(replaced)
        rows += (at + differ.any(1).nonzero().flatten()).tolist()
    if put is None or 2 * count > values.numel():
        return None
    where = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows"
    how = f"{count} numbers {OVERWRITTEN} {put:.6g}, in {where} of {len(values)}, of {name}"
    return Origin(names=(name,), how=how, unexplained=True)


def as_first_rows(values: Tensor, theirs: Tensor, name: str) -> Origin | None:
    """How a parameter begins with all rows of a tensor: an enlarged vocabulary or head.

    With as many rows more, or twice as many, it would be joined parts of which some are lost.
    """
    if not values.ndim or values.shape[1:] != theirs.shape[1:]:
        return None
    count = len(theirs)
    if not count < len(values) < 2 * count:
        return None
    if is_constant(theirs) or not equal(values[:count], theirs):
        return None
    return Origin(names=(name,), how=f"{len(values) - count} rows put behind its {count}")


class FileContent:
    """The tensors of a file, to be found by their numbers as these are in one dtype.

    Args:
        read: Reads a tensor of the file.
        shapes: All names, and the shape of each.
        dtype: Of the numbers.
    """

    def __init__(
        self,
        read: Callable[[str], Tensor],
        shapes: Mapping[str, torch.Size],
        dtype: torch.dtype,
    ) -> None:
        self.dtype = dtype
        self._read = read
        self._of_size: dict[int, list[str]] = defaultdict(list)
        self._matrices: Matrices = []
        self._of_length: dict[int, list[int]] = defaultdict(list)  # -> numbers of matrices
        begins, end = list[int](), 0
        for name, shape in shapes.items():
            self._of_size[prod(shape)].append(name)
            for way, (_, matrix) in enumerate(by_rows(torch.empty(shape, device="meta"))):
                self._of_length[matrix.shape[1]].append(len(self._matrices))
                self._matrices.append((name, way))
                begins.append(end)
                end += len(matrix) + 1  # the last row of one is not before the first of the next
        self._begins = np.array(begins, np.int64)
        self._prints: dict[str, list[Prints]] = {}
        self._rows: dict[int, Rows] = {}
        self._shapes = shapes
        self._samples: dict[str, bytes] = {}

    def with_sample_of(self, values: Tensor) -> list[str]:
        """Tensors of the file that have the same numbers at some places."""
        names = self._of_size.get(values.numel(), [])
        for name in names:
            if name not in self._samples:
                self._samples[name] = sample(self._read(name), self.dtype)
        wanted = sample(values, self.dtype) if names else b""
        return [name for name in names if self._samples[name] == wanted]

    def lacks(self, values: Tensor) -> bool:
        """Whether a matrix is no rows of the file: of each way, one of the first is not there.

        It says what `alike` and `of_rows` would find, without a hash of each number of the matrix.
        """
        like = (self._shapes[name] for name in self._of_size.get(values.numel(), ()))
        if values.ndim != 2 or any(len(shape) > 2 for shape in like):
            return False
        return not any(self._may_have(matrix) for _, matrix in by_rows(values))

    def _may_have(self, matrix: Tensor) -> bool:
        rows = self._rows_of(matrix.shape[1])
        if rows is None:
            return False
        first = prints_of_rows(matrix[:_FEW_ROWS], self.dtype)[0]
        zero = first == _print_of_zeros(matrix.shape[1])
        return bool((np.isin(first, rows.prints) | zero).all())

    def prints(self, values: Tensor) -> list[Prints]:
        """Those of a parameter's rows."""
        return prints_of_rows(values, self.dtype)

    def alike(self, numel: int, prints: Sequence[Prints]) -> list[str]:
        """Tensors of the file with the same numbers in any order."""
        names = self._of_size.get(numel, [])
        self._take(names)
        wanted = prints[0].sum()
        return [n for n in names if len(prints[0]) and self._prints[n][0].sum() == wanted]

    def _take(self, names: Iterable[str]) -> None:
        """Compute the prints of tensors of the file, each once."""
        new = [name for name in dict.fromkeys(names) if name not in self._prints]
        work = (partial(prints_of_rows, self._read(name), self.dtype) for name in new)
        self._prints.update(zip(new, in_threads(work), strict=True))

    def _rows_of(self, length: int) -> Rows | None:
        """All rows of a length."""
        if length not in self._rows and length in self._of_length:
            numbers_ = self._of_length[length]
            self._take(self._matrices[number][0] for number in numbers_)
            matrices = [self._matrices[number] for number in numbers_]
            prints = np.concatenate([self._prints[name][way] for name, way in matrices])
            order = np.argsort(prints, kind="stable")
            prints = prints[order]
            places = np.concatenate(
                [
                    begin + np.arange(len(self._prints[name][way]))
                    for begin, (name, way) in zip(self._begins[numbers_], matrices, strict=True)
                ]
            )
            rows = Rows(prints=prints, places=places[order])
            self._rows[length] = rows
        return self._rows.get(length)

    def of_rows(
        self, values: Tensor, prints: Sequence[Prints], preferred: Sequence[str]
    ) -> Origin | None:
        """How a parameter is made of rows of tensors of the file, if all of them are there."""
        for (_, matrix), of_rows in zip(by_rows(values), prints, strict=True):
            found = self._of_matrix(matrix, of_rows, preferred) if len(of_rows) else None
            if found is not None:
                return found
        return None

    def _of_matrix(self, matrix: Tensor, prints: Prints, preferred: Sequence[str]) -> Origin | None:
        rows = self._rows_of(matrix.shape[1])
        if rows is None:
            return None
        first = np.searchsorted(rows.prints, prints, "left")
        last = np.searchsorted(rows.prints, prints, "right")
        there, zero = last > first, prints == _print_of_zeros(matrix.shape[1])
        if not there.any() or not (there | zero).all():
            return None
        # A row that stands in several tensors is taken from the one that has most of the others.
        votes = self._votes(rows, first[there], last[there], preferred)
        chosen = np.full(len(prints), NOTHING, np.int64)
        chosen[there] = rows.places[first[there]]
        for row in np.flatnonzero(last - first > 1).tolist():
            among = rows.places[first[row] : last[row]]  # in rising order
            follows = chosen[row - 1] + 1 if row else NOTHING
            at = min(int(np.searchsorted(among, follows)), len(among) - 1)
            among = np.append(among[:_CHOICES], among[at])  # rows of zeros are everywhere
            of_each = votes[self._matrix_of(among)]
            best = among[of_each == of_each.max()]
            chosen[row] = follows if (best == follows).any() else best[0]
        # Short rows, as the single numbers of biases, are in some tensor by chance.
        begin = np.diff(chosen) != np.where(chosen[1:] == NOTHING, 0, 1)
        if matrix.numel() < _NUMBERS_IN_A_RUN * (1 + int(begin.sum())):
            return None
        return self._described(matrix, chosen)

    def _matrix_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the matrices that have these rows."""
        return np.searchsorted(self._begins, places, "right") - 1

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
        matrices = self._matrices
        votes = np.bincount(
            self._matrix_of(rows.places[alike]), np.repeat(times, lengths), len(matrices)
        )
        named = np.array([name in preferred for name, _ in matrices])
        return (votes + (named & (votes > 0))).astype(np.float64)

    def _described(self, matrix: Tensor, chosen: NDArray[np.int64]) -> Origin:
        matrices = self._matrices
        of_file = chosen != NOTHING
        which = np.where(of_file, self._matrix_of(chosen), -1)
        order = np.where(of_file, chosen - self._begins[which], chosen)
        sources = {}
        for number in dict.fromkeys(which[of_file].tolist()):
            name, way = matrices[number]
            sources[number] = list(by_rows(self._read(name)))[way]
        same = self._is_made_of(matrix, sources, which, order)
        done = dict.fromkeys(how for how, _ in sources.values())
        counts = [len(found) for _, found in sources.values()]
        names = [matrices[number][0] if number >= 0 else _ZEROS for number in which.tolist()]
        taken = {number: order[which == number] for number in sources}
        irregular = not same or not all(map(is_regular, taken.values()))
        reordered = unexplained = False
        if len({*names}) == 1:
            count = counts[0]
            words = [_order(order.tolist(), count)]
            whole = np.arange(count)
            as_it_is = len(order) == count and bool((order == whole).all())
            every = len(order) == count and bool((np.sort(order) == whole).all())
            reordered = not same or (every and not as_it_is)
        else:
            runs = [name for name, _ in groupby(names)]
            rows = ", row by row" if len(runs) > 2 * len({*runs}) else ""
            words = [f"joined of {', '.join(dict.fromkeys(runs) if rows else runs)}{rows}"]
            irregular = irregular or not in_order([*dict.fromkeys(names)])
            # Zeros beside a part of a tensor stand where the file has other numbers.
            there = (len({*rows.tolist()}) for rows in taken.values())
            partly = any(n < count for n, count in zip(there, counts, strict=True))
            unexplained = partly and not bool(of_file.all())
        words += done
        if not same:
            words.append("the numbers of each row in another order")
        if unexplained:
            words.append(f"{int((~of_file).sum())} rows {OVERWRITTEN} 0")
        how = ", ".join(word for word in words if word)
        tensors = tuple(
            dict.fromkeys(name for name, there in zip(names, of_file, strict=True) if there)
        )
        return Origin(
            names=tensors,
            how=how,
            reordered=reordered,
            irregular=irregular,
            unexplained=unexplained,
            zeros=not bool(of_file.all()),
            first=int(order[of_file][0]),
        )

    def _is_made_of(
        self,
        matrix: Tensor,
        sources: Mapping[int, tuple[str, Tensor]],
        which: NDArray[np.int64],
        order: NDArray[np.int64],
    ) -> bool:
        """Whether each row has its numbers in the order of the row that it was found as."""
        dtype = torch.float32 if matrix.dtype in FLOATS_OF_8_BITS else matrix.dtype
        step = max(1, _PART // matrix.shape[1])
        for at in range(0, len(matrix), step):
            part = matrix[at : at + step].to(dtype)
            theirs = torch.zeros_like(part)
            for number in dict.fromkeys(which[at : at + step].tolist()).keys() - {-1}:
                taken = np.flatnonzero(which[at : at + step] == number)
                found = sources[number][1][torch.from_numpy(order[at : at + step][taken])]
                theirs[torch.from_numpy(taken)] = found.to(matrix.dtype).to(dtype)
            if not equal(part, theirs):
                return False
        return True


def _print_of_zeros(count: int) -> np.uint64:
    return np.uint64(int(_hashes(torch.zeros(1))[0]) * count % 2**64)


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


def is_regular(rows: NDArray[np.int64]) -> bool:
    """Whether rows of a tensor are in their order, or in that of a layout with more axes.

    That is (a, b, c, d) as (a, c, b, d), as of heads, and of the two halves of rotary positions.
    """
    first = np.array([*dict.fromkeys(rows.tolist())]) - rows.min()
    count, whole = len(first), np.arange(len(first))
    if bool((np.diff(first) > 0).all()):
        return True
    sizes = [size for size in range(2, count + 1) if not count % size]
    for a in (1, *sizes):
        for b in (size for size in sizes if not count % (a * size)):
            for c in (size for size in sizes if not count % (a * b * size)):
                second = 1 if count > a * b * c else c
                if first[1] == second and np.array_equal(
                    whole.reshape(a, b, c, -1).swapaxes(1, 2).ravel(), first
                ):
                    return True
    return False


def order_of(values: Tensor, theirs: Tensor) -> NDArray[np.int64]:
    """The places of a tensor's numbers in another one, which has the same ones."""
    order = torch.empty(values.numel(), dtype=torch.int64)
    places = theirs.to(values.dtype).reshape(-1).argsort(stable=True)
    order[values.reshape(-1).argsort(stable=True)] = places
    return order.numpy()


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
