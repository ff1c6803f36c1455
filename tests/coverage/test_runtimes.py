"""A model of every family of the table is exported for every runtime, and is right there."""

import pytest

from tests.coverage.families import random_model, small_arguments, smallest_of_each_family
from tests.packages import timm
from vitconvert.api import load_checkpoint
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.export import export_checkpoint
from vitconvert.runtimes.options import ExportOptions
from vitconvert.tables.architectures import named


@pytest.mark.coverage
@pytest.mark.parametrize("to", RUNTIMES)
@pytest.mark.parametrize("name", smallest_of_each_family())
def test_every_family(name, to, tmp_path):
    arguments = small_arguments(name) | {"depth": 2}
    if "sapiens2" in name:
        heads = named("timm")[name]["num_heads"]
        arguments["num_kv_heads"] = [heads, heads // 2]
    model = random_model(name, **arguments)
    timm.models.save_for_hf(model, tmp_path / "timm", model_args=arguments, safe_serialization=True)
    path = tmp_path / f"model{RUNTIMES[to].suffix}"
    RUNTIMES[to].require()
    exported = export_checkpoint(load_checkpoint(tmp_path / "timm"), path, ExportOptions(to=to))
    assert len(exported.comparisons) == 4
