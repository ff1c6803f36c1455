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


def test_a_key_alone():
    assert parse_expression("{base}norm.weight", WORDS) == (
        Alternative((part("{base}norm.weight"),), joined=False),
    )


def test_a_key_with_axes():
    (found,) = parse_expression("embedding/kernel : y x (rgb width)", WORDS)
    assert found.items == (part("embedding/kernel", "y x (rgb width)"),)


def test_a_colon_before_a_digit_is_part_of_a_key():
    (found,) = parse_expression("dense/kernel:0 : width hidden", WORDS)
    assert found.items == (part("dense/kernel:0", "width hidden"),)
    (found,) = parse_expression("cat(q/bias:0, k/bias:0)", WORDS)
    assert found.items == (part("q/bias:0"), part("k/bias:0"))
    (found,) = parse_expression("cls : 1 width", WORDS)
    assert found.items == (part("cls", "1 width"),)


def test_a_join_with_zeros():
    (found,) = parse_expression("cat({attn}.q, zeros, {attn}.v : head dim)", WORDS)
    assert found.joined
    assert found.items == (part("{attn}.q"), Zeros(), part("{attn}.v", "head dim"))
    assert found.parts == (found.items[0], found.items[2])


def test_selections_by_number_and_by_index():
    (one,) = parse_expression("in_proj[qkv=0] : (qkv head dim) width", WORDS)
    assert one.items == (part("in_proj", "(qkv head dim) width", Selection("qkv", 0)),)
    (other,) = parse_expression("scale[layer={2*i+1}] : layer width", WORDS)
    assert other.items == (part("scale", "layer width", Selection("layer", Index("i", 2, 1))),)


def test_the_rest_of_an_axis():
    (found,) = parse_expression("tokens[prefix=1:] : prefix width", WORDS)
    assert found.items == (part("tokens", "prefix width", Selection("prefix", 1, rest=True)),)
    assert found.rest == found.items[0].selection
    assert parse_expression("tokens[prefix=1] : prefix width", WORDS)[0].rest is None


def test_alternatives_in_order():
    found = parse_expression("new.{i} | old.{i} : 1 width|cat(a, b)", WORDS)
    assert found == (
        Alternative((part("new.{i}"),), joined=False),
        Alternative((part("old.{i}", "1 width"),), joined=False),
        Alternative((part("a"), part("b")), joined=True),
    )


def test_cat_and_zeros_are_keys_where_they_cannot_be_words():
    (found,) = parse_expression("cat : width", WORDS)
    assert found == Alternative((part("cat", "width"),), joined=False)
    (found,) = parse_expression("zeros", WORDS)
    assert found.items == (part("zeros"),)


@given(st.text(alphabet=" ab{}[]():,|=*+0i.", max_size=25))
def test_any_text_parses_or_points_into_itself(text):
    try:
        parse_expression(text, {})
    except ParseError as error:
        message, shown, caret = str(error).rsplit("\n", 2)
        assert message
        assert shown == f"    {text}"
        assert 4 <= caret.index("^") <= 4 + len(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            """\
ends too early
    \n    ^""",
        ),
        (
            "cat(a, b",
            """\
ends too early
    cat(a, b
            ^""",
        ),
        (
            "cat(a b)",
            """\
expected ')', found 'b'
    cat(a b)
          ^""",
        ),
        (
            "cat(a, , b)",
            """\
expected a key, found ','
    cat(a, , b)
           ^""",
        ),
        (
            "a b",
            """\
'b' does not belong here
    a b
      ^""",
        ),
        (
            "a | ",
            """\
ends too early
    a | 
        ^""",
        ),
        (
            "{attn}.q : width (head",
            """\
a '(' without its ')'
    {attn}.q : width (head
               ^""",
        ),
        (
            "x[qkv=0]",
            """\
a selection needs the axes of their tensor: key[axis=0] : axes
    x[qkv=0]
            ^""",
        ),
        (
            "x[kv=0] : qkv width",
            """\
the axes qkv width do not name 'kv'
    x[kv=0] : qkv width
                       ^""",
        ),
        (
            "x[layer={block}] : layer width",
            """\
'{block}' is neither a number nor an index
    x[layer={block}] : layer width
            ^""",
        ),
        (
            "x[layer=-1] : layer width",
            """\
'-1' is neither a number nor an index
    x[layer=-1] : layer width
            ^""",
        ),
        (
            "x[layer 0] : layer width",
            """\
expected '=', found '0'
    x[layer 0] : layer width
            ^""",
        ),
        (
            "a.{layr}.q",
            """\
{layr} is neither an index nor a word of this table (attn, base)
    a.{layr}.q
    ^""",
        ),
        (
            "a | opt/*",
            """\
'*' is for [ignore] only
    a | opt/*
        ^""",
        ),
    ],
)
def test_mistakes_are_pointed_at(text, message):
    with pytest.raises(ParseError) as error:
        parse_expression(text, WORDS)
    assert str(error.value) == message
