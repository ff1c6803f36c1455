"""Directories of torch.distributed.checkpoint are read as torch gathers them."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import vitconvert
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.containers import Container, open_container, weights_in
from vitconvert.errors import CorruptFile, SourceError

FILES = Path(__file__).parent / "files"
NAMES = ["rows", "both", "same", "few", "number", "none"]


def gathered(container: Container) -> dict[str, torch.Tensor]:
    return {name: container.read(name) for name in container.manifest}


def test_what_four_processes_saved() -> None:
    theirs = torch.load(FILES / "expected.pt", weights_only=True)
    with open_container(weights_in(FILES)) as read:
        assert read.format == "dcp"
        assert read.wrapper == ("model",)
        assert read.extras == {"iteration": 3, "args": theirs["args"]}
        assert sorted(read.manifest) == sorted(NAMES)
        ours = gathered(read)
    for name, tensor in theirs["model"].items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name
        assert read.manifest[name].shape == tuple(tensor.shape)


def test_no_part_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "x")
    with open_container(tmp_path / "x" / ".metadata") as container:
        part = tmp_path / "x" / "__3_0.distcp"
        part.write_bytes(bytes(part.stat().st_size))
        with pytest.raises(CorruptFile, match="zip archive"):
            gathered(container)


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "x")
    (tmp_path / "x" / "__2_0.distcp").unlink()
    with pytest.raises(SourceError) as error:
        open_container(weights_in(tmp_path / "x"))
    assert "1 of 4 files of this distributed checkpoint are missing." in str(error.value)
    assert "__2_0.distcp" in str(error.value)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_vit_that_training_saved(tmp_path: Path, protocol: int) -> None:
    """Python's own protocol changes with its releases."""
    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 12, "depth": 11, "num_heads": 3}
    torch.manual_seed(0)
    model = randomise(timm.models.VisionTransformer(num_classes=3, **sizes)).eval()
    place = tmp_path / "step"
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}
    dcp.save(saved, checkpoint_id=place)
    rewritten(place / ".metadata", protocol)
    stated = {"num_heads": 3, "norm_eps": 1e-6}
    report = vitconvert.inspect(place, overrides=stated)
    assert report.format == "dcp" and report.dialect == "timm" and report.problem is None
    ours = vitconvert.load_model(place, overrides=stated).eval()
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        assert torch.equal(ours(images), model(images))
    if protocol == 2:
        vitconvert.convert(place, to="torchvision", output=tmp_path / "out", overrides=stated)


def rewritten(path: Path, protocol: int) -> None:
    import pickle

    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol=protocol))
