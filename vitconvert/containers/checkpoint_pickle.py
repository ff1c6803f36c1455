"""The pickle of a checkpoint that torch.save wrote: plain data and tensors.

It knows what state dicts and the usual notes beside them (`NOTES`) are made of. Whatever else a
pickle holds, torch's own restricted unpickler is asked about.

Source: torch/_utils.py and torch/_weights_only_unpickler.py, torch 1.6 to 2.15.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitconvert.containers.container import ITEM_SIZE
from vitconvert.containers.notes import NOTES, Note
from vitconvert.containers.torch_pickle import (
    HOOKS,
    STORAGES,
    TENSOR,
    UNTYPED_STORAGE,
    UNTYPED_TENSOR,
    Global,
    PickleReader,
    Storage,
    StoredTensor,
    StrangePickle,
)

_PARAMETER = "torch._utils._rebuild_parameter"
_SET = "builtins.set"
_BYTES = "_codecs.encode"  # as protocol 2 spells them
_NAMESPACE = "argparse.Namespace"  # Meta's training checkpoints keep their arguments in one
_DTYPES: Mapping[str, str] = {f"torch.{dtype}": dtype for dtype in ITEM_SIZE}
_KNOWN = (
    TENSOR,
    UNTYPED_TENSOR,
    _PARAMETER,
    HOOKS,
    _SET,
    _BYTES,
    _NAMESPACE,
    *NOTES,
    UNTYPED_STORAGE,
    *STORAGES,
    *_DTYPES,
)


class Namespace:
    """An `argparse.Namespace`, of which only the attributes matter."""


def read_checkpoint_pickle(data: bytes) -> object:
    """Read `data.pkl`: the value that torch.save was given, tensors as `StoredTensor`.

    Raises:
        StrangePickle: It is damaged, or holds what is not known here.
    """
    return _CheckpointReader().read(data)


class _CheckpointReader(PickleReader):
    def known(self, name: str) -> Global:
        if name.startswith("__builtin__."):  # as protocol 2 spells it
            name = name.replace("__builtin__", "builtins", 1)
        if name not in _KNOWN:
            raise StrangePickle(f"{name} is not known here")
        return Global(name)

    def described(self, called: Global, arguments: tuple[Any, ...]) -> object:
        match called.name, arguments:
            case name, (StoredTensor() as tensor, bool(), dict()) if name == _PARAMETER:
                return tensor
            case name, (*typed, Global(dtype)) if name == UNTYPED_TENSOR and dtype in _DTYPES:
                untyped = super().described(Global(TENSOR), tuple(typed))
                assert isinstance(untyped, StoredTensor)
                return replace(untyped, storage=_viewed(untyped.storage, _DTYPES[dtype]))
            case name, (list(items),) if name == _SET:
                return set(items)
            case name, (str(text), "latin1") if name == _BYTES:
                return text.encode("latin1")
            case name, _ if name in NOTES:
                return NOTES[name](*arguments)
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        if named.name != _NAMESPACE:
            raise StrangePickle(f"torch.save does not make {named.name} so")
        return Namespace()

    def set_attributes(self, made: object, attributes: object) -> None:
        match made, attributes:
            case Namespace(), dict():
                vars(made).update(attributes)
            case (OrderedDict(), dict()) | (Note(), _):
                pass  # the versions of modules, and what numpy keeps in an array
            case _:
                raise StrangePickle(f"torch.save sets no attributes of a {type(made).__name__}")


def _viewed(storage: Storage, dtype: str) -> Storage:
    """The bytes of an untyped storage as numbers."""
    length, rest = divmod(storage.length, ITEM_SIZE[dtype])
    if storage.dtype != "uint8" or rest:
        raise StrangePickle("an untyped storage that is no whole number of elements")
    return replace(storage, dtype=dtype, length=length)
