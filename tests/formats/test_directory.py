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
def test_the_weights_are_found(tmp_path, names, chosen):
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
def test_a_directory_and_a_repository_give_the_same_weights(names):
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


LOOKED_FOR = (
    "  looked for  *.safetensors *.pth *.pt *.bin *.ckpt *.pth.tar *.npz *.eqx *.h5 *.hdf5 "
    "*.keras *.msgpack *.gguf *.pkl"
)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["b.pth", "a.npz", "config.json"],
            [
                "  The directory holds 2 weights files, none with a standard name.",
                "  directory  {}",
                "  a.npz",
                "  b.pth",
                "  hint: name one of them.",
            ],
        ),
        (
            ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"],
            [
                "  The directory holds shards of a checkpoint, but no index that says what is in "
                "them.",
                "  directory  {}",
                "  model-00001-of-00002.safetensors",
                "  model-00002-of-00002.safetensors",
                "  hint: download the file that ends in .index.json, too.",
            ],
        ),
        (
            ["vit.tflite", "config.json", "model.safetensors -> ../../blobs/0a1b"],
            [
                "  The directory holds no weights file.",
                "  directory   {}",
                LOOKED_FOR,
                "  found config.json",
                "  found model.safetensors, a broken link",
                "  found vit.tflite",
            ],
        ),
        (
            ["checkpoint-2/model.safetensors", "checkpoint-1/model.safetensors", "runs/x.log"],
            [
                "  The directory holds no weights file.",
                "  directory   {}",
                LOOKED_FOR,
                "  found checkpoint-1",
                "  found checkpoint-2",
                "  found runs",
                "  hint: name a folder that holds some: checkpoint-1, checkpoint-2.",
            ],
        ),
    ],
    ids=["several", "shards", "none", "folders"],
)
def test_what_a_directory_without_one_checkpoint_holds(tmp_path, names, said):
    for name in names:
        name, _, link = name.partition(" -> ")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(link) if link else (tmp_path / name).touch()
    with pytest.raises(SourceError) as error:
        weights_in(tmp_path)
    assert str(error.value).split("\n")[1:] == [line.format(tmp_path) for line in said]


def test_a_directory_that_is_none(tmp_path):
    with pytest.raises(SourceError, match="no such directory"):
        weights_in(tmp_path / "nowhere")
