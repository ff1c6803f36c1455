"""Directories of torch.distributed.checkpoint are read as torch gathers them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import vitconvert
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.errors import CorruptFile, SourceError
from vitconvert.formats import Container, open_container, weights_in

FILES = Path(__file__).parent / "files"
PARTS = Path(__file__).parent / "parts"
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


def test_safetensors_that_four_processes_saved(tmp_path: Path) -> None:
    theirs = torch.load(FILES / "expected.pt", weights_only=True)["model"]
    first = PARTS / "shard-00001-model-00001-of-00002.safetensors"
    assert weights_in(PARTS) == first
    for path in (first, PARTS / "shard-00003-model-00002-of-00002.safetensors"):
        with open_container(path) as read:
            assert read.format == "safetensors" and len(read.files) == 8
            assert "from the parts in 8 files" in read.notes[0]
            ours = gathered(read)
            assert all(read.manifest[name].shape == ours[name].shape for name in ours)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


def without(place: Path, number: str) -> None:
    next(place.glob(f"shard-{number}-*")).unlink()


def second_alone(place: Path) -> None:
    """Under another name, so that the others are not looked for."""
    (place / "shard-00002-model-00002-of-00002.safetensors").rename(place / "x.safetensors")
    for path in place.glob("shard-*"):
        path.unlink()


def one_again(place: Path) -> None:
    data = (place / "shard-00001-model-00002-of-00002.safetensors").read_bytes()
    (place / "shard-00002-model-00002-of-00002.safetensors").write_bytes(data)


def changed(place: Path, said: str, instead: str) -> None:
    for path in place.iterdir():
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + size].replace(said.encode(), instead.encode())
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda place: without(place, "00001"), "overlap or leave gaps"),
        (lambda place: [without(place, "00002") for _ in range(2)], "processes are missing"),
        (lambda place: without(place, "00004"), "leave gaps"),
        (second_alone, "leave gaps"),
        (one_again, "overlap"),
        (lambda place: changed(place, "[3, 4]", "[4, 4]"), "leave gaps"),
        (lambda place: changed(place, "[3, 4]", "[-1, 4]"), "negative"),
        (lambda place: changed(place, "[3, 4]", f"[{2**62}, 4]"), "no memory"),
        (lambda place: changed(place, "[3, 4]", "[3]"), "begins at 1 axes"),
        (lambda place: changed(place, "saved_offsets", "offsets"), "shape"),
        (lambda place: changed(place, '"{', '"{{'), "not valid JSON"),
    ],
)
def test_error_parts_that_make_no_tensors(
    tmp_path: Path, change: Callable[[Path], Any], fact: str
) -> None:
    place = tmp_path / "x"
    shutil.copytree(PARTS, place)
    change(place)
    with pytest.raises((CorruptFile, SourceError)) as error:
        open_container(weights_in(place))
    assert fact in str(error.value)


def test_the_whole_message_for_processes_that_are_missing(tmp_path: Path) -> None:
    kept = "shard-00002-model-00001-of-00001.safetensors"
    shutil.copy(PARTS / "shard-00002-model-00001-of-00002.safetensors", tmp_path / kept)
    with pytest.raises(SourceError) as error:
        open_container(weights_in(tmp_path))
    assert str(error.value) == (
        "error: source-not-found\n"
        "  Files of some processes are missing.\n"
        f"  directory  {tmp_path}\n"
        f"  found {kept}\n"
        "  hint: copy or download all of them into the same directory."
    )


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
    dcp.save({"app": saved} if protocol == 2 else saved, checkpoint_id=place)  # as the tutorial
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
