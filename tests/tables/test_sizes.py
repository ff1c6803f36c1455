"""Sizes of axes from the shapes of tensors."""

from hypothesis import given
from hypothesis import strategies as st

from vitconvert.tables.axes import Equation, parse_axes, solve


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
