"""HDF5, as Keras and TensorFlow write weights: arrays in groups, whose names make paths.

h5py reads what describes them, and nothing is opened that leads out of the file. An array that lies
in one stretch is used where it lies; h5py reads the others.

A preset of KerasHub keeps the tensors of the head in a file of their own, `task.weights.h5`, which
is read along with `model.weights.h5`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, TYPE_CHECKING

from vitconvert.atomic_write import atomic_file
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

if TYPE_CHECKING:
    import torch

READER = "h5py.File"
EXAMPLE = """\
import h5py

arrays = {}
with h5py.File("model.weights.h5") as file:
    file.visititems(lambda name, item: arrays.setdefault(name, item))
    tensors = {name: item[()] for name, item in arrays.items() if hasattr(item, "shape")}"""

# h5py's names of the types that are written. bfloat16 has none: ml_dtypes has h5py store its two
# bytes as an opaque type.
_TYPES: Mapping[str, str] = {
    **{f"int{8 * size}": f"STD_I{8 * size}LE" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"STD_U{8 * size}LE" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"IEEE_F{8 * size}LE" for size in (2, 4, 8)},
}
_BFLOAT16_BIAS = 127  # of the exponent; that of float16 is 15
_LONGEST_NAME = 1024  # letters of a path; those of weights have 100 or so
_LONGEST_ATTRIBUTE = 2**16  # bytes; what an object's header can hold of one
_ALIGNMENT = 64
_REPACK = "h5repack -l CONTI -f NONE IN OUT (of HDF5's tools) stores it so that it is read here."


def open_file(path: Path, *_: object) -> Container:
    """Read the description of all arrays, and map the file, with what is joined to it.

    Raises:
        MissingPackage: h5py is not installed.
        CorruptFile: h5py cannot read it, or it stores arrays in a way that is not read here.
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
    manifest: dict[str, TensorInfo] = {}
    offsets: dict[str, int] = {}
    others: dict[str, str] = {}
    packed = 0
    with _opened(path, base, size) as file:
        for name, dataset in _datasets(path, file, ""):
            if isinstance(found := _info(path, name, dataset), str):
                others[name] = found
                continue
            manifest[name] = found
            # None of what is in chunks, or in the header
            offset = dataset.id.get_offset() if found.nbytes else 0
            if offset is not None and dataset.dtype.byteorder != ">":
                check_size(path, name, found, min(found.nbytes, max(0, size - offset)))
                offsets[name] = base + offset
            else:
                packed += found.nbytes
    _refuse_overlaps(path, manifest, offsets)
    refuse_bomb(path, size, packed, "Its arrays")

    def read(mapped: MappedFile, name: str) -> torch.Tensor:
        info = manifest[name]
        if name in offsets:
            return mapped.tensor(offsets[name], info)
        with _opened(path, base, size) as file:
            return tensor_from_buffer(bytearray(_numbers(file[name])), 0, info)

    container = mapped_container(path, "hdf5", manifest, offsets, size=base + size, read=read)
    return replace(container, extras=others)


@contextmanager
def _opened(path: Path, base: int, size: int) -> Iterator[Untyped]:
    """The file for h5py; whatever that raises is an error that names it."""
    h5py = imported("h5py", "HDF5", path)
    try:
        if base:
            with _Window(path, base, size) as window, h5py.File(window, "r") as file:
                yield file
        else:
            with _without_lock(h5py, path) as file:
                yield file
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
        raise corrupt(path, "h5py cannot read this file.", hint=AGAIN, problem=problem) from error


def _without_lock(h5py: ModuleType, path: Path) -> Untyped:
    """A file to read, without a lock: file systems may have none, and others may write.

    One that this program has open already is opened as that was. What it wrote is then put on the
    disk, where the arrays are read.
    """
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if "locking" not in str(error):
            raise
    file = h5py.File(path, "r")
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


def _datasets(path: Path, group: Untyped, within: str) -> Iterator[tuple[str, Untyped]]:
    """Every array below a group, through hard links alone."""
    h5py = imported("h5py", "HDF5", path)
    for key in group:
        name = within + key
        if len(name) > _LONGEST_NAME:  # as where a group is in itself
            raise corrupt(path, "Its names are longer than those of weights.")
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise UnsafeFile(
                f"{name[:80]!r} in this HDF5 file is a link to something else.",
                evidence={"file": path},
                meaning="Such a link may lead to another file, so it was not followed.",
                hint="h5py copies what you trust into a file without links.",
            )
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from _datasets(path, item, f"{name}/")
        elif isinstance(item, h5py.Dataset):
            yield name, item


