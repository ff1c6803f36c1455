"""The pickle inside a TorchScript archive: modules, as dictionaries of their attributes.

A module becomes the dictionary of its attributes, whatever class it names.

Source: torch/csrc/jit/serialization/pickler.h and unpickler.cpp, torch 1.0 to 2.15.
"""

from pathlib import Path
from typing import Any

from vitconvert.containers.torch_pickle import (
    HOOKS,
    STORAGES,
    TENSOR,
    Global,
    PickleReader,
    StrangePickle,
)
from vitconvert.errors import CorruptFile, UnsafeFile

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


def read_torchscript_pickle(path: Path, data: bytes) -> object:
    """Read `data.pkl`: nested dictionaries of attributes, tensors as `StoredTensor`.

    Args:
        path: The archive, for messages.
        data: The pickle.

    Raises:
        CorruptFile: It is cut short, or says what torch's pickler never writes.
        UnsafeFile: It names classes that are neither modules nor tensors.
    """
    try:
        return _TorchScriptReader(path).read(data)
    except StrangePickle as error:
        raise CorruptFile(
            "The pickle of this TorchScript archive is damaged.",
            evidence={"file": path, "reason": str(error)[:160]},
            hint="download it again.",
        ) from error


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

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        if called.name in _MARKED and arguments:
            return arguments[0]
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        if not named.name.startswith(_MODULES):
            raise StrangePickle("an object that is no module")
        return {}

    def set_attributes(self, made: object, attributes: object) -> None:
        if type(made) is not dict or type(attributes) is not dict:
            raise StrangePickle("attributes of something that is no module")
        made.update(attributes)
