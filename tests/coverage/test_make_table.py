"""The README's table: a row for each family, and the worst of it."""

from tests.coverage.families import ARCHITECTURES, family_of, supported
from tests.coverage.make_table import BEGIN, END, README, read_measured, table


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


def test_the_readme_has_a_place_for_it():
    text = README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1 and text.index(BEGIN) < text.index(END)
