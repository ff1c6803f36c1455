"""Layouts: what they parse to, how they print and what is no layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconvert.tables.axes import Axes, Dim, Equation, parse_axes, solve

names = st.from_regex(r"[a-z][a-z_]{0,5}[0-9]?", fullmatch=True)


@st.composite
def layouts(draw):
    pool = draw(st.lists(names, unique=True, max_size=7))
    dims = [Dim(number=number) for number in draw(st.lists(st.integers(0, 9), max_size=2))]
    while pool:
        size = draw(st.integers(1, min(3, len(pool))))
        dims.append(Dim(tuple(pool[:size])))
        pool = pool[size:]
    return Axes(tuple(draw(st.permutations(dims))))


@given(layouts())
def test_what_prints_parses_back(layout):
    assert parse_axes(str(layout)) == layout


@given(layouts(), st.data())
def test_the_shape_is_the_product_of_each_dimension(layout, data):
    sizes = {name: data.draw(st.integers(1, 5)) for name in layout.names}
    expected = []
    for dim in layout.dims:
        size = dim.number
        for axis in dim.axes:
            size *= sizes[axis]
        expected.append(size)
    assert layout.shape(sizes) == tuple(expected)


def test_groups_numbers_and_names():
    layout = parse_axes(" 1 (qkv  head dim)width ")
    assert layout.dims == (Dim(), Dim(("qkv", "head", "dim")), Dim(("width",)))
    assert layout.names == ("qkv", "head", "dim", "width")
    assert layout.shape({"qkv": 3, "head": 2, "dim": 5, "width": 7}) == (1, 30, 7)


def test_the_first_row_may_be_the_last():
    layout = parse_axes("1 ~position width")
    assert str(layout) == "1 ~position width" and layout.names == ("position", "width")
    assert layout.shape({"position": 5, "width": 7}) == (1, 5, 7)
    assert (layout.turned, str(layout.upright)) == ((1,), "1 position width")
    with pytest.raises(ValueError, match="inside parentheses: only names"):
        parse_axes("(~position width)")


@pytest.mark.parametrize("front", ["2", "shared"])
def test_rows_in_front_of_an_axis(front):
    layout = parse_axes(f"1 {front}+position width")
    assert str(layout) == f"1 {front}+position width" and layout.names == ("position", "width")
    count = 2 if front == "2" else 1
    assert layout.shape({"position": 5, "width": 7}) == (1, 5 + count, 7)
    assert layout.origins == (("position", count),) and layout.summed == (front == "shared")


def test_one_step_along_an_axis_leaves_the_rest():
    assert str(parse_axes("(qkv head dim) width").without("qkv")) == "(head dim) width"
    assert str(parse_axes("layer 1 width").without("layer")) == "1 width"
    assert str(parse_axes("width rgb").without("absent")) == "width rgb"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width (head dim", "a '(' without its ')'"),
        ("width head) dim", "a ')' without its '('"),
        ("(head (dim))", "'(' inside parentheses: only names can be there"),
        ("(head 1)", "'1' inside parentheses: only names can be there"),
        ("width head width", "axis 'width' appears twice in 'width head width'"),
        ("width -> head", "'-> head' is not an axis"),
        ("width 3rows", "'3rows' is not an axis"),
        ("width*2", "'*2' is not an axis"),
    ],
)
def test_what_is_no_layout_is_named(text, message):
    with pytest.raises(ValueError) as error:
        parse_axes(text)
    assert str(error.value) == message


def solved(*pairs, **given_sizes):
    return solve([Equation(parse_axes(axes), shape) for axes, shape in pairs], given_sizes)


def test_axes_of_their_own_are_read_off():
    sizes = solved(("width rgb y x", (30, 4, 5, 6)), ("1 position width", (1, 13, 30)))
    assert sizes.known == {"width": 30, "rgb": 4, "y": 5, "x": 6, "position": 13}
    assert sizes.products == {}


def test_a_product_is_divided_by_what_is_known():
    sizes = solved(("(qkv head dim) width", (90, 7)), ("dim", (10,)), qkv=3)
    assert sizes.known == {"qkv": 3, "width": 7, "dim": 10, "head": 3}


def test_what_only_a_product_shows_stays_a_product():
    sizes = solved(("(qkv head dim) width", (90, 7)), qkv=3)
    assert sizes.products == {frozenset({"head", "dim"}): 30}
    assert "head" not in sizes.known


def test_the_order_of_axes_in_a_product_does_not_matter():
    sizes = solved(("(y x channel)", (48,)), ("width (channel y x)", (7, 48)))
    assert sizes.products == {frozenset({"y", "x", "channel"}): 48}


def test_one_misshapen_tensor_is_outvoted_wherever_it_stands():
    rows = [("width hidden", (7, 50)), ("hidden", (50,)), ("hidden", (49,))]
    for turn in range(3):
        assert solved(*rows[turn:], *rows[:turn]).known["hidden"] == 50
    rows = [("(head dim)", (30,)), ("(head dim)", (30,)), ("(head dim)", (33,))]
    for turn in range(3):
        assert solved(*rows[turn:], *rows[:turn]).products == {frozenset({"head", "dim"}): 30}


def test_what_does_not_divide_has_no_vote():
    sizes = solved(("(qkv head)", (91,)), ("(qkv head)", (90,)), qkv=3)
    assert sizes.known["head"] == 30


def test_a_given_size_is_not_up_for_vote():
    assert solved(("qkv width", (5, 7)), qkv=3).known == {"qkv": 3, "width": 7}


def test_an_empty_dimension_divides_nothing():
    sizes = solved(("layer width", (0, 7)), ("(layer dim)", (0,)))
    assert sizes.known == {"layer": 0, "width": 7}


@given(st.data())
def test_any_true_shapes_are_solved(data):
    sizes = {name: data.draw(st.integers(1, 6)) for name in ("a", "b", "c", "d")}
    texts = data.draw(st.permutations(["a b", "(a c)", "(b c d)", "1 (d a)"]))
    pairs = [(text, parse_axes(text).shape(sizes)) for text in texts]
    assert solved(*pairs).known == sizes
