"""Sections that are parsed when they are asked for are what tomllib makes of the whole file."""

import tomllib

import pytest

from vitconvert.tables.architectures import architectures
from vitconvert.toml_files import LazyToml, parse_inline_table, tables_dir

FILES = sorted(tables_dir().glob("*.toml"))


def ordered(value):
    """Dictionaries as lists of pairs, since their order counts."""
    if not isinstance(value, dict):
        return value
    return [(name, ordered(inner)) for name, inner in value.items()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_section_of_every_table(file):
    text = file.read_text(encoding="utf-8")
    whole, lazy = tomllib.loads(text), LazyToml(text)
    assert list(lazy) == list(whole) and len(lazy) == len(whole)
    for name, section in whole.items():
        assert ordered(lazy[name]) == ordered(section)


def test_every_named_architecture():
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    for dialect, rows in tomllib.loads(text).items():
        texts = architectures()[dialect].texts
        assert {name: parse_inline_table(row) for name, row in texts.items()} == rows


LINES = [
    'a = "b"  # c',
    '"a.{i} = b" = "c # d"',
    "a = 'literal'",
    r'a = "with \" quote"',
    'a = """',
    "a = -1.5e-3",
    "a = 1_000",
    "a = [1, 2.5]",
    'a = [\n    "b",   # c\n    "d",\n]',
    'a = [\n    "b",\n    "d",\n]',
    "a = []",
    'a = { b = "c", d = 2 }',
    'a = { b = "c = d" }',
    'a.b = "c"',
    'a = "b"\na = "c"',
    "a",
]


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("header", ["[one]", "[one.two]  # three"])
def test_any_line_is_read_as_tomllib_reads_it(lines, header):
    text = f"# first\n{header}\n{lines}\n"
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            LazyToml(text)["one"]
    else:
        assert dict(LazyToml(text)) == whole


def test_a_section_is_parsed_when_it_is_asked_for():
    lazy = LazyToml('[good]\na = "b"\n[bad]\na =\n')
    assert lazy["good"] == {"a": "b"}
    with pytest.raises(tomllib.TOMLDecodeError):
        lazy["bad"]
    with pytest.raises(KeyError):
        lazy["none"]
