"""Regular expressions of somebody else's adapter and templates of somebody else's table."""

import itertools
import time

import pytest

from vitconvert.checkpoint.adapters.config import AdapterConfig
from vitconvert.errors import ConflictingFact
from vitconvert.tables.expressions import ParseError, parse_expression
from vitconvert.tables.templates import parse_template

LONG = "a." * 3000 + "a"
HONEST = [f"encoder.layer.{i}.attention.{part}" for i in range(100) for part in ("query", "value")]


def test_error_patterns_that_would_never_end():
    begun = time.process_time()
    for pattern in (".*.*.*x", r"[\w.]*[\w.]*x", "a*.*a+b"):
        with pytest.raises(ConflictingFact, match="repeat too much"):
            AdapterConfig(rank=4, alpha=8, rank_pattern={pattern: 4}).scale_of(LONG, 4)
    many = AdapterConfig(rank=4, alpha=8, rank_pattern={f"x{i}.*y.*z": 4 for i in range(1000)})
    with pytest.raises(ConflictingFact, match="repeat too much"):
        for i in range(10_000):
            many.scale_of(f"{'b.' * 40}{i}", 4)
    assert time.process_time() - begun < 5


def test_patterns_of_honest_adapters_are_obeyed():
    each = AdapterConfig(rank=4, alpha=8, rank_pattern=dict.fromkeys(HONEST, 2))
    assert {each.scale_of(name, 2) for name in HONEST} == {4}
    some = AdapterConfig(rank=4, alpha=8, rank_pattern={r"layer\..*\.query": 2})
    assert [some.scale_of(name, 2 + 2 * ("value" in name)) for name in HONEST] == [4, 2] * 100


WORDS = ["start", *(f"word_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
DEEP = [f"w{'x' * i}" for i in range(1, 5000)]


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        *(("{word_i}", {a: (n * f"{{{b}}}",) for b, a in itertools.pairwise(WORDS)}, "200 pieces")
          for n in (2, 50)),
        ("{wx}", {a: (f"{{{b}}}",) for a, b in itertools.pairwise(DEEP)}, "50 deep"),
        ("{many}.x", {"many": tuple(f"v{i}" for i in range(10_000))}, "10000 spellings"),
        ("a{_i}" * 60, {}, "spellings"),
        ("a{i}" * 50_000, {}, "200 pieces"),
        ("{" * 100_000, {}, "never closes"),
        (f"a{{{'9' * 5000}*i}}", {}, "neither an index"),
    ],
    ids=["doubling", "fifty", "deep", "texts", "later", "pieces", "braces", "digits"],
)  # fmt: skip
def test_error_templates_that_grow_without_end(text, words, problem):
    leaf = {"start": ("",)} if words else {}
    begun = time.process_time()
    with pytest.raises(ValueError, match=problem):
        parse_template(text, {**leaf, **words})
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "text",
    [
        f"k : {'(' * 20_000}a{')' * 20_000}",
        "cat(" * 5000 + "k" + ")" * 5000,
        f"k[a={'9' * 5000}] : a",
        f"k[a={{{'9' * 5000}*i}}] : a",
        "k |" * 10_000,
    ],
    ids=["brackets", "cat", "digits", "index", "alternatives"],
)
def test_error_expressions_that_grow_without_end(text):
    begun = time.process_time()
    with pytest.raises(ParseError):
        parse_expression(text, {})
    assert time.process_time() - begun < 3
