"""Every ViT of timm, two blocks deep and every parameter random, loaded by its directory alone.

    pytest -m coverage                        all of them
    pytest -m coverage --shard 1/4            every fourth, from the first

The README's table is written from what this run measures: tests/coverage/make_table.py.
"""

import pytest
import timm
import torch

from tests.coverage.families import ARCHITECTURES, family_of, relative_difference, supported


@pytest.mark.coverage
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name, tmp_path):
    if not supported(name):
        pytest.skip(f"{name} is not supported; the README says why")
    assert relative_difference(name, tmp_path) <= 2e-5


@pytest.mark.parametrize(
    "name",
    sorted({family_of(name): name for name in reversed(ARCHITECTURES)}.values()),
)
def test_one_architecture_of_each_family(name, tmp_path):
    if not supported(name):
        pytest.skip(f"{name} is not supported; the README says why")
    torch.set_num_threads(1)
    assert relative_difference(name, tmp_path, small=True) <= 2e-5


def test_every_vit_of_timm_is_listed():
    modules = ("vision_transformer", "deit", "vision_transformer_hybrid", "eva", "beit")
    names = {name for module in modules for name in timm.list_models(module=module)}
    assert set(ARCHITECTURES) <= names
