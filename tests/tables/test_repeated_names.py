"""Many names are told as one where only a count differs."""

import random

import pytest

from vitconvert.tables.names import runs


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["head.weight"], [("head.weight", 1)]),
        (
            [f"b.{i}.fc{n}" for i in range(11) for n in (1, 2)],
            [("b.{i}.fc1", 11), ("b.{i}.fc2", 11)],
        ),
        ([f"a{i + 1}.w = b.{i}.w : 1 x" for i in range(3)], [("a{i+1}.w = b.{i}.w : 1 x", 3)]),
        (["b.0.w", "b.1.w", "b.3.w"], [("b.{i}.w", 2), ("b.3.w", 1)]),
        (
            ["b.0.w [3]", "b.1.w [9]", "b.2.w [3]"],
            [(f"b.{i}.w [{n}]", 1) for i, n in enumerate([3, 9, 3])],
        ),
        (["b.007.w", "c"], [("b.007.w", 1), ("c", 1)]),
    ],
    ids=["single", "two numbers", "along", "gap", "two kinds", "zeros"],
)
def test_what_differs_in_a_count_is_one(texts, told):
    assert runs(texts) == told


def test_the_order_of_a_file_does_not_matter():
    texts = [f"stages.{s}.blocks.{u}.conv : mid{s} 1" for s in range(3) for u in range(s + 2)]
    wanted = {
        ("stages.{i}.blocks.0.conv : mid{i} 1", 3),
        ("stages.{i}.blocks.1.conv : mid{i} 1", 3),
        ("stages.{i+1}.blocks.2.conv : mid{i+1} 1", 2),
        ("stages.2.blocks.3.conv : mid2 1", 1),
    }
    for seed in range(5):
        random.Random(seed).shuffle(texts)
        assert set(runs(texts)) == wanted
