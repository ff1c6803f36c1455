"""The tensors of a file as loading code may find them: all, whatever they are wrapped in."""

import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from vitconvert.checkpoint.quantised import dequantised
from vitconvert.checkpoint.reading import in_memory
from vitconvert.errors import VitConvertError
from vitconvert.formats import Container, open_container
from vitconvert.settings import without_warnings
from vitconvert.sources import Located, locate

Read = Callable[[str], Tensor]
File = str | PathLike[str] | Located | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Named tensors that are read on demand.

    Attributes:
        title: Where they come from, as reports call it.
        names: All names.
        opened: What opens the file, to read tensors by name.
        computed: Names of those that quantised ones stand for.
        is_packed: Whether weights are stored as whole numbers.
        dequantised: The same with the weights that quantised ones stand for, if it has such.
    """

    title: str
    names: tuple[str, ...]
    opened: Callable[[], AbstractContextManager[Read]]
    computed: Set[str] = frozenset()
    is_packed: bool = False
    dequantised: "Tensors | None" = None


def tensors_of(file: File) -> Tensors:
    """The tensors of a state dict, or of what a path or reference leads to.

    Of a file of torch's, all that its dictionaries hold are there: `model.x` and `model_ema.x`
    where there are two; without the name of the dictionary where there is one.

    Raises:
        SourceError: There is no such file.
        CorruptFile, UnsafeFile: It cannot be read.
    """
    if isinstance(file, Mapping):
        return _held("a state dict", file)
    path = locate(file).weights_file()
    if (pickled := _unpickled(path)) is not None:
        return _held(path.name, pickled)
    return _both(path.name, lambda: open_container(path))


def _both(title: str, begun: Callable[[], Container]) -> Tensors:
    """A file as it is and, where one of ours has the arithmetic, dequantised."""
    stored = _seen(title, begun, lambda container: container)
    with suppress(VitConvertError), begun() as container:
        if weights := dequantised(container, "float32")[1]:
            title = f"{title}, dequantised"
            seen = _seen(title, begun, lambda one: dequantised(one, "float32")[0])
            computed = replace(seen, computed=weights.keys(), is_packed=False)
            return replace(stored, dequantised=computed)
    return stored


def _seen(
    title: str, begun: Callable[[], Container], view: Callable[[Container], Container]
) -> Tensors:
    @contextmanager
    def opened() -> Iterator[Read]:
        with begun() as container:
            yield view(container).read

    with begun() as container:
        manifest = view(container).manifest
    whole = ("int", "uint")
    packed = any(t.dtype.startswith(whole) and len(t.shape) > 1 for t in manifest.values())
    return Tensors(title=title, names=tuple(manifest), opened=opened, is_packed=packed)


def _unpickled(path: Path) -> Mapping[str, object] | None:
    """What torch alone reads of its own file without running code; None if it does not."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        with without_warnings():
            read = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, TypeError):
        return None
    return read if isinstance(read, Mapping) else None


def _held(title: str, wrapped: Mapping[str, object]) -> Tensors:
    found = dict(_flat(wrapped, ()))
    folders = {path[:-1] for path in found}
    skipped = len(folders.pop()) if len(folders) == 1 else 0
    tensors = {".".join(path[skipped:]): tensor for path, tensor in found.items()}
    return _both(title, lambda: in_memory(tensors))


def _flat(
    wrapped: Mapping[str, object], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    for name, value in wrapped.items():
        if isinstance(value, Tensor):
            yield (*above, str(name)), value
        elif isinstance(value, Mapping):
            yield from _flat(value, (*above, str(name)))
