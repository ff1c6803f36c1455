"""Screening leaves out no table that could explain a file."""

import itertools

import pytest

from tests.tables.specimens import SPECIMENS
from vitconvert.tables.binding import bind
from vitconvert.tables.dialects import builtin_tables, ecosystem_of, likely_dialects, likely_tables
from vitconvert.tables.names import Names


@pytest.mark.parametrize("name", list(builtin_tables()))
def test_the_words_of_every_key_of_a_table_are_found_in_its_text(name):
    table = builtin_tables()[name]
    templates = [
        *(part.key for row in table.rows for a in row.alternatives for part in a.parts),
        *(template for template, *_ in (*table.ignore, *table.empty)),
    ]
    skeletons = set(itertools.chain.from_iterable(t.skeletons for t in templates))
    assert skeletons
    for skeleton in skeletons:
        assert name in likely_dialects([skeleton]), skeleton


@pytest.mark.parametrize("name", list(SPECIMENS))
def test_what_fits_is_likely(name):
    shapes = {key: tuple(t.shape) for key, t in SPECIMENS[name].tensors().items()}
    tables = [table for table in builtin_tables().values() if not table.named_only]
    fitting = [table.name for table in tables if bind(table, shapes).fits]
    likely = [table.name for table in likely_tables(Names(shapes))]
    assert SPECIMENS[name].dialect in fitting
    assert set(fitting) <= set(likely)


def test_words_that_a_table_lacks_rule_it_out():
    keys = ["vit.encoder.layer.0.layernorm_before.weight", "vit.layernorm.bias"]
    assert "hf_vit" in likely_dialects(keys) and "timm" not in likely_dialects(keys)
    assert likely_dialects([*keys, "vit.encoder.unheard.weight"]) == []


def test_an_ignored_prefix_lets_any_word_follow():
    assert "mae" in likely_dialects(["cls_token", "decoder_blocks.0.anything.weight"])
    assert "mae" not in likely_dialects(["cls_token", "encoder_blocks.0.anything.weight"])


def test_what_a_dialect_requires_rules_it_out():
    shapes = {"cls_token": (1, 1, 8), "blocks.0.attn.qkv.weight": (24, 8)}
    assert "mae" in likely_dialects(shapes)
    names = [table.name for table in likely_tables(Names(shapes))]
    assert "timm" in names and "mae" not in names and "vit" not in names


def test_the_ecosystem_is_that_of_the_parsed_table():
    for name, table in builtin_tables().items():
        assert ecosystem_of(name) == table.ecosystem
