"""What a config.json of transformers leaves out is what its classes assume."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.packages import transformers
from vitconvert.facts.project_config import facts_from_config
from vitconvert.tables.dialects import builtin_tables, text_table
from vitconvert.tables.table import Table

TEXT = ("hf_clip", "hf_siglip", "hf_siglip2")
# Read of files that code of their own computes: transformers has no class of this type.
ELSEWHERE = {"dots_ocr", "dots_vit", "intern_vit_6b", "kimi_vl", "moonvit", "perception_encoder"}


def silent_files() -> Iterator[tuple[Table, str]]:
    """Each dialect of transformers, with each type that marks it."""
    for table in (*builtin_tables().values(), *map(text_table, TEXT)):
        if table.program == "transformers" and table.config_file:
            types = table.config_file.identify.get("model_type", ())
            yield from ((table, kind) for kind in types if kind not in ELSEWHERE)


@pytest.mark.filterwarnings("ignore")  # of configurations without their tokenizers
def test_defaults_are_those_of_the_classes():
    wrong: list[tuple[Any, ...]] = []
    compared = 0
    for table, kind in silent_files():
        theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
        said = facts_from_config(table, theirs)
        for field, (value, _) in facts_from_config(table, {"model_type": kind}).items():
            compared += 1
            if (found := said.get(field, (None,))[0]) != value:
                wrong.append((table.name, kind, field, value, found))
    assert wrong == []
    assert compared > 250
