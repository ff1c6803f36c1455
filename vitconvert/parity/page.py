"""Reports as one page that needs nothing else, to be read offline, printed or sent.

The chart's axis fits the differences: nothing is clipped or hidden.
"""

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from vitconvert.comparison import Comparison, Divergence, LayerDifference
from vitconvert.pages import GENERATOR, shown
from vitconvert.programs.taps import block_of
from vitconvert.version import VERSION

_RED = "#b42318"  # of the layer that departs
_STYLE = f"""
:root {{ color-scheme: light }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; background: #fff }}
h2 {{ margin: 2rem 0 .5rem; font-size: 1.2rem }}
.verdict {{ font-weight: 600; padding: .2rem .6rem; border-radius: .3rem; color: #fff;
           print-color-adjust: exact; -webkit-print-color-adjust: exact }}
.good {{ background: #1a7f37 }} .bad {{ background: {_RED} }} .open {{ background: #5b5b5b }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem 1.2rem .2rem 0;
         overflow-wrap: anywhere }}
.lined th, .lined td {{ border-bottom: 1px solid #ddd; overflow-wrap: normal; white-space: nowrap }}
.facts td:first-child {{ color: #555; white-space: nowrap }}
tr.marked td {{ color: {_RED}; font-weight: 600 }}
figure {{ margin: .5rem 0 1rem }}
figcaption, details {{ color: #444; font-size: .9rem; margin-top: .5rem }}
summary {{ cursor: pointer }}
svg {{ max-width: 100%; print-color-adjust: exact; -webkit-print-color-adjust: exact }}
svg.chart {{ width: 100%; height: auto }}
svg text {{ font-family: system-ui, sans-serif; font-size: 12px }}
svg .halo {{ paint-order: stroke; stroke: #fff; stroke-width: 3px }}
@page {{ margin: 15mm }}
@media print {{
  body {{ margin: 0; padding: 0; max-width: none; font-size: 10pt }}
  .wide {{ overflow: visible }}
  figure, tr {{ break-inside: avoid }} h2 {{ break-after: avoid }}
  .lined th, .lined td {{ white-space: normal; padding-right: .6rem }}
  details::details-content {{ content-visibility: visible; block-size: auto }}
}}
""".strip()
# Dark enough to be read on white; shapes differ too, for those who see or print no colours.
_COLOURS = ("#c2570c", "#0b62a4", "#1a7f37", "#7a3e9d", "#8a6d00", "#444444")
# The first is a ring, in which a point of another series at the same place is still seen.
_RING = "M-4.4 0a4.4 4.4 0 1 0 8.8 0a4.4 4.4 0 1 0 -8.8 0z"
_SHAPES = (_RING, "M-2.6-2.6h5.2v5.2h-5.2z", "M0-4.2L3.8 3H-3.8z", "M0-4.2L4.2 0L0 4.2L-4.2 0z")
_WIDTH, _LEFT, _RIGHT = 900, 62, 24
_HEIGHT, _BAND = 230, 26  # of the plot; of the rows for 0 and infinity
_LINE, _NAMES = 16, 92  # a line of text; the names of the layers
_LETTER = 6.4  # pixels of a letter, at most on average, in text of 12 pixels
_NARROWEST, _WIDEST = 20, 60  # pixels from layer to layer; in blocks, as narrow as need be
_MOODS = {"equal": "good", "not equal": "bad", "not verified": "open"}
_EXPLAINED = "Largest difference of each layer over its largest magnitude in the reference."


