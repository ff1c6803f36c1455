"""Names are grouped once for all tables: what a header costs, however it is made up."""

import random
import time
from contextlib import suppress

import pytest

from tests.sampling import sampled
from tests.tables.specimens import SPECIMENS, shapes_of
from vitconvert.errors import UnknownDialect
from vitconvert.tables.detection import common_prefix
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.names import Names, runs
from vitconvert.tables.parts import Header
from vitconvert.tables.templates import parse_template
from vitconvert.tables.towers import find_part

KINDS = ("norm1.weight", "attn.qkv.weight", "attn.proj.bias", "mlp.fc1.weight", "ls1.gamma")
MANY = {
    "no two alike": [f"thing{i}.{i * 7919 % 104729:x}{'qrstuvw'[i % 7]}" for i in range(20_000)],
    "ten words": [f"thing{i}.alpha_{i % 10}.w" for i in range(20_000)],
    "known beside unknown": [f"blocks.{i % 999}.norm1.weight{i // 999}" for i in range(20_000)],
    "a thousand blocks": [f"blocks.{i}.{kind}" for i in range(1001) for kind in KINDS],
    "any rest": [f"decoder_blocks.{i * 7919 % 104729:x}z.w" for i in range(20_000)],
    "numbers": [f"blocks.{'9' * 9000}{i}.norm1.weight" for i in range(100)],
}


@pytest.mark.slow
@pytest.mark.parametrize("names", MANY.values(), ids=MANY)
def test_a_header_that_nothing_explains_takes_a_moment(names):
    begun = time.process_time()
    with suppress(UnknownDialect):
        find_part(Header(shapes=dict.fromkeys(names, (3,))))
    # About one second. Grouped for each table, it took 26; a loaded machine doubles either.
    assert time.process_time() - begun < 6


@pytest.mark.parametrize("name", sampled(SPECIMENS, every=4))
def test_names_that_are_keys_of_a_template_are_those_that_match_it(name):
    shapes = shapes_of(name)
    names, table = Names(shapes), builtin_tables()[SPECIMENS[name].dialect]
    parts = [part.key for row in table.rows for a in row.alternatives for part in a.parts]
    found = 0
    for template in (*parts, *(template for template, _ in table.ignore)):
        keys = {key for key in shapes if template.match(key) is not None}
        assert set(names.spelled_by(template)) == keys, template
        found += len(keys)
    assert found


def test_a_rest_may_be_anything():
    names = Names(dict.fromkeys(["opt/3/mu", "opt/3/", "opt/x", "op", "opt/0x"], (1,)))
    assert set(names.spelled_by(parse_template("opt/{_}*", {}))) == {"opt/3/mu", "opt/3/", "opt/0x"}
    assert set(names.spelled_by(parse_template("op*", {}))) == set(names.shapes)


def test_the_first_few_stand_for_all_that_differ_in_numbers_alone():
    names = Names({f"blocks.{i}.norm1.weight": (3,) for i in range(500)} | {"head": (3,)})
    assert len(names.some().shapes) < 100 and "head" in names.some().shapes
    few = Names({"a.0": (1,), "a.1": (2,)})
    assert few.some() is few


def test_prefixes_are_taken_off_as_often_as_they_stand_there():
    keys = [f"{'module.' * 100_000}{end}" for end in ("model.a", "b")]
    assert common_prefix(keys) == "module." * 100_000
    assert common_prefix(["module.model.module.a", "module.model.module.b"]) == (
        "module.model.module."
    )


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