def _info(path: Path, name: str, dataset: Untyped) -> TensorInfo | str:
    """What is said of an array of numbers, or which other kind it is of."""
    h5py = imported("h5py", "HDF5", path)
    # Before anything else: to ask a virtual dataset for its shape opens other files.
    if dataset.is_virtual or dataset.external:
        raise UnsafeFile(
            f"The numbers of {name!r} are in another file.",
            evidence={"file": path},
            meaning="Such an array can name any file of the machine; it was not opened.",
            hint="h5repack (of HDF5's tools) makes one file of what you trust.",
        )
    if h5py.check_string_dtype(dataset.dtype) or h5py.check_vlen_dtype(dataset.dtype):
        return "array of text or arrays of changing length"
    if dataset.shape is None:
        return "nothing"
    dtype = "bfloat16" if _is_bfloat16(dataset) else dataset.dtype.name
    if dtype not in ITEM_SIZE:
        raise corrupt(
            path,
            f"{name!r} has a type that is not read here.",
            hint="save only numbers, of the types that NumPy and ml_dtypes have.",
            type=str(dataset.dtype),
        )
    info = TensorInfo(dtype=dtype, shape=checked_shape(path, name, dataset.shape))
    if info.nbytes and not _is_written(dataset):
        raise corrupt(path, f"Not all numbers of {name!r} were ever written.", hint=AGAIN)
    settings = dataset.id.get_create_plist()
    for number in range(settings.get_nfilters()):
        code, *_, title = settings.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            named = title.decode(errors="replace") or f"HDF5's filter {code}"
            fact = f"The numbers of {name!r} are compressed by {named}, which h5py lacks here."
            raise corrupt(path, fact, hint=_REPACK)
    return info


def _is_written(dataset: Untyped) -> bool:
    """Whether all numbers of an array are stored: h5py gives zeros for those that are not."""
    if not dataset.chunks:
        return bool(dataset.id.get_storage_size())
    axes = zip(dataset.shape, dataset.chunks, strict=True)
    return bool(dataset.id.get_num_chunks() == prod(-(-axis // length) for axis, length in axes))


def _is_bfloat16(dataset: Untyped) -> bool:
    """Whether its numbers are two bytes of bfloat16, for which NumPy has no name."""
    kind = dataset.id.get_type()
    if kind.get_size() != 2:
        return False
    if hasattr(kind, "get_ebias"):  # of floating point
        return bool(kind.get_ebias() == _BFLOAT16_BIAS)
    return bool(dataset.dtype.kind == "V")


def _numbers(dataset: Untyped) -> bytes:
    """The elements of an array, row-major and little-endian."""
    import numpy as np

    if _is_bfloat16(dataset):
        whole = np.empty(dataset.shape, "V2")
        every = dataset.id.get_space()
        dataset.id.read(every, every, whole, dataset.id.get_type())
        return whole.tobytes()
    little: bytes = dataset[()].astype(dataset.dtype.newbyteorder("<")).tobytes()
    return little


def _refuse_overlaps(
    path: Path, manifest: Mapping[str, TensorInfo], offsets: Mapping[str, int]
) -> None:
    """No two arrays share bytes."""
    end, before = 0, ""
    for name in sorted((n for n in offsets if manifest[n].nbytes), key=lambda n: offsets[n]):
        if offsets[name] < end:
            raise corrupt(path, f"{name!r} overlaps {before!r}.")
        end, before = offsets[name] + manifest[name].nbytes, name


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


def write_file(path: Path, contents: Mapping[str, Content], _surroundings: Surroundings) -> str:
    """Write a file of the tensors alone."""
    return write_hdf5(path, contents)


Attributes = Mapping[str, Mapping[str, str | Sequence[str]]]
"""Path of a group, of which "/" is the outermost -> its attributes: a text, or several."""


def write_hdf5(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    *,
    attributes: Attributes | None = None,
) -> str:
    """Write tensors as an HDF5 file; a slash in a name makes a group.

    The file is of HDF5 1.8's format, which every reader of the last fifteen years takes. h5py
    describes the arrays in a file that has holes in their places; then both go into one stream.

    Args:
        path, tensors: As for `write_safetensors`.
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
        with atomic_file(path) as file:
            for begin, name in sorted((begin, name) for name, begin in places.items()):
                described.seek(file.tell())
                file.write(described.read(begin - file.tell()))
                for chunk in contents[name].chunks():
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
