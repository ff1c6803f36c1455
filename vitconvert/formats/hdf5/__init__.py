"""HDF5, as Keras and TensorFlow write weights: arrays in groups, whose names make paths.

Read by a reader of our own, of the parts of the format that weights need: HDF5's library was never
meant for files of somebody hostile. What it does not know is refused by name. Nothing is followed
that leads out of the file or in a circle. An array that is not in chunks is used where it lies.

A preset of KerasHub keeps the tensors of the head in a file of their own, `task.weights.h5`, which
is read along with `model.weights.h5`. A `.keras` file is a zip archive with such a file within.

Source: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import CorruptFile, printable
from vitconvert.file_formats import JOINED
from vitconvert.formats.container import Container, MappedFile, Stretch, row_major
from vitconvert.formats.content import Content
from vitconvert.formats.format_modules import Array, Surroundings
from vitconvert.formats.hdf5.arrays import StoredArray, array, check_apart, check_size
from vitconvert.formats.hdf5.groups import members
from vitconvert.formats.hdf5.objects import LONGEST_NAME, Source, messages_at, root_address
from vitconvert.formats.hdf5.writing import write_hdf5

if TYPE_CHECKING:
    import torch

READER = "h5py.File"
EXAMPLE = """\
import h5py

arrays = {}
with h5py.File("model.weights.h5") as file:
    file.visititems(lambda name, item: arrays.setdefault(name, item))
    tensors = {name: item[()] for name, item in arrays.items() if hasattr(item, "shape")}"""


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What one HDF5 file holds."""

    arrays: Mapping[str, StoredArray]
    others: Mapping[str, str]


def open_file(path: Path, *_: object) -> Container:
    """Read the description of all arrays, and map the file, with what is joined to it.

    Raises:
        CorruptFile: It contradicts itself, or stores arrays in a way that is not read here.
        UnsafeFile: It leads to other files.
    """
    container = _without_model(open_within(path, 0, path.stat().st_size))
    rest = path.with_name(JOINED.get(path.name, path.name))
    if rest == path or not rest.is_file():
        return container
    return _joined(container, open_within(rest, 0, rest.stat().st_size))


def open_within(path: Path, base: int, size: int) -> Container:
    """Open an HDF5 file that is a stretch of another.

    Raises:
        CorruptFile, UnsafeFile: As `open_file`.
    """
    with path.open("rb") as file:
        contents = _read(Source(path, file, base, size))
    arrays = contents.arrays
    mapped = MappedFile(path, base + size)
    return Container(
        path=path,
        files=(path,),
        format="hdf5",
        manifest={name: stored.info for name, stored in arrays.items()},
        extras=contents.others,
        places={
            name: Stretch(
                path=path, offset=base + stored.offset, strides=row_major(stored.info.shape)
            )
            for name, stored in arrays.items()
            if stored.chunks is None
        },
        reader=lambda name: _tensor(mapped, base, name, arrays[name]),
        release=mapped.close,
    )


def _tensor(mapped: MappedFile, base: int, name: str, stored: StoredArray) -> torch.Tensor:
    if stored.chunks is None:
        return mapped.tensor(base + stored.offset, stored.info)
    try:
        return stored.chunks.read(
            lambda offset, size: mapped.bytes_at(base + offset, size), stored.info
        )
    except ValueError as error:
        raise CorruptFile(
            f"A chunk of {name!r} cannot be read: {error}.",
            evidence={"file": mapped.path},
            hint="download it again.",
        ) from error


def _read(source: Source) -> _Contents:
    """Every array of a file, by its path."""
    arrays: dict[str, StoredArray] = {}
    others: dict[str, str] = {}
    seen: set[int] = set()
    letters = 0
    objects = [("", root_address(source))]
    while objects:
        path, address = objects.pop()
        letters += len(path)
        if address in seen or path in arrays or path in others:
            raise source.corrupt(f"{path[:80]!r} is there twice, or under two names")
        if len(path) > LONGEST_NAME or letters > 4 * source.size + 2**20:
            raise source.corrupt("its names are longer than those of weights")
        seen.add(address)
        messages = list(messages_at(source, address))
        inside = members(source, messages)
        if inside is not None:
            found = [(f"{path}/{name}" if path else name, place) for name, place in inside]
            objects += reversed(found)
            continue
        stored = array(source, path, messages)
        if isinstance(stored, StoredArray):
            arrays[path] = stored
        else:
            others[path] = stored
    check_apart(source, arrays)
    check_size(source, arrays)
    return _Contents(arrays=arrays, others=others)


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


def _joined(first: Container, rest: Container) -> Container:
    if twice := sorted(first.manifest.keys() & rest.manifest.keys()):
        raise CorruptFile(
            f"Two files of these weights have {twice[0]!r}.",
            evidence={"files": f"{first.path} and {rest.path.name}"},
            hint="name one of them under another name than Keras gives it.",
        )

    def release() -> None:
        first.close()
        rest.close()

    return Container(
        path=first.path,
        files=(*first.files, *rest.files),
        format=first.format,
        manifest={**first.manifest, **rest.manifest},
        extras={**first.extras, **rest.extras},
        places={**first.places, **rest.places},
        notes=(f"{rest.path.name} beside the weights holds the rest of the tensors",),
        reader=lambda name: (first if name in first.manifest else rest).read(name),
        release=release,
    )


def write_file(
    path: Path, contents: Mapping[str, Content], _surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a file of the tensors alone."""
    return write_hdf5(path, contents, read_soon=read_soon)


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read a file with h5py."""
    import h5py

    arrays: dict[str, h5py.Dataset] = {}

    def note(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item

    with h5py.File(path) as file:
        file.visititems(note)
        for name, dataset in arrays.items():
            yield name, dataset.shape, dataset[()].tobytes()
