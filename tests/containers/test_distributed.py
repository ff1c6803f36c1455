"""Directories of torch.distributed.checkpoint: agreement with torch, and hostile metadata."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)

import vitconvert
from tests.packages import timm
from tests.small_models import randomise
from vitconvert.containers import open_container, weights_in
from vitconvert.errors import CorruptFile, SourceError, UnsafeFile, VitConvertError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WEIGHTS = {
    "a.weight": torch.randn(3, 4),
    "half": torch.randn(5).bfloat16(),
    "turned": torch.randn(4, 3).T,
    "count": torch.tensor(7),
}
SAVED = {"model": WEIGHTS, "epoch": 3, "paths": [Path("x"), "y"]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    dcp.save(SAVED, checkpoint_id=tmp_path / "step", no_dist=True)
    return tmp_path / "step"


def edited(directory: Path, edit) -> Path:
    """The metadata after a change, by torch's own classes."""
    path = directory / ".metadata"
    metadata: Metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return path


def split(directory: Path, name: str, cut: int) -> None:
    """Two processes have the rows of a tensor, each in a file of its own."""
    whole = WEIGHTS[name]
    parts = {0: whole[:cut], cut: whole[cut:]}
    for begin, part in parts.items():
        torch.save(part.clone(), directory / f"__{begin}_0.distcp.part")

    def edit(metadata: Metadata) -> None:
        entry = metadata.state_dict_metadata[f"model.{name}"]
        index = MetadataIndex(f"model.{name}", torch.Size([0, 0]))
        info = metadata.storage_data.pop(index)
        entry.chunks = []
        for begin, part in parts.items():
            offsets = torch.Size([begin, 0])
            entry.chunks.append(ChunkStorageMetadata(offsets, part.shape))
            file = f"__{begin}_0.distcp.part"
            place = type(info)(file, 0, (directory / file).stat().st_size)
            metadata.storage_data[MetadataIndex(f"model.{name}", offsets)] = place

    edited(directory, edit)


def test_reads_what_torch_wrote(directory):
    path = weights_in(directory)
    with open_container(path) as container:
        assert (container.format, container.wrapper) == ("dcp", ("model",))
        assert container.files == (directory / ".metadata", directory / "__0_0.distcp")
        assert container.manifest.keys() == WEIGHTS.keys() == container.places.keys()
        assert container.extras["epoch"] == "a value that was not read"
        for name, tensor in WEIGHTS.items():
            assert container.read(name).dtype == tensor.dtype
            assert torch.equal(container.read(name), tensor)


def test_parts_of_several_processes_are_joined(directory):
    split(directory, "a.weight", 1)
    loaded = {"model": {"a.weight": torch.zeros(3, 4)}}
    dcp.load(loaded, checkpoint_id=directory, no_dist=True)  # torch agrees
    assert torch.equal(loaded["model"]["a.weight"], WEIGHTS["a.weight"])
    with open_container(weights_in(directory)) as container:
        assert torch.equal(container.read("a.weight"), WEIGHTS["a.weight"])
        assert "a.weight" not in container.places and "half" in container.places
        assert len(container.files) == 4


def test_a_model_is_read_from_a_training_run(tmp_path):
    model = randomise(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)).eval()
    dcp.save({"model": model.state_dict(), "step": 5}, checkpoint_id=tmp_path, no_dist=True)
    images = torch.randn(2, 3, 32, 32)
    options = {"overrides": {"num_heads": 3, "norm_eps": 1e-6}}
    out = vitconvert.convert(tmp_path, to="timm", output=tmp_path / "out", **options).output
    with torch.no_grad():
        assert torch.equal(vitconvert.load_model(tmp_path, **options)(images), model(images))
        assert torch.equal(vitconvert.load_model(out)(images), model(images))


def test_a_part_alone_and_a_part_that_is_missing(directory):
    with pytest.raises(SourceError, match="name the directory"):
        open_container(directory / "__0_0.distcp")
    (directory / "__0_0.distcp").unlink()
    with pytest.raises(SourceError, match="is missing"):
        open_container(directory / ".metadata")


def test_every_prefix_of_both_files_is_an_error(directory):
    for name in (".metadata", "__0_0.distcp"):
        data = (directory / name).read_bytes()
        for size in range(0, len(data), 7):
            (directory / name).write_bytes(data[:size])
            with pytest.raises(VitConvertError):
                open_container(directory / ".metadata")
        (directory / name).write_bytes(data)
    open_container(directory / ".metadata").close()


class Evil:
    def __reduce__(self):
        return Path("ran").write_text, ("x",)


def test_nothing_is_called(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    edited(directory, lambda metadata: setattr(metadata, "version", Evil()))
    with pytest.raises(UnsafeFile, match="ask for what is not torch's own"):
        open_container(directory / ".metadata")
    assert not Path("ran").exists()


def first(metadata: Metadata):
    return metadata.storage_data[MetadataIndex("model.a.weight", torch.Size([0, 0]))]


def chunk(metadata: Metadata, **changes):
    for name, value in changes.items():
        setattr(metadata.state_dict_metadata["model.a.weight"].chunks[0], name, torch.Size(value))


HOSTILE = {
    "beyond its file": (lambda m: setattr(first(m), "offset", 10**9), "beyond the end"),
    "before its file": (lambda m: setattr(first(m), "offset", -5), "beyond the end"),
    "another tensor's place": (
        lambda m: vars(first(m)).update(
            vars(m.storage_data[MetadataIndex("model.half", torch.Size([0]))])
        ),
        "another tensor in its file",
    ),
    "half of an archive": (lambda m: setattr(first(m), "length", 700), "directory, at the end"),
    "a hole": (lambda m: chunk(m, sizes=(2, 4)), "do not make up the whole"),
    "too long a part": (lambda m: chunk(m, sizes=(4, 4)), "do not make up the whole"),
    "a negative place": (lambda m: chunk(m, offsets=(-1, 0)), "negative length"),
    "transformed": (
        lambda m: setattr(first(m), "transform_descriptors", ["zstd"]),
        "compressed or encrypted",
    ),
    "a huge shape": (
        lambda m: setattr(
            m.state_dict_metadata["model.a.weight"], "size", torch.Size([2**62, 2**62])
        ),
        "no memory can hold",
    ),
    "no places": (lambda m: setattr(m, "storage_data", {}), "cannot be read"),
    "no state": (lambda m: setattr(m, "state_dict_metadata", None), "cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_metadata(directory, case):
    edit, said = HOSTILE[case]
    with pytest.raises(CorruptFile) as error:
        open_container(edited(directory, edit))
    assert said in error.value.fact
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "..\\x"])
def test_no_file_elsewhere_is_opened(directory, name):
    shutil.copy(directory / "__0_0.distcp", directory.parent)
    path = edited(directory, lambda metadata: setattr(first(metadata), "relative_path", name))
    with pytest.raises(UnsafeFile, match="outside their own directory"):
        open_container(path)
