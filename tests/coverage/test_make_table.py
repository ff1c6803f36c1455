"""The table of tests/coverage/README.md: which ViTs are computed."""

import re
from importlib.metadata import version

import pytest

from tests.coverage.families import ARCHITECTURES, supported
from tests.coverage.make_table import (
    DOCUMENT,
    table,
)

ROOT = DOCUMENT.parents[2]
TEXT = DOCUMENT.read_text(encoding="utf-8")
# The documents name this release; another may have other models.
of_this_timm = pytest.mark.skipif(version("timm") != "1.0.31", reason="of timm 1.0.31")


@of_this_timm
def test_the_committed_tables_are_of_these_architectures():
    measured = re.compile(r"\d\.\de[-+]\d\d")  # An hour's work, so not done again here.
    computed = table(dict.fromkeys(ARCHITECTURES, 0.0))
    assert _marked("coverage", measured.sub("?", computed)) in measured.sub("?", TEXT)


def _marked(title: str, made: str) -> str:
    made = f"\n{made}\n"
    return f"<!-- {title}: written by tests/coverage/make_table.py -->{made}<!-- end of {title} -->"


@of_this_timm
def test_the_documents_count_what_is_computed():
    computed = sum(map(supported, ARCHITECTURES))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"timm, all {computed} ViTs" in readme
    assert f"vitconvert computes all {computed} plain Vision Transformers of timm 1.0.31." in TEXT
