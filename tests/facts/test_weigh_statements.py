"""What a named architecture does not tell of a model that is not as it."""

import pytest

from tests.tables.header import HEADER
from vitconvert.errors import MissingFact, TableError
from vitconvert.facts.fact import state
from vitconvert.facts.statements import weigh_statements
from vitconvert.tables.dialects import builtin_tables, read_table

ROW = {"pooling": "avg", "rope": "axial", "num_registers": 3}


def table_of(tmp_path, body):
    file = tmp_path / "mine.toml"
    file.write_text(HEADER + body, encoding="utf-8")
    return read_table(file)


def weighed(table, user, row=ROW):
    return weigh_statements(table, state(user, "user"), state(row, "architecture mine"))


@pytest.mark.parametrize("dialect", ["timm", "openclip_timm"])
def test_which_tokens_an_eva_pools_is_asked(dialect):
    with pytest.raises(MissingFact) as error:
        weighed(builtin_tables()[dialect], {"pooling": "map"})
    assert error.value.fact == (
        "This model differs from its architecture, and pool_include_prefix is unknown."
    )
    assert error.value.evidence == {
        "architecture": "mine, pooling = avg",
        "this model": "pooling = map (user)",
    }


@pytest.mark.parametrize(
    ("dialect", "user", "row"),
    [
        ("timm", {}, ROW),
        ("timm", {"pooling": "max"}, ROW),
        ("timm", {"pooling": "token"}, ROW | {"pooling": "map"}),
        ("timm", {"pooling": "map", "pool_include_prefix": False}, ROW),
        ("timm", {"pooling": "map"}, ROW | {"rope": "none"}),
        ("timm", {"pooling": "map"}, ROW | {"num_registers": 0, "class_token": False}),
        ("timm", {"pooling": "map", "rope": "axial"}, {}),
        ("timm_eva", {"pooling": "map"}, ROW),  # whose table tells it
        ("vit", {"pooling": "map"}, ROW),
    ],
)
def test_it_is_not_asked_where_it_is_told_or_plays_no_part(dialect, user, row):
    facts = weighed(builtin_tables()[dialect], user, row)
    assert {name: value for name, (value, _) in facts.items()} == row | user


def test_a_table_can_ask_for_any_field(tmp_path):
    body = '[ask]\n"norm_eps if depth > architecture.depth" = "deep ones have another"\n'
    table = table_of(tmp_path, body)
    assert table.ask == {}
    assert weighed(table, {"depth": 3}, {"depth": 3, "norm_eps": 1e-5})
    with pytest.raises(MissingFact) as error:
        weighed(table, {"depth": 4}, {"depth": 3, "norm_eps": 1e-5})
    assert str(error.value) == (
        "error: missing-fact\n"
        "  This model differs from its architecture, and norm_eps is unknown.\n"
        "  architecture  mine, depth = 3\n"
        "  this model    depth = 4 (user)\n"
        "  deep ones have another\n"
        "  hint: --set norm_eps=... (in Python, overrides={...}) states it."
    )


def test_an_architecture_is_asked_for_fields_alone(tmp_path):
    body = '[ask]\n"norm_eps if architecture.grid > 1" = "why"\n'
    with pytest.raises(TableError) as error:
        table_of(tmp_path, body)
    assert error.value.evidence["place"] == 'ask."norm_eps if architecture.grid > 1"'
