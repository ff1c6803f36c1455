"""From what the pickle of a checkpoint describes to its named tensors, and to where they lie.

Wrappers come off, and the rest is set aside. Beside the weights, training programs keep best
scores, directories, dates and histories. An unpickler would call numpy, pathlib and datetime to
make such values again. Nobody needs them here, so a stand-in takes the place of each: a mapping, a
list, or a `StandIn` with the name of the class. Nothing is called.

Source of the names: what `__reduce__` of these classes gives in protocol 2, which torch.save
writes, in Python 3.11 and numpy 2.4; other releases have other names for some of the modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import MissingFact
from vitconvert.formats.container import (
    ITEM_SIZE,
    Container,
    MappedFile,
    TensorInfo,
    mapped_container,
    tensor_from_buffer,
)
from vitconvert.formats.headers import AGAIN, checked_dtype, checked_shape, corrupt, shown
from vitconvert.formats.torch.pickle_reader import Global, OddTensor, StoredTensor
from vitconvert.formats.zip_archive import Member, member_bytes, refuse_bomb
from vitconvert.wrappers import first_where, is_averaged, wrapper_keys

if TYPE_CHECKING:
    import torch

# A pickle may hold itself, or a value shared so often that a walk never ends. No honest
# checkpoint nests deeper than this, and no container is walked twice.
_DEEPEST = 32
_MOST_STEPS = 10**6  # of all counts of tensors; a training checkpoint takes 10,000
_MOST_NAMES = 2**24  # letters; a thousand tensors take 50,000
_LONG = 100  # letters of a text that is shown once
_MOST = 2**63  # torch counts in int64


class Namespace:
    """An `argparse.Namespace` or an object of OmegaConf, of which only the attributes matter."""

    @property
    def content(self) -> object:
        """The value that it stands for; of OmegaConf's, that is one of its attributes."""
        attributes = vars(self)
        own = (attributes[name] for name in ("_content", "_val") if name in attributes)
        return next(own, attributes)


