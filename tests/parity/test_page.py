"""The page of a report as Chromium shows and prints it: nothing is lost, clipped or fetched."""

import json
import math
import re
import shutil
import subprocess

import pytest

from vitconvert.comparison import Comparison, Divergence, LayerDifference
from vitconvert.parity.report import ParityReport

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PAPER = 680  # pixels between the margins of A4

# Whatever the page would fetch is refused and counted.
REFUSE = """<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<script>
let refused = 0
addEventListener("securitypolicyviolation", () => { refused += 1 })
</script><title>"""

# What only a layout engine knows, written where the dumped page shows it.
MEASURE = """<script>
const box = (element) => {
  const place = element.getBoundingClientRect()
  return [place.left, place.top, place.right, place.bottom]
}
const boxes = (selector) => [...document.querySelectorAll(selector)].map(box)
addEventListener("load", () => setTimeout(() => { document.body.dataset.measured = JSON.stringify({
  requests: refused,
  width: document.documentElement.scrollWidth,
  charts: boxes("svg.chart"),
  inside: boxes("svg.chart :is(.point, text, line, .departs)"),
  points: boxes("svg.chart .point"),
  departs: boxes("svg.chart .departs"),
  allowed: boxes("svg.chart line.allowed"),
  tables: boxes("table"),
}) }, 50))
</script></body>"""


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
        Comparison(
            images="noise",
            dtype=dtype,
            absolute=0.1,
            relative=0.1,
            agreed=1,
            rows=2,
            bit_equal=False,
            tolerance=tolerance,
        )
        for dtype, tolerance in (("float32", 2e-5), ("float64", 2e-12))
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


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("chromium")

    def run(page, *arguments):
        file = folder / "page.html"
        file.write_text(page, encoding="utf-8")
        safe = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        alone = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"]
        command = [CHROMIUM, "--hide-scrollbars", *safe, *alone, *arguments, file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def measured(chromium):
    def measure(page, width=1000):
        page = page.replace("<title>", REFUSE, 1).replace("</body>", MEASURE)
        dom = chromium(
            page, "--dump-dom", "--virtual-time-budget=1000", f"--window-size={width},900"
        )
        found = re.search(r'data-measured="(.*?)"', dom)
        return json.loads(found.group(1).replace("&quot;", '"'))

    return measure


def lies_in(inner, outer):
    left, top, right, bottom = outer
    return left <= inner[0] and top <= inner[1] and inner[2] <= right and inner[3] <= bottom


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_clipped_and_nothing_is_fetched(name, measured):
    page = PAGES[name]
    layout = measured(page.to_html())
    assert layout["requests"] == 0
    assert layout["width"] <= 1000
    [chart] = layout["charts"]
    assert len(layout["points"]) == len(page.layers)
    assert [box for box in layout["inside"] if not lies_in(box, chart)] == []
    assert len(layout["departs"]) == (page.first_divergence is not None)
    assert len(layout["allowed"]) == 2
    assert all(right - left > 600 for left, _, right, _ in layout["allowed"])


@pytest.mark.slow
def test_a_request_would_be_seen(measured):
    page = PAGES["small"].to_html()
    for wanted in ('<img src="x.png">', '<p style="background: url(http://example.org/x)">x</p>'):
        assert measured(page.replace("</body>", f"{wanted}</body>"))["requests"] == 1


@pytest.mark.slow
def test_the_layer_that_departs_is_seen(chromium, measured, tmp_path):
    from PIL import Image

    page = DEPARTS.to_html()
    [left, top, right, _] = measured(page)["departs"][0]
    file = tmp_path / "shot.png"
    chromium(page, f"--screenshot={file}", "--window-size=1000,1400")
    with Image.open(file) as shot:
        pixels = shot.convert("RGB")
    assert pixels.size == (1000, 1400)
    column = round(left) + 2  # beside the line in its middle
    assert right - left >= 6
    shade = [255 + (part - 255) * 0.18 for part in (0xB4, 0x23, 0x18)]
    found = pixels.getpixel((column, round(top) + 4))
    assert all(abs(a - b) < 3 for a, b in zip(found, shade, strict=True)), found
    assert pixels.getpixel((round(left) - 10, round(top) + 4)) == (255, 255, 255)
    assert pixels.getpixel((2, 2)) == (255, 255, 255)


@pytest.mark.slow
def test_it_prints_with_its_numbers_and_fits_the_paper(chromium, measured, tmp_path):
    page = PAGES["deep"].to_html()

    def pages(text):
        file = tmp_path / "print.pdf"
        chromium(text, f"--print-to-pdf={file}", "--no-pdf-header-footer")
        return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))

    without = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert pages(without) == 1
    assert pages(page) in (3, 4)  # 85 rows of numbers, though they are folded on the screen
    as_printed = measured(page.replace("@media print", "@media all"), width=PAPER)
    assert as_printed["width"] <= PAPER
    assert all(right <= PAPER for _, _, right, _ in as_printed["tables"])


def test_equal_layers_are_said_in_words_and_drawn():
    page = PAGES["bit-equal"].to_html()
    assert "Every layer is equal to the last bit: all points lie on 0." in page
    assert page.count('class="point"') == 2 * len(layer_names(12))
    assert "all points lie" not in PAGES["small"].to_html()


def test_numbers_are_behind_the_points():
    page = DEPARTS.to_html()
    assert "<title>blocks.3.attn, float64: 3.0e-02</title>" in page
    assert "<td>blocks.3.attn</td><td>1.5e-02</td><td>3.0e-02</td>" in page
    assert "<td>blocks.2.mlp</td><td>0</td><td>0</td>" in page


def test_the_marker_names_layer_and_cause():
    page = DEPARTS.to_html()
    [chart] = re.findall(r'<svg class="chart".*?</svg>', page)
    assert ">departs first: blocks.3.attn<" in chart
    assert ">cause: the thirds of blocks.3.attn.qkv" in chart
    assert '<tr class="marked"><td>blocks.3.attn</td>' in page


def test_both_sides_have_versions():
    import numpy as np
    import torch

    from vitconvert import __version__

    page = DEPARTS.to_html()
    assert "<td>compared with</td><td>timm 1.0.31 VisionTransformer</td>" in page
    published = torch.__version__.partition("+")[0]
    ours = f"vitconvert {__version__}, torch {published}, numpy {np.__version__}"
    assert f"<td>versions</td><td>{ours}</td>" in page
