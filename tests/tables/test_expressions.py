"""The right side of a row: what it means, and what is wrong with it, under a caret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconvert.tables.axes import parse_axes
from vitconvert.tables.expressions import (
    Alternative,
    ParseError,
    Part,
    Selection,
    Zeros,
    parse_expression,
)
from vitconvert.tables.templates import Index, parse_template

WORDS = {"attn": ("layer.{i}.attn",), "base": ("vit.", "")}


def part(key, axes=None, selection=None):
    return Part(parse_template(key, WORDS), parse_axes(axes) if axes else None, selection)


def alone(key, axes=None, selection=None):
    return Alternative((part(key, axes, selection),), joined=False)


def cat(*items):
    return Alternative(items, joined=True)


@pytest.mark.parametrize(
    ("text", "alternatives"),
    [
        ("{base}norm.weight", [alone("{base}norm.weight")]),
        ("embedding/kernel : y x (rgb width)", [alone("embedding/kernel", "y x (rgb width)")]),
        # A colon before a digit is part of a key.
        ("dense/kernel:0 : width hidden", [alone("dense/kernel:0", "width hidden")]),
        ("cat(q/bias:0, k/bias:0)", [cat(part("q/bias:0"), part("k/bias:0"))]),
        ("cls : 1 width", [alone("cls", "1 width")]),
        (
            "cat({attn}.q, zeros, {attn}.v : head dim)",
            [cat(part("{attn}.q"), Zeros(), part("{attn}.v", "head dim"))],
        ),
        (
            "in_proj[qkv=0] : (qkv head dim) width",
            [alone("in_proj", "(qkv head dim) width", Selection("qkv", 0))],
        ),
        (
            "scale[layer={2*i+1}] : layer width",
            [alone("scale", "layer width", Selection("layer", Index("i", 2, 1)))],
        ),
        (
            "tokens[prefix=1:] : prefix width",
            [alone("tokens", "prefix width", Selection("prefix", 1, rest=True))],
        ),
        (
            "new.{i} | old.{i} : 1 width|cat(a, b)",
            [alone("new.{i}"), alone("old.{i}", "1 width"), cat(part("a"), part("b"))],
        ),
        # Words of the language are keys where they cannot be words.
        ("cat : width", [alone("cat", "width")]),
        ("zeros", [alone("zeros")]),
    ],
)
def test_what_a_row_means(text, alternatives):
    found = parse_expression(text, WORDS)
    assert found == tuple(alternatives)
    for one in found:
        assert one.parts == tuple(item for item in one.items if isinstance(item, Part))
        assert (one.rest is not None) == ("1:]" in text)


@given(st.text(alphabet=" ab{}[]():,|=*+0i.", max_size=25))
def test_any_text_parses_or_points_into_itself(text):
    try:
        parse_expression(text, {})
    except ParseError as error:
        message, shown, caret = str(error).rsplit("\n", 2)
        assert message
        assert shown == f"    {text}"
        assert 4 <= caret.index("^") <= 4 + len(text)


MISTAKES = [
    ("", "ends too early", 0),
    ("cat(a, b", "ends too early", 8),
    ("cat(a b)", "expected ')', found 'b'", 6),
    ("cat(a, , b)", "expected a key, found ','", 7),
    ("a b", "'b' does not belong here", 2),
    ("a | ", "ends too early", 4),
    ("{attn}.q : width (head", "a '(' without its ')'", 11),
    ("x[qkv=0]", "a selection needs the axes of their tensor: key[axis=0] : axes", 8),
    ("x[kv=0] : qkv width", "the axes qkv width do not name 'kv'", 19),
    ("x[layer={block}] : layer width", "'{block}' is neither a number nor an index", 8),
    ("x[layer=-1] : layer width", "'-1' is neither a number nor an index", 8),
    ("x[layer 0] : layer width", "expected '=', found '0'", 8),
    ("a.{layr}.q", "{layr} is neither an index nor a word of this table (attn, base)", 0),
    ("a | opt/*", "'*' is for [ignore] only", 4),
]


@pytest.mark.parametrize(("text", "message", "place"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_are_pointed_at(text, message, place):
    with pytest.raises(ParseError) as error:
        parse_expression(text, WORDS)
    assert str(error.value) == f"{message}\n    {text}\n    {' ' * place}^"
