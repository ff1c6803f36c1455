"""What two checkpoints differ in, whatever their dialects: their headers, then their values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Reading, Source, open_located, read_header
from vitconvert.config import ViTConfig
from vitconvert.containers import Container, TensorInfo
from vitconvert.conversion.plan import Assembly
from vitconvert.conversion.value_difference import ValueDifference, compare_values
from vitconvert.errors import (
    AmbiguousDialect,
    ConflictingFact,
    MissingFact,
    NotRepresentable,
    TensorMismatch,
    UnknownDialect,
    VitConvertError,
)
from vitconvert.inference.labels import Labels
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    import torch

_UNREADABLE = (  # as a ViT; its tensors still have names and numbers
    *(UnknownDialect, AmbiguousDialect, TensorMismatch),
    *(MissingFact, ConflictingFact, NotRepresentable),
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two checkpoints.

    Attributes:
        located: The files and where they came from.
        dialect: Name of the table that explains it, or None.
        ignored: Its tensors that play no part and have no canonical name, and why.
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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What two checkpoints differ in.

    Whether other numbers compute the same function is not said here: `vitconvert.verify` does.

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
        unstated: What only one of them says, which is no difference.
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

    @property
    def parts(self) -> tuple[str, ...]:
        """What differs, in a word each."""
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
        """Whether nothing differs, as far as it was compared."""
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


def diff(
    a: Source,
    b: Source,
    *,
    dialect_a: str | None = None,
    dialect_b: str | None = None,
    overrides_a: Mapping[str, Any] | None = None,
    overrides_b: Mapping[str, Any] | None = None,
    architecture_a: str | None = None,
    architecture_b: str | None = None,
    table_a: Source | None = None,
    table_b: Source | None = None,
    prefer_a: str | None = None,
    prefer_b: str | None = None,
    header: bool = False,
) -> Difference:
    """Say what two checkpoints differ in, under one naming, tensor by tensor.

    Values are compared as vitconvert would load them: laid out alike, and in float64 where their
    dtypes differ. A tensor of each side is in memory at a time.

    Args:
        a, b: Paths or references, as for `load_model`.
        dialect_a, overrides_a, architecture_a, table_a, prefer_a: How to read a, as for
            `load_model`.
        dialect_b, overrides_b, architecture_b, table_b, prefer_b: How to read b.
        header: Compare no values; no weights are read.

    Raises:
        SourceError: A source leads to no file.
        CorruptFile, UnsafeFile: A file cannot be read, or not safely.
        NotRepresentable: A tensor that is ignored because it is always the same is not.
        UsageError: There is no such dialect, field or value.
    """
    return diff_located(
        locate(a),
        locate(b),
        how_a=_how(dialect_a, overrides_a, architecture_a, table_a, prefer_a),
        how_b=_how(dialect_b, overrides_b, architecture_b, table_b, prefer_b),
        header=header,
    )


def _how(
    dialect: str | None,
    overrides: Mapping[str, Any] | None,
    architecture: str | None,
    table: Source | None,
    prefer: str | None,
) -> dict[str, Any]:
    names = ("dialect", "overrides", "architecture", "table", "prefer")
    return dict(zip(names, (dialect, overrides, architecture, table, prefer), strict=True))


def diff_located(
    a: Located,
    b: Located,
    *,
    how_a: Mapping[str, Any],
    how_b: Mapping[str, Any],
    header: bool = False,
) -> Difference:
    """`diff` of files that have been located; `how` are the arguments of `read_header`."""
    readings = _try(a, how_a), _try(b, how_b)
    match readings:
        case Reading() as one, Reading() as two:
            if not header:
                _check_constants(one)
                _check_constants(two)
            return _difference(_canonical(one), _canonical(two), readings, (a, b), header)
    containers = [
        reading.container
        if isinstance(reading, Reading)
        else open_located(located, how.get("prefer"))[0]
        for reading, located, how in zip(readings, (a, b), (how_a, how_b), strict=True)
    ]
    return _difference(_raw(containers[0]), _raw(containers[1]), readings, (a, b), header)


_Attempt = Reading | VitConvertError


def _try(located: Located, how: Mapping[str, Any]) -> _Attempt:
    try:
        reading = read_header(located, **how)
        _ = reading.preprocessing, reading.labels  # they are read when they are asked for
    except _UNREADABLE as problem:
        return problem
    return reading


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """Tensors under the names that both sides share."""

    naming: str
    infos: Mapping[str, TensorInfo]
    read: "Callable[[str], torch.Tensor]"
    close: Callable[[], None]


def _raw(container: Container) -> _Tensors:
    return _Tensors(
        naming="raw", infos=container.manifest, read=container.read, close=container.close
    )


def _canonical(reading: Reading) -> _Tensors:
    container, prefix, plan = reading.container, reading.recognised.prefix, reading.plan
    assemblies = {assembly.target: assembly for assembly in plan.assemblies}

    def dtype(assembly: Assembly) -> str:
        sources = (prefix + piece.source for piece in assembly.pieces if piece.source)
        return " and ".join(sorted({container.manifest[source].dtype for source in sources}))

    def read(name: str) -> "torch.Tensor":
        from vitconvert.conversion.materialise import materialise

        alone = replace(plan, assemblies=(assemblies[name],), constants={})
        return materialise(alone, reading.read)[name]

    infos = {n: TensorInfo(dtype=dtype(a), shape=plan.shape(a)) for n, a in assemblies.items()}
    return _Tensors(naming="canonical", infos=infos, read=read, close=container.close)


def _check_constants(reading: Reading) -> None:
    """What is ignored because it is always the same is so here."""
    from vitconvert.conversion.materialise import materialise

    materialise(replace(reading.plan, assemblies=()), reading.read)


def _difference(
    a: _Tensors,
    b: _Tensors,
    readings: tuple[_Attempt, _Attempt],
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
        a=_side(located[0], readings[0]),
        b=_side(located[1], readings[1]),
        naming=a.naming,
        only_a={name: info for name, info in a.infos.items() if name not in both},
        only_b={name: info for name, info in b.infos.items() if name not in both},
        headers={name: pair for name, pair in both.items() if pair[0] != pair[1]},
        bit_equal=None if header else bit_equal,
        values=None if header else values,
        **_companions(*readings),
    )


def _side(located: Located, reading: _Attempt) -> Side:
    if not isinstance(reading, Reading):
        return Side(located=located, dialect=None, ignored={}, problem=reading)
    ignored = reading.ledger.ignored
    return Side(located=located, dialect=reading.dialect, ignored=ignored, problem=None)


def _companions(a: _Attempt, b: _Attempt) -> dict[str, Any]:
    """What differs beside the tensors, where both are known."""
    if not isinstance(a, Reading) or not isinstance(b, Reading):
        return {"fields": {}, "preprocessing": (), "labels": (), "unstated": ()}
    mine, theirs = a.preprocessing, b.preprocessing
    names, other_names = _stated_labels(a), _stated_labels(b)
    return {
        "fields": dict(_fields(a.config, b.config)),
        "preprocessing": mine.differences(theirs) if mine and theirs else (),
        "labels": _label_differences(names, other_names) if names and other_names else (),
        "unstated": (
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


def _stated_labels(reading: Reading) -> Labels | None:
    return None if reading.labels is None or reading.labels.assumed else reading.labels


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
