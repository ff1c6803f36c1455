"""How two checkpoints of any dialects differ: in their headers, then in their values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.checkpoint.companions import hashed
from vitconvert.checkpoint.reading import not_quantised, open_weights
from vitconvert.comparison import ValueDifference, compare_values
from vitconvert.config import ViTConfig
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    Quantised,
    TensorMismatch,
    UnknownDialect,
    VitConvertError,
)
from vitconvert.formats import Container, TensorInfo
from vitconvert.labels import Labels
from vitconvert.sources import Located

if TYPE_CHECKING:
    import torch

_UNREADABLE = (  # as a ViT; the tensors can still be compared by their own names
    *(UnknownDialect, AmbiguousDialect, TensorMismatch),
    *(MissingFact, ConflictingFact, NotRepresentable),
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two checkpoints.

    Attributes:
        located: The files and where they came from.
        dialect: Name of the table that explains it, or None.
        ignored: Its tensors that are not used and have no canonical name, and why.
        problem: Why it cannot be read as a ViT, or None.
    """

    located: Located
    dialect: str | None
    ignored: Mapping[str, str]
    problem: VitConvertError | None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "source": self.located.reference,
            "dialect": self.dialect,
            "ignored": dict(self.ignored),
            "problem": self.problem.to_dict() if self.problem else None,
        }


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field of ViTConfig that decides the function and differs; None where it has no effect."""

    a: object
    b: object
    origin_a: str
    origin_b: str

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "a": {"value": self.a, "origin": self.origin_a},
            "b": {"value": self.b, "origin": self.origin_b},
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Difference:
    """How two checkpoints differ.

    Whether different numbers compute the same function is not answered here, but by
    `vitconvert.verify`.

    Attributes:
        a, b: The checkpoints.
        naming: "canonical", or "raw" where one of them cannot be read as a ViT: then the files'
            own names are compared, and neither configuration, preprocessing nor labels.
        fields: Fields of ViTConfig that decide the function and differ.
        only_a, only_b: Tensors on one side only.
        headers: Tensors whose dtype or shape differs: those of a, those of b.
        bit_equal: Tensors of which every bit is equal, or None if no values were compared.
        values: The others of equal shape, or None if no values were compared.
        preprocessing, labels: What differs, in sentences, where "here" is a and "there" is b.
        unstated: What only one of them states, and what is not believed of a `vitconvert.json`; it
            does not count as a difference.
    """

    a: Side
    b: Side
    naming: str
    fields: Mapping[str, FieldDifference]
    only_a: Mapping[str, TensorInfo]
    only_b: Mapping[str, TensorInfo]
    headers: Mapping[str, tuple[TensorInfo, TensorInfo]]
    bit_equal: tuple[str, ...] | None
    values: Mapping[str, ValueDifference] | None
    preprocessing: tuple[str, ...]
    labels: tuple[str, ...]
    unstated: tuple[str, ...]

    def __repr__(self) -> str:
        result = f"different: {', '.join(self.parts)}" if self.parts else "equal"
        return f"<Difference {self.a.located.reference!r}, {self.b.located.reference!r}: {result}>"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that differ, in a word each."""
        tensors = len(self.only_a) + len(self.only_b)
        tensors += len({*self.headers, *(self.values or ())})
        found = {
            "configuration": self.fields,
            f"{tensors} tensor{'s' if tensors > 1 else ''}": tensors,
            "preprocessing": self.preprocessing,
            "labels": self.labels,
        }
        return tuple(part for part, differs in found.items() if differs)

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs."""
        return not self.parts

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "equal": self.equal,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "naming": self.naming,
            "config": {name: field.to_dict() for name, field in self.fields.items()},
            "only_a": {name: _info(info) for name, info in self.only_a.items()},
            "only_b": {name: _info(info) for name, info in self.only_b.items()},
            "headers": {n: {"a": _info(a), "b": _info(b)} for n, (a, b) in self.headers.items()},
            "bit_equal": None if self.bit_equal is None else list(self.bit_equal),
            "values": None
            if self.values is None
            else {name: value.to_dict() for name, value in self.values.items()},
            "preprocessing": list(self.preprocessing),
            "labels": list(self.labels),
            "unstated": list(self.unstated),
        }


def diff_located(
    a: Located, b: Located, options_a: ReadOptions, options_b: ReadOptions, *, header: bool = False
) -> Difference:
    """Say how two checkpoints differ; see `vitconvert.diff`."""
    if not header:
        a, b = hashed(a), hashed(b)
    asked = options_a.dequantise or options_b.dequantise
    attempts = _try(a, _for_one(options_a)), _try(b, _for_one(options_b))
    if asked and not any(map(_was_quantised, attempts)):
        raise not_quantised(asked, a.reference, b.reference)
    match attempts:
        case Checkpoint() as one, Checkpoint() as two:
            if not header:
                one.weights.check_constants()
                two.weights.check_constants()
            return _difference(_canonical(one), _canonical(two), attempts, (a, b), header)
    containers = [
        attempt.weights.container
        if isinstance(attempt, Checkpoint)
        else open_weights(located, options)
        for attempt, located, options in zip(attempts, (a, b), (options_a, options_b), strict=True)
    ]
    raw = _raw(containers[0], options_a), _raw(containers[1], options_b)
    return _difference(*raw, attempts, (a, b), header)


_Attempt = Checkpoint | VitConvertError


def _for_one(options: ReadOptions) -> ReadOptions:
    """A dtype stated for both is about the one that is quantised."""
    return replace(options, dequantise=None, cast_to=options.dequantise)


def _was_quantised(attempt: _Attempt) -> bool:
    """Whether its weights were computed, or could not be."""
    if isinstance(attempt, VitConvertError):
        return isinstance(attempt, Quantised)
    return attempt.ledger.dequantised


def _try(located: Located, options: ReadOptions) -> _Attempt:
    try:
        return read_checkpoint(located, options)
    except _UNREADABLE as problem:
        return problem


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """Tensors under the names that both sides share."""

    naming: str
    infos: Mapping[str, TensorInfo]
    read: "Callable[[str], torch.Tensor]"
    close: Callable[[], None]


def _raw(container: Container, options: ReadOptions) -> _Tensors:
    ignored = options.ignored(container.manifest, container.path)
    infos = {name: info for name, info in container.manifest.items() if name not in ignored}
    return _Tensors(naming="raw", infos=infos, read=container.read, close=container.close)


def _canonical(checkpoint: Checkpoint) -> _Tensors:
    weights = checkpoint.weights
    return _Tensors(
        naming="canonical",
        infos=weights.infos,
        read=weights.read_canonical,
        close=weights.container.close,
    )


def _difference(
    a: _Tensors,
    b: _Tensors,
    attempts: tuple[_Attempt, _Attempt],
    located: tuple[Located, Located],
    header: bool,
) -> Difference:
    both = {name: (info, b.infos[name]) for name, info in a.infos.items() if name in b.infos}
    alike = [name for name, (one, two) in both.items() if one.shape == two.shape]
    compared = (
        {} if header else {name: compare_values(a.read(name), b.read(name)) for name in alike}
    )
    a.close()
    b.close()
    bit_equal = tuple(name for name, value in compared.items() if value is None)
    values = {name: value for name, value in compared.items() if value is not None}
    return Difference(
        a=_side(located[0], attempts[0]),
        b=_side(located[1], attempts[1]),
        naming=a.naming,
        only_a={name: info for name, info in a.infos.items() if name not in both},
        only_b={name: info for name, info in b.infos.items() if name not in both},
        headers={name: pair for name, pair in both.items() if pair[0] != pair[1]},
        bit_equal=None if header else bit_equal,
        values=None if header else values,
        **_companions(*attempts),
    )


def _side(located: Located, attempt: _Attempt) -> Side:
    if not isinstance(attempt, Checkpoint):
        return Side(located=located, dialect=None, ignored={}, problem=attempt)
    ignored = attempt.ledger.ignored
    return Side(located=located, dialect=attempt.dialect, ignored=ignored, problem=None)


def _companions(a: _Attempt, b: _Attempt) -> dict[str, Any]:
    """Differences besides the tensors, if both checkpoints can be read."""
    if not isinstance(a, Checkpoint) or not isinstance(b, Checkpoint):
        return {"fields": {}, "preprocessing": (), "labels": (), "unstated": ()}
    mine, theirs = a.preprocessing, b.preprocessing
    names, other_names = _stated_labels(a), _stated_labels(b)
    return {
        "fields": dict(_fields(a.config, b.config)),
        "preprocessing": mine.differences(theirs) if mine and theirs else (),
        "labels": _label_differences(names, other_names) if names and other_names else (),
        "unstated": (
            *(f"{side}: {doubt}" for side, one in (("a", a), ("b", b)) for doubt in one.doubts),
            *_unstated("how images are prepared", mine, theirs),
            *_unstated("what the classes are called", names, other_names),
        ),
    }


def _fields(a: ViTConfig, b: ViTConfig) -> Iterator[tuple[str, FieldDifference]]:
    mine, theirs = a.function(), b.function()
    for name in {**mine, **theirs}:
        if mine.get(name) != theirs.get(name):
            yield (
                name,
                FieldDifference(
                    a=mine.get(name),
                    b=theirs.get(name),
                    origin_a=a.origins.get(name, "default"),
                    origin_b=b.origins.get(name, "default"),
                ),
            )


def _unstated(what: str, a: object, b: object) -> tuple[str, ...]:
    if (a is None) == (b is None):
        return ()
    return (f"only {'a' if b is None else 'b'} says {what}",)


def _stated_labels(checkpoint: Checkpoint) -> Labels | None:
    labels = checkpoint.labels
    return None if labels is None or labels.assumed else labels


def _label_differences(a: Labels, b: Labels) -> tuple[str, ...]:
    if len(a) != len(b):
        return (f"{len(a)} classes are named in a and {len(b)} in b",)
    pairs = enumerate(zip(a, b, strict=True))
    return tuple(
        f"class {index} is {mine!r} in a and {theirs!r} in b"
        for index, (mine, theirs) in pairs
        if mine != theirs
    )


def _info(info: TensorInfo) -> dict[str, Any]:
    return {"dtype": info.dtype, "shape": list(info.shape)}
