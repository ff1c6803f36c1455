"""Files hold tensors without elements, which play no part: noted, converted there and back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert

PLAIN = {"embed_dim": 30, "depth": 2, "num_heads": 3, "mlp_ratio": 2, "num_classes": 5}


@pytest.mark.parametrize("name", ["reg_token", "blocks.1.prompt"])
def test_there_and_back(timm_directory, tmp_path: Path, name: str) -> None:
    source = timm_directory(**PLAIN, img_size=48)
    tensors = load_file(source / "model.safetensors")
    # Without vitconvert.json and config.json beside it, as somebody's own file.
    save_file({**tensors, name: torch.empty(1, 0, 30)}, tmp_path / "own.safetensors")
    there = vitconvert.convert(
        tmp_path / "own.safetensors",
        to="hf",
        output=tmp_path / "there",
        overrides={"num_heads": 3, "norm_eps": 1e-6},
    )
    assert there.ledger.ignored == {name: "has no elements"}
    assert there.parity is not None and there.parity.ok
    assert "1: has no elements" in (tmp_path / "there" / "README.md").read_text()
    vitconvert.convert(tmp_path / "there", to="timm", output=tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[key], tensors[key]) for key in tensors)
