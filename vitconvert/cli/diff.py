"""`vitconvert diff A B`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import ReadOptions
from vitconvert.cli.options import Computed, argument, flag, flags_of, of_side
from vitconvert.cli.report import (
    SHOWN,
    Verdict,
    line,
    one_line_for_all_blocks,
    show,
    some_lines,
    times,
)

if TYPE_CHECKING:
    from vitconvert.comparison import ValueDifference
    from vitconvert.difference import Difference
    from vitconvert.formats import TensorInfo


DIFFERENT = 3  # as `verify`; 1 and 2 are errors


@dataclass(kw_only=True)
class Diff(Computed):
    """Compares two checkpoints."""

    details = " Exit code 0: equal; 3: different; 1 or 2: they could not be compared."

    a: str = argument()
    b: str = argument()
    header: bool = flag("Compare headers only; reads no weights.", default=False)
    verbose: bool = flag("List every tensor that differs.", "-v", default=False)
    read_a: Mapping[str, Any] = flags_of(ReadOptions, "a", heading="The files of A")
    read_b: Mapping[str, Any] = flags_of(ReadOptions, "b", heading="The files of B")

    def run(self) -> int:
        from vitconvert.api import diff

        a, b = self.of_one(self.read_a), self.of_one(self.read_b)
        difference = diff(
            a.located(self.a),
            b.located(self.b),
            reading_a=a.reading(),
            reading_b=b.reading(),
            header=self.header,
        )
        self.report(
            difference.to_dict,
            short=_verdict(difference),
            long=lambda: _report(difference, None if self.verbose else SHOWN),
            ok=difference.equal,
        )
        return 0 if difference.equal else DIFFERENT


def _verdict(difference: "Difference") -> str:
    compared = "" if difference.naming == "canonical" else ", by the files' own names"
    told = difference.values is not None or difference.same_function
    compared += "" if told else ", as far as headers show"
    if difference.equal:
        return f"equal{compared}"
    return f"different: {', '.join(difference.parts)}{compared}"


def _report(difference: "Difference", most: int | None) -> Iterator[str]:
    a, b, headers = difference.a, difference.b, difference.headers
    for name, side in (("a", a), ("b", b)):
        yield line(name, f"{side.located.reference} ({side.dialect or 'not recognised'})")
    for name, side, other in (("a", a, b), ("b", b, a)):
        if side.problem:
            if not other.problem:  # what is typed for both would change the other
                side.problem.hint = of_side(side.problem.hint, name)
            why = f"{name} cannot be read, so the files' own names are compared"
            yield line("names", why, *side.problem.text(brief=True).split("\n"))
    fields = (
        f"{name}  {_shown(field.a)} in a ({field.origin_a}), "
        f"{_shown(field.b)} in b ({field.origin_b})"
        for name, field in difference.fields.items()
    )
    shapes = (
        f"{name}  [{_by(of_a)}] in a, [{_by(of_b)}] in b"
        for name, (of_a, of_b) in headers.items()
        if of_a.shape != of_b.shape
    )
    dtypes = Counter(
        f"{of_a.dtype} in a, {of_b.dtype} in b"
        for of_a, of_b in headers.values()
        if of_a.dtype != of_b.dtype
    )
    yield line("configuration", *fields)
    yield line("only in a", *_tensors(difference.only_a))
    yield line("only in b", *_tensors(difference.only_b))
    yield line("shapes", *one_line_for_all_blocks(shapes))
    yield line("dtypes", *(times(text, count) for text, count in dtypes.items()))
    yield line("values", *_values(difference, most))
    yield line("ignored in a", *_reasons(a.ignored))
    yield line("ignored in b", *_reasons(b.ignored))
    if difference.preprocessing:
        yield line("preprocessing", "here is a, there is b", *difference.preprocessing)
    yield line("labels", *some_lines(difference.labels, 3 if most else None))
    yield line("note", *difference.unstated)
    yield Verdict(line("result", _verdict(difference)), difference.equal)


def _shown(value: object) -> str:
    return "without effect" if value is None else show(value)


def _by(info: "TensorInfo") -> str:
    return " ".join(map(str, info.shape))


def _tensors(tensors: "Mapping[str, TensorInfo]") -> list[str]:
    texts = (f"{name}  {info.dtype} [{_by(info)}]" for name, info in tensors.items())
    return one_line_for_all_blocks(texts)


def _reasons(ignored: Mapping[str, str]) -> list[str]:
    return one_line_for_all_blocks(f"{name}: {why}" for name, why in ignored.items())


def _values(difference: "Difference", most: int | None) -> list[str]:
    """The tensors that differ, the largest difference first."""
    if difference.same_function:
        stated = f"both vitconvert.json state the function {difference.same_function}"
        return [f"the same numbers: {stated}", "and their files did not change (sha256)"]
    if difference.values is None or difference.bit_equal is None:
        return ["not compared"]

    def severity(value: "ValueDifference") -> float:
        if value.not_finite or (value.largest and not value.scale):
            return float("inf")
        return value.relative or 0.0

    equal, values = len(difference.bit_equal), difference.values
    rounded = Counter(value.equal_in for value in values.values() if value.equal_in)
    more = "".join(f", {n} more after rounding to {dtype}" for dtype, n in rounded.items())
    ordered = sorted(values.items(), key=lambda item: -severity(item[1]))
    return [
        f"{equal} of {equal + len(values)} tensors are equal in every bit{more}",
        *some_lines([f"{name}  {_value(value)}" for name, value in ordered], most),
    ]


def _value(value: "ValueDifference") -> str:
    if not value.differing:
        return "the same numbers in other bytes"
    relative = "" if value.relative is None else f" ({value.relative:.2g} of max |a|)"
    strange = f", {value.not_finite} not finite" if value.not_finite else ""
    rounded = f"; equal in {value.equal_in}" if value.equal_in else ""
    first = " ".join(map(str, value.first or ()))
    return (
        f"max |a-b| {value.largest:.3g}{relative}, {value.differing} of {value.elements} "
        f"elements{strange}, first [{first}]{rounded}"
    )
