import pytest

from vitconvert.errors import SourceError
from vitconvert.sources.choosing import choose_weights, configuration_files


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5"], "model.safetensors"),
        (["model.safetensors.index.json", "pytorch_model.bin"], "model.safetensors.index.json"),
        (["pytorch_model.bin", "open_clip_model.safetensors"], "open_clip_model.safetensors"),
        (["pytorch_model.bin.index.json", "a.npz"], "pytorch_model.bin.index.json"),
        (["open_clip_pytorch_model.bin", "open_clip_config.json"], "open_clip_pytorch_model.bin"),
        (["README.md", "siglip_b16.npz"], "siglip_b16.npz"),
        (["eva02.pth", "eva02.npz", "optimizer.pt", "a/b.npz"], "eva02.pth"),
        (["eva02.pth", "ema/eva02.pth"], "eva02.pth"),
    ],
)
def test_preference(names: list[str], chosen: str) -> None:
    assert choose_weights("a/b", names) == chosen


def test_companions_lie_beside_the_weights() -> None:
    names = ["config.json", "sub/config.json", "sub/vitconvert.json", "preprocessor_config.json"]
    assert configuration_files("model.safetensors", names) == [
        "config.json",
        "preprocessor_config.json",
    ]
    assert configuration_files("sub/x.npz", names) == ["sub/config.json", "sub/vitconvert.json"]


MESSAGES = {
    ("b.npz", "a.npz", "README.md"): """\
  org/repo holds 2 files of weights.
  a.npz
  b.npz
  hint: choose one: hf:org/repo/a.npz""",
    ("model_v2.pth", "model_v1.npz"): """\
  org/repo holds 2 files of weights.
  model_v1.npz
  model_v2.pth
  hint: choose one: hf:org/repo/model_v1.npz""",
    ("vit.tflite", "model.onnx", "README.md"): """\
  org/repo holds no weights that vitconvert reads.
  model.onnx
  vit.tflite
  hint: safetensors, torch (.pth, .pt, .bin, .ckpt, .pth.tar), torchscript (.pt), npz, \
equinox (.eqx), hdf5 (.h5), keras, msgpack, gguf, orbax and pickle (.pkl) are read.""",
    (".metadata", "__0_0.distcp"): """\
  org/repo holds no weights that vitconvert reads.
  __0_0.distcp
  hint: `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE` makes one \
file of its directory.""",
    ("base/model.safetensors", "README.md"): """\
  org/repo holds weights only in folders.
  base/model.safetensors
  hint: choose one: hf:org/repo/base/model.safetensors""",
    ("a/b.pth", "a/c.npz", "orbax/_METADATA"): """\
  org/repo holds weights only in folders.
  a/b.pth
  a/c.npz
  orbax
  hint: choose one: hf:org/repo/a/b.pth""",
}


@pytest.mark.parametrize("names", MESSAGES)
def test_error_messages(names: tuple[str, ...]) -> None:
    with pytest.raises(SourceError) as caught:
        choose_weights("org/repo", names)
    assert str(caught.value) == f"error: source-not-found\n{MESSAGES[names]}"


def test_error_several_in_a_folder() -> None:
    with pytest.raises(SourceError) as caught:
        choose_weights("org/x", ["a/b.pth", "a/c.npz"], "a/")
    assert str(caught.value) == (
        "error: source-not-found\n  org/x holds 2 files of weights in a/.\n  b.pth\n  c.npz\n"
        "  hint: choose one: hf:org/x/a/b.pth"
    )
