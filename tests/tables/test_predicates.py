"""Conditions on a model: what they mean, and what is wrong with them, under a caret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconvert.tables.expressions import ParseError
from vitconvert.tables.predicates import config_words, parse_conditional, parse_predicate

# Words whose values the tests choose, by their kind.
NUMBERS = ("depth", "num_heads", "norm_eps", "num_patches")
TRUTHS = ("class_token", "fc_norm", "even_heads")
TEXTS = ("pooling", "norm", "rope")
VALUES = st.fixed_dictionaries(
    {
        **dict.fromkeys(NUMBERS, st.integers(0, 4)),
        **dict.fromkeys(TRUTHS, st.booleans()),
        "pooling": st.sampled_from(("token", "avg", "map")),
        "norm": st.sampled_from(("layer", "rms")),
        "rope": st.sampled_from(("none", "mixed")),
    }
)


def numbers():
    value = st.sampled_from(NUMBERS) | st.integers(0, 4).map(str)
    return value | st.builds("{} * {}".format, value, value)


def comparisons():
    sign = st.sampled_from(("==", "!=", "<", "<=", ">", ">="))
    of_numbers = st.builds("{} {} {}".format, numbers(), sign, numbers())
    equal = st.sampled_from(("==", "!="))
    of_texts = st.builds("pooling {} '{}'".format, equal, st.sampled_from(("token", "avg", "map")))
    return of_numbers | of_texts | st.sampled_from((*NUMBERS, *TRUTHS, *TEXTS))


# Texts that Python reads alike.
CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or {}".format, inner, comparisons()),
        st.builds("not {} and {} or {}".format, *[comparisons()] * 3),
    ),
    max_leaves=6,
)


@given(CONDITIONS, VALUES)
def test_a_condition_means_what_it_means_in_python(text, values):
    predicate = parse_predicate(text, config_words())
    assert predicate.holds(values.get) == bool(eval(text, {}, values))
    assert set(predicate.words) <= set(values)


@given(CONDITIONS, comparisons(), VALUES)
def test_an_implication_fails_only_where_the_first_holds_and_the_second_does_not(a, b, values):
    said = parse_predicate(f"{a} implies {b}", config_words()).holds(values.get)
    first, second = (parse_predicate(one, config_words()).holds(values.get) for one in (a, b))
    assert said == (second or not first)


@given(comparisons())
def test_a_comparison_with_what_is_not_known_does_not_hold(text):
    predicate = parse_predicate(text, config_words())
    if predicate.words:
        assert not predicate.holds(lambda word: None)


def test_a_word_alone_has_its_value():
    values = {"norm": "rms"}
    assert parse_predicate("norm", config_words()).value(values.get) == "rms"
    assert parse_predicate("norm == 'rms'", config_words()).value(values.get) is True


def test_a_conditional_counts_always_or_if_or_unless():
    values = {"depth": 3, "num_heads": 4}
    said = {
        "pooling": True,
        "pooling if depth < num_heads": True,
        "pooling unless depth < num_heads": False,
        "pooling unless not depth": True,
    }
    for key, counts in said.items():
        conditional = parse_conditional(key, "avg")
        assert (conditional.name, conditional.value) == ("pooling", "avg")
        assert conditional.holds(values.get) == counts


@given(st.text(alphabet=" ab*()=!<>'1.e-", max_size=20) | CONDITIONS.map(lambda text: text[:-1]))
def test_any_text_parses_or_points_into_itself(text):
    try:
        parse_predicate(text, config_words())
    except ParseError as error:
        message, shown, caret = str(error).rsplit("\n", 2)
        assert message
        assert shown == f"    {text}"
        assert 4 <= caret.index("^") <= 4 + len(text)


MISTAKES = [
    ("", "ends too early", 0),
    ("fc_norm and", "ends too early", 11),
    ("(fc_norm", "ends too early", 8),
    ("fc_norm)", "')' does not belong here", 7),
    ("fc_norm class_token", "'class_token' does not belong here", 8),
    ("fc_norm implies a implies b", "'a' is not a field or property of ViTConfig", 16),
    ("depth == 3.x", "'3.x' is not a number", 9),
    ("depth = 3", "'=' does not belong here", 6),
    ("and fc_norm", "expected a word, a number or a 'text', found 'and'", 0),
    ("pooling == 'map", "expected a word, a number or a 'text', found \"'\"", 11),
    ("detph == 3", "'detph' is not a field or property of ViTConfig; did you mean 'depth'?", 0),
    ("depth * norm == 3", "'*' multiplies numbers, and this is a text", 8),
    ("fc_norm * depth == 3", "'*' multiplies numbers, and this is a truth value", 0),
    ("depth < pooling", "'<' orders numbers, and this is a text", 8),
    ("image_size > 3", "'>' orders numbers, and this is several numbers", 0),
    ("depth == 'three'", "a number is never equal to a text", 9),
    ("fc_norm == 1", "a truth value is never equal to a number", 11),
    (
        "pooling == 'mean'",
        "pooling is one of token, avg, avgmax, max, map, token_avg, prefix_avg, none",
        11,
    ),
    ("2 * depth", "expected a condition", 9),
    ("3", "expected a condition", 1),
    ("class_position_counts", "'class_position_counts' is not known before the whole", 0),
]


@pytest.mark.parametrize(("text", "message", "place"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_are_pointed_at(text, message, place):
    words = config_words() - {"class_position_counts"}
    with pytest.raises(ParseError) as error:
        parse_predicate(text, words)
    found, shown, caret = str(error.value).split("\n")
    assert found.startswith(message)
    assert (shown, caret.index("^") - 4) == (f"    {text}", place)
