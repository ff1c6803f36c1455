"""A comparison for a test, and what its failure says."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from vitconvert.api import check_golden, compare, verify
from vitconvert.arguments import refuse
from vitconvert.comparison import allowed
from vitconvert.errors import UsageError, printable
from vitconvert.parity.golden import is_golden

if TYPE_CHECKING:
    from vitconvert.parity.report import ParityReport

Tolerance = float | Mapping[str, float]
"""In float32, and in float64 a ten-millionth of it; or for each dtype that is to be compared."""

_OF_MODELS = ("layers", "image_size", "in_channels", "preprocess")
_OF_IMAGES = (*_OF_MODELS[1:], "seed", "batch", "images", "max_image_pixels")
_AROUND = 12  # layers that are shown before and behind the first that departs


def compared(
    model: object, against: object, *, tolerance: Tolerance, **options: Any
) -> "ParityReport":
    """The report on two, with a tolerance for each dtype if several are given."""
    one = partial(_compared, model, against, **options)
    if not isinstance(tolerance, Mapping):
        return one(tolerance=tolerance)
    if not tolerance:
        raise UsageError("`tolerance` names no dtype.", hint='such as {"float32": 1e-4}.')
    if others := sorted(set(tolerance) - {"float32", "float64"}):
        raise UsageError(
            f"`tolerance` names {others[0]}, in which parity is not judged.",
            hint="float32 and float64 have tolerances.",
        )
    reports = [
        # In float64 a share of the tolerance is allowed.
        one(tolerance=limit / allowed(1.0, dtype), dtypes=[dtype])
        for dtype, limit in sorted(tolerance.items())
    ]
    return replace(
        reports[-1],
        comparisons=tuple(comparison for report in reports for comparison in report.comparisons),
        layers=tuple(layer for report in reports for layer in report.layers),
        first_divergence=next(
            (r.first_divergence for r in reversed(reports) if r.first_divergence), None
        ),
    )


def _compared(model: Any, against: Any, **options: Any) -> "ParityReport":
    """The report of `check_golden`, `compare` or `verify`, whichever takes these two."""
    if isinstance(against, str | PathLike) and is_golden(against):
        of_images = [name for name in _OF_IMAGES if options.pop(name, None) is not None]
        refuse(of_images, "a golden file states which images are compared.")
        return check_golden(model, against, **options)
    if callable(model) or callable(against):
        return compare(model, against, **options)
    own = [name for name in _OF_MODELS if options.pop(name, None) is not None]
    refuse(own, "this is about a model of your own, and none is compared here.")
    return verify(model, against=against, **options)


def failure(report: "ParityReport") -> str:
    """Why a test fails: the first layer that departs, its cause, and the differences of all."""
    if not report.verified:
        return printable(f"{report.source} was not compared: {report.skipped}")
    departs = report.first_divergence
    unequal = f"{report.source} does not compute what {report.reference} computes"
    lines = [f"{f'{unequal} {report.only_files}'.rstrip()}."]
    if departs:
        lines += [
            f"  first departs  {departs.layer}, relative {departs.relative:.1e} in {departs.dtype}"
            f" on {departs.images}",
            f"  likely cause   {departs.cause}",
        ]
    lines += ["", *layer_table(report), ""]
    lines += [
        f"  {c.output} on {c.images}, {c.dtype}: relative {c.relative:.1e}, allowed "
        f"{c.tolerance:.0e}, argmax {c.agreed} of {c.rows}"
        for c in report.comparisons
        if not c.ok
    ]
    lines += [f"  note: {note}" for note in report.notes]
    return "\n".join(map(printable, lines))


def layer_table(report: "ParityReport") -> Iterator[str]:
    """The relative difference of each layer in each dtype, the first that departs marked."""
    dtypes = list(dict.fromkeys(layer.dtype for layer in report.layers))
    names = list(dict.fromkeys(layer.layer for layer in report.layers))
    found = {(layer.layer, layer.dtype): layer.relative for layer in report.layers}
    departs = report.first_divergence.layer if report.first_divergence else None
    middle = names.index(departs) if departs in names else len(names) - 1
    near = range(max(middle - _AROUND, 0), min(middle + _AROUND + 1, len(names)))
    width = max((len(name) for name in names), default=0)
    yield f"  {'layer':<{width}}" + "".join(f"  {dtype:>8}" for dtype in dtypes)
    if near.start:
        yield f"  ({near.start} layers before)"
    for name in names[near.start : near.stop]:
        numbers = ""
        for dtype in dtypes:
            relative = found.get((name, dtype))
            shown = "-" if relative is None else f"{relative:.1e}" if relative else "0"
            numbers += f"  {shown:>8}"
        mark, end = (">", "  <- departs first") if name == departs else (" ", "")
        yield f"{mark} {name:<{width}}{numbers}{end}"
    if names[near.stop :]:
        yield f"  ({len(names) - near.stop} layers after)"
