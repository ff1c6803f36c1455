"""Pages about errors and tutorials: their commands run, and print what the page says."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.pages import ERRORS, NOTEBOOK, PAGES, RUN, filled, write_files, write_models, written
from vitconvert import errors

ROOT = PAGES.parents[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    torch.set_num_threads(1)
    write_files(folder)
    write_models(folder)
    return folder


def _numberless(text: str) -> str:
    """Text in which rounding, sizes of files and versions of packages do not count."""
    return re.sub(r"\d[\d.,]*(\+\w+)?(e-\d+)?", "0", text)


# Four trainings, in ten processes: a minute and a half.
LONG = [pytest.param(page, marks=pytest.mark.coverage) for page in RUN if page.stem == "fine-tune"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the programs that pages call
@pytest.mark.parametrize(
    "page",
    [*LONG, *(page for page in RUN if page.stem != "fine-tune"), NOTEBOOK],
    ids=lambda page: page.stem,
)
def test_what_a_page_types_prints_what_it_says(page, files, tmp_path, monkeypatch):
    if "g++" in written(page) and not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    monkeypatch.setenv("NO_COLOR", "1")
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    said = _numberless(written(page))
    assert _numberless(filled(page, tmp_path)) == said, "python -m tests.pages"


def test_every_word_has_a_page_that_shows_it_and_ends_in_what_works():
    raised = (one for one in vars(errors).values() if isinstance(one, type))
    words = {one.code for one in raised if issubclass(one, errors.VitConvertError)}
    pages = {page.stem: page for page in ERRORS}
    assert pages.keys() == words
    for word, page in pages.items():
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {word}: ")
        assert f"\nerror: {word}\n" in text
        assert re.search(r"\n```sh\n[^`]+\n```\n$", text)
        assert f"errors/{word}.md" in (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8")
