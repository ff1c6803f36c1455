"""TorchScript archives: a program with weights, of which only the weights are read.

OpenAI published CLIP in this format. The archive is a zip file: `data.pkl` describes the modules,
each storage is a member, and the program under `code/` is never opened. Whatever class a module
has, here it is the dictionary of its attributes.

Source: torch/csrc/jit/serialization/pickler.h and unpickler.cpp, torch 1.0 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vitconvert.errors import UnsafeFile
from vitconvert.formats.container import Container
from vitconvert.formats.headers import AGAIN, corrupt
from vitconvert.formats.torch.pickle_reader import (
    HOOKS,
    STORAGES,
    TENSOR,
    Global,
    PickleReader,
    StoredTensor,
    StrangePickle,
)
from vitconvert.formats.torch.unwrapping import checked_names, container_of_tensors
from vitconvert.formats.zip_archive import Member, member_bytes

# What nn.Module keeps beside parameters, buffers and the attributes of its author.
_FLAGS = ("training", "_is_full_backward_hook")
# No honest model nests deeper or has more attributes, and a walk must end.
_DEEPEST = 32
_MOST = 10**6
# Values that are marked with their type, or with a device; the first argument is the value.
_MARKED = (
    "torch.jit._pickle.build_intlist",
    "torch.jit._pickle.build_doublelist",
    "torch.jit._pickle.build_boollist",
    "torch.jit._pickle.build_tensorlist",
    "torch.jit._pickle.restore_type_tag",
    "torch.device",
)
_MODULES = "__torch__."


class _Module(dict[str, object]):
    """The attributes of a module; a dictionary of the pickle itself has none."""


class _TorchScriptReader(PickleReader):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def known(self, name: str) -> Global:
        if name in (TENSOR, HOOKS, *_MARKED, *STORAGES) or name.startswith(_MODULES):
            return Global(name)
        raise UnsafeFile(
            "The TorchScript archive asks for a class that is neither a module nor a tensor.",
            evidence={"file": self.path, "class": name[:160]},
            meaning="torch writes no such archive of a plain model, so nothing was loaded.",
        )

    def described(self, called: Global, arguments: tuple[object, ...]) -> object:
        if called.name in _MARKED and arguments:
            return arguments[0]
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        if not named.name.startswith(_MODULES):
            raise StrangePickle("an object that is not a module")
        return _Module()

    def set_attributes(self, made: object, attributes: object) -> None:
        if type(made) is not _Module or type(attributes) is not dict:
            raise StrangePickle("attributes of something that is not a module")
        made.update(attributes)


def open_file(path: Path, members: Mapping[str, Member], *_: object) -> Container:
    """Read the names of all tensors of a TorchScript archive and map the file.

    Every tensor that is an attribute of a module is in the manifest, by its path: what the state
    dict of the loaded program has, and attributes that are neither parameter nor buffer.
    Numbers and texts are in `extras`. Constants of the program are not read.

    Raises:
        CorruptFile: The pickle is damaged, contradicts the archive or holds no tensors.
        UnsafeFile: The pickle asks for classes that are neither modules nor tensors.
    """
    pickled = next(name for name in members if name.endswith("/data.pkl"))
    archive = pickled.removesuffix("data.pkl")
    order = members.get(archive + "byteorder")
    if order and member_bytes(path, order) != b"little":
        raise corrupt(path, "The numbers of this archive are big-endian, which is not read here.")
    try:
        modules = _TorchScriptReader(path).read(member_bytes(path, members[pickled]))
    except StrangePickle as error:
        fact = "The pickle of this TorchScript archive is damaged."
        raise corrupt(path, fact, hint=AGAIN, reason=str(error)[:160]) from error
    described: dict[str, StoredTensor] = {}
    extras: dict[str, object] = {}
    for name, value in checked_names(path, _leaves(path, modules)):
        if name in described or name in extras:
            raise corrupt(path, f"{name!r} appears twice.")
        if isinstance(value, StoredTensor):
            described[name] = value
        elif value is not None and name.rpartition(".")[2] not in _FLAGS:
            extras[name] = _plain(value)
    if not described:
        constants = sum("/constants/" in name for name in members)
        meaning = "The weights of a frozen program are constants, which have no names any more."
        raise corrupt(
            path,
            "The TorchScript archive holds no named tensors.",
            meaning=meaning if constants else None,
            constants=constants,
        )
    prefix = f"{archive}data/"
    storages = {
        name.removeprefix(prefix): m for name, m in members.items() if name.startswith(prefix)
    }
    container = container_of_tensors(path, described, storages, form="torchscript")
    return replace(container, extras=extras)


def _leaves(path: Path, top: object) -> Iterator[tuple[str, object]]:
    """Every attribute of the modules, by its path; a module may stand in several places."""
    pending: list[tuple[tuple[str, ...], object]] = [((), top)]
    for _ in range(_MOST):
        if not pending:
            return
        keys, value = pending.pop()
        if not isinstance(value, dict):
            yield ".".join(keys), value
        elif len(keys) < _DEEPEST:
            pending += [((*keys, str(key)), inner) for key, inner in reversed(value.items())]
        else:
            break
    fact = "The modules of this TorchScript archive nest in a circle, or too deeply."
    raise corrupt(path, fact, at=".".join(keys)[:80])


def _plain(value: object) -> object:
    several = isinstance(value, list | tuple)
    parts = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, bool | int | float | str) for part in parts):
        return type(value).__name__
    return parts if several else value
