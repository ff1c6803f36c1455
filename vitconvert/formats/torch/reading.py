"""What the pickle of a checkpoint may name, and what it describes; files that ask for more.

Source: torch/_utils.py and torch/_weights_only_unpickler.py, torch 1.6 to 2.15.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from vitconvert.errors import UnsafeFile, VitConvertError
from vitconvert.formats.container import ITEM_SIZE
from vitconvert.formats.headers import AGAIN, corrupt
from vitconvert.formats.torch.pickle_reader import (
    HOOKS,
    STORAGES,
    TENSOR,
    UNTYPED_STORAGE,
    UNTYPED_TENSOR,
    Global,
    OddTensor,
    PickleReader,
    StoredTensor,
    StrangePickle,
    names_in,
)
from vitconvert.formats.torch.unwrapping import STAND_INS, Namespace, StandIn, stand_in

_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_WRAPPER = "torch._utils._rebuild_wrapper_subclass"  # a tensor whose attributes are its tensors
TORCHAO = "torchao"
"""The key, beside the parts of a quantised tensor, of what torchao states about it, as JSON."""
_REBUILDS = (TENSOR, UNTYPED_TENSOR, *_PARAMETERS)
_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_COUNTER = "collections.Counter"  # some schedules of learning rates keep their milestones in one
_SIZE = "torch.Size"
# Lightning keeps the hyper-parameters of a model in objects of it, which name a type.
_OMEGACONF = "omegaconf."
_NAMESPACE = "argparse.Namespace"  # Meta's training checkpoints keep their arguments in one
# OpenMMLab's training keeps the history of losses; each object names the functions of its class.
_HISTORY = "mmengine.logging.history_buffer.HistoryBuffer"
# Of a class: functions of a history, and in Python 3.11.0 to 3.11.3 members of enumerations, as
# torchao's tensors have them (enum.py, `Enum.__reduce_ex__`).
_ATTRIBUTE = "builtins.getattr"
# Quantised tensors come with their scheme, sparse ones with their layout.
_ODD_TENSORS: Mapping[str, str] = {
    "torch._utils._rebuild_sparse_tensor": "is stored sparse, which is not read here.",
    "torch._utils._rebuild_qtensor": "is stored quantised, which is not read here.",
    "torch._utils._rebuild_meta_tensor_no_storage": "is a meta tensor: a shape without numbers.",
}
_SCHEMES = re.compile(r"torch\.per_(tensor|channel)_(affine|symmetric)(_float_qparams)?")
_DTYPE = re.compile(r"torch\.(bool|(q?u?int|b?float|complex|bits)\d+\w*)")
_KNOWN = {
    *(TENSOR, UNTYPED_TENSOR, UNTYPED_STORAGE, *STORAGES, HOOKS),
    *(*_PARAMETERS, _WITH_ATTRIBUTES, _WRAPPER, *_PLAIN_CLASSES, *_ODD_TENSORS),
    *(_COUNTER, _SIZE, _NAMESPACE, _HISTORY, _ATTRIBUTE, *STAND_INS, "typing.Any"),
}
SAVE_TENSORS = (
    "if you trust the file, load it with the program that wrote it and save only the "
    "tensors: torch.save(model.state_dict(), path)."
)
_MOST_SIDES = 8  # of a block; the weights that are quantised are matrices and kernels
# What FSDP keeps a part of a tensor in.
_PARTS = (
    "torch.distributed.tensor.DTensor",
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor",
)


class CheckpointReader(PickleReader):
    """Reads what torch.save wrote of tensors and of the usual values beside them.

    Attributes:
        notes: What a user should know of how the pickle was read.
    """

    notes: tuple[str, ...] = ()

    def known(self, name: str) -> Global:
        """Names of classes that torch.save uses for plain data."""
        if not _is_known(name):
            raise StrangePickle(f"{name[:160]} is not known here")
        return Global(name)

    def described(self, called: Global, arguments: tuple[object, ...]) -> object:
        """A tensor, or what stands for a value beside the tensors."""
        match called.name, arguments:
            case name, (StoredTensor() | OddTensor() as tensor, bool(), dict(), *_) if (
                name in _PARAMETERS
            ):
                return tensor
            case name, (Global(rebuild), Global(kind), tuple(inner), _) if (
                name == _WITH_ATTRIBUTES and rebuild in _REBUILDS and kind in _PLAIN_CLASSES
            ):
                return self.described(Global(rebuild), inner)
            case name, (Global(rebuild), Global(kind), (_, Global() as dtype, *_), dict(own)) if (
                name == _WITH_ATTRIBUTES and rebuild == _WRAPPER and _is_torchao(kind)
            ):
                return _quantised(kind, {**own, "dtype": dtype})
            case name, (*_, dict(), dict()) if name == TENSOR:
                return OddTensor("is marked as conjugated or negated, which is not read here.")
            case name, (*typed, Global(dtype)) if name == UNTYPED_TENSOR and _is_dtype(dtype):
                untyped = super().described(Global(TENSOR), tuple(typed))
                assert isinstance(untyped, StoredTensor)
                storage = untyped.storage
                length, rest = divmod(storage.length, ITEM_SIZE.get(dtype[6:], 1))
                if storage.dtype != "uint8" or rest:
                    raise StrangePickle("an untyped storage that is not a whole number of elements")
                return replace(untyped, storage=replace(storage, dtype=dtype[6:], length=length))
            case name, (dict(counted),) if name == _COUNTER:
                return counted
            case name, (tuple(sizes),) if name == _SIZE:
                return sizes
            case name, (Global(owner), str()) if name == _ATTRIBUTE and _has_attributes(owner):
                return StandIn("function" if owner == _HISTORY else _last_word(owner))
            case name, _ if name in _ODD_TENSORS:
                return OddTensor(_ODD_TENSORS[name])
            case name, _ if name in STAND_INS:
                return stand_in(name)
            case name, _ if _is_torchao(name):
                return StandIn(_last_word(name))
        return super().described(called, arguments)

    def made(self, named: Global) -> object:
        """Only settings of programs, histories, and what torchao has are made without a call."""
        if _has_attributes(named.name):
            return StandIn(_last_word(named.name))
        if named.name != _NAMESPACE and not named.name.startswith(_OMEGACONF):
            raise StrangePickle(f"torch.save does not make {named.name} so")
        return Namespace()

    def set_attributes(self, made: object, attributes: object) -> None:
        """The attributes of settings; those of others say nothing here."""
        match made, attributes:
            case Namespace(), dict():
                vars(made).update(attributes)
            case (OrderedDict(), dict()) | (StandIn(), _):
                pass  # the versions of modules, and what numpy keeps in an array
            case _:
                raise StrangePickle(f"torch.save sets no attributes of a {type(made).__name__}")

    def refusal(
        self, path: Path, pickled: bytes | IO[bytes], error: StrangePickle
    ) -> VitConvertError:
        """What to raise for a pickle that cannot be read: it asks for classes, or is damaged."""
        names = names_in(pickled)
        classes = {name for name in names if not _is_known(name)}
        if not any(map(_has_attributes, names)):
            classes |= names & {_ATTRIBUTE}
        if not classes:
            return corrupt(
                path,
                "The file begins as a torch checkpoint, but cannot be unpickled.",
                meaning="It is truncated or changed, or torch.save did not write it.",
                hint=AGAIN,
                reason=str(error)[:160],
            )
        meaning = "Unpickling them could run any code, so nothing was loaded."
        hint = SAVE_TENSORS
        if not classes.isdisjoint(_PARTS):
            meaning = (
                "Each process of a training run wrote such a file, with its own part of each "
                "tensor."
            )
            hint = (
                "gather the tensors before they are saved, with torch.distributed.checkpoint."
                "state_dict.get_model_state_dict and its option full_state_dict=True."
            )
        elif any(name.startswith("torch.nn.modules.") for name in classes):
            meaning = f"The file holds modules, as torch.save(model, path) writes them. {meaning}"
        return UnsafeFile(
            "The pickle asks for classes that are not plain data.",
            evidence={"file": path, "classes": ", ".join(sorted(classes))[:400]},
            meaning=meaning,
            hint=hint,
        )


def _is_known(name: str) -> bool:
    if name.startswith(_OMEGACONF):
        return True
    return name in _KNOWN or _is_torchao(name) or _is_dtype(name) or bool(_SCHEMES.fullmatch(name))


def _is_dtype(name: str) -> bool:
    return _DTYPE.fullmatch(name) is not None


def _is_torchao(name: str) -> bool:
    return name.startswith("torchao.")


def _has_attributes(name: str) -> bool:
    """Whether a class is one of those of which a pickle may name attributes."""
    return name == _HISTORY or _is_torchao(name)


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]


def _quantised(kind: str, attributes: Mapping[object, object]) -> dict[str, object]:
    """The parts of a tensor of torchao, and the words on it, spelled as torchao spells them in
    the header of safetensors (prototype/safetensors/safetensors_utils.py, torchao 0.18)."""
    parts = {str(k): v for k, v in attributes.items() if isinstance(v, StoredTensor | OddTensor)}
    words = {str(k): _word(v) for k, v in attributes.items() if str(k) not in parts}
    return {**parts, TORCHAO: json.dumps({"_type": _last_word(kind), "_data": words})}


def _word(value: object) -> object:
    if isinstance(value, Global):
        return value.name.removeprefix("torch.")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple) and len(value) <= _MOST_SIDES:
        return [side if type(side) is int else type(side).__name__ for side in value]
    return value.kind if isinstance(value, StandIn) else type(value).__name__