class StandIn:
    """A value beside the weights of which only the kind is known: the name of its class."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return self.kind


class MaybeWeight(StandIn):
    """A value that among tensors may be meant as a weight, such as an array of numpy."""


_NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")  # since numpy 2, and before
_PATHLIB = ("pathlib", "pathlib._local")  # the latter in Python 3.13
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
_SCALAR, _ARRAY = "numpy scalar", "numpy array"

STAND_INS: Mapping[str, str] = {
    **{f"{module}.scalar": _SCALAR for module in _NUMPY},
    **{f"{module}._reconstruct": _ARRAY for module in _NUMPY},
    "numpy.ndarray": "ndarray",  # the class: `_reconstruct` is given it
    "numpy.dtype": "numpy dtype",
    **{f"{module}.{path}": "path" for module in _PATHLIB for path in _PATHS},
    **{f"datetime.{c}": c for c in ("datetime", "date", "time", "timedelta", "timezone")},
    **{f"builtins.{name}": name for name in ("set", "frozenset", "complex", "bytearray")},
    **dict.fromkeys(("builtins.bytes", "_codecs.encode"), "bytes"),  # empty, and others
    "torch.serialization._get_layout": "layout",
    "torch.device": "device",
    "collections.deque": "list",
    "collections.defaultdict": "dict",
    # what a defaultdict fills its gaps with; protocol 2 calls an int `long`
    **{f"builtins.{name}": name for name in ("int", "long", "float", "list", "dict")},
}
"""Names of classes and functions that a pickle may use -> the kind of what they make."""


def stand_in(name: str) -> object:
    """What stands for the result of a call that one of `STAND_INS` names."""
    if name == "collections.deque":
        return []
    if name == "collections.defaultdict":
        return {}  # its items are set one by one
    kind = STAND_INS[name]
    return (MaybeWeight if kind in (_SCALAR, _ARRAY) else StandIn)(kind)


def container_of(
    path: Path,
    value: object,
    members: Mapping[str, Member],
    prefer: tuple[str, ...],
    *,
    form: str = "torch",
) -> Container:
    """A container of the named tensors in what a pickle describes.

    Args:
        path: The file.
        value: The description.
        members: Where storages lie, by their keys.
        prefer: Wrapper keys to try before the usual ones.
        form: The name of the file's format.

    Raises:
        CorruptFile: It holds no named tensors, their names make no sense, arrays of numpy lie among
            them, or they do not lie in their storages.
        UnsafeFile: The tensors are far larger than the file.
        MissingFact: It holds several models, and no known key selects one.
    """
    if isinstance(value, dict) and {"state", "param_groups"} <= value.keys():
        raise corrupt(
            path,
            "The file holds the state of an optimizer, not the weights of a model.",
            hint="name the file of the weights; training programs write it to the same folder.",
        )
    unwrapping = _Unwrapping(path, prefer, value)
    tensors, wrapper, extras = unwrapping.unwrapped(value)
    # DeepSpeed's ZeRO cuts the weights: what is left of them in place is empty, and the numbers are
    # with the optimizer (deepspeed/utils/zero_to_fp32.py, DeepSpeed 0.9).
    empty = all(isinstance(t, StoredTensor) and 0 in t.shape for t in tensors.values())
    known = value.keys() if isinstance(value, dict) else ()
    if "ds_version" in known and (empty or "optimizer_state_dict" in known):
        raise corrupt(
            path,
            "Each process of a training run with DeepSpeed wrote such a file, with its own part of "
            "each tensor.",
            hint="DeepSpeed put zero_to_fp32.py beside them: `python zero_to_fp32.py DIR FILE` "
            "makes one file of them.",
        )
    if not tensors and isinstance(value, dict) and _is_nameless(value):
        raise corrupt(
            path,
            f"The file holds averaged weights in a list, without names ({_NAMELESS}).",
            hint="the program that averaged them knows their order: its copy_to(parameters) puts "
            "them into the model, whose state dict is read.",
        )
    if not tensors:
        holds = unwrapping.summary(value)
        raise corrupt(path, "The file holds no named tensors.", holds=holds)
    others = [key for key, kind in extras.items() if _is_weights(key, kind, len(tensors))]
    names = ", ".join(_name_inside(unwrapping, value, key) for key in others)
    note = f"the weights are those under {'.'.join(wrapper)}; the file also has {names} (--prefer)"
    inner = value.items() if isinstance(value, dict) else ()
    nameless = [str(key) for key, one in inner if isinstance(one, dict) and _is_nameless(one)]
    without = f"{', '.join(nameless)}: averaged weights without names, which are not read"
    return replace(
        container_of_tensors(path, tensors, members, form=form),
        wrapper=wrapper,
        extras=extras,
        notes=(*((note,) if others else ()), *((without,) if nameless else ())),
    )


def _name_inside(unwrapping: _Unwrapping, value: object, key: str) -> str:
    """What to call weights beside others: a key of averaged ones in them, or their own."""
    beside = value.get(key) if isinstance(value, dict) else None
    averaged = filter(is_averaged, unwrapping.inner_keys(beside))
    return next(averaged, key.rpartition(".")[2])


_NAMELESS = "shadow_params"  # of diffusers' EMAModel and of torch_ema


def _is_nameless(value: dict[str, object]) -> bool:
    """Whether these are averaged weights in a list, of which only their program knows the order."""
    return isinstance(value.get(_NAMELESS), list)


def _is_weights(key: str, kind: object, count: int) -> bool:
    """Whether what lies beside `count` tensors is a mapping of weights, too."""
    named = _named_tensors(kind)
    return 2 * named >= count or (named > 0 and key.rpartition(".")[2] in wrapper_keys())


def _named_tensors(kind: object) -> int:
    """How many tensors a value has, of which a summary says that they have names."""
    summary = re.fullmatch(r"\w+ with (\d{1,9}) named tensors?", str(kind))
    return int(summary[1]) if isinstance(kind, str) and summary else 0


class _Unwrapping:
    """One checkpoint on its way.

    Values may stand in many places, so that to walk through all of them from each would never end:
    the steps of all walks are counted.
    """

    def __init__(self, path: Path, prefer: tuple[str, ...], value: object) -> None:
        self.path, self.prefer = path, prefer
        self.holders = _holders(value)
        self.steps = 0
        self.shown: set[int] = set()  # the ids of what is among the extras already

    def unwrapped(
        self, value: object
    ) -> tuple[dict[str, StoredTensor | OddTensor], tuple[str, ...], dict[str, object]]:
        """The tensors by name, the keys that lead to them, and what lies around and beside them."""
        level, steps = self._around(value)
        wrapper = tuple(key for _, key in steps)
        beside = (
            (".".join((*wrapper[:number], str(other))), inner)
            for number, (mapping, taken) in enumerate(steps)
            for other, inner in mapping.items()
            if other != taken
        )
        extras = {name: self._plain(inner) for name, inner in checked_names(self.path, beside)}
        self._refuse_several(level)
        tensors: dict[str, StoredTensor | OddTensor] = {}
        for name, inner in checked_names(self.path, self._leaves(level)):
            if isinstance(inner, MaybeWeight):
                raise corrupt(
                    self.path,
                    f"{name!r} is among the tensors, but is a {inner!r}.",
                    hint="save it as a tensor or apart from them, with the program that wrote it.",
                )
            if not isinstance(inner, StoredTensor | OddTensor):
                extras[".".join((*wrapper, name))] = self._plain(inner)
            elif name in tensors:
                fact = f"{name!r} appears twice, one of them inside a nested mapping."
                raise corrupt(self.path, fact)
            else:
                tensors[name] = inner
        return tensors, wrapper, extras

    def _around(self, loaded: object) -> tuple[object, list[tuple[dict[str, object], str]]]:
        """The innermost wrapped value, and each mapping around it with the key that was taken."""
        level, steps = loaded, list[tuple[dict[str, object], str]]()
        while len(steps) < _DEEPEST and (key := self._wrapper_key(level)) is not None:
            assert isinstance(level, dict)
            steps.append((level, key))
            level = level[key]
        return level, steps

    def _wrapper_key(self, level: object) -> str | None:
        if not isinstance(level, dict):
            return None
        order = (*self.prefer, *first_where(level), *self._averaged(level), *wrapper_keys())
        known = [k for k in order if isinstance(level.get(k), dict) and self._holds(level[k])]
        if self.prefer and not set(self.prefer) & level.keys():  # what is preferred may lie deeper
            leading = [k for k, v in level.items() if set(self.prefer) & {*self.inner_keys(v)}]
            known = [str(k) for k in leading] + known
        # MSN keeps its prototypes, a tensor, beside the encoders; a state dict has no mappings.
        if known:
            return known[0]
        if any(_is_tensor(value) for value in level.values()):
            return None
        # Without a known key, the only mapping of tensors there is.
        direct = [
            key
            for key, value in level.items()
            if isinstance(value, dict) and any(_is_tensor(inner) for inner in value.values())
        ]
        return direct[0] if len(direct) == 1 and isinstance(direct[0], str) else None

    def inner_keys(self, value: object) -> Iterator[str]:
        """Keys of mappings of tensors in a mapping, at any depth, each mapping once."""
        walked, pending = set[int](), [value]
        while pending:
            outer = pending.pop()
            if not isinstance(outer, dict) or id(outer) in walked or not self._holds(outer):
                continue
            walked.add(id(outer))
            for key, inner in outer.items():
                if isinstance(inner, dict) and self._holds(inner):
                    yield str(key)
                    pending.append(inner)

    def _averaged(self, level: dict[str, object]) -> list[str]:
        """Keys that are called as averaged weights are, of as many tensors as others have."""
        if not any(isinstance(key, str) and is_averaged(key) for key in level):
            return []
        holding = {k: v for k, v in level.items() if isinstance(v, dict) and self._holds(v)}
        counts = {key: _named_tensors(self.summary(value)) for key, value in holding.items()}
        most = max(counts.values(), default=0)
        return [key for key, count in counts.items() if is_averaged(str(key)) and 2 * count > most]

    def _refuse_several(self, level: object) -> None:
        """Refuse state dicts with the same names, among which no known key selects one."""
        mappings = level.items() if isinstance(level, dict) else ()
        names = [
            (str(key), frozenset(value))
            for key, value in mappings
            if isinstance(value, dict) and self._holds(value) and any("." in str(n) for n in value)
        ]
        counts = Counter(same for _, same in names)
        if alike := [key for key, same in names if counts[same] > 1]:
            raise MissingFact(
                "The file holds several sets of tensors with the same names.",
                evidence={"file": self.path, "sets": ", ".join(alike[:10])},
                hint=f"--prefer {alike[0]} (in Python, prefer={alike[0]!r}) takes that one.",
            )

    def _leaves(
        self, level: object, keys: tuple[str, ...] = (), walked: set[int] | None = None
    ) -> Iterator[tuple[str, object]]:
        """Every value of nested mappings, by its keys joined with dots."""
        walked = set() if walked is None else walked
        if not isinstance(level, dict):
            return
        if id(level) in walked or len(keys) > _DEEPEST:
            fact = "The file holds one mapping in several places, in a circle or too deeply."
            raise corrupt(self.path, fact, at=".".join(keys)[:80])
        walked.add(id(level))
        for key, value in level.items():
            if isinstance(value, dict) and value:
                yield from self._leaves(value, (*keys, str(key)), walked)
            elif isinstance(key, str) or not _is_tensor(value):
                yield ".".join((*keys, str(key))), value
            else:
                fact = "A tensor has a name that is not text."
                raise corrupt(self.path, fact, name=repr(key)[:80])

    def _holds(self, value: object) -> bool:
        return id(value) in self.holders

    def _plain(self, value: object, depth: int = 0) -> object:
        """A value as JSON has it, or the name of its type where JSON has none like it.

        Lists, mappings and long texts are shown where they come first, and named after that.
        """
        value = value.content if isinstance(value, Namespace) else value
        if value is None or isinstance(value, bool | int | float):
            return value
        if _is_tensor(value):
            return "Tensor"
        if isinstance(value, Global):
            return "dtype" if value.name.removeprefix("torch.") in ITEM_SIZE else "type"
        named = id(value) in self.shown or depth > _DEEPEST
        if isinstance(value, str) and (len(value) < _LONG or not named):
            self.shown.add(id(value))
            return _unicode(value)
        if isinstance(value, StandIn):
            return value.kind
        if not isinstance(value, dict | list | tuple) or (named and value):
            return type(value).__name__
        self.shown.add(id(value))
        if self._holds(value):
            return self.summary(value)
        if isinstance(value, dict):
            return {
                _unicode(str(key)[:_LONG]): self._plain(inner, depth + 1)
                for key, inner in value.items()
            }
        return [self._plain(inner, depth + 1) for inner in value]

    def summary(self, value: object) -> str:
        """What a value is, and how many tensors it holds."""
        count, walked, pending = 0, set[int](), [value]
        while pending:
            outer = pending.pop()
            if not self._holds(outer) or id(outer) in walked:
                continue
            walked.add(id(outer))
            for inner in _inside(outer):
                count += _is_tensor(inner)
                pending.append(inner)
                self.steps += 1
            if self.steps > _MOST_STEPS:
                fact = "The file has its tensors in too many places."
                raise corrupt(self.path, fact)
        level, _ = self._around(value)
        named = isinstance(level, dict) and any(
            isinstance(key, str) and _is_tensor(inner) for key, inner in level.items()
        )
        named = named or any(
            map(is_averaged, self.inner_keys(value))
        )  # as of Lightning's callbacks
        kind = value.kind if isinstance(value, StandIn) else type(value).__name__
        return f"{kind} with {count} {'named ' * named}tensor{'s' * (count != 1)}"


def checked_names(path: Path, named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """The same pairs, as long as their names can be written, and are not too much together.

    Raises:
        CorruptFile: They are not.
    """
    length = 0
    for name, value in named:
        length += len(name)
        if length > _MOST_NAMES:
            limit = f"{_MOST_NAMES:,} letters of all together"
            raise corrupt(path, "The names in the file are too long.", limit=limit)
        if _unicode(name) != name:
            fact = "A name in the file is not valid Unicode."
            raise corrupt(path, fact, name=ascii(name)[:80])
        yield name, value


def _unicode(text: str) -> str:
    """The text, with half surrogate pairs as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _holders(loaded: object) -> set[int]:
    """The ids of all values that hold tensors, themselves or through others."""
    around: dict[int, list[int]] = {id(loaded): []}
    pending, found = [loaded], set[int]()
    while pending:
        outer = pending.pop()
        for inner in _inside(outer):
            if _is_tensor(inner):
                found.add(id(outer))
            if id(inner) not in around:
                around[id(inner)] = []
                pending.append(inner)
            around[id(inner)].append(id(outer))
    above = list(found)
    while above:
        new = {outer for outer in around[above.pop()] if outer not in found}
        found |= new
        above += new
    return found


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Namespace):
        return [vars(value)]
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _is_tensor(value: object) -> bool:
    return isinstance(value, StoredTensor | OddTensor)


