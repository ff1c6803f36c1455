"""`vitconvert list`: ecosystems, the dialects of one, or all that has a name."""

from vitconvert.tables.architectures import architectures
from vitconvert.tables.dialects import builtin_tables


def test_without_a_pattern_it_is_a_screen_of_ecosystems(run):
    *lines, last = run("list").out.splitlines()
    every = sorted({table.ecosystem for table in builtin_tables().values()})
    assert [line.split()[0] for line in lines] == every
    assert max(map(len, lines)) < 100
    assert "big_vision   2 dialects: big_vision, big_vision_scan" in lines
    assert "vit          vitconvert" in lines
    assert "`vitconvert list LIBRARY`" in last


def test_an_ecosystem_lists_its_dialects_and_a_pattern_all_that_matches(run):
    lines = run("list", "timm").out.splitlines()
    assert {line.split()[1] for line in lines} == {"timm"} and len(lines) > 9
    named = sum(map(len, architectures().values()))
    every = run("list", "*").out.splitlines()
    assert len(every) == named + len(builtin_tables())
    assert run("list", "-q").out.splitlines() == [line.split()[0] for line in every]
    (one,) = run("list", "vit_tiny_patch16_224").out.splitlines()
    assert one.split() == ["vit_tiny_patch16_224", "architecture", "of", "timm"]


def test_a_name_that_nothing_has_is_an_error_with_the_nearest(run):
    for typed, meant in (
        ("dinov", "dinov3 or dinov2 or dino"),
        ("huggingface", "hf"),
        ("vit_tiny_ptch16_224", "vit_tiny_patch16_224"),
    ):
        code, out, err = run("list", typed)
        assert (code, out) == (2, "")
        assert f"hint: did you mean {meant}" in err
    code, _, err = run("list", "qqq*")
    assert code == 2 and "`vitconvert list` describes all of them" in err
