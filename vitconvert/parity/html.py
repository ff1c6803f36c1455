"""A parity report as one page that needs nothing else, to be read offline or sent to somebody."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitconvert.errors import printable
from vitconvert.parity.differences import Comparison, LayerDifference

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; background: #fff }
.verdict { font-weight: 600; padding: .2rem .6rem; border-radius: .3rem; color: #fff }
.good { background: #1a7f37 } .bad { background: #b42318 } .open { background: #6b6b6b }
table { border-collapse: collapse } th, td { text-align: left; padding: .2rem 1.2rem .2rem 0 }
figure { margin: 2rem 0; overflow-x: auto } svg text { font: 11px system-ui, sans-serif }
""".strip()
_COLOURS = ("#c2570c", "#0b62a4")  # of the dtypes, in order
_LEFT, _TOP, _HEIGHT, _STEP, _NAMES = 60, 20, 240, 24, 110  # pixels of the plot
_LOWEST = -18  # the power of ten at which a difference of zero is drawn


_MOODS = {"equal": "good", "not equal": "bad", "not verified": "open"}


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page shows.

    Attributes:
        verdict: One word or two.
        facts: Title and text; those without a text are left out.
        comparisons: A table of the outputs.
        layers: A plot of the layers.
        departing: The layer that is marked in the plot.
    """

    verdict: str
    facts: Sequence[tuple[str, str]]
    comparisons: Sequence[Comparison]
    layers: Sequence[LayerDifference]
    departing: str | None

    def html(self) -> str:
        """The whole page: verdict, outputs, plot of the layers. Every name is escaped."""
        title = _shown(f"Parity: {self.verdict}")
        return "\n".join(
            [
                '<!doctype html><html lang="en"><head><meta charset="utf-8">',
                f"<title>{title}</title><style>{_STYLE}</style></head><body>",
                f'<h1>Parity <span class="verdict {_MOODS[self.verdict]}">'
                f"{_shown(self.verdict)}</span></h1>",
                _table([], [pair for pair in self.facts if pair[1]]),
                _outputs(self.comparisons) if self.comparisons else "",
                _figure(self.layers, self.departing) if self.layers else "",
                "</body></html>",
            ]
        )


def _shown(text: str) -> str:
    """Text that is shown as it is, whatever names it holds."""
    return html.escape(printable(text))


def _outputs(comparisons: Sequence[Comparison]) -> str:
    header = ["images", "dtype", "absolute", "relative", "allowed", "same argmax", "same bits"]
    rows = [
        (
            c.images,
            c.dtype,
            f"{c.absolute:.2e}",
            f"{c.relative:.2e}",
            f"{c.tolerance:.0e}",
            f"{c.agreed} of {c.rows}",
            "yes" if c.bit_equal else "no",
        )
        for c in comparisons
    ]
    return "<h2>Outputs</h2>" + _table(header, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_shown(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{_shown(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>" if head else f"<table>{body}</table>"


def _figure(layers: Sequence[LayerDifference], departing: str | None) -> str:
    names = list(dict.fromkeys(layer.layer for layer in layers))
    dtypes = list(dict.fromkeys(layer.dtype for layer in layers))
    width = _LEFT + _STEP * len(names) + 100
    parts = [
        f'<svg width="{width}" height="{_TOP + _HEIGHT + _NAMES}" role="img">',
        f"<title>{_shown('Relative difference of each layer')}</title>",
        *_scale(width),
        *(_name(column, name, name == departing) for column, name in enumerate(names)),
        *(
            _line([d for d in layers if d.dtype == dtype], names, dtype, colour)
            for dtype, colour in zip(dtypes, _COLOURS, strict=False)
        ),
        *_legend(dtypes, width),
        "</svg>",
    ]
    caption = "Largest relative difference of each layer; a difference of zero lies on the floor."
    return f"<h2>Layers</h2><figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _scale(width: int) -> Iterable[str]:
    for power in range(_LOWEST, 1, 3):
        y = _y(10.0**power)
        yield f'<line x1="{_LEFT}" x2="{width - 90}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        label = "0" if power == _LOWEST else f"1e{power}"
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _name(column: int, name: str, departs: bool) -> str:
    x, y = _x(column), _TOP + _HEIGHT + 12
    weight = ' font-weight="700" fill="#b42318"' if departs else ""
    turned = f'transform="rotate(60 {x} {y})"'
    return f'<text x="{x}" y="{y}" {turned}{weight}>{_shown(name)}</text>'


def _line(layers: Sequence[LayerDifference], names: list[str], dtype: str, colour: str) -> str:
    points = [(_x(names.index(d.layer)), _y(d.relative), d) for d in layers]
    path = " ".join(f"{x},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{x}" cy="{y:.1f}" r="3" fill="{colour}"><title>'
        f"{_shown(f'{d.layer} {dtype}: {d.relative:.1e}')}</title></circle>"
        for x, y, d in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{dots}'


def _legend(dtypes: Sequence[str], width: int) -> Iterable[str]:
    for row, (dtype, colour) in enumerate(zip(dtypes, _COLOURS, strict=False)):
        y = _TOP + 12 + 16 * row
        yield f'<text x="{width - 80}" y="{y}" fill="{colour}">{_shown(dtype)}</text>'


def _x(column: int) -> int:
    return _LEFT + _STEP // 2 + _STEP * column


def _y(difference: float) -> float:
    power = math.log10(difference) if difference > 0 else float(_LOWEST)
    return _TOP + _HEIGHT * min(max(power / _LOWEST, 0.0), 1.0)
