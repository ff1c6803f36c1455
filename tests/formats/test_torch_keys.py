"""Keys of torch's dictionaries that are no text."""

import datetime

import pytest
import torch

from vitconvert.errors import CorruptFile
from vitconvert.formats import open_container


@pytest.mark.parametrize("key", [datetime.date(2020, 1, 2), 7, (1, 2), torch.float32, None])
def test_no_mapping_of_tensors_is_passed_over_for_its_key(key, tmp_path):
    one, other = {"weight": torch.rand(3)}, {"weight": torch.rand(5)}
    torch.save({"text": one, key: other}, tmp_path / "x.pt")
    with open_container(tmp_path / "x.pt") as found:
        assert len(found.manifest) == 2 and "text.weight" in found.manifest
        shapes = sorted(info.shape for info in found.manifest.values())
    assert shapes == [(3,), (5,)]


@pytest.mark.parametrize("around", ["{}", "wrapped"])
def test_error_a_tensor_whose_key_is_no_text(around, tmp_path):
    tensors = {"weight": torch.rand(3), datetime.date(2020, 1, 2): torch.rand(5)}
    torch.save({"state_dict": tensors} if around == "wrapped" else tensors, tmp_path / "x.pt")
    with pytest.raises(CorruptFile) as caught:
        open_container(tmp_path / "x.pt")
    assert caught.value.fact == "A tensor has a name that is not text."
