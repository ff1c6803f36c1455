"""Key templates: matching is the inverse of writing, and mistakes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconvert.tables.templates import (
    MOST_STEPS,
    Alternation,
    Blank,
    Index,
    Rest,
    parse_index,
    parse_template,
    skeleton_of,
)

# Letters that separate numbers, so that keys are unambiguous, and some that a regex would read.
letters = st.from_regex(r"[a-z./+$^|\\][a-z./+$^|\\_]{0,4}", fullmatch=True)


@st.composite
def templates(draw):
    """A template without {_}, its words, and values of its indices."""
    words, text = {}, ""
    for number in range(draw(st.integers(1, 4))):
        text += draw(letters)
        match draw(st.sampled_from(["index", "later", "word", "choice", "letters"])):
            case "index":
                scale, offset = draw(st.integers(1, 3)), draw(st.integers(0, 3))
                text += "{" + (f"{scale}*" if scale > 1 else "") + draw(st.sampled_from("isu"))
                text += (f"+{offset}" if offset else "") + "}"
            case "later":
                text += "{_" + draw(st.sampled_from("isu")) + "}"
            case "word":
                words[f"word{number}"] = (draw(letters) + "{i}",)
                text += f"{{word{number}}}"
            case "choice":
                words[f"word{number}"] = tuple(draw(st.lists(letters, min_size=2, max_size=3)))
                text += f"{{word{number}}}"
    template = parse_template(text + draw(letters), words)
    values = {name: draw(st.integers(0, 120)) for name in template.indices}
    return template, words, values


@given(templates())
def test_match_is_the_inverse_of_write(drawn):
    template, _, values = drawn
    assert template.match(template.write(values)) == values


@given(templates())
def test_what_prints_parses_back(drawn):
    template, words, _ = drawn
    assert parse_template(str(template), words) == template


@given(templates())
def test_the_skeletons_hold_that_of_every_spelled_key(drawn):
    template, _, values = drawn
    skeleton = skeleton_of(template.write(values))
    assert skeleton in template.skeletons


def test_an_index_may_count_from_one():
    template = parse_template("block{s+1}/unit{u+1}/gn{s+1}", {})
    assert template.write({"s": 0, "u": 9}) == "block1/unit10/gn1"
    assert template.match("block3/unit1/gn3") == {"s": 2, "u": 0}
    assert template.match("block3/unit1/gn2") is None
    assert template.match("block0/unit1/gn0") is None


def test_the_first_of_several_may_have_no_number():
    template = parse_template("enc/block{_i}/mlp{_i}/vars/0", {})
    assert [template.write({"i": i}) for i in (0, 1, 12)] == [
        "enc/block/mlp/vars/0",
        "enc/block_1/mlp_1/vars/0",
        "enc/block_12/mlp_12/vars/0",
    ]
    for i in (0, 1, 12):
        assert template.match(template.write({"i": i})) == {"i": i}
    for key in ("block_0/mlp_0", "block_01/mlp_01", "block/mlp_1", "block_2/mlp", "block_/mlp_"):
        assert template.match(f"enc/{key}/vars/0") is None


def test_the_first_of_several_may_have_no_number_where_blocks_have_two():
    even, odd = parse_template("dense{_2*i}/w", {}), parse_template("dense{_2*i+1}/w", {})
    assert [even.write({"i": i}) for i in range(3)] == ["dense/w", "dense_2/w", "dense_4/w"]
    assert [odd.write({"i": i}) for i in range(3)] == ["dense_1/w", "dense_3/w", "dense_5/w"]
    keys = ["dense/w", *(f"dense_{n}/w" for n in range(1, 6))]
    assert [even.match(key) and even.match(key)["i"] for key in keys] == [0, None, 1, None, 2, None]
    assert [odd.match(key) and odd.match(key)["i"] for key in keys] == [None, 0, None, 1, None, 2]
    assert even.match("dense_0/w") is odd.match("dense_0/w") is None


def test_an_index_may_count_in_steps():
    even, odd = parse_template("net.{2*i}.w", {}), parse_template("net.{2*i+1}.w", {})
    assert [even.match(f"net.{n}.w") for n in range(3)] == [{"i": 0}, None, {"i": 1}]
    assert [odd.match(f"net.{n}.w") for n in range(4)] == [None, {"i": 0}, None, {"i": 1}]
    assert odd.write({"i": 6}) == "net.13.w"


@pytest.mark.parametrize("number", ["01", "-1", "1.0", "", " 1", "1\n", "\u0661", "9" * 5000])
def test_only_plain_decimal_numbers_are_indices(number):
    assert parse_template("layers.{i}.w", {}).match(f"layers.{number}.w") is None


def test_no_file_makes_us_count_beyond_a_thousand():
    template = parse_template("layers.{i}", {})
    assert template.match(f"layers.{MOST_STEPS - 1}") == {"i": MOST_STEPS - 1}
    assert template.match(f"layers.{MOST_STEPS}") is None


def test_a_blank_number_carries_nothing():
    template = parse_template("blocks.{_}.{i}.w", {})
    assert template.match("blocks.3.11.w") == {"i": 11}
    assert template.write({"i": 11}) == "blocks.0.11.w"
    assert template.indices == ("i",)


def test_a_word_with_several_texts_matches_any_and_writes_the_first():
    template = parse_template("{base}norm", {"base": ("vit.", "deit.", "")})
    assert [template.match(f"{base}norm") for base in ("vit.", "deit.", "", "beit.")] == [
        *({}, {}, {}),
        None,
    ]
    assert template.write({}) == "vit.norm"


def test_words_hold_words():
    words = {"layer": ("{base}layer.{i}",), "base": ("a.", "b."), "attn": ("{layer}.attn",)}
    template = parse_template("{attn}.w", words)
    assert template.segments == (Alternation(("a.", "b.")), "layer.", Index("i"), ".attn.w")
    assert template.match("b.layer.12.attn.w") == {"i": 12}


def test_a_number_of_the_letters_is_no_index():
    template = parse_template("{fc}.{i}.w1", {"fc": ("fc1", "fc2", "mlp")})
    assert [template.match(f"fc{n}.7.w1") for n in range(4)] == [None, {"i": 7}, {"i": 7}, None]
    assert template.match("mlp.7.w1") == {"i": 7}
    assert template.match("fc1.7.w2") is None


def test_letters_are_no_regular_expression():
    template = parse_template("a.b", {})
    assert template.match("axb") is None
    assert template.match("a.b\n") is None


def test_a_star_matches_any_rest():
    template = parse_template("opt/{_}/*", {})
    assert template.segments == ("opt/", Blank(), "/", Rest())
    assert template.match("opt/0/mu/kernel") == {}
    assert template.match("opt/x/mu") is None


def test_an_index_is_parsed_by_itself():
    assert parse_index("2*i+1") == Index("i", 2, 1)
    assert [parse_index(text) for text in ("0*i", "ij", "i+", "1+i", "_", "i\n", "")] == [None] * 7


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("a.{layer}.w", {}, "{layer} is neither an index nor a word of this table (none)"),
        (
            "a.{layr}.w",
            {"layer": ("x",), "attn": ("y",)},
            "{layr} is neither an index nor a word of this table (attn, layer)",
        ),
        ("{0*i}", {}, "{0*i} is neither an index nor a word of this table (none)"),
        (
            "{aa}",
            {"aa": ("{bb}",), "bb": ("x.{cc}",), "cc": ("{aa}",)},
            "the words aa -> bb -> cc -> aa refer in a circle",
        ),
        (
            "{aa}.w",
            {"aa": ("x.{i}", "y.{i}")},
            "the word 'aa' has several texts, so none can hold braces",
        ),
        ("conv1{i}.w", {}, "two adjacent numbers cannot be separated"),
        ("{i}{_}", {}, "two adjacent numbers cannot be separated"),
        ("{i}{dot}{j}", {"dot": (".", "")}, "two adjacent numbers cannot be separated"),
        ("layers.{i.w", {}, "a '{' never closes"),
        ("layers.i}.w", {}, "a '}' never opens"),
        ("*.w", {}, "a '*' is not at the end"),
        ("{aa}.w", {"aa": ("x.*",)}, "a '*' is not at the end"),
        ("{aa}.w", {"aa": ("x.*", "y")}, "a '*' is not at the end"),
    ],
)
def test_mistakes_are_named(text, words, message):
    with pytest.raises(ValueError) as error:
        parse_template(text, words)
    assert str(error.value) == message
