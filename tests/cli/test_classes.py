"""`--classes`: names with commas are quoted, and the option may be repeated."""

import click
import pytest

import vitconvert
from tests.conversion.conftest import timm_directory
from vitconvert.cli.convert import parse_classes

__all__ = ["timm_directory"]  # a fixture

SMALL = {"depth": 1, "img_size": 32}


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ((), None),
        (("3, 7,tabby",), ["3", "7", "tabby"]),
        (('3,"tench, Tinca tinca", 5',), ["3", "tench, Tinca tinca", "5"]),
        (("3", '"a, b"', "c d"), ["3", "a, b", "c d"]),
        (('"say ""ah"", please"',), ['say "ah", please']),
        (("",), [""]),
    ],
    ids=str,
)
def test_names(typed, names):
    assert parse_classes(typed) == names


def test_error_lines():
    with pytest.raises(click.BadParameter):
        parse_classes(("a\rb",))


def test_names_of_imagenet_are_kept(run, timm_directory, tmp_path):
    out = tmp_path / "out"
    classes = ("--classes", '"tench, Tinca tinca",7', "--classes", '"tabby, tabby cat"')
    code, _, err = run("timm", timm_directory(**SMALL), *classes, "-o", out, "--no-verify")
    assert code == 0, err
    checkpoint = vitconvert.load_checkpoint(out)
    assert checkpoint.labels[0] == "tench, Tinca tinca"
    assert checkpoint.labels[2] == "tabby, tabby cat"
    assert len(checkpoint.labels) == 3


def test_error_a_name_with_commas_that_is_not_quoted(run, timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    classes = ("--classes", "tench, Tinca tinca")
    code, _, err = run("timm", source, *classes, "-o", tmp_path / "out", "--no-verify")
    assert code == 2
    assert err.endswith(
        "  hint: the whole name is 'tench, Tinca tinca': --classes '\"tench, Tinca tinca\"', "
        "where the inner quotes keep commas.\n"
    )
