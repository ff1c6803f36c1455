"""The page of a report as Chromium shows and prints it: nothing is lost, clipped or fetched."""

import json
import re
import shutil
import subprocess

import pytest

from tests.parity.test_report import DEPARTS, PAGES

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
@pytest.mark.parametrize("name", ["departs", "deep"])  # test_report.py looks at every chart
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
