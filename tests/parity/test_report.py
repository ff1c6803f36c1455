"""What a report says: in words, as JSON, as a page, as an error."""

import html
import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from vitconvert import __version__
from vitconvert.comparison import Comparison, Divergence, LayerDifference
from vitconvert.errors import ParityFailed
from vitconvert.parity.report import ParityReport


def comparison(**changes):
    values = {
        "images": "noise",
        "dtype": "float32",
        "absolute": 3e-7,
        "relative": 1e-7,
        "agreed": 2,
        "rows": 2,
        "bit_equal": False,
        "tolerance": 2e-5,
    }
    return Comparison(**(values | changes))


EQUAL = ParityReport(
    source="vit.npz",
    reference="timm 1.0.31 VisionTransformer",
    comparisons=(comparison(), comparison(dtype="float64", bit_equal=True, absolute=0, relative=0)),
    layers=(LayerDifference(layer="embedding", dtype="float64", relative=0.0),),
    notes=("a note",),
    tolerance=2e-5,
)
FAILED = ParityReport(
    source="<script>alert(1)</script>.npz",
    reference="timm 1.0.31 VisionTransformer",
    comparisons=(comparison(absolute=0.5, relative=0.25, agreed=1),),
    layers=(
        LayerDifference(layer="embedding", dtype="float64", relative=0.0),
        LayerDifference(layer="blocks.0.attn", dtype="float64", relative=math.inf),
    ),
    first_divergence=Divergence(
        layer="blocks.0.attn",
        dtype="float64",
        images="noise",
        relative=0.1,
        cause="norm_eps is 1e-06, not 1e-12",
    ),
    tolerance=2e-5,
)
SKIPPED = ParityReport(source="vit.bin", skipped="flax is not installed.", tolerance=2e-5)


def layer_names(depth):
    inside = [f"blocks.{i}.{part}" for i in range(depth) for part in ("attn", "mlp")]
    return ["patch_embed", "embedding", *inside, "norm", "features", "output"]


def report(depth, differences, **changes):
    """A report of two dtypes; `differences` of a layer's place give a difference in float64."""
    layers = [
        LayerDifference(
            layer=name, dtype=dtype, relative=value if dtype == "float64" else value / 2
        )
        for dtype in ("float32", "float64")
        for name, value in zip(layer_names(depth), map(differences, range(1000)), strict=False)
    ]
    comparisons = [
        comparison(dtype="float32", absolute=0.1, relative=0.1, agreed=1),
        comparison(dtype="float64", absolute=0.1, relative=0.1, agreed=1, tolerance=2e-12),
    ]
    values = {"source": "vit.npz", "reference": "timm 1.0.31 VisionTransformer"}
    values |= {"layers": tuple(layers), "comparisons": tuple(comparisons), "tolerance": 2e-5}
    return ParityReport(**(values | changes))


def departing(layer):
    return Divergence(
        layer=layer,
        dtype="float64",
        images="noise",
        relative=0.03,
        cause="the thirds of blocks.3.attn.qkv are k, q, v, not q, k, v " + 3 * "and more, ",
    )


DEPARTS = report(12, lambda i: 0.0 if i < 8 else 0.03, first_divergence=departing("blocks.3.attn"))
PAGES = {
    "departs": DEPARTS,
    "bit-equal": report(12, lambda _: 0.0),
    "small": report(11, lambda i: 1e-16 * (i + 1)),
    "deep": report(40, lambda i: 1e-7 if i > 64 else 0, first_divergence=departing("output")),
    "infinite": report(
        12, lambda i: math.inf if i > 1 else 1e-300, first_divergence=departing("blocks.0.attn")
    ),
}


def test_verdicts():
    assert [(r.verified, r.ok, r.verdict) for r in (EQUAL, FAILED, SKIPPED)] == [
        (True, True, "equal"),
        (True, False, "not equal"),
        (False, False, "not verified"),
    ]


def test_a_difference_that_is_no_number_is_not_ok():
    assert not comparison(relative=math.nan).ok
    assert not comparison(relative=math.inf).ok


def test_summaries():
    assert EQUAL.summary() == (
        "equal to timm 1.0.31 VisionTransformer\n"
        "  noise       float32  relative 1.0e-07  absolute 3.0e-07  argmax 2 of 2\n"
        "  noise       float64  bit-equal         absolute 0.0e+00  argmax 2 of 2\n"
        "  note: a note"
    )
    assert SKIPPED.summary() == "not verified: flax is not installed."


