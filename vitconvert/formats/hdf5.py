"""HDF5, as Keras and TensorFlow write weights: arrays in groups, whose names make paths.

h5py reads what describes them, and nothing is opened that leads out of the file or in a circle. An
array that lies in one stretch is used where it lies; chunks are inflated here, to their size.

A preset of KerasHub keeps the tensors of the head in a file of their own, `task.weights.h5`, which
is read along with `model.weights.h5`.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product, repeat
from math import prod
from operator import add
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, TYPE_CHECKING

from vitconvert.errors import CorruptFile, UnsafeFile, UsageError, printable
from vitconvert.file_formats import JOINED
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    TensorInfo,
    joined,
    mapped_container,
    tensor_from_buffer,
)
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import Array, Surroundings, Untyped, imported
from vitconvert.formats.headers import AGAIN, check_size, checked_shape, corrupt
from vitconvert.formats.zip_archive import refuse_bomb
from vitconvert.whole import whole_file

if TYPE_CHECKING:
    import torch

READER = "h5py.File"
EXAMPLE = """\
import h5py

arrays = {}
with h5py.File("model.weights.h5") as file:
    file.visititems(lambda name, item: arrays.setdefault(name, item))
    tensors = {name: item[()] for name, item in arrays.items() if hasattr(item, "shape")}"""

# h5py's names of the types that are read and written. bfloat16 has none: ml_dtypes has h5py store
# its two bytes as an opaque type.
_TYPES: Mapping[str, str] = {
    **{f"int{8 * size}": f"STD_I{8 * size}LE" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"STD_U{8 * size}LE" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"IEEE_F{8 * size}LE" for size in (2, 4, 8)},
}
_BFLOAT16 = (15, 7, 8, 0, 7)  # sign, exponent and mantissa: first bit and width
_OTHER_TYPES = {6: "records", 7: "references", 10: "arrays", 2: "times", 4: "bits"}
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3  # the filters that every build of HDF5 has
_OTHER_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset"}
_OTHER_FILTERS |= {32000: "lzf", 32001: "blosc", 32015: "zstd"}
_SUMMED = 2**20  # words of a checksum at once
_LONGEST_NAME = 1024  # letters of a path; those of weights have 100 or so
_LONGEST_ATTRIBUTE = 2**16  # bytes; what an object's header can hold of one
_ALIGNMENT = 64
_UNREADABLE = "This HDF5 file cannot be read."
_REPACK = "h5repack -l CONTI -f NONE IN OUT (of HDF5's tools) stores it so that it is read here."


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Where a chunk lies; `skipped` has a bit for each filter that was left out."""

    offset: int
    size: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """An array: one stretch that begins at `offset`, or else chunks or numbers in its header.

    Attributes:
        chunk: The shape of each chunk.
        filters: What chunks went through, by HDF5's numbers.
        chunks: Where each begins along the axes -> where it lies.
        numbers: Those of a small array, which HDF5 calls compact.
    """

    info: TensorInfo
    offset: int | None = None
    chunk: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    chunks: Mapping[tuple[int, ...], _Chunk] = field(default_factory=dict)
    numbers: bytes = b""

    @property
    def chunk_size(self) -> int:
        """Bytes of a chunk before its filters."""
        return prod(self.chunk) * ITEM_SIZE[self.info.dtype]


def open_file(path: Path, *_: object) -> Container:
    """Read the description of all arrays, and map the file, with what is joined to it.

    Raises:
        MissingPackage: h5py is not installed.
        CorruptFile: It contradicts itself, or stores arrays in a way that is not read here.
        UnsafeFile: It leads to other files.
    """
    container = _without_model(open_within(path, 0, path.stat().st_size))
    beside = path.with_name(JOINED.get(path.name, path.name))
    if beside == path or not beside.is_file():
        return container
    rest = open_within(beside, 0, beside.stat().st_size)
    if twice := sorted(container.manifest.keys() & rest.manifest.keys()):
        container.close()
        rest.close()
        raise CorruptFile(
            f"Two files of these weights have {twice[0]!r}.",
            evidence={"files": f"{path} and {beside.name}"},
            hint="name one of them under another name than Keras gives it.",
        )
    note = f"{beside.name} beside the weights holds the rest of the tensors"
    return replace(joined([container, rest]), notes=(*container.notes, note))


