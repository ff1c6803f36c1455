"""`vitconvert diff A B`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    computing_option,
    fetching_options,
    locate_options,
    parse_reading,
    reading_options,
    reading_options_of,
    reporting_options,
)
from vitconvert.cli.report import line, print_json, show, tell

if TYPE_CHECKING:
    from vitconvert.comparison import ValueDifference
    from vitconvert.difference import Difference, Side
    from vitconvert.formats import TensorInfo

    Headers = Mapping[str, tuple[TensorInfo, TensorInfo]]

DIFFERENT = 3  # as `verify`; 1 and 2 are errors
_SHOWN = 12  # differing tensors, without -v


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    codes = "Exit code 0: equal; 3: different; 1 or 2: they could not be compared."

    @click.command(name, help=f"{help_text} {codes}")
    @click.argument("a")
    @click.argument("b")
    @click.option("--header", is_flag=True, help="Compare headers only; reads no weights.")
    @click.option("-v", "--verbose", is_flag=True, help="List every tensor that differs.")
    @computing_option
    @reading_options
    @reading_options_of("a")
    @reading_options_of("b")
    @fetching_options
    @reporting_options
    def diff_(**options: Any) -> int:
        from vitconvert.api import diff
        from vitconvert.sources import locate

        reading: list[Any] = [parse_reading(options, side) for side in ("a", "b")]
        fetching = locate_options(options)
        located = [
            locate(options[side], **fetching | {"tower": said["tower"]})
            for side, said in zip(("a", "b"), reading, strict=True)
        ]
        difference = diff(
            *located, reading_a=reading[0], reading_b=reading[1], header=options["header"]
        )
        if options["as_json"]:
            print_json({"ok": difference.equal, **difference.to_dict()})
        elif options["quiet"]:
            tell(_verdict(difference))
        else:
            tell("\n".join(_report(difference, verbose=options["verbose"])))
        return 0 if difference.equal else DIFFERENT

    return diff_


def _report(difference: "Difference", *, verbose: bool) -> Iterator[str]:
    a, b = difference.a, difference.b
    yield from (_side_line("a", a), _side_line("b", b))
    for name, side in (("a", a), ("b", b)):
        if side.problem:
            why = f"{name} cannot be read as it stands, so the files' own names are compared"
            yield line("names", why, *str(side.problem).split("\n"))
    yield from _titled("configuration", _fields(difference))
    yield from _titled("only in a", _tensors(difference.only_a))
    yield from _titled("only in b", _tensors(difference.only_b))
    yield from _titled("shapes", _shapes(difference.headers))
    yield from _titled("dtypes", _dtypes(difference.headers))
    yield line("values", *_values(difference, None if verbose else _SHOWN))
    yield from _titled("ignored in a", _reasons(a.ignored))
    yield from _titled("ignored in b", _reasons(b.ignored))
    if difference.preprocessing:
        sides = "here is a, there is b"
        yield line("preprocessing", sides, *difference.preprocessing)
    yield from _titled("labels", _some(difference.labels, None if verbose else 3))
    yield from _titled("note", difference.unstated)
    yield line("result", _verdict(difference))


def _side_line(name: str, side: "Side") -> str:
    return line(name, f"{side.located.reference} ({side.dialect or 'not recognised'})")


def _verdict(difference: "Difference") -> str:
    compared = "" if difference.naming == "canonical" else ", by the files' own names"
    compared += "" if difference.values is not None else ", as far as headers tell"
    if difference.equal:
        return f"equal{compared}"
    return f"different: {', '.join(difference.parts)}{compared}"


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    texts = list(lines)
    return [line(title, *texts)] if texts else []


def _fields(difference: "Difference") -> Iterator[str]:
    for name, field in difference.fields.items():
        yield (
            f"{name}  {_shown(field.a)} in a ({field.origin_a}), "
            f"{_shown(field.b)} in b ({field.origin_b})"
        )


def _shown(value: object) -> str:
    return "without effect" if value is None else show(value)


def _tensors(tensors: "Mapping[str, TensorInfo]") -> list[str]:
    return _one_line_for_all_blocks(
        f"{name}  {info.dtype} [{_by(info)}]" for name, info in tensors.items()
    )


def _shapes(headers: "Headers") -> list[str]:
    return _one_line_for_all_blocks(
        f"{name}  [{_by(a)}] in a, [{_by(b)}] in b"
        for name, (a, b) in headers.items()
        if a.shape != b.shape
    )


def _dtypes(headers: "Headers") -> list[str]:
    pairs = Counter((a.dtype, b.dtype) for a, b in headers.values() if a.dtype != b.dtype)
    return [_times(f"{a} in a, {b} in b", count) for (a, b), count in pairs.items()]


def _by(info: "TensorInfo") -> str:
    return " ".join(map(str, info.shape))


def _reasons(ignored: Mapping[str, str]) -> list[str]:
    return _one_line_for_all_blocks(f"{name}: {why}" for name, why in ignored.items())


def _one_line_for_all_blocks(lines: Iterable[str]) -> list[str]:
    """Join lines that differ only in the number of the block."""
    from vitconvert.tables.names import runs

    return [_times(text, count) for text, count in runs(lines)]


def _times(text: str, count: int) -> str:
    return f"{text}  x {count}" if count > 1 else text


def _values(difference: "Difference", most: int | None) -> list[str]:
    """The tensors that differ, the largest difference first."""
    if difference.values is None or difference.bit_equal is None:
        return ["not compared"]
    equal, values = len(difference.bit_equal), difference.values
    rounded = Counter(value.equal_in for value in values.values() if value.equal_in)
    more = "".join(f", {n} more after rounding to {dtype}" for dtype, n in rounded.items())
    ordered = sorted(values.items(), key=lambda item: -_severity(item[1]))
    return [
        f"{equal} of {equal + len(values)} tensors are equal in every bit{more}",
        *_some([f"{name}  {_value(value)}" for name, value in ordered], most),
    ]


def _severity(value: "ValueDifference") -> float:
    if value.not_finite or (value.largest and not value.scale):
        return float("inf")
    return value.relative or 0.0


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


def _some(lines: "list[str] | tuple[str, ...]", most: int | None) -> list[str]:
    if most is None or len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"and {len(lines) - most} more; -v lists all"]