def test_only_numbers_that_disagree_raise():
    EQUAL.raise_if_failed()
    SKIPPED.raise_if_failed()
    with pytest.raises(ParityFailed) as error:
        FAILED.raise_if_failed()
    assert str(error.value) == (
        "error: parity-failed\n"
        "  The model does not compute what timm 1.0.31 VisionTransformer computes.\n"
        "  file           <script>alert(1)</script>.npz\n"
        "  first departs  blocks.0.attn, relative 1.0e-01 in float64\n"
        "  likely cause   norm_eps is 1e-06, not 1e-12\n"
        "  noise       float32  relative 2.5e-01  absolute 5.0e-01  argmax 1 of 2\n"
        "  hint: --set (in Python, overrides={...}) states what the file does not say."
    )


def test_json_has_the_verdict_and_no_infinity():
    values = json.loads(FAILED.to_json())
    assert values == FAILED.to_dict()
    assert (values["ok"], values["verified"], values["verdict"]) == (False, True, "not equal")
    assert values["layers"][1] == {"layer": "blocks.0.attn", "dtype": "float64", "relative": None}
    assert values["first_divergence"]["cause"] == "norm_eps is 1e-06, not 1e-12"


@pytest.mark.parametrize("name", PAGES)
def test_every_point_lies_in_the_chart_at_its_height(name):
    page = PAGES[name].to_html()
    plot = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    width, height = map(float, plot.get("viewBox").split()[2:])
    texts = {text.text: text for text in plot.findall("text")}
    places = {
        point.find("title").text: [*map(float, point.get("transform")[10:-1].split())]
        for point in plot.findall("path")
        if point.get("class") == "point"
    }
    assert len(places) == len(PAGES[name].layers)
    for layer in PAGES[name].layers:
        x, y = places[f"{layer.layer}, {layer.dtype}: {layer.relative:.1e}"]
        assert 62 < x < width - 24 + 1 and 24 < y < height - 92 + 1
        if layer.relative in (0, math.inf):
            row = texts["infinite" if layer.relative else "0"]
            assert y == float(row.get("y")) - 4
    equal = all(layer.relative == 0 for layer in PAGES[name].layers)
    assert ("all points are at 0" in page) == equal
    departing = PAGES[name].first_divergence
    bold = [text.text for text in plot.findall("text") if text.get("font-weight") == "700"]
    outside = [departing.layer] if departing and "." not in departing.layer else []
    assert bold == ([f"departs first: {departing.layer}", *outside] if departing else [])


def test_both_checkpoints_are_named():
    report = replace(EQUAL, source="mine.pth", against="<theirs>.npz")
    assert report.summary().startswith("equal to timm 1.0.31 VisionTransformer of <theirs>.npz\n")
    answer = json.loads(report.to_json())
    assert (answer["source"], answer["against"]) == ("mine.pth", "<theirs>.npz")
    assert {"<td>mine.pth</td>", "<td>&lt;theirs&gt;.npz</td>"} <= cells(report)


def cells(report):
    return set(re.findall("<td>.*?</td>", report.to_html()))


@pytest.mark.parametrize("report", [EQUAL, FAILED, SKIPPED, *PAGES.values()])
def test_page_stands_alone_also_in_a_notebook(report):
    page = report.to_html()
    assert report.verdict in page
    for word in ("<script", "http:", "https:", "src=", "href=", "@import", "url("):
        assert word not in page
    [inside] = re.findall(r'<iframe sandbox srcdoc="([^"]*)"', report._repr_html_())
    assert html.unescape(inside) == page


PUBLISHED = torch.__version__.partition("+")[0]


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        (FAILED, "&lt;script&gt;alert(1)&lt;/script&gt;.npz"),
        (PAGES["bit-equal"], "Every layer is bit-identical: all points are at 0."),
        (DEPARTS, "<title>blocks.3.attn, float64: 3.0e-02</title>"),
        (DEPARTS, "<td>blocks.3.attn</td><td>1.5e-02</td><td>3.0e-02</td>"),
        (DEPARTS, "<td>blocks.2.mlp</td><td>0</td><td>0</td>"),
        (DEPARTS, ">departs first: blocks.3.attn</text>"),
        (DEPARTS, ">cause: the thirds of blocks.3.attn.qkv"),
        (DEPARTS, '<tr class="marked"><td>blocks.3.attn</td>'),
        (DEPARTS, "<td>compared with</td><td>timm 1.0.31 VisionTransformer</td>"),
        (
            DEPARTS,
            f"<td>versions</td><td>vitconvert {__version__}, torch {PUBLISHED}, "
            f"numpy {np.__version__}</td>",
        ),
    ],
)
def test_a_page_shows(report, shown):
    assert shown in report.to_html()
