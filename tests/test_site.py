"""The site is built of the repository, without a warning, without a network, and whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitconvert
from vitconvert.cli import VERBS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site needs '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml"]
    built = subprocess.run([*command, "-d", folder], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def _headings(page: Path) -> set[str]:
    return set(re.findall(r'<h2 id="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_site_is_whole(site):
    names = {name.rpartition(".")[2] for name in _headings(site / "reference/api/index.html")}
    assert names == set(vitconvert.__all__)
    assert _headings(site / "reference/command-line/index.html") == set(VERBS)
    api = (site / "reference/api/index.html").read_text(encoding="utf-8")
    assert "lora_scale" in api, "options of reading are listed"
    assert not list(site.rglob("*.md")), "every document is a page"


@pytest.mark.slow
def test_pages_ask_no_other_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|img|link|iframe)[^>]* (?:src|href)="?(?:https?:)?//', text)
        assert not asked, page
        assert "<!-- every" not in text, page
