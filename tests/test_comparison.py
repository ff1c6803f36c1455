"""What is said of two tensors' numbers, however they are sliced."""

import math

import pytest
import torch

from vitconvert import comparison
from vitconvert.comparison import compare_values


@pytest.fixture(params=[2, 7, 2**20], ids=["slices of 2", "of 7", "whole"])
def sliced(request, monkeypatch):
    monkeypatch.setattr(comparison, "_SLICE", request.param)


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_the_same_bits_are_no_difference(sliced):
    x = noise(3, 5)
    x[1, 2] = float("nan")
    assert compare_values(x, x.clone()) is None
    assert compare_values(x.T, x.T.contiguous()) is None
    assert compare_values(noise(()), noise(())) is None
    assert compare_values(noise(0, 3), noise(0, 3)) is None


def test_how_much_and_where(sliced):
    a = noise(3, 1, 5)
    a[2, 0, 1] = -8.0
    b = a.clone()
    b[1, 0, 3] += 0.5
    b[2, 0, 0] -= 2.0
    found = compare_values(a, b)
    assert (found.elements, found.differing, found.first) == (15, 2, (1, 0, 3))
    assert found.largest == pytest.approx(2.0)
    assert found.scale == 8.0
    assert found.relative == pytest.approx(0.25)
    assert found.equal_in is None
    assert found.not_finite == 0


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_what_rounding_made_is_called_so(sliced, name):
    a = noise(4, 3)
    rounded = a.to(getattr(torch, name))
    assert compare_values(a, rounded).equal_in == name
    assert compare_values(a, rounded.float()).equal_in == name
    assert compare_values(a.double(), a).differing == 0
    assert compare_values(a.double() + 1e-12, a).equal_in == "float32"
    a[3, 2] += 1
    assert compare_values(a, rounded).equal_in is None


def test_the_same_numbers_in_other_bytes(sliced):
    found = compare_values(torch.tensor([0.0, 1.5]), torch.tensor([-0.0, 1.5]))
    assert (found.differing, found.first, found.largest, found.equal_in) == (0, None, 0.0, None)
    found = compare_values(torch.tensor([1.5, 2.0]), torch.tensor([1.5, 2.0]).bfloat16())
    assert (found.differing, found.largest) == (0, 0.0)


def test_numbers_that_are_none(sliced):
    nan, inf = math.nan, math.inf
    found = compare_values(
        torch.tensor([nan, 1.0, inf, 2.0, inf]), torch.tensor([nan, nan, -inf, 3, inf])
    )
    assert (found.differing, found.not_finite, found.first) == (3, 2, (1,))
    assert (found.largest, found.scale) == (1.0, 2.0)


def test_an_overflow_is_no_agreement():
    assert compare_values(torch.tensor([1e6]), torch.tensor([2e6])).equal_in is None


def test_no_rounding_makes_complex_numbers_real():
    real, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0 + 1.0j, 2.0])
    for a, b in ((real, other), (other, real)):
        found = compare_values(a, b)
        assert (found.differing, found.largest, found.equal_in) == (1, 1.0, None)


def test_nothing_is_relative_to_zero():
    found = compare_values(torch.zeros(2), torch.tensor([0.0, 3.0]))
    assert (found.largest, found.relative) == (3.0, None)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e5m2])
def test_every_dtype_of_checkpoints(dtype):
    a = torch.tensor([1, 0, 1]).to(dtype)
    assert compare_values(a, a.clone()) is None
    found = compare_values(a, torch.tensor([1, 1, 1]).to(dtype))
    assert (found.differing, found.largest, found.first) == (1, 1.0, (1,))
