"""What torchao says of tensors in the header, if it says it often."""

import json
import time

import pytest
import torch

from vitconvert.checkpoint.quantised import dequantised
from vitconvert.errors import TensorMismatch
from vitconvert.formats import open_container, write_safetensors

COUNT = 5000


@pytest.mark.parametrize("agreed", [True, False])
def test_many_words_on_many_weights_take_a_moment(agreed, tmp_path):
    tensors, said = {}, {}
    for i in range(COUNT):
        tensors[f"w.{i}._proj_qdata"] = torch.full((2, 4), i % 100, dtype=torch.int8)
        tensors[f"w.{i}._proj_scale"] = torch.full((2, 1), 0.5)
        data = {"dtype": "float32" if agreed or i % 2 else "float16", "number": i}
        words = {"_type": "Int8Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]}
        said[f"other.{i}"] = json.dumps(words)
    write_safetensors(tmp_path / "x.safetensors", tensors, metadata=said)
    with open_container(tmp_path / "x.safetensors") as container:
        begun = time.process_time()
        if agreed:
            read = dequantised(container, "float32")[0].read
            assert (read(f"w.{COUNT - 1}.proj") == (COUNT - 1) % 100 / 2).all()
        else:
            with pytest.raises(TensorMismatch, match="nothing says how"):
                dequantised(container, "float32")
        assert time.process_time() - begun < 3
