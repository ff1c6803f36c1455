"""Every ViT of timm, two blocks deep and every parameter random, loaded by its directory alone.

    pytest tests/coverage -m slow                         the narrowest of each family
    pytest tests/coverage -m coverage                     all of them, in full width
    pytest tests/coverage -m coverage --shard 1/4         every fourth, from the first

The README's table is written from what this measures: tests/coverage/make_table.py.
"""

import pytest

from tests.coverage.families import (
    ARCHITECTURES,
    errors_of_arithmetic,
    family_of,
    relative_difference,
    small_arguments,
    smallest_of_each_family,
)
from tests.packages import timm

LIMIT = 2e-5  # of the largest output, in float32
FAST_LIMIT = 4e-6  # likewise, of fast arithmetic against float64


@pytest.mark.coverage
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name, tmp_path):
    assert relative_difference(name, tmp_path) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", smallest_of_each_family())
def test_one_architecture_of_each_family(name, tmp_path):
    assert relative_difference(name, tmp_path, **small_arguments(name)) <= LIMIT
    fast, usual = errors_of_arithmetic(tmp_path)
    # A hybrid's stem of random convolutions, the same in both, loses more than that by itself.
    assert fast <= max(FAST_LIMIT, 1.5 * usual)


def test_every_vit_of_timm_is_listed():
    modules = (
        *("vision_transformer", "deit", "vision_transformer_hybrid", "eva", "beit"),
        *("naflexvit", "qwen3_vit", "gemma4_vit", "deepseek_vit"),
        *("vision_transformer_relpos", "vision_transformer_sam"),
    )
    names = {name for module in modules for name in timm.list_models(module=module)}
    assert set(ARCHITECTURES) == names
    assert len(ARCHITECTURES) >= 313
    assert all(map(family_of, ARCHITECTURES))
