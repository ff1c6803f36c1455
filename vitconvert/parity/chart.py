"""Differences of layers as an SVG chart, whose axis fits them: nothing is clipped or hidden."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from vitconvert.errors import printable
from vitconvert.programs.taps import block_of

MARK = "#b42318"  # of the layer that departs
# Dark enough to be read on white; told apart by shape too, where colours are not seen or printed.
_COLOURS = ("#c2570c", "#0b62a4", "#1a7f37", "#7a3e9d", "#8a6d00", "#444444")
# The first is a ring, in which a point of another series at the same place is still seen.
_RING = "M-4.4 0a4.4 4.4 0 1 0 8.8 0a4.4 4.4 0 1 0 -8.8 0z"
_SHAPES = (_RING, "M-2.6-2.6h5.2v5.2h-5.2z", "M0-4.2L3.8 3H-3.8z", "M0-4.2L4.2 0L0 4.2L-4.2 0z")
_WIDTH, _LEFT, _RIGHT = 900, 62, 24
_HEIGHT, _BAND = 230, 26  # of the plot; of the rows for 0 and infinity
_LINE, _NAMES = 16, 92  # a line of text; the names of the layers
_LETTER = 6.4  # pixels of a letter, at most on average, in text of 12 pixels
_NARROWEST, _WIDEST = 20, 60  # pixels from layer to layer; in blocks, as narrow as need be


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


def chart(series: Sequence[Series], *, title: str, departing: str = "", cause: str = "") -> str:
    """An SVG element of `series`, with the layer `departing` marked and its `cause` written on."""
    names = list(dict.fromkeys(name for one in series for name in one.values))
    plan = _Plan(names, _Scale.of(series), _marker_lines(names, departing, cause))
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {plan.bottom + _NAMES}" role="img">',
        f"<title>{_shown(title)}</title>",
        *_blocks(plan),
        *_grid(plan),
        *_marker(plan, departing),
        *(_allowed(plan, one, colour) for one, colour, _ in _drawn(series)),
        *(_points(plan, one, colour, shape) for one, colour, shape in _drawn(series)),
        *_legend(series),
        *_names(plan, departing),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True)
class _Scale:
    """Powers of ten from `low` to `high`, and whether 0 and infinity have rows of their own."""

    low: int
    high: int
    zero: bool
    infinite: bool

    @classmethod
    def of(cls, series: Sequence[Series]) -> "_Scale":
        values = [value for one in series for value in one.values.values()]
        limits = [one.allowed for one in series if one.allowed]
        powers = [math.log10(v) for v in [*values, *limits] if 0 < v < math.inf] or [0.0]
        low, high = math.floor(min(powers)), math.ceil(max(powers))
        zero, infinite = 0 in values, not all(map(math.isfinite, values))
        return cls(low, max(high, low + 1), zero=zero, infinite=infinite)


@dataclass(frozen=True)
class _Plan:
    """Where things are drawn, in pixels."""

    names: list[str]
    scale: _Scale
    words: list[str]  # beside the marker

    @property
    def step(self) -> float:
        """From layer to layer in blocks."""
        room, inside = _WIDTH - _LEFT - _RIGHT, sum(_in_block(name) for name in self.names)
        even = min(room / max(len(self.names), 1), _WIDEST)
        if even >= _NARROWEST or not inside:
            return even
        return (room - _NARROWEST * (len(self.names) - inside)) / inside

    @property
    def right(self) -> float:
        return _LEFT + sum(map(self.width, self.names))

    def width(self, name: str) -> float:
        return self.step if _in_block(name) else max(self.step, _NARROWEST)

    @property
    def top(self) -> int:
        """Of the plot without its row for infinity; legend and marker are above."""
        return 24 + _LINE * len(self.words) + 14 + _BAND * self.scale.infinite

    @property
    def bottom(self) -> int:
        """Of all rows."""
        return self.top + _HEIGHT + _BAND * self.scale.zero

    def x(self, name: str) -> float:
        before = self.names[: self.names.index(name)]
        return _LEFT + sum(map(self.width, before)) + self.width(name) / 2

    def y(self, value: float) -> float:
        if value == 0:
            return self.bottom
        if not value < math.inf:
            return self.top - _BAND
        return self.power(math.log10(value))

    def power(self, power: float) -> float:
        scale = self.scale
        return self.top + _HEIGHT * (scale.high - power) / (scale.high - scale.low)


def _in_block(name: str) -> bool:
    return block_of(name) is not None


def _shown(text: str) -> str:
    return escape(printable(text))


def _drawn(series: Sequence[Series]) -> Iterator[tuple[Series, str, str]]:
    for i, one in enumerate(series):
        yield one, _COLOURS[i % len(_COLOURS)], _SHAPES[i % len(_SHAPES)]


def _text(x: float, y: float, words: str, **attributes: str) -> str:
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{_shown(words)}</text>'


def _blocks(plan: _Plan) -> Iterator[str]:
    """Every other block is shaded, and blocks are numbered as far as there is room."""
    columns: dict[int, list[float]] = {}
    for name in plan.names:
        if (block := block_of(name)) is not None:
            columns.setdefault(block, []).append(plan.x(name))
    every = next(n for n in (1, 2, 5, 10, 10_000) if n * 2 * plan.step >= 22)
    for block, xs in columns.items():
        left, width = xs[0] - plan.step / 2, plan.step * len(xs)
        if block % 2 == 0:
            yield (
                f'<rect x="{left:.1f}" y="{plan.top}" width="{width:.1f}" '
                f'height="{plan.bottom - plan.top}" fill="#f4f4f4"/>'
            )
        if block % every == 0:
            yield _text(left + width / 2, plan.bottom + 20, str(block), text_anchor="middle")
    if columns:
        inside = [x for xs in columns.values() for x in xs]
        words = "blocks: behind the attention, behind the MLP"
        middle = max((inside[0] + inside[-1]) / 2, _LEFT + 150)
        yield _text(middle, plan.bottom + 44, words, text_anchor="middle", fill="#555")


def _grid(plan: _Plan) -> Iterator[str]:
    scale = plan.scale
    step = -(-(scale.high - scale.low) // 8)
    rows = {f"1e{power}": plan.power(power) for power in range(scale.high, scale.low - 1, -step)}
    rows |= {"0": plan.y(0.0)} if scale.zero else {}
    rows |= {"infinite": plan.y(math.inf)} if scale.infinite else {}
    for label, y in rows.items():
        dash = ' stroke-dasharray="2 3"' if label in ("0", "infinite") else ""
        colour = "#999" if dash else "#ddd"
        yield (
            f'<line x1="{_LEFT}" x2="{plan.right:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{colour}"{dash}/>'
        )
        yield _text(_LEFT - 8, y + 4, label, text_anchor="end")


def _allowed(plan: _Plan, one: Series, colour: str) -> str:
    if not one.allowed:
        return ""
    y = plan.y(one.allowed)
    words = _text(
        plan.right - 4, y - 4, f"allowed in {one.name}", text_anchor="end", fill=colour
    ).replace("<text", '<text class="halo"')
    return (
        f'<line class="allowed" x1="{_LEFT}" x2="{plan.right:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}" stroke-width="1.2" stroke-dasharray="7 4"/>{words}'
    )


def _points(plan: _Plan, one: Series, colour: str, shape: str) -> str:
    places = {name: (plan.x(name), plan.y(value)) for name, value in one.values.items()}
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places.values())
    points = "".join(
        f'<path class="point" transform="translate({x:.1f} {y:.1f})" {_look(shape, colour)}>'
        f"<title>{_shown(f'{name}, {one.name}: {one.values[name]:.1e}')}</title></path>"
        for name, (x, y) in places.items()
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{points}'


def _look(shape: str, colour: str) -> str:
    fill = "#fff" if shape == _RING else colour
    return f'd="{shape}" fill="{fill}" stroke="{colour}" stroke-width="1.4"'


def _legend(series: Sequence[Series]) -> Iterator[str]:
    x = float(_LEFT)
    for one, colour, shape in _drawn(series):
        yield f'<path transform="translate({x + 4:.1f} 12)" {_look(shape, colour)}/>'
        yield _text(x + 14, 16, one.name, fill=colour)
        x += 14 + _LETTER * len(one.name) + 24


def _marker_lines(names: list[str], departing: str, cause: str) -> list[str]:
    """What is written beside the marker, in lines that fit."""
    if departing not in names:
        return []
    room = int((_WIDTH - _LEFT) / 2 / _LETTER)
    why = textwrap.wrap(f"cause: {cause}", room, max_lines=3) if cause else []
    return [f"departs first: {departing}", *why]


def _marker(plan: _Plan, departing: str) -> Iterator[str]:
    """A band over the layer, and the words above it, on the side that has more room."""
    if not plan.words:
        return
    x, top = plan.x(departing), 24
    width = max(min(plan.step, 24), 6)
    yield (
        f'<rect class="departs" x="{x - width / 2:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{plan.bottom - top + 6}" fill="{MARK}" fill-opacity="0.18"/>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{plan.bottom + 6}" stroke="{MARK}"/>'
    )
    early = x < _WIDTH / 2
    anchor = "start" if early else "end"
    for row, words in enumerate(plan.words):
        weight = "700" if row == 0 else "400"
        side = x + width / 2 + 6 if early else x - width / 2 - 6
        y = top + 12 + _LINE * row
        yield _text(side, y, words, text_anchor=anchor, fill=MARK, font_weight=weight)


def _names(plan: _Plan, departing: str) -> Iterable[str]:
    """Of the layers outside the blocks, and of the one that departs if that is too."""
    for name in plan.names:
        if not _in_block(name):
            x, y = plan.x(name) + 3, plan.bottom + 16
            weight = {"font_weight": "700", "fill": MARK} if name == departing else {}
            turned = f"rotate(-52 {x:.1f} {y:.1f})"
            yield _text(x, y, name, text_anchor="end", transform=turned, **weight)
