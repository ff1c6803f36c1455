"""The watch of other packages' releases tells what a release changed, and says nothing else."""

import re

import numpy as np
import pytest

from benchmarks import goldens, upstream
from benchmarks.upstream import PACKAGES, PAGE, last_of

LOGITS, FEATURES = np.array([1, -2, 4], np.float32), np.array([[3, 5]], np.float32)
SAME = {"logits": LOGITS, "features": FEATURES}
BY_ONE_BIT = np.array([1, -2, np.nextafter(np.float32(4), np.float32(5))], np.float32)


@pytest.fixture
def main(monkeypatch):
    """The command, for a package of two releases that compute what is given."""

    def run(*releases):
        monkeypatch.setattr(upstream, "published", lambda _: ["1000.1", "1000.2"])
        monkeypatch.setattr(
            upstream, "computed", lambda _, names, __: iter(releases[-len(names) :])
        )
        monkeypatch.setattr("sys.argv", ["upstream", "timm"])
        upstream.main()

    return run


def test_a_change_that_the_page_has_not_ends_with_what_it_is(main, capsys):
    main({"ViT": SAME}, {"ViT": SAME, "DINOv4": SAME})
    whole = capsys.readouterr().out
    assert "## timm 1000.1 to 1000.2\n\nReleases: 1000.1, 1000.2.\n" in whole
    assert re.search(
        r"\| ViT \| features, logits \| `[0-9a-f]{8}` \| -?\d\.\d{5} \| bit-equal \|", whole
    )
    with pytest.raises(SystemExit, match=r"\ntimm 1000\.2, ViT: logits 1\.2e-07$"):
        main({"ViT": SAME}, {"ViT": SAME | {"logits": BY_ONE_BIT}})


@pytest.mark.coverage
def test_what_is_installed_computes_what_the_page_has():
    page = PAGE.read_text(encoding="utf-8")
    assert [upstream.others(package, page) for package in PACKAGES] == [[]] * 4


def test_the_page_has_every_package_and_a_workflow_asks_monthly():
    page = PAGE.read_text(encoding="utf-8")
    for package, families in goldens.GOLDENS.items():
        section = page.partition(f"## {package} ")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (.+?) \| .* \|$", section, re.M)[2:]
        assert rows == sorted(families) == list(upstream.recorded(package, page))
        assert last_of(package, page) in section.partition("Releases: ")[2]
    assert set(PACKAGES) == set(goldens.GOLDENS)
    flow = (PAGE.parents[2] / ".github" / "workflows" / "upstream.yml").read_text(encoding="utf-8")
    assert "python -m benchmarks.upstream" in flow
    assert re.search(r'cron: "\d+ \d+ 1 \* \*"', flow)
