"""Which file of a directory holds the weights."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconvert.errors import SourceError
from vitconvert.formats import weights_in
from vitconvert.sources.choosing import choose_weights


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["pytorch_model.bin", "model.safetensors", "config.json"], "model.safetensors"),
        (
            ["model.safetensors.index.json", "model-00001-of-00001.safetensors"],
            "model.safetensors.index.json",
        ),
        (["pytorch_model.bin.index.json", "pytorch_model-1.bin"], "pytorch_model.bin.index.json"),
        (["open_clip_pytorch_model.bin", "open_clip_config.json"], "open_clip_pytorch_model.bin"),
        (["ViT-B_16.npz", "README.md"], "ViT-B_16.npz"),
        (["checkpoint.pth", "training_args.bin", "optimizer.pt"], "checkpoint.pth"),
        (
            ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
            "mp_rank_00_model_states.pt",
        ),
        (["IN1K.pth.tar", "model.onnx.index.json"], "IN1K.pth.tar"),
        (["x.safetensors.index.json", "x-1.safetensors"], "x.safetensors.index.json"),
        (["x.bin.index.json", "x.safetensors.index.json"], "x.safetensors.index.json"),
        (["vit.pth", "vit.safetensors", "vit.npz", "vit.pth.tar"], "vit.safetensors"),
    ],
)
def test_the_weights_are_found(tmp_path: Path, names: list[str], chosen: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert weights_in(tmp_path) == tmp_path / chosen


STANDARD = [
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
]
OTHERS = ["vit.pth", "vit.npz", "vit.ckpt", "features.npz", "training_args.bin", "tf_model.h5"]
OTHERS += ["vit.bin.index.json", "vit-00001-of-00002.bin", "config.json"]


@given(st.lists(st.sampled_from(STANDARD + OTHERS), unique=True))
def test_a_directory_and_a_repository_give_the_same_weights(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            (Path(directory) / name).touch()
        try:
            local: object = weights_in(Path(directory)).name
        except SourceError:
            local = None
    try:
        remote: object = choose_weights("org/repo", [*names, "sub/model.safetensors"])
    except SourceError:
        remote = None
    assert local == remote
    if standard := [name for name in STANDARD if name in names]:
        assert local == standard[0]


def test_several_candidates_are_listed(tmp_path: Path) -> None:
    for name in ("b.pth", "a.npz", "config.json"):
        (tmp_path / name).touch()
    with pytest.raises(SourceError) as error:
        weights_in(tmp_path)
    assert str(error.value) == (
        "error: source-not-found\n"
        "  The directory holds 2 weights files, none with a standard name.\n"
        f"  directory  {tmp_path}\n"
        "  a.npz\n"
        "  b.pth\n"
        "  hint: name one of them."
    )


def test_shards_without_an_index(tmp_path: Path) -> None:
    for name in ("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(SourceError) as error:
        weights_in(tmp_path)
    assert str(error.value) == (
        "error: source-not-found\n"
        "  The directory holds shards of a checkpoint, but no index that says what is in them.\n"
        f"  directory  {tmp_path}\n"
        "  model-00001-of-00002.safetensors\n"
        "  model-00002-of-00002.safetensors\n"
        "  hint: download the file that ends in .index.json, too."
    )


def test_without_a_candidate_the_content_is_listed(tmp_path: Path) -> None:
    for name in ("vit.tflite", "config.json"):
        (tmp_path / name).touch()
    (tmp_path / "model.safetensors").symlink_to("../../blobs/0a1b")
    with pytest.raises(SourceError) as error:
        weights_in(tmp_path)
    assert str(error.value) == (
        "error: source-not-found\n"
        "  The directory holds no weights file.\n"
        f"  directory   {tmp_path}\n"
        "  looked for  *.safetensors *.pth *.pt *.bin *.ckpt *.pth.tar *.npz *.h5 *.hdf5 *.keras "
        "*.msgpack *.gguf *.pkl\n"
        "  found config.json\n"
        "  found model.safetensors, a broken link\n"
        "  found vit.tflite"
    )


def test_folders_that_hold_weights_are_named(tmp_path: Path) -> None:
    for name in ("checkpoint-2/model.safetensors", "checkpoint-1/model.safetensors", "runs/x.log"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(SourceError) as error:
        weights_in(tmp_path)
    assert str(error.value) == (
        "error: source-not-found\n"
        "  The directory holds no weights file.\n"
        f"  directory   {tmp_path}\n"
        "  looked for  *.safetensors *.pth *.pt *.bin *.ckpt *.pth.tar *.npz *.h5 *.hdf5 *.keras "
        "*.msgpack *.gguf *.pkl\n"
        "  found checkpoint-1\n"
        "  found checkpoint-2\n"
        "  found runs\n"
        "  hint: name a folder that holds some: checkpoint-1, checkpoint-2."
    )


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such directory"):
        weights_in(tmp_path / "nowhere")
