"""How two checkpoints of any dialects differ: in their headers, then in their values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.checkpoint.companions import hashed
from vitconvert.checkpoint.reading import open_weights
from vitconvert.checkpoint.recognition import not_quantised
from vitconvert.checkpoint.weights import Weights
from vitconvert.comparison import ValueDifference, compare_values
from vitconvert.documents import JsonDict
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

    def to_dict(self) -> JsonDict:
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

    def to_dict(self) -> JsonDict:
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
        same_function: The hash of the function that both records state, where every file still has
            its sha256: then no values are compared. "" otherwise.
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
    same_function: str = ""

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

    def to_dict(self) -> JsonDict:
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
            "same_function": self.same_function or None,
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
    one, two = _read(a, options_a), _read(b, options_b)
    asked = options_a.dequantise or options_b.dequantise
    if asked and not any(
        read.ledger.dequantised if isinstance(read, Checkpoint) else isinstance(read, Quantised)
        for read in (one, two)
    ):
        raise not_quantised(asked, a.reference, b.reference)
    if isinstance(one, Checkpoint) and isinstance(two, Checkpoint):
        if not header:
            one.weights.check_constants()
            two.weights.check_constants()
        mine, theirs = _canonical(one.weights), _canonical(two.weights)
        besides = _besides(one, two)
        alike_in_all = one.recorded_hash == two.recorded_hash and not header
        same = one.recorded_hash if alike_in_all else ""
    else:
        mine, theirs = _raw(one, a, options_a), _raw(two, b, options_b)
        same = ""
        besides = _Besides(fields={}, preprocessing=(), labels=(), unstated=())
    both = {n: (info, theirs.infos[n]) for n, info in mine.infos.items() if n in theirs.infos}
    alike = [name for name, pair in both.items() if pair[0].shape == pair[1].shape]
    unread = header or bool(same)
    compared = {n: compare_values(mine.read(n), theirs.read(n)) for n in alike if not unread}
    mine.container.close()
    theirs.container.close()
    values = {name: value for name, value in compared.items() if value is not None}
    equal = tuple(name for name in compared if name not in values)
    return Difference(
        a=_side(a, one),
        b=_side(b, two),
        naming=mine.naming,
        only_a={name: info for name, info in mine.infos.items() if name not in both},
        only_b={name: info for name, info in theirs.infos.items() if name not in both},
        headers={name: pair for name, pair in both.items() if pair[0] != pair[1]},
        bit_equal=None if unread else equal,
        values=None if unread else values,
        same_function=same,
        **besides,
    )


def _read(located: Located, options: ReadOptions) -> Checkpoint | VitConvertError:
    # A dtype stated for both is about the one that is quantised.
    options = replace(options, dequantise=None, cast_to=options.dequantise)
    try:
        return read_checkpoint(located, options)
    except _UNREADABLE as problem:
        return problem


class _Tensors(NamedTuple):
    """Tensors of a file, under the names that both sides share."""

    naming: str
    container: Container
    infos: Mapping[str, TensorInfo]
    read: "Callable[[str], torch.Tensor]"


def _canonical(weights: Weights) -> _Tensors:
    return _Tensors("canonical", weights.container, weights.infos, weights.read_canonical)


def _raw(read: Checkpoint | VitConvertError, located: Located, options: ReadOptions) -> _Tensors:
    if isinstance(read, Checkpoint):
        container = read.weights.container
    else:
        container = open_weights(located, options)
    ignored = options.ignored(container.manifest, container.path)
    infos = {name: info for name, info in container.manifest.items() if name not in ignored}
    return _Tensors("raw", container, infos, container.read)


def _side(located: Located, read: Checkpoint | VitConvertError) -> Side:
    if isinstance(read, Checkpoint):
        ignored = read.ledger.ignored
        return Side(located=located, dialect=read.dialect, ignored=ignored, problem=None)
    return Side(located=located, dialect=None, ignored={}, problem=read)


class _Besides(TypedDict):
    """The fields of `Difference` that are not about tensors."""

    fields: Mapping[str, FieldDifference]
    preprocessing: tuple[str, ...]
    labels: tuple[str, ...]
    unstated: tuple[str, ...]


def _besides(a: Checkpoint, b: Checkpoint) -> _Besides:
    mine, theirs = a.config.function(), b.config.function()
    fields = {
        name: FieldDifference(
            a=mine.get(name),
            b=theirs.get(name),
            origin_a=a.config.origins.get(name, "default"),
            origin_b=b.config.origins.get(name, "default"),
        )
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name)
    }
    images = a.preprocessing, b.preprocessing
    names = [None if one.labels is None or one.labels.assumed else one.labels for one in (a, b)]
    stated = {"how images are prepared": images, "what the classes are called": names}
    return {
        "fields": fields,
        "preprocessing": images[0].differences(images[1]) if images[0] and images[1] else (),
        "labels": _label_differences(names[0], names[1]) if names[0] and names[1] else (),
        "unstated": (
            *(f"{side}: {doubt}" for side, one in (("a", a), ("b", b)) for doubt in one.doubts),
            *(
                f"only {'a' if two is None else 'b'} says {what}"
                for what, (one, two) in stated.items()
                if (one is None) != (two is None)
            ),
        ),
    }


def _label_differences(a: Labels, b: Labels) -> tuple[str, ...]:
    if len(a) != len(b):
        return (f"{len(a)} classes are named in a and {len(b)} in b",)
    return tuple(
        f"class {index} is {mine!r} in a and {theirs!r} in b"
        for index, (mine, theirs) in enumerate(zip(a, b, strict=True))
        if mine != theirs
    )


def _info(info: TensorInfo) -> dict[str, object]:
    return {"dtype": info.dtype, "shape": list(info.shape)}
