"""The table of tests/coverage/README.md: which ViTs are computed."""

import re
from importlib.metadata import version

import pytest

from tests.coverage.families import ARCHITECTURES, family_of, supported
from tests.coverage.make_table import (
    DOCUMENT,
    filled,
    read_measured,
    table,
)

ROOT = DOCUMENT.parents[2]
TEXT = DOCUMENT.read_text(encoding="utf-8")
# The documents name this release; another may have other models.
of_this_timm = pytest.mark.skipif(version("timm") != "1.0.31", reason="of timm 1.0.31")


def test_the_table_adds_up():
    measured = {name: 1e-9 for name in ARCHITECTURES if supported(name)}
    text = table(measured | {"vit_tiny_patch16_224": 3e-7})
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    by_family = {family: numbers for family, *numbers in rows[1:]}
    assert by_family.keys() == {*map(family_of, ARCHITECTURES), "all"}
    total = by_family.pop("all")
    assert total == [str(len(ARCHITECTURES)), str(len(measured)), "3.0e-07"]
    assert [sum(int(row[n]) for row in by_family.values()) for n in (0, 1)] == [
        int(number) for number in total[:2]
    ]
    assert by_family["vit"][2] == "3.0e-07" and by_family["mci"] == ["1", "1", "1.0e-09"]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    file = tmp_path / "measured.jsonl"
    assert read_measured(file) == {}
    file.write_text('{"name": "a", "difference": 1e-7}\n{"name": "b", "difference": 0.0}\n')
    assert read_measured(file) == {"a": 1e-7, "b": 0.0}


@of_this_timm
def test_the_committed_tables_are_of_these_architectures():
    measured = re.compile(r"\d\.\de[-+]\d\d")  # An hour's work, so not done again here.
    computed = table(dict.fromkeys(ARCHITECTURES, 0.0))
    assert _marked("coverage", measured.sub("?", computed)) in measured.sub("?", TEXT)


def _marked(title: str, made: str) -> str:
    made = f"\n{made}\n"
    return f"<!-- {title}: written by tests/coverage/make_table.py -->{made}<!-- end of {title} -->"


def test_a_new_table_takes_the_place_of_the_old():
    text = f"before\n{_marked('coverage', 'old')}\nafter\n"
    assert filled(text, "coverage", "new") == f"before\n{_marked('coverage', 'new')}\nafter\n"


@of_this_timm
def test_the_documents_count_what_is_computed():
    computed = sum(map(supported, ARCHITECTURES))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"All {computed} ViTs of timm 1.0.31" in readme
    assert f"vitconvert computes all {computed} plain Vision Transformers of timm 1.0.31." in TEXT