def container_of_tensors(
    path: Path,
    described: Mapping[str, StoredTensor | OddTensor],
    members: Mapping[str, Member],
    *,
    form: str,
) -> Container:
    """The container of a file whose tensors a pickle describes; each must lie inside its member.

    Args:
        path: The file.
        described: The tensors by name.
        members: By the keys of storages.
        form: The name of the file's format.

    Raises:
        CorruptFile: A tensor reaches beyond its member, or makes no sense, or has no plain numbers.
        UnsafeFile: All together are far larger than the file.
    """
    tensors = {name: _checked(path, name, tensor, members) for name, tensor in described.items()}
    manifest = {
        name: TensorInfo(dtype=tensor.storage.dtype, shape=tensor.shape)
        for name, tensor in tensors.items()
    }
    of = {name: members[tensor.storage.key] for name, tensor in tensors.items()}
    # Names may share their numbers, and a stride of zero repeats them: what would they take in
    # memory, with members that are inflated?
    asked = sum(
        info.nbytes if of[name].stored else max(info.nbytes, of[name].size)
        for name, info in manifest.items()
    )
    refuse_bomb(path, path.stat().st_size, asked, "The tensors")

    def read(mapped: MappedFile, name: str) -> torch.Tensor:
        """A view on the mapped file, or on a copy of what is deflated or not aligned.

        The checksum of a deflated member is compared. What is mapped is not looked at.
        """
        tensor, member = tensors[name], of[name]
        length = max(_end(tensor) - tensor.offset, 0)
        seen = TensorInfo(dtype=tensor.storage.dtype, shape=(length,))
        if member.stored:
            flat = mapped.tensor(member.offset + _begin(tensor), seen)
        else:
            flat = tensor_from_buffer(bytearray(member_bytes(path, member)), _begin(tensor), seen)
        return flat.as_strided(tensor.shape, tensor.stride)

    return mapped_container(
        path,
        form,
        manifest,
        {n: of[n].offset + _begin(tensor) for n, tensor in tensors.items() if of[n].stored},
        strides={name: tensor.stride for name, tensor in tensors.items()},
        read=read,
    )


