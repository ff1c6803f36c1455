"""What a report says: in words, as JSON, as a page, as an error."""

import html
import json
import math
from xml.etree import ElementTree

import pytest

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
        "  hint: --set (in Python, overrides={...}) states what the file cannot tell."
    )


def test_json_has_the_verdict_and_no_infinity():
    values = json.loads(FAILED.to_json())
    assert values == FAILED.to_dict()
    assert (values["ok"], values["verified"], values["verdict"]) == (False, True, "not equal")
    assert values["layers"][1] == {"layer": "blocks.0.attn", "dtype": "float64", "relative": None}
    assert values["first_divergence"]["cause"] == "norm_eps is 1e-06, not 1e-12"


@pytest.mark.parametrize("report", [EQUAL, FAILED, SKIPPED])
def test_page_stands_alone(report):
    page = report.to_html()
    assert report.verdict in page
    for word in ("<script", "http:", "https:", "src=", "href=", "@import", "url("):
        assert word not in page


def test_page_escapes_names_and_marks_the_departing_layer():
    page = FAILED.to_html()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.npz" in page
    plot = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    names = {text.text: text.get("font-weight") for text in plot.findall("text")}
    assert names["departs first: blocks.0.attn"] == "700"
    assert names["embedding"] is None
    height = {text.text: float(text.get("y")) - 4 for text in plot.findall("text")}
    points = [path for path in plot.findall("path") if path.get("class") == "point"]
    places = [float(path.get("transform").rstrip(")").split()[-1]) for path in points]
    assert places == [height["0"], height["infinite"]]


def test_both_checkpoints_are_named():
    report = ParityReport(
        source="mine.pth",
        against="<theirs>.npz",
        reference="timm 1.0.31 VisionTransformer",
        comparisons=(comparison(),),
        tolerance=2e-5,
    )
    assert report.summary().startswith("equal to timm 1.0.31 VisionTransformer of <theirs>.npz\n")
    answer = json.loads(report.to_json())
    assert (answer["source"], answer["against"]) == ("mine.pth", "<theirs>.npz")
    page = report.to_html()
    assert "mine.pth" in page
    assert "&lt;theirs&gt;.npz" in page


def test_a_notebook_shows_the_page():
    cell = FAILED._repr_html_()
    begin, end = '<iframe sandbox srcdoc="', '" width="100%" height="600"></iframe>'
    assert cell.startswith(begin)
    assert cell.endswith(end)
    assert html.unescape(cell[len(begin) : -len(end)]) == FAILED.to_html()
    assert "<script>" not in cell