def parity_page(
    verdict: str,
    facts: Iterable[tuple[str, str]],
    *,
    comparisons: Sequence[Comparison],
    layers: Sequence[LayerDifference],
    divergence: Divergence | None,
) -> str:
    """The page of a report: verdict, outputs, chart of the layers. Every name is escaped.

    Args:
        verdict: One of `_MOODS`.
        facts: Titles and texts; those without a text are left out.
        comparisons: A table of the outputs.
        layers: A chart of the layers.
        divergence: Marked in the chart, with its cause.
    """
    versions = [f"vitconvert {VERSION}"]
    for package in ("torch", "numpy"):
        with suppress(PackageNotFoundError):  # a build of torch under another name
            versions.append(f"{package} {version(package)}")
    rows = (
        f"<tr><td>{shown(name)}</td><td>{shown(text)}</td></tr>"
        for name, text in [*facts, ("versions", ", ".join(versions))]
        if text
    )
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{GENERATOR}',
            f"<title>Parity: {verdict}</title><style>{_STYLE}</style></head><body>",
            f'<h1>Parity <span class="verdict {_MOODS[verdict]}">{verdict}</span></h1>',
            f'<table class="facts">{"".join(rows)}</table>',
            *([_outputs(comparisons)] if comparisons else []),
            *([_layers(layers, comparisons, divergence)] if layers else []),
            "</body></html>",
        ]
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, marked: str = "") -> str:
    """A table; the row whose first cell is `marked` stands out."""
    head = "".join(f"<th>{shown(cell)}</th>" for cell in header)
    body = "".join(
        ('<tr class="marked">' if marked and row[0] == marked else "<tr>")
        + "".join(f"<td>{shown(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="lined"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _outputs(comparisons: Sequence[Comparison]) -> str:
    named = any(c.output != "output" for c in comparisons)
    header = ["images", "dtype", "absolute", "relative", "allowed", "same argmax", "same bits"]
    rows = [
        (
            *([c.output] if named else []),
            c.images,
            c.dtype,
            f"{c.absolute:.2e}",
            f"{c.relative:.2e}",
            f"{c.tolerance:.0e}" if c.tolerance < math.inf else "not judged",
            f"{c.agreed} of {c.rows}",
            "yes" if c.bit_equal else "no",
        )
        for c in comparisons
    ]
    return "<h2>Outputs</h2>" + _table([*(["output"] if named else []), *header], rows)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A difference for each layer.

    Attributes:
        name: In the legend.
        values: By layer, in the order of computation; 0 or more, or infinite.
        allowed: The largest value that counts as equal, if one does.
    """

    name: str
    values: Mapping[str, float]
    allowed: float | None = None


def _layers(
    layers: Sequence[LayerDifference],
    comparisons: Sequence[Comparison],
    divergence: Divergence | None,
) -> str:
    """A chart of the layers, and its numbers."""
    allowed = {c.dtype: c.tolerance for c in comparisons if c.tolerance < math.inf}
    series = [
        Series(
            name=dtype,
            values={d.layer: d.relative for d in layers if d.dtype == dtype},
            allowed=allowed.get(dtype),
        )
        for dtype in dict.fromkeys(d.dtype for d in layers)
    ]
    departing, cause = (divergence.layer, divergence.cause) if divergence else ("", "")
    names = list(dict.fromkeys(name for one in series for name in one.values))
    zero = all(layer.relative == 0 for layer in layers)
    equal = " Every layer is bit-identical: all points are at 0." if zero else ""
    rows = [(name, *(_number(one.values.get(name)) for one in series)) for name in names]
    numbers = _table(["layer", *(one.name for one in series)], rows, marked=departing)
    return (
        f"<h2>Layers</h2><figure>{_Chart(series, departing, cause).svg()}"
        f"<figcaption>{_EXPLAINED}{equal}</figcaption></figure>"
        f"<details><summary>The numbers</summary>{numbers}</details>"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value else "0"


class _Chart:
    """Where things are drawn, in pixels: layers across, powers of ten of their difference up."""

    def __init__(self, series: Sequence[Series], departing: str, cause: str) -> None:
        self.series = series
        names = list(dict.fromkeys(name for one in series for name in one.values))
        self.departing = departing if departing in names else ""
        values = [value for one in series for value in one.values.values()]
        limits = [one.allowed for one in series if one.allowed]
        powers = [math.log10(v) for v in [*values, *limits] if 0 < v < math.inf] or [0.0]
        self.low = math.floor(min(powers))
        self.high = max(math.ceil(max(powers)), self.low + 1)
        # 0 and infinity have rows of their own.
        self.zero, self.infinite = 0 in values, not all(map(math.isfinite, values))

        room, inside = _WIDTH - _LEFT - _RIGHT, sum(map(_in_block, names))
        self.step = min(room / max(len(names), 1), _WIDEST)  # from layer to layer in blocks
        if self.step < _NARROWEST and inside:
            self.step = (room - _NARROWEST * (len(names) - inside)) / inside
        self.x: dict[str, float] = {}
        self.right = float(_LEFT)
        for name in names:
            width = self.step if _in_block(name) else max(self.step, _NARROWEST)
            self.x[name] = self.right + width / 2
            self.right += width

        most = int((_WIDTH - _LEFT) / 2 / _LETTER)
        why = textwrap.wrap(f"cause: {cause}", most, max_lines=3) if cause else []
        self.words = [f"departs first: {departing}", *why] if self.departing else []
        # Legend and marker are above.
        self.top = 24 + _LINE * len(self.words) + 14 + _BAND * self.infinite
        self.bottom = self.top + _HEIGHT + _BAND * self.zero

    def y(self, value: float) -> float:
        if value == 0:
            return self.bottom
        if not value < math.inf:
            return self.top - _BAND
        share = (self.high - math.log10(value)) / (self.high - self.low)
        return self.top + _HEIGHT * share

    def svg(self) -> str:
        looks = list(
            zip(self.series, itertools.cycle(_COLOURS), itertools.cycle(_SHAPES), strict=False)
        )
        parts = [
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {self.bottom + _NAMES}" role="img">',
            "<title>Difference of each layer</title>",
            *self._blocks(),
            *self._grid(),
            *self._marker(),
            *(self._allowed(one, colour) for one, colour, _ in looks if one.allowed),
            *(self._points(*look) for look in looks),
        ]
        x = float(_LEFT)
        for one, colour, shape in looks:  # the legend
            parts.append(f'<path transform="translate({x + 4:.1f} 12)" {_look(shape, colour)}/>')
            parts.append(_text(x + 14, 16, one.name, fill=colour))
            x += 14 + _LETTER * len(one.name) + 24
        return "".join([*parts, *self._names(), "</svg>"])

    def _blocks(self) -> Iterator[str]:
        """Every other block is shaded, and blocks are numbered as far as there is room."""
        columns: dict[int, list[float]] = {}
        for name, x in self.x.items():
            if (block := block_of(name)) is not None:
                columns.setdefault(block, []).append(x)
        every = next(n for n in (1, 2, 5, 10, 10_000) if n * 2 * self.step >= 22)
        for block, xs in columns.items():
            left, width = xs[0] - self.step / 2, self.step * len(xs)
            if block % 2 == 0:
                yield (
                    f'<rect x="{left:.1f}" y="{self.top}" width="{width:.1f}" '
                    f'height="{self.bottom - self.top}" fill="#f4f4f4"/>'
                )
            if block % every == 0:
                yield _text(left + width / 2, self.bottom + 20, str(block), text_anchor="middle")
        if columns:
            inside = [x for xs in columns.values() for x in xs]
            words = "blocks: after the attention, after the MLP"
            middle = max((inside[0] + inside[-1]) / 2, _LEFT + 150)
            yield _text(middle, self.bottom + 44, words, text_anchor="middle", fill="#555")

    def _grid(self) -> Iterator[str]:
        step = -(-(self.high - self.low) // 8)
        rows = {f"1e{n}": self.y(10.0**n) for n in range(self.high, self.low - 1, -step)}
        rows |= {"0": self.y(0.0)} if self.zero else {}
        rows |= {"infinite": self.y(math.inf)} if self.infinite else {}
        for label, y in rows.items():
            dash = ' stroke-dasharray="2 3"' if label in ("0", "infinite") else ""
            yield _line(self.right, y, f'stroke="{"#999" if dash else "#ddd"}"{dash}')
            yield _text(_LEFT - 8, y + 4, label, text_anchor="end")

    def _allowed(self, one: Series, colour: str) -> str:
        assert one.allowed is not None
        y, words = self.y(one.allowed), f"allowed in {one.name}"
        text = _text(self.right - 4, y - 4, words, text_anchor="end", fill=colour)
        dashed = f'stroke="{colour}" stroke-width="1.2" stroke-dasharray="7 4"'
        line = _line(self.right, y, dashed).replace("<line", '<line class="allowed"')
        return line + text.replace("<text", '<text class="halo"')

    def _points(self, one: Series, colour: str, shape: str) -> str:
        places = {name: (self.x[name], self.y(value)) for name, value in one.values.items()}
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places.values())
        points = "".join(
            f'<path class="point" transform="translate({x:.1f} {y:.1f})" {_look(shape, colour)}>'
            f"<title>{shown(f'{name}, {one.name}: {one.values[name]:.1e}')}</title></path>"
            for name, (x, y) in places.items()
        )
        return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{points}'

    def _marker(self) -> Iterator[str]:
        """A band over the layer, and the words above it, on the side that has more room."""
        if not self.words:
            return
        x, top, width = self.x[self.departing], 24, max(min(self.step, 24), 6)
        yield (
            f'<rect class="departs" x="{x - width / 2:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{self.bottom - top + 6}" fill="{_RED}" fill-opacity="0.18"/>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{self.bottom + 6}" stroke="{_RED}"/>'
        )
        early = x < _WIDTH / 2
        side = x + width / 2 + 6 if early else x - width / 2 - 6
        for row, words in enumerate(self.words):
            look = {"text_anchor": "start" if early else "end", "fill": _RED}
            weight = "700" if row == 0 else "400"
            yield _text(side, top + 12 + _LINE * row, words, **look, font_weight=weight)

    def _names(self) -> Iterator[str]:
        """Of the layers outside the blocks, and of the one that departs if that is too."""
        for name, middle in self.x.items():
            if not _in_block(name):
                x, y = middle + 3, self.bottom + 16
                weight = {"font_weight": "700", "fill": _RED} if name == self.departing else {}
                turned = f"rotate(-52 {x:.1f} {y:.1f})"
                yield _text(x, y, name, text_anchor="end", transform=turned, **weight)


def _in_block(name: str) -> bool:
    return block_of(name) is not None


def _line(right: float, y: float, look: str) -> str:
    return f'<line x1="{_LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" {look}/>'


def _text(x: float, y: float, words: str, **attributes: str) -> str:
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{shown(words)}</text>'


def _look(shape: str, colour: str) -> str:
    fill = "#fff" if shape == _RING else colour
    return f'd="{shape}" fill="{fill}" stroke="{colour}" stroke-width="1.4"'