def open_within(path: Path, base: int, size: int) -> Container:
    """Open an HDF5 file that is a stretch of another.

    Raises:
        MissingPackage, CorruptFile, UnsafeFile: As `open_file`.
    """
    h5py = imported("h5py", "HDF5", path)
    try:
        place = _Window(path, base, size) if base else path
        with _opened(h5py, place) as file, _no_plugins(h5py.h5pl):
            arrays, others = _Walk(h5py, path, size).all_of(file.id)
    except (
        OSError,
        RuntimeError,
        SystemError,  # of Python 3.13, about an error of a file of Python's
        ValueError,
        KeyError,
        TypeError,
        MemoryError,
    ) as error:
        problem = str(error).strip("'\"")[:300]
        raise corrupt(path, _UNREADABLE, hint=AGAIN, problem=problem) from error
    container = mapped_container(
        path,
        "hdf5",
        {name: stored.info for name, stored in arrays.items()},
        {n: base + stored.offset for n, stored in arrays.items() if stored.offset is not None},
        size=base + size,
        read=lambda mapped, name: _tensor(mapped, base, name, arrays[name]),
    )
    return replace(container, extras=others)


def _opened(h5py: ModuleType, place: Path | _Window) -> Untyped:
    """A file to read, without a lock: file systems may have none, and others may write.

    One that this program has open already is opened as that was. What it wrote is then put on the
    disk, where the arrays are read.
    """
    if not isinstance(place, Path):
        return h5py.File(place, "r")
    try:
        return h5py.File(place, "r", locking=False)
    except OSError as error:
        if "locking" not in str(error):
            raise
    file = h5py.File(place, "r")
    if file.mode != "r":
        file.flush()
    return file


class _Window(io.RawIOBase):
    """A stretch of a file, as a file."""

    def __init__(self, path: Path, base: int, size: int) -> None:
        self._file, self._base, self._size, self._at = path.open("rb"), base, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Untyped) -> int:
        self._file.seek(self._base + self._at)
        count = self._file.readinto(memoryview(buffer)[: max(0, self._size - self._at)])
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _no_plugins(h5pl: ModuleType) -> Iterator[None]:
    """For a filter that a file names, HDF5 loads libraries from these folders."""
    folders = [h5pl.get(number) for number in range(h5pl.size())]
    for _ in folders:
        h5pl.remove(0)
    try:
        yield
    finally:
        for folder in folders:
            h5pl.append(folder)


