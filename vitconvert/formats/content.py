"""A tensor on its way into a file: what the header will say of it, and its bytes.

The bytes are those of a tensor in memory, or come from another file without torch: elements move in
boxes. A box is a strided copy; joining, splitting and transposing tensors takes a few of them.
Where elements follow one another on both sides, a box is a stretch of bytes and moves as such.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats.container import ITEM_SIZE, TensorInfo, row_major

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    _Elements = NDArray[np.unsignedinteger]

_CHUNK = 2**20  # bytes that are read and written at once; they stay in a core's cache
_LONG_ROW = 2**16  # bytes; what is between shorter rows is read along with them
_STRIP = 128  # bytes: two lines of a cache


@dataclass(frozen=True, kw_only=True)
class Box:
    """Elements of one tensor, and their place in another; all numbers but `offset` count elements.

    Attributes:
        path: The file.
        offset: Byte of the file at which the first element lies.
        begin: Where the first element goes, in the row-major target.
        sizes: Of the box, slowest axis of the target first.
        strides: In the file, for each axis.
        target_strides: In the target, for each axis.
    """

    path: Path
    offset: int
    begin: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    @property
    def fills_a_run(self) -> bool:
        """Whether the elements follow one another in the target."""
        return self.target_strides == row_major(self.sizes)

    @property
    def is_a_run(self) -> bool:
        """Whether the elements follow one another in the file, in the same order."""
        return self.strides == row_major(self.sizes)


def chunks_of(info: TensorInfo, boxes: Sequence[Box]) -> Iterator[memoryview]:
    """The bytes of a tensor that boxes make up, in order. Each chunk is good until the next.

    This takes a few MiB of memory, except for a box that is scattered over its target, or whose
    rows lie between each other in the file: then a whole tensor is held.

    Args:
        info: Of the tensor.
        boxes: What it consists of; elements that no box fills are zero.
    """
    if not all(box.fills_a_run for box in boxes):
        yield _gathered(info, boxes).data.cast("B")
        return
    size, position = ITEM_SIZE[info.dtype], 0
    for box in sorted(boxes, key=lambda box: box.begin):
        yield from _zeros((box.begin - position) * size)
        if box.is_a_run:
            yield from _stretch(box.path, box.offset, box.count * size)
        else:
            yield from _blocks(box, size)
        position = box.begin + box.count
    yield from _zeros((prod(info.shape) - position) * size)


def _zeros(count: int) -> Iterator[memoryview]:
    for begin in range(0, count, _CHUNK):
        yield memoryview(bytes(min(_CHUNK, count - begin)))


def _stretch(path: Path, offset: int, count: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_CHUNK, count)))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while count:
            chunk = buffer[:count]
            read = file.readinto(chunk)
            if not read:
                raise _shorter(path)
            yield chunk[:read]
            count -= read


def _blocks(box: Box, size: int) -> Iterator[memoryview]:
    """Rows of the target, a few at a time."""
    import numpy as np

    if not box.count:
        return
    rows, row = box.sizes[0], prod(box.sizes[1:]) * size
    apart = box.strides[0] >= _reach(box.sizes[1:], box.strides[1:])
    # Rows that lie between each other in the file, as in a transpose, are read at once; of others,
    # as many as are written at once, and not what is between long ones.
    step = (1 if row > _LONG_ROW else max(1, _CHUNK // max(row, 1))) if apart else rows
    for begin in range(0, rows, step):
        part = replace(
            box,
            offset=box.offset + begin * box.strides[0] * size,
            sizes=(min(step, rows - begin), *box.sizes[1:]),
        )
        elements = _elements(part, size)
        width = max(1, _CHUNK // max(row, 1))
        for first in range(0, len(elements), width):
            source = elements[first : first + width]
            block = np.empty(source.shape, source.dtype)
            _copy(block, source)
            yield block.data.cast("B")


def _gathered(info: TensorInfo, boxes: Sequence[Box]) -> _Elements:
    import numpy as np

    size = ITEM_SIZE[info.dtype]
    whole = np.zeros(prod(info.shape), f"u{size}")
    for box in boxes:
        steps = [step * size for step in box.target_strides]
        place = np.lib.stride_tricks.as_strided(whole[box.begin :], box.sizes, steps)
        _copy(place, _elements(box, size))
    return whole


def _copy(target: _Elements, source: _Elements) -> None:
    """Copy all elements; a transpose goes strip by strip.

    The lines of a strip, on both sides, stay in the cache until they are used up: the matrices of
    a ViT take half the time. Narrower and wider strips take longer.
    """
    import numpy as np

    size, length = target.itemsize, target.shape[-1]
    width = max(length, 1) if source.strides[-1] == size else _STRIP // size
    for begin in range(0, length, width):
        np.copyto(target[..., begin : begin + width], source[..., begin : begin + width])


def _elements(box: Box, size: int) -> _Elements:
    """The elements of a box, on a copy of the stretch of the file in which they lie.

    Not on the mapped file: the system would end the process if somebody cut it (SIGBUS).
    """
    import numpy as np

    if not box.count:
        return np.empty(box.sizes, f"u{size}")
    stretch = np.empty(_reach(box.sizes, box.strides), f"u{size}")
    rest = stretch.data.cast("B")
    with box.path.open("rb", buffering=0) as file:
        file.seek(box.offset)
        while rest:
            if not (read := file.readinto(rest)):
                raise _shorter(box.path)
            rest = rest[read:]
    return np.lib.stride_tricks.as_strided(
        stretch, box.sizes, [stride * size for stride in box.strides]
    )


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last of a box, both counted."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _shorter(path: Path) -> CorruptFile:
    return CorruptFile("The file became shorter while it was read.", evidence={"file": path})


@dataclass(frozen=True, kw_only=True)
class Content:
    """One tensor, row-major and little-endian, in chunks that are each good until the next.

    Attributes:
        info: Its dtype and its shape.
        chunks: Gives its bytes.
    """

    info: TensorInfo
    chunks: Callable[[], Iterable[memoryview]]

    def whole(self) -> bytearray:
        """All bytes at once. Not `join`, which holds all chunks before it copies the first."""
        held = bytearray()
        for chunk in self.chunks():
            held += chunk
        return held


def content_of(name: str, tensor: torch.Tensor) -> Content:
    """A tensor in memory.

    Raises:
        UsageError: It has no numbers to write.
    """
    import torch

    if tensor.is_meta or tensor.layout != torch.strided:
        raise UsageError(f"{name!r} has no plain numbers to write: it is meta or sparse.")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Content(
        info=TensorInfo(dtype=dtype, shape=tuple(tensor.shape)),
        chunks=lambda: [bytes_of(tensor)],
    )


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor, row-major, without a copy where they lie so already."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # one element is contiguous by any stride
    return flat.view(torch.uint8).numpy().data


def checked_contents(
    tensors: Mapping[str, torch.Tensor | Content], dtypes: Collection[str], format_name: str
) -> dict[str, Content]:
    """All tensors as contents, once it is known that the format can hold each of them.

    Raises:
        UsageError: A name or a dtype that the format cannot hold.
    """
    contents = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str):  # of a caller's own mapping
            raise UsageError("A tensor has a name that is not text.", evidence={"name": repr(name)})
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # halves of pairs
            raise UsageError(
                "A tensor has a name that is not valid Unicode.", evidence={"name": ascii(name)}
            )
        content = tensor if isinstance(tensor, Content) else content_of(name, tensor)
        if content.info.dtype not in dtypes:
            raise UsageError(
                f"{name!r} has a dtype that is not written to {format_name} files.",
                evidence={"dtype": content.info.dtype, "known": " ".join(dtypes)},
            )
        contents[name] = content
    return contents