def _checked(
    path: Path, name: str, tensor: StoredTensor | OddTensor, members: Mapping[str, Member]
) -> StoredTensor:
    if isinstance(tensor, OddTensor):
        raise corrupt(path, f"{name!r} {tensor.fact}")
    storage, steps = tensor.storage, tensor.stride
    size = storage.length * ITEM_SIZE[checked_dtype(path, name, storage.dtype, ITEM_SIZE)]
    checked_shape(path, name, tensor.shape)
    member = members.get(storage.key)
    counts = all(type(step) is int and 0 <= step < _MOST for step in steps)
    if not counts or len(steps) != len(tensor.shape):
        fact = f"{name!r} has a stride that does not go with its shape."
    elif member is None or member.size != size:
        fact = f"{name!r} does not have the size that the pickle declares."
    elif not 0 <= tensor.offset < _MOST or _end(tensor) > storage.length:
        fact = f"{name!r} reaches beyond its storage."
    else:
        return tensor
    raise corrupt(path, fact, hint=AGAIN, shape=shown(tensor.shape))


def _begin(tensor: StoredTensor) -> int:
    """Byte of its member at which the first element lies."""
    return tensor.offset * ITEM_SIZE[tensor.storage.dtype]


def _end(tensor: StoredTensor) -> int:
    """One past the last element that the tensor looks at."""
    if 0 in tensor.shape:
        return 0
    pairs = zip(tensor.shape, tensor.stride, strict=True)
    return tensor.offset + sum((axis - 1) * step for axis, step in pairs) + 1