class _Walk:
    """Finds every array of a file, through hard links alone."""

    def __init__(self, h5py: ModuleType, path: Path, size: int) -> None:
        self._h5py, self._path, self._size = h5py, path, size

    def all_of(self, file: Untyped) -> tuple[dict[str, _Stored], dict[str, str]]:
        """The arrays by their paths, and what else there is.

        Raises:
            CorruptFile, UnsafeFile: As `open_file`.
        """
        h5o, found = self._h5py.h5o, dict[str, _Stored]()
        others, seen = dict[str, str](), set[int]()
        objects = [("", file, b"/")]
        while objects:
            path, parent, own = objects.pop()
            if len(path) > _LONGEST_NAME:
                raise self._corrupt("its names are longer than those of weights")
            item = h5o.open(parent, own)
            if (address := h5o.get_info(item).addr) in seen:
                raise self._corrupt(f"{path[:80]!r} is there twice, or under two names")
            seen.add(address)
            if isinstance(item, self._h5py.h5g.GroupID):
                begin = f"{path}/" if path else ""
                objects += [(begin + name.decode(), item, name) for name in self._names(item)]
            elif isinstance(item, self._h5py.h5d.DatasetID):
                stored = self._array(path, item)
                (found if isinstance(stored, _Stored) else others)[path] = stored  # type: ignore
            else:
                others[path] = "a named type"
        filled = []  # no two arrays share bytes, and the file justifies the memory they take
        asked = 0
        for path, stored in found.items():
            filled += [(chunk.offset, chunk.size, path) for chunk in stored.chunks.values()]
            if stored.offset is not None:
                filled.append((stored.offset, stored.info.nbytes, path))
            asked += len(stored.chunks) * stored.chunk_size or stored.info.nbytes
        end, before = 0, ""
        for offset, size, path in sorted(item for item in filled if item[1]):
            if offset + size > self._size:
                raise self._corrupt(f"a chunk of {path!r} is not in the file")
            if offset < end:
                raise self._corrupt(f"{path!r} overlaps {before!r}")
            end, before = offset + size, path
        refuse_bomb(self._path, self._size, asked, "Its arrays")
        return found, others

    def _names(self, group: Untyped) -> list[bytes]:
        """The names in a group, the last one first."""
        links: list[tuple[bytes, int]] = []
        group.links.iterate(lambda name, info: links.append((name, info.type)), info=True)
        for name, kind in links:
            if kind != self._h5py.h5l.TYPE_HARD:
                raise UnsafeFile(
                    f"{name.decode(errors='backslashreplace')[:80]!r} in this HDF5 file is a link "
                    "to something else.",
                    evidence={"file": self._path},
                    meaning="Such a link may lead to another file, or in a circle, so it was not "
                    "followed.",
                    hint="h5py copies what you trust into a file without links.",
                )
            if not name or b"/" in name or name == b".":
                raise self._corrupt("a name is empty, or a path")
        return [name for name, _ in reversed(links)]

    def _array(self, name: str, dataset: Untyped) -> _Stored | str:
        """An array of numbers, or which other kind it is of."""
        import numpy as np

        h5d, settings = self._h5py.h5d, dataset.get_create_plist()
        # Before anything else: to ask a virtual dataset for its shape opens other files.
        layout = settings.get_layout()
        if layout == h5d.VIRTUAL or settings.get_external_count():
            fact = f"The numbers of {name!r} are in another file."
            if layout == h5d.VIRTUAL:
                fact = f"{name!r} is a view on arrays elsewhere."
            raise UnsafeFile(
                fact,
                evidence={"file": self._path},
                meaning="Such an array can name any file of the machine; it was not opened.",
                hint="h5repack (of HDF5's tools) makes one file of what you trust.",
            )
        dtype = self._dtype(name, dataset.get_type())
        if dtype not in ITEM_SIZE:
            return dtype
        if dataset.get_space().get_simple_extent_type() == self._h5py.h5s.NULL:
            return "nothing"
        shape = checked_shape(self._path, name, tuple(map(int, dataset.shape)))
        info = TensorInfo(dtype=dtype, shape=shape)
        if not info.nbytes:
            return _Stored(info=info, offset=0)
        if layout == h5d.CHUNKED:
            return self._chunks(name, info, dataset, settings)
        found, offset = dataset.get_storage_size(), dataset.get_offset()
        if layout == h5d.CONTIGUOUS and offset is None:
            raise self._unread(name, "nowhere: nothing was ever written to it")
        left = found if offset is None else max(0, self._size - offset)
        check_size(self._path, name, info, min(found, left))
        if layout != h5d.COMPACT:
            return _Stored(info=info, offset=offset)
        numbers = np.empty(shape, f"V{ITEM_SIZE[dtype]}")
        dataset.read(self._h5py.h5s.ALL, self._h5py.h5s.ALL, numbers, dataset.get_type())
        return _Stored(info=info, numbers=numbers.tobytes())

    def _dtype(self, name: str, kind: Untyped) -> str:
        """torch's name of a type of numbers, or words for text."""
        h5t = self._h5py.h5t
        for dtype, known in _TYPES.items():
            if kind.equal(getattr(h5t, known)):
                return dtype
        match kind:
            case h5t.TypeFloatID() if kind.get_size() == 2 and kind.get_order() == h5t.ORDER_LE:
                if kind.get_fields() == _BFLOAT16 and kind.get_ebias() == 127:
                    return "bfloat16"
            case h5t.TypeOpaqueID() if kind.get_size() == 2:
                return "bfloat16"
            case h5t.TypeEnumID() if kind.get_size() == 1:
                return "bool"  # h5py: an enumeration of FALSE and TRUE
            case h5t.TypeStringID() if not kind.is_variable_str():
                return "array of text"
            case h5t.TypeStringID() | h5t.TypeVlenID():
                return "array of text or arrays of changing length"
        swapped = isinstance(kind, h5t.TypeAtomicID) and kind.get_order() == h5t.ORDER_BE
        numbers = f"{'big-endian ' * swapped}numbers of {kind.get_size()} bytes"
        raise corrupt(
            self._path,
            f"{name!r} has a type that is not read here.",
            hint="save numbers alone, of the types that NumPy and ml_dtypes have.",
            type=_OTHER_TYPES.get(kind.get_class()) or numbers,
        )

    def _chunks(self, name: str, info: TensorInfo, dataset: Untyped, settings: Untyped) -> _Stored:
        filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
        for kind in filters:
            if kind not in (_DEFLATE, _SHUFFLE, _FLETCHER32):
                named = _OTHER_FILTERS.get(kind, f"HDF5's filter {kind}")
                raise self._unread(name, f"in chunks that {named} has compressed")
        if len(set(filters)) < len(filters):
            raise self._unread(name, "in chunks that a filter has changed twice")
        shape = settings.get_chunk()
        count = prod(-(-axis // length) for axis, length in zip(info.shape, shape, strict=True))
        if count > self._size:
            raise self._unread(name, "nowhere: most of it was never written")
        found: dict[tuple[int, ...], _Chunk] = {}

        def note(chunk: Untyped) -> None:
            found[chunk.chunk_offset] = _Chunk(
                offset=chunk.byte_offset, size=chunk.size, skipped=chunk.filter_mask
            )

        dataset.chunk_iter(note)
        grid = product(*map(range, repeat(0), info.shape, shape))
        if any(begins not in found for begins in grid):
            raise self._unread(name, "nowhere: a part of it was never written")
        if len(found) != count:
            raise self._corrupt(f"{name!r} has chunks beyond its shape")
        return _Stored(info=info, chunk=shape, filters=tuple(filters), chunks=found)

    def _corrupt(self, problem: str) -> CorruptFile:
        return corrupt(self._path, _UNREADABLE, problem=problem)

    def _unread(self, name: str, where: str) -> CorruptFile:
        return corrupt(self._path, f"The numbers of {name!r} are stored {where}.", hint=_REPACK)


def _tensor(mapped: MappedFile, base: int, name: str, stored: _Stored) -> torch.Tensor:
    import numpy as np

    info = stored.info
    if stored.offset is not None:
        return mapped.tensor(base + stored.offset, info)
    if stored.numbers:
        mapped.bytes_at(0, 0)  # complains of a file that was closed or cut
        return tensor_from_buffer(bytearray(stored.numbers), 0, info)
    whole = np.empty((*info.shape, ITEM_SIZE[info.dtype]), np.uint8)
    for begins, chunk in stored.chunks.items():
        data = mapped.bytes_at(base + chunk.offset, chunk.size)
        try:
            part = np.frombuffer(_unfiltered(data, stored, chunk.skipped), np.uint8)
        except ValueError as error:
            fact = f"A chunk of {name!r} cannot be read: {error}."
            raise corrupt(mapped.path, fact, hint=AGAIN) from error
        place = whole[tuple(map(slice, begins, map(add, begins, stored.chunk)))]
        place[...] = part.reshape(*stored.chunk, -1)[tuple(map(slice, place.shape))]
    return tensor_from_buffer(whole.reshape(-1).data, 0, info)


def _unfiltered(data: bytes, stored: _Stored, skipped: int) -> bytes:
    """A chunk as it was before its filters.

    HDF5's library (2.0) inflates whatever there is, and where that is shorter than the chunk, it
    gives memory of the process as the rest.

    Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, IV.A.2.l

    Raises:
        ValueError: The chunk is damaged.
    """
    import numpy as np

    size, item = stored.chunk_size, ITEM_SIZE[stored.info.dtype]
    for number, kind in reversed(list(enumerate(stored.filters))):
        if skipped >> number & 1:
            continue
        if kind == _DEFLATE:
            inflating = zlib.decompressobj()
            try:  # a checksum may be within
                data = inflating.decompress(data, size + 4 + 1)
            except zlib.error as error:
                raise ValueError("it cannot be inflated") from error
            if not inflating.eof:
                raise ValueError("it inflates to another size than its shape says")
        elif kind == _SHUFFLE:  # first came the first bytes of all elements
            whole = len(data) - len(data) % item
            planes = np.frombuffer(data, np.uint8, whole).reshape(item, -1)
            data = planes.T.tobytes() + data[whole:]
        else:
            data, checksum = data[:-4], data[-4:]
            if checksum != _fletcher32(data):
                raise ValueError("its checksum is that of other bytes")
    if len(data) != size:
        raise ValueError("it has another size than its shape says")
    return data


def _fletcher32(data: bytes) -> bytes:
    """Two sums of words of 16 bits, each modulo 2^16 - 1. Source: HDF5's H5checksum.c."""
    import numpy as np

    words = np.frombuffer(data + bytes(len(data) % 2), ">u2")
    first = second = 0
    for begin in range(0, len(words), _SUMMED):
        block = words[begin : begin + _SUMMED].astype(np.uint64)
        second += len(block) * first + int(block @ np.arange(len(block), 0, -1, dtype=np.uint64))
        first += int(block.sum())
    # A sum that is not zero may be stored as 65535, which is the same modulo that.
    return struct.pack(
        "<HH", *((total % 65535 or 65535 * (total > 0)) for total in (first, second))
    )


def _without_model(container: Container) -> Container:
    """The names of weights alone, where all begin with LAYER/MODEL/LAYER/.

    So transformers writes them with Keras 2: MODEL is the class, with a number if it was made more
    than once, and LAYER a part of the name that follows.
    """
    names = {name: name.split("/", 3) for name in container.manifest}
    models = {parts[1] for parts in names.values() if len(parts) == 4 and parts[0] == parts[2]}
    if len(models) != 1 or not all(len(p) == 4 and p[0] == p[2] for p in names.values()):
        return container
    (model,) = models
    note = f"before the names of tensors, the file has LAYER/{printable(model)}/"
    shorter = {f"{parts[2]}/{parts[3]}": name for name, parts in names.items()}
    return replace(container.renamed(shorter), notes=(*container.notes, note))


def write_file(
    path: Path, contents: Mapping[str, Content], _surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a file of the tensors alone."""
    return write_hdf5(path, contents, read_soon=read_soon)


Attributes = Mapping[str, Mapping[str, str | Sequence[str]]]
"""Path of a group, of which "/" is the outermost -> its attributes: a text, or several."""


def write_hdf5(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    attributes: Attributes | None = None,
    read_soon: bool = True,
) -> str:
    """Write tensors as an HDF5 file; a slash in a name makes a group.

    The file is of HDF5 1.8's format, which every reader of the last fifteen years takes. h5py
    describes the arrays in a file that has holes in their places; then both go into one stream.

    Args:
        path, tensors, read_soon: As for `write_safetensors`.
        attributes: Of groups of these tensors.

    Returns:
        The sha256 of the file, which depends on the tensors and h5py's release alone.

    Raises:
        MissingPackage: h5py is not installed.
        UsageError: A name, a dtype or an attribute that is not written, or no place for the file.
    """
    contents = checked_contents(tensors, [*_TYPES, "bfloat16"], "HDF5")
    for name in contents:
        parts = name.split("/")
        groups = ("/".join(parts[:count]) for count in range(1, len(parts)))
        odd = any(part in ("", ".") or "\0" in part for part in parts)
        if odd or len(name) > _LONGEST_NAME or any(group in contents for group in groups):
            raise UsageError(
                "A tensor has a name that HDF5 cannot hold.", evidence={"name": ascii(name)[:80]}
            )
    with TemporaryFile() as described:
        try:
            places = _describe(path, described, contents, attributes or {})
        except SystemError as error:
            # h5py 3.16 calls the file again after it raised, of which Python 3.13 complains.
            raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None
        with whole_file(path, read_soon=read_soon) as file:
            for begin, name in sorted((begin, name) for name, begin in places.items()):
                described.seek(file.tell())
                file.write(described.read(begin - file.tell()))
                for chunk in contents[name].chunks(file.room):
                    file.write(chunk)
            described.seek(file.tell())
            file.write(described.read())
    return file.sha256


def _describe(
    path: Path, described: IO[bytes], contents: Mapping[str, Content], attributes: Attributes
) -> dict[str, int]:
    """Write all but the numbers of arrays; returns where those begin."""
    h5py = imported("h5py", "HDF5", path)
    import numpy as np

    h5d, h5p, h5t = h5py.h5d, h5py.h5p, h5py.h5t
    settings, links = h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.LINK_CREATE)
    settings.set_layout(h5d.CONTIGUOUS)
    settings.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5t.CSET_UTF8)
    places = {}
    with h5py.File(
        described,
        "w",
        libver=("v108", "v108"),
        alignment_threshold=1,
        alignment_interval=_ALIGNMENT,
    ) as file:
        for name in sorted(contents):
            info = contents[name].info
            opaque = info.dtype == "bfloat16"
            kind = h5t.create(h5t.OPAQUE, 2) if opaque else getattr(h5t, _TYPES[info.dtype])
            space = h5py.h5s.create_simple(info.shape) if info.shape else h5py.h5s.create(0)
            dataset = h5d.create(file.id, name.encode(), kind, space, settings, links)
            if info.nbytes:
                places[name] = dataset.get_offset()
            if opaque:
                h5py.Dataset(dataset).attrs["dtype"] = "bfloat16"  # which Keras looks for
        for group, values in attributes.items():
            for key, value in values.items():
                texts = [text.encode() for text in ([value] if isinstance(value, str) else value)]
                if len(texts) * max(map(len, texts)) >= _LONGEST_ATTRIBUTE:
                    raise UsageError(
                        f"HDF5 cannot hold {len(texts):,} texts as the attribute {key!r}."
                    )
                file[group].attrs[key] = np.array(texts[0] if isinstance(value, str) else texts)
    return places


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with h5py."""
    h5py = imported("h5py", "HDF5", path)
    with h5py.File(path) as file:
        arrays: list[tuple[str, Untyped]] = []
        file.visititems(lambda name, item: arrays.append((name, item)))
        for name, item in arrays:
            if isinstance(item, h5py.Dataset):
                yield name, item.shape, item[()].tobytes()
