"""torch checkpoints: a pickle of tensors, as a zip archive or in the legacy format.

Only torch's restricted unpickler (`weights_only=True`, safe since torch 2.10) ever sees the
pickle, with `argparse.Namespace` allowed besides: Meta's training checkpoints keep their
arguments in one. What else a file asks for is named and refused.
"""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.containers.container import ITEM_SIZE, Container, TensorInfo
from vitconvert.containers.zip_directory import Member
from vitconvert.errors import CorruptFile, UnsafeFile

if TYPE_CHECKING:
    import torch

WRAPPERS: tuple[str, ...] = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
    "module",
    "teacher",
    "student",
    "target_encoder",
    "encoder",
    "model_state",
    "model_state_dict",
    "params",
)
"""Keys under which training programs keep the weights, best first: averaged weights come before
plain ones as in timm (`load_state_dict`, `use_ema=True`), DINO's teacher before its student."""

# A pickle may hold itself, or a value shared so often that a walk never ends. No honest
# checkpoint nests deeper than this, and no container is walked twice.
_DEEPEST = 32

# Damaged pickles fail in every way; this is what a corpus of them (the tests) made torch raise.
_UNPICKLING_FAILURES = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    OSError,
    struct.error,
)


def open_torch_zip(
    path: Path, members: Mapping[str, Member], *, prefer: tuple[str, ...] = ()
) -> Container:
    """Read a checkpoint that torch.save wrote since 1.6; its storages stay on disk.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    # torch maps storages wherever their members begin: from a deflated archive it would hand
    # out compressed bytes as numbers. Reading such an archive copies it instead.
    storages = [member for member in members.values() if "/data/" in member.name]
    mappable = all(member.stored and member.offset % 8 == 0 for member in storages)
    loaded = _load(path, mmap=mappable)
    container = _container(path, loaded, prefer)
    # A mapped storage is as long as the pickle says, whatever the archive has.
    sizes = {member.size for member in storages}
    for name in container.manifest if mappable else ():
        if (size := container.read(name).untyped_storage().nbytes()) not in sizes:
            raise CorruptFile(
                f"{name!r} does not have the size that the pickle declares.",
                evidence={"file": path, "declared": f"{size:,} bytes"},
                hint="download it again.",
            )
    return container


def open_torch_legacy(path: Path, *, prefer: tuple[str, ...] = ()) -> Container:
    """Read a checkpoint in the format that torch.save wrote before 1.6, into memory.

    Raises:
        CorruptFile: The pickle is damaged or holds no named tensors.
        UnsafeFile: The pickle asks for classes that are not plain data.
    """
    return _container(path, _load(path, mmap=False), prefer)


def _load(path: Path, *, mmap: bool) -> object:
    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):
        try:
            with warnings.catch_warnings(action="ignore"):  # about what fails anyway
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        except _UNPICKLING_FAILURES as error:
            if classes := _refused_classes(path, str(error)):
                raise _unsafe(path, classes) from error
            raise CorruptFile(
                "The file begins as a torch checkpoint, but cannot be unpickled.",
                evidence={"file": path, "reason": _reason(error)},
                meaning="It was cut short, or changed, or torch.save did not write it.",
                hint="download it again.",
            ) from error


def _refused_classes(path: Path, message: str) -> list[str]:
    """The classes that the restricted unpickler would not load, sorted."""
    import torch

    named = re.findall(r"GLOBAL (\S+) (?:was not|whose module)", message)
    if not named:
        return []
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)) or named
    except _UNPICKLING_FAILURES:
        return named  # the legacy format: torch lists the globals of zip archives only


def _unsafe(path: Path, classes: list[str]) -> UnsafeFile:
    return UnsafeFile(
        "The pickle asks for classes that are not plain data.",
        evidence={"file": path, "classes": ", ".join(classes)},
        meaning="Unpickling them could run any code, so nothing was loaded.",
        hint="where you trust the file, load it with the program that wrote it and save the "
        "tensors alone: torch.save(model.state_dict(), path).",
    )


def _reason(error: BaseException) -> str:
    # torch wraps what its unpickler says in advice to load the file unsafely.
    said = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    return said.splitlines()[0][:160] if said else type(error).__name__


def _container(path: Path, loaded: object, prefer: tuple[str, ...]) -> Container:
    level, wrapper, extras = _unwrapped(loaded, prefer)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in _leaves(path, level):
        if _is_tensor(value):
            _add(path, tensors, name, value)
        else:
            extras[".".join((*wrapper, name))] = _plain(value)
    if not tensors:
        raise CorruptFile(
            "The file holds no named tensors.",
            evidence={"file": path, "holds": _summary(loaded)},
        )
    return Container(
        path=path,
        files=(path,),
        format="torch",
        manifest={name: _info(path, name, tensor) for name, tensor in tensors.items()},
        wrapper=wrapper,
        extras=extras,
        reader=tensors.__getitem__,
        release=tensors.clear,
    )


def _unwrapped(
    loaded: object, prefer: tuple[str, ...]
) -> tuple[object, tuple[str, ...], dict[str, object]]:
    """The innermost wrapped value, the keys that lead to it, and what lay beside them."""
    level, wrapper = loaded, tuple[str, ...]()
    extras: dict[str, object] = {}
    while len(wrapper) < _DEEPEST and (key := _wrapper_key(level, prefer)) is not None:
        assert isinstance(level, dict)
        for other, value in level.items():
            if other != key:
                extras[".".join((*wrapper, str(other)))] = _plain(value)
        level, wrapper = level[key], (*wrapper, key)
    return level, wrapper, extras


def _wrapper_key(level: object, prefer: tuple[str, ...]) -> str | None:
    if not isinstance(level, dict):
        return None
    order = (*prefer, *WRAPPERS)
    if "predictor" in level:
        # I-JEPA keeps two encoders beside a predictor; its authors, timm and transformers take
        # `encoder`. MSN has no predictor, and its weights are those of `target_encoder`.
        order = (*prefer, "encoder", *WRAPPERS)
    known = [k for k in order if isinstance(level.get(k), dict) and _tensor_count(level[k])]
    # MSN keeps its prototypes, a tensor, beside the encoders; a state dict has no mappings in it.
    if known:
        return known[0]
    if any(_is_tensor(value) for value in level.values()):
        return None
    # Without a known key, the only mapping of tensors there is.
    direct = [
        key
        for key, value in level.items()
        if isinstance(key, str)
        and isinstance(value, dict)
        and any(_is_tensor(inner) for inner in value.values())
    ]
    return direct[0] if len(direct) == 1 else None


def _leaves(
    path: Path, level: object, keys: tuple[str, ...] = (), walked: set[int] | None = None
) -> Iterator[tuple[str, object]]:
    """Every value of nested mappings, by its keys joined with dots."""
    walked = set() if walked is None else walked
    if not isinstance(level, dict):
        return
    if id(level) in walked or len(keys) > _DEEPEST:
        raise CorruptFile(
            "The file holds one mapping in several places, in a circle or too deeply.",
            evidence={"file": path, "at": ".".join(keys)[:80]},
        )
    walked.add(id(level))
    for key, value in level.items():
        if isinstance(value, dict) and value:
            yield from _leaves(path, value, (*keys, str(key)), walked)
        elif isinstance(key, str) or not _is_tensor(value):
            yield ".".join((*keys, str(key))), value
        else:
            raise CorruptFile(
                "A tensor has a name that is not text.",
                evidence={"file": path, "name": repr(key)[:80]},
            )


def _add(path: Path, tensors: dict[str, torch.Tensor], name: str, value: object) -> None:
    import torch

    assert isinstance(value, torch.Tensor)
    if name in tensors:
        raise CorruptFile(
            f"{name!r} appears twice, once of them inside a nested mapping.",
            evidence={"file": path},
        )
    if value.is_meta:
        fact = f"{name!r} is a meta tensor: a shape without numbers."
    elif value.layout != torch.strided or value.is_quantized:
        fact = f"{name!r} is stored sparse or quantised, which is not read here."
    else:
        tensors[name] = value.detach()
        return
    raise CorruptFile(fact, evidence={"file": path})


def _info(path: Path, name: str, tensor: torch.Tensor) -> TensorInfo:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_SIZE:
        raise CorruptFile(
            f"{name!r} has a dtype that is not read here.",
            evidence={"file": path, "dtype": dtype, "known": " ".join(ITEM_SIZE)},
        )
    return TensorInfo(dtype=dtype, shape=tuple(tensor.shape))


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _tensor_count(value: object) -> int:
    """How many tensors a value holds, at any depth."""
    count, walked, pending = 0, set[int](), [value]
    while pending:
        inner = pending.pop()
        count += _is_tensor(inner)
        if isinstance(inner, dict | list | tuple) and id(inner) not in walked:
            walked.add(id(inner))
            pending.extend(inner.values() if isinstance(inner, dict) else inner)
    return count


def _plain(value: object, depth: int = 0, walked: set[int] | None = None) -> object:
    """A value as JSON has it, or the name of its type where JSON has none like it."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if _is_tensor(value):
        return "Tensor"
    if _tensor_count(value):
        return _summary(value)
    walked = set() if walked is None else walked
    if not isinstance(value, dict | list | tuple) or id(value) in walked or depth > _DEEPEST:
        return type(value).__name__
    walked.add(id(value))
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1, walked) for key, inner in value.items()}
    return [_plain(inner, depth + 1, walked) for inner in value]


def _summary(value: object) -> str:
    count = _tensor_count(value)
    return f"{type(value).__name__} with {count} tensor{'s' * (count != 1)}"
