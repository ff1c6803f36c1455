"""Sections that are parsed when they are asked for are what tomllib makes of the whole file."""

import tomllib

import pytest

from vitconvert.tables.architectures import architectures
from vitconvert.toml_files import LazyToml, parse_inline_table, tables_dir


def ordered(value):
    """Dictionaries as lists of pairs, since their order counts."""
    if not isinstance(value, dict):
        return value
    return [(name, ordered(inner)) for name, inner in value.items()]


def test_every_section_of_every_table():
    for file in sorted(tables_dir().rglob("*.toml")):
        text = file.read_text(encoding="utf-8")
        whole, lazy = tomllib.loads(text), LazyToml(text)
        assert list(lazy) == list(whole) and len(lazy) == len(whole), file
        for name, section in whole.items():
            assert ordered(lazy[name]) == ordered(section), file


def test_every_named_architecture():
    text = (tables_dir() / "architectures.toml").read_text(encoding="utf-8")
    for dialect, rows in tomllib.loads(text).items():
        texts = architectures()[dialect].texts
        assert {name: parse_inline_table(row) for name, row in texts.items()} == rows


def test_a_section_is_parsed_when_it_is_asked_for():
    lazy = LazyToml('# first\n[good]\na = "b"\n[bad]\na =\n[good.part]  # more\nc = 1\n')
    assert lazy["good"] == {"a": "b", "part": {"c": 1}}
    with pytest.raises(tomllib.TOMLDecodeError):
        lazy["bad"]
    with pytest.raises(KeyError):
        lazy["none"]
