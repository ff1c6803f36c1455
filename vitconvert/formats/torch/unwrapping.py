"""From what a torch checkpoint holds to its named tensors: wrappers off, the rest set aside.

The values are descriptions of what a pickle holds. Beside the weights, training programs keep best
scores, directories, dates and histories. An unpickler would call numpy, pathlib and datetime to
make such values again. Nobody needs them here, so a stand-in takes the place of each: a mapping, a
list, or a `StandIn` with the name of the class. Nothing else is called.

Source of the names: what `__reduce__` of these classes gives in protocol 2, which torch.save
writes, in Python 3.11 and numpy 2.4; other releases have other names for some of the modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vitconvert.errors import CorruptFile, MissingFact
from vitconvert.formats.container import ITEM_SIZE
from vitconvert.formats.torch.pickle_reader import Global, OddTensor, StoredTensor
from vitconvert.wrappers import wrapper_keys

# A pickle may hold itself, or a value shared so often that a walk never ends. No honest
# checkpoint nests deeper than this, and no container is walked twice.
_DEEPEST = 32
_MOST_STEPS = 10**6  # of all counts of tensors; a training checkpoint takes 10,000
_MOST_NAMES = 2**24  # letters; a thousand tensors take 50,000
_LONG = 100  # letters of a text that is shown once

Value = TypeVar("Value")


class Namespace:
    """An `argparse.Namespace`, of which only the attributes matter."""


class StandIn:
    """A value beside the weights of which only the kind is told: the name of the class."""

    def __init__(self, *_: object) -> None:
        """Take whatever the value was made of."""

    def __setstate__(self, _: object) -> None:
        """Take whatever was set in it afterwards."""

    def __repr__(self) -> str:
        """The kind."""
        return type(self).__name__


class MaybeWeight(StandIn):
    """A value that among tensors may be meant as a weight, such as an array of numpy."""


def _mapping(*_: object) -> dict[object, object]:
    return {}  # the items are set in it one by one


def _list(*_: object) -> list[object]:
    return []


def _kind(name: str, of: type[StandIn] = StandIn) -> type[StandIn]:
    return type(name, (of,), {})


def stand_in(name: str) -> StandIn:
    """What stands for an object of a class, whatever it was made of."""
    return _kind(name.rpartition(".")[2])()


_NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")  # since numpy 2, and before
_PATHLIB = ("pathlib", "pathlib._local")  # the latter in Python 3.13
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")

STAND_INS: Mapping[str, Callable[..., object]] = {
    **{f"{module}.scalar": _kind("numpy scalar", MaybeWeight) for module in _NUMPY},
    **{f"{module}._reconstruct": _kind("numpy array", MaybeWeight) for module in _NUMPY},
    "numpy.ndarray": _kind("ndarray"),  # the class: `_reconstruct` is given it
    "numpy.dtype": _kind("numpy dtype"),
    **{f"{module}.{path}": _kind("path") for module in _PATHLIB for path in _PATHS},
    **{f"datetime.{c}": _kind(c) for c in ("datetime", "date", "time", "timedelta", "timezone")},
    **{f"builtins.{name}": _kind(name) for name in ("set", "frozenset", "complex", "bytearray")},
    **dict.fromkeys(("builtins.bytes", "_codecs.encode"), _kind("bytes")),  # empty, and others
    "torch.serialization._get_layout": _kind("layout"),
    "torch.device": _kind("device"),
    "collections.deque": _list,
    "collections.defaultdict": _mapping,
    # what a defaultdict fills its gaps with; protocol 2 calls an int `long`
    **{f"builtins.{name}": _kind(name) for name in ("int", "long", "float", "list", "dict")},
}
"""What to call for a name that a pickle uses."""


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """The tensors of a checkpoint by name, and what lay around and beside them."""

    tensors: dict[str, StoredTensor | OddTensor]
    wrapper: tuple[str, ...]
    extras: dict[str, object]
    notes: tuple[str, ...]


def unwrap(path: Path, loaded: object, prefer: tuple[str, ...]) -> Unwrapped:
    """Find the named tensors of a checkpoint.

    Raises:
        CorruptFile: It holds none, their names make no sense, or arrays of numpy lie among them.
        MissingFact: It holds several models, and nothing says which is meant.
    """
    if isinstance(loaded, dict) and {"state", "param_groups"} <= loaded.keys():
        raise CorruptFile(
            "The file holds the state of an optimizer, not the weights of a model.",
            evidence={"file": path},
            hint="name the file of the weights; training programs write it to the same folder.",
        )
    return _Unwrapping(path, prefer).unwrapped(loaded)


class _Unwrapping:
    """One checkpoint on its way.

    Values may stand in many places, so that to walk through all of them from each would never end:
    the steps of all walks are counted.
    """

    def __init__(self, path: Path, prefer: tuple[str, ...]) -> None:
        self.path, self.prefer = path, prefer
        self.holders = set[int]()  # the ids of what holds tensors, at any depth
        self.steps = 0
        self.shown: set[int] = set()  # what is among the extras already

    def unwrapped(self, loaded: object) -> Unwrapped:
        self.holders = _holders(loaded)
        level, wrapper, extras = self._level(loaded)
        if alike := self._alike(level):
            raise MissingFact(
                "The file holds several sets of tensors with the same names.",
                evidence={"file": self.path, "sets": ", ".join(alike[:10])},
                hint=f"--prefer {alike[0]} (in Python, prefer={alike[0]!r}) takes that one.",
            )
        tensors = self._tensors_of(level, wrapper, extras)
        if isinstance(loaded, dict) and _is_part_of_deepspeed(loaded, tensors.values()):
            raise CorruptFile(
                "Each process of a training run with DeepSpeed wrote such a file, with its own "
                "part of each tensor.",
                evidence={"file": self.path},
                hint="DeepSpeed put zero_to_fp32.py beside them: `python zero_to_fp32.py DIR FILE` "
                "makes one file of them.",
            )
        if not tensors:
            raise CorruptFile(
                "The file holds no named tensors.",
                evidence={"file": self.path, "holds": self._summary(loaded)},
            )
        notes = tuple(_passed_over(wrapper, extras, len(tensors)))
        return Unwrapped(tensors=tensors, wrapper=wrapper, extras=extras, notes=notes)

    def _tensors_of(
        self, level: object, wrapper: tuple[str, ...], extras: dict[str, object]
    ) -> dict[str, StoredTensor | OddTensor]:
        """The tensors of a level; what else lies among them goes into `extras`."""
        tensors: dict[str, StoredTensor | OddTensor] = {}
        for name, value in checked_names(self.path, self._leaves(level)):
            if isinstance(value, MaybeWeight):
                raise CorruptFile(
                    f"{name!r} lies among the tensors and is no tensor: it is a {value!r}.",
                    evidence={"file": self.path},
                    hint="save it as a tensor or apart from them, with the program that wrote it.",
                )
            if not isinstance(value, StoredTensor | OddTensor):
                extras[".".join((*wrapper, name))] = self._plain(value)
            elif name in tensors:
                raise CorruptFile(
                    f"{name!r} appears twice, one of them inside a nested mapping.",
                    evidence={"file": self.path},
                )
            else:
                tensors[name] = value
        return tensors

    def _level(self, loaded: object) -> tuple[object, tuple[str, ...], dict[str, object]]:
        """The innermost wrapped value, the keys that lead to it, and what lay beside them."""
        level, steps = self._around(loaded)
        beside = (
            (".".join((*(key for _, key in steps[:number]), str(other))), value)
            for number, (mapping, taken) in enumerate(steps)
            for other, value in mapping.items()
            if other != taken
        )
        extras = {name: self._plain(value) for name, value in checked_names(self.path, beside)}
        return level, tuple(key for _, key in steps), extras

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
        order = (*self.prefer, *wrapper_keys())
        if "predictor" in level:
            # I-JEPA keeps two encoders beside a predictor; its authors, timm and transformers take
            # `encoder`. MSN has no predictor, and its weights are those of `target_encoder`.
            order = (*self.prefer, "encoder", *wrapper_keys())
        known = [k for k in order if isinstance(level.get(k), dict) and self._holds(level[k])]
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

    def _alike(self, level: object) -> list[str]:
        """Keys of state dicts with the same names, which no known key tells apart."""
        mappings = level.items() if isinstance(level, dict) else ()
        names = [
            (str(key), frozenset(value))
            for key, value in mappings
            if isinstance(value, dict) and self._holds(value) and any("." in str(n) for n in value)
        ]
        counts = Counter(same for _, same in names)
        return [key for key, same in names if counts[same] > 1]

    def _leaves(
        self, level: object, keys: tuple[str, ...] = (), walked: set[int] | None = None
    ) -> Iterator[tuple[str, object]]:
        """Every value of nested mappings, by its keys joined with dots."""
        walked = set() if walked is None else walked
        if not isinstance(level, dict):
            return
        if id(level) in walked or len(keys) > _DEEPEST:
            raise CorruptFile(
                "The file holds one mapping in several places, in a circle or too deeply.",
                evidence={"file": self.path, "at": ".".join(keys)[:80]},
            )
        walked.add(id(level))
        for key, value in level.items():
            if isinstance(value, dict) and value:
                yield from self._leaves(value, (*keys, str(key)), walked)
            elif isinstance(key, str) or not _is_tensor(value):
                yield ".".join((*keys, str(key))), value
            else:
                raise CorruptFile(
                    "A tensor has a name that is not text.",
                    evidence={"file": self.path, "name": repr(key)[:80]},
                )

    def _holds(self, value: object) -> bool:
        return id(value) in self.holders

    def _tensors(self, value: object) -> int:
        """How many tensors a value holds, at any depth."""
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
                raise CorruptFile(
                    "The tensors of the file stand in more places than can be looked at.",
                    evidence={"file": self.path},
                )
        return count

    def _plain(self, value: object, depth: int = 0) -> object:
        """A value as JSON has it, or the name of its type where JSON has none like it.

        Lists, mappings and long texts are shown where they come first, and named after that.
        """
        value = vars(value) if isinstance(value, Namespace) else value
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
            return repr(value)
        if not isinstance(value, dict | list | tuple) or (named and value):
            return type(value).__name__
        self.shown.add(id(value))
        if self._holds(value):
            return self._summary(value)
        if isinstance(value, dict):
            return {
                _unicode(str(key)[:_LONG]): self._plain(inner, depth + 1)
                for key, inner in value.items()
            }
        return [self._plain(inner, depth + 1) for inner in value]

    def _summary(self, value: object) -> str:
        count = self._tensors(value)
        level, _ = self._around(value)
        named = isinstance(level, dict) and any(
            isinstance(key, str) and _is_tensor(inner) for key, inner in level.items()
        )
        kind = repr(value) if isinstance(value, StandIn) else type(value).__name__
        return f"{kind} with {count} {'named ' * named}tensor{'s' * (count != 1)}"


def checked_names(path: Path, named: Iterable[tuple[str, Value]]) -> Iterator[tuple[str, Value]]:
    """The same pairs, as long as their names can be written, and are not too much together.

    Raises:
        CorruptFile: They are not.
    """
    length = 0
    for name, value in named:
        length += len(name)
        if length > _MOST_NAMES:
            raise CorruptFile(
                "The names in the file are too long.",
                evidence={"file": path, "limit": f"{_MOST_NAMES:,} letters of all together"},
            )
        if _unicode(name) != name:
            raise CorruptFile(
                "A name in the file is not valid Unicode.",
                evidence={"file": path, "name": ascii(name)[:80]},
            )
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


def _is_part_of_deepspeed(
    loaded: Mapping[object, object], tensors: Iterable[StoredTensor | OddTensor]
) -> bool:
    """Whether DeepSpeed's ZeRO cut the weights: what is left of them in place is empty, and the
    numbers are with the optimizer (deepspeed/utils/zero_to_fp32.py, DeepSpeed 0.9)."""
    empty = all(isinstance(tensor, StoredTensor) and 0 in tensor.shape for tensor in tensors)
    return "ds_version" in loaded and ("optimizer_state_dict" in loaded or empty)


def _passed_over(wrapper: tuple[str, ...], extras: Mapping[str, object], count: int) -> list[str]:
    """A note on the other weights that a checkpoint holds beside the `count` that were taken."""
    others = [key for key, value in extras.items() if _is_weights(key, value, count)]
    names = ", ".join(key.rpartition(".")[2] for key in others)
    taken = ".".join(wrapper)
    note = f"the weights are those under {taken}; beside them lie {names} (--prefer)"
    return [note] if others else []


def _is_weights(key: str, value: object, count: int) -> bool:
    """Whether what lies beside `count` tensors is a mapping of weights, too."""
    told = value if isinstance(value, str) else ""
    summary = re.fullmatch(r"\w+ with (\d{1,9}) (named )?tensors?", told)
    if summary is None:
        return False
    as_many = summary[2] is not None and 2 * int(summary[1]) >= count
    return as_many or key.rpartition(".")[2] in wrapper_keys()
