"""A model like one that timm names, but for a feature that no name states: taken, or refused."""

import dataclasses

import pytest

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, NotRepresentable
from vitconvert.programs.program import DescribedModel, program_of
from vitconvert.tables.architectures import architectures
from vitconvert.tables.dialects import builtin_tables

NAMED = ("timm", "timm_eva", "timm_eva_gated", "timm_eva_rope", "timm_relpos", "timm_swiglu_packed")
STATED = {field for name in NAMED for row in architectures()[name].values() for field in row}
UNSTATED = sorted(f.name for f in dataclasses.fields(ViTConfig) if f.type is bool)
UNSTATED = [name for name in UNSTATED if name not in STATED]


def named_config(row):
    sizes = {"num_classes": 5, "in_channels": 3, "depth": 2, "mlp_dim": 4 * row["embed_dim"]}
    return ViTConfig(**{"head_dim": row["embed_dim"] // row["num_heads"], **row, **sizes})


@pytest.mark.parametrize("dialect", NAMED)
def test_what_no_name_states_ends_in_an_answer(dialect):
    table = builtin_tables()[dialect]
    config = named_config(next(iter(architectures()[dialect].values())))
    for feature in UNSTATED:
        try:
            model = DescribedModel(config=config.replace(**{feature: True}))
            program_of(table).fit(table, model)
        except (ConflictingFact, NotRepresentable):
            continue  # the features exclude each other, or timm has no such model
