"""Differences of tokens as a picture: a cell for each patch, where it lies in the image."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LEAST, _MOST = 1, 3  # decades from the palest colour to the darkest, which is the worst token's
_STEPS = 4  # colours that are explained
_SIDE = 300  # pixels of the longer side of the grid
_SMALLEST, _LARGEST = 4, 24  # pixels of a cell
_TITLE = 18  # pixels of a line of text
_KEY = 200  # pixels for the explanation of the colours
_COLOURS = ((255, 245, 235), (241, 105, 19), (103, 0, 13))  # from pale to dark
_INFINITE = "#000000"


def heat_map(values: Sequence[float], grid: tuple[int, int]) -> str:
    """An SVG element of a difference for each token: prefix tokens in a row, then the patches.

    Args:
        values: In the order of the tokens.
        grid: Patches from top to bottom and across.

    Returns:
        "" if there are fewer tokens than patches.
    """
    down, across = grid
    prefix = len(values) - down * across
    if prefix < 0:
        return ""
    size = max(_SMALLEST, min(_LARGEST, _SIDE // max(down, across)))
    top = _TITLE * 2 + size if prefix else _TITLE
    left = max(size * max(across, prefix), 190) + 30
    height = top + max(size * down, (_STEPS + 2) * _TITLE) + 4
    ramp = _Ramp.of(values)
    parts = [
        f'<svg class="patches" width="{left + _KEY}" height="{height}" role="img">',
        "<title>Difference of each token</title>",
        _text(0, 12, "prefix tokens") if prefix else "",
        _text(0, top - 6, "patches, as they lie in the image"),
    ]
    for token, value in enumerate(values):
        row, column = divmod(token - prefix, across)
        x, y = (size * column, top + size * row) if token >= prefix else (size * token, _TITLE)
        name = token_name(token, prefix, across)
        parts.append(_cell(x, y, size, ramp.colour(value), f"{name}: {value:.1e}"))
    return "".join([*parts, *_key(left, top, ramp, values), "</svg>"])


def worst_tokens(values: Sequence[float], grid: tuple[int, int], count: int = 3) -> list[str]:
    """The worst tokens in words, the worst first."""
    prefix = len(values) - grid[0] * grid[1]
    order = sorted(range(len(values)), key=lambda token: -values[token])[:count]
    return [f"{token_name(i, prefix, grid[1])}: {values[i]:.1e}" for i in order if values[i] > 0]


def token_name(token: int, prefix: int, across: int) -> str:
    """Its place in the sequence or in the image, counted from 1."""
    row, column = divmod(token - prefix, across)
    patch = f"patch in row {row + 1}, column {column + 1}"
    return f"prefix token {token + 1}" if token < prefix else patch


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{words}</text>'


def _cell(x: float, y: float, size: int, colour: str, words: str) -> str:
    return (
        f'<rect class="cell" x="{x}" y="{y}" width="{size}" height="{size}" fill="{colour}" '
        f'stroke="#ccc" stroke-width="0.5"><title>{words}</title></rect>'
    )


@dataclass(frozen=True)
class _Ramp:
    """Colours on a logarithmic scale between two values: pale and dark, white for zero."""

    pale: float
    dark: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "_Ramp":
        finite = [value for value in values if 0 < value < math.inf] or [1.0]
        worst = max(finite)
        return cls(min(max(min(finite), worst / 10**_MOST), worst / 10**_LEAST), worst)

    def colour(self, value: float) -> str:
        if value == 0:
            return "#ffffff"
        if not value < math.inf:
            return _INFINITE
        share = math.log(value / self.pale) / math.log(self.dark / self.pale)
        place = min(max(share, 0.0), 1.0) * (len(_COLOURS) - 1)
        at = min(int(place), len(_COLOURS) - 2)
        parts = zip(_COLOURS[at], _COLOURS[at + 1], strict=True)
        return "#" + "".join(f"{round(a + (b - a) * (place - at)):02x}" for a, b in parts)

    def steps(self) -> list[float]:
        """From dark to pale."""
        factor = (self.pale / self.dark) ** (1 / (_STEPS - 1))
        return [self.dark * factor**step for step in range(_STEPS)]


def _key(left: int, top: int, ramp: _Ramp, values: Sequence[float]) -> Iterator[str]:
    """What the colours mean."""
    rows = [("infinite or NaN", _INFINITE)] if math.inf in values else []
    if any(0 < value < math.inf for value in values):
        steps = ramp.steps()
        rows += [(f"{value:.1e}", ramp.colour(value)) for value in steps[:-1]]
        rows += [(f"{steps[-1]:.1e} or less", ramp.colour(steps[-1]))]
    for row, (words, colour) in enumerate([*rows, ("no difference", "#ffffff")]):
        y = top + _TITLE * row
        yield _cell(left, y, 12, colour, words)
        yield _text(left + 18, y + 11, words)
