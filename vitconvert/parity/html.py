"""Reports as one page that needs nothing else, to be read offline, printed or sent to somebody."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vitconvert.comparison import Comparison
from vitconvert.errors import printable
from vitconvert.parity.chart import MARK, Series, chart
from vitconvert.parity.differences import Divergence, LayerDifference
from vitconvert.parity.heat_map import heat_map, worst_tokens
from vitconvert.version import VERSION

_MARK = '<meta name="generator" content="vitconvert">'
_STYLE = f"""
:root {{ color-scheme: light }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; background: #fff }}
h2 {{ margin: 2rem 0 .5rem; font-size: 1.2rem }}
.verdict {{ font-weight: 600; padding: .2rem .6rem; border-radius: .3rem; color: #fff;
           print-color-adjust: exact; -webkit-print-color-adjust: exact }}
.good {{ background: #1a7f37 }} .bad {{ background: {MARK} }} .open {{ background: #5b5b5b }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem 1.2rem .2rem 0;
         overflow-wrap: anywhere }}
.lined th, .lined td {{ border-bottom: 1px solid #ddd; overflow-wrap: normal; white-space: nowrap }}
.facts td:first-child {{ color: #555; white-space: nowrap }}
tr.marked td {{ color: {MARK}; font-weight: 600 }}
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
_MOODS = {"equal": "good", "not equal": "bad", "not verified": "open"}
EXPLAINED = "Largest difference of each layer over its largest magnitude in the reference."


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page of a parity report shows.

    Attributes:
        verdict: One word or two.
        facts: Title and text; those without a text are left out.
        comparisons: A table of the outputs.
        layers: A chart of the layers.
        divergence: Where they depart: marked in the chart, with its cause and a picture of patches.
    """

    verdict: str
    facts: Sequence[tuple[str, str]]
    comparisons: Sequence[Comparison]
    layers: Sequence[LayerDifference]
    divergence: Divergence | None

    def html(self) -> str:
        """The whole page: verdict, outputs, chart of the layers. Every name is escaped."""
        return page(
            f"Parity: {self.verdict}",
            f'Parity <span class="verdict {_MOODS[self.verdict]}">{shown(self.verdict)}</span>',
            [
                facts_table(self.facts),
                _outputs(self.comparisons) if self.comparisons else "",
                _layers(self.layers, self.comparisons, self.divergence) if self.layers else "",
                _patches(self.divergence) if self.divergence else "",
            ],
        )


def page(title: str, heading: str, sections: Iterable[str]) -> str:
    """A page of sections, which are HTML like the heading; the title is text."""
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_MARK}',
            f"<title>{shown(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{heading}</h1>",
            *(section for section in sections if section),
            "</body></html>",
        ]
    )


def is_report(path: Path) -> bool:
    """Whether a file is a page that `page` made, which alone is replaced."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        beginning = file.read(1024)
    return beginning.startswith(b"<!doctype html>") and _MARK.encode() in beginning


def framed(text: str) -> str:
    """A page inside a notebook's cell, which nothing in it can leave."""
    return f'<iframe sandbox srcdoc="{html.escape(text)}" width="100%" height="600"></iframe>'


def shown(text: str) -> str:
    """Text that is shown as it is, whatever names it holds."""
    return html.escape(printable(text))


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """Titles and texts, those without a text left out, and what computed on this side."""
    rows = [*(pair for pair in facts if pair[1]), ("versions", versions())]
    body = "".join(f"<tr><td>{shown(name)}</td><td>{shown(text)}</td></tr>" for name, text in rows)
    return f'<table class="facts">{body}</table>'


def versions() -> str:
    """vitconvert's and those of the packages that it computes with."""
    names = [f"vitconvert {VERSION}"]
    for package in ("torch", "numpy"):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # a build of torch under another name
            continue
    return ", ".join(names)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, marked: str = "") -> str:
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


def layers_section(
    series: Sequence[Series], *, departing: str = "", cause: str = "", explained: str = EXPLAINED
) -> str:
    """A chart of the layers, and its numbers."""
    drawn = chart(series, title="Difference of each layer", departing=departing, cause=cause)
    names = list(dict.fromkeys(name for one in series for name in one.values))
    zero = all(value == 0 for one in series for value in one.values.values())
    said = " Every layer is equal to the last bit: all points lie on 0." if zero else ""
    rows = [(name, *(_number(one.values.get(name)) for one in series)) for name in names]
    numbers = table(["layer", *(one.name for one in series)], rows, marked=departing)
    return (
        f"<h2>Layers</h2><figure>{drawn}<figcaption>{explained}{said}</figcaption></figure>"
        f"<details><summary>The numbers</summary>{numbers}</details>"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value else "0"


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
            f"{c.tolerance:.0e}",
            f"{c.agreed} of {c.rows}",
            "yes" if c.bit_equal else "no",
        )
        for c in comparisons
    ]
    return "<h2>Outputs</h2>" + table([*(["output"] if named else []), *header], rows)


def _layers(
    layers: Sequence[LayerDifference],
    comparisons: Sequence[Comparison],
    divergence: Divergence | None,
) -> str:
    allowed: Mapping[str, float] = {c.dtype: c.tolerance for c in comparisons}
    series = [
        Series(
            name=dtype,
            values={d.layer: d.relative for d in layers if d.dtype == dtype},
            allowed=allowed.get(dtype),
        )
        for dtype in dict.fromkeys(d.dtype for d in layers)
    ]
    departing = divergence.layer if divergence else ""
    return layers_section(series, departing=departing, cause=divergence.cause if divergence else "")


def _patches(divergence: Divergence) -> str:
    """A picture of the tokens of the layer that departs, if it has any."""
    values, grid = divergence.positions, divergence.grid
    picture = heat_map(values, grid) if values and grid else ""
    if not picture or not grid:
        return ""
    where = f"{divergence.layer}, {divergence.images} images in {divergence.dtype}"
    worst = "; ".join(worst_tokens(values, grid))
    return (
        f"<h2>Where in the image</h2><figure>{picture}"
        f"<figcaption>Difference of each token of {shown(where)}, over the layer's largest "
        f"magnitude in the reference. Worst: {shown(worst)}.</figcaption></figure>"
    )
