"""One Checkpoint: the header proved at once, the tensors when they are asked for."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import vitconvert
from tests.originals.spelling import HEADS, dinov2
from tests.spelling import google_arrays
from vitconvert.checkpoint import ReadOptions, read_checkpoint
from vitconvert.errors import (
    ConflictingFact,
    CorruptFile,
    NotRepresentable,
    TensorMismatch,
    UsageError,
)
from vitconvert.programs.opening import Opened
from vitconvert.sources import locate


@pytest.fixture
def google(tmp_path):
    np.savez(tmp_path / "vit.npz", **google_arrays(depth=11, heads=3, width=36, size=24))
    return tmp_path / "vit.npz"


@pytest.fixture
def reads(monkeypatch):
    """Names of the tensors that were read."""
    found = []

    def watch(path):
        checkpoint = vitconvert.load_checkpoint(path)
        container = checkpoint.weights.container
        read = container.reader
        watched = dataclasses.replace(container, reader=lambda n: (found.append(n), read(n))[1])
        weights = dataclasses.replace(checkpoint.weights, container=watched)
        return dataclasses.replace(checkpoint, weights=weights, tensors=weights.tensors)

    return watch, found


def test_tensors_are_read_when_the_first_is_asked_for(google, reads):
    watch, found = reads
    checkpoint = watch(google)
    assert len(checkpoint.tensors) == len(set(checkpoint.tensors)) == 140
    assert "blocks.10.attn.qkv.weight" in checkpoint.tensors
    assert "nothing" not in checkpoint.tensors
    assert repr(checkpoint.tensors) == "<140 tensors of vit.npz>"
    assert found == []
    first = checkpoint.tensors["cls_token"]
    assert sorted(set(found)) == sorted(checkpoint.weights.container.manifest)
    assert checkpoint.tensors["cls_token"] is first


def test_one_canonical_tensor_is_read_alone(google, reads):
    watch, found = reads
    checkpoint = watch(google)
    name = "blocks.10.attn.qkv.weight"
    alone = checkpoint.weights.read_canonical(name)
    assert len(found) == 3  # q, k and v
    assert torch.equal(alone, checkpoint.tensors[name])
    info = checkpoint.weights.infos[name]
    assert (info.dtype, info.shape) == ("float32", tuple(alone.shape))


def test_a_checkpoint_that_was_changed_says_so(google):
    checkpoint = vitconvert.load_checkpoint(google)
    assert checkpoint.as_read
    assert not dataclasses.replace(checkpoint, tensors=dict(checkpoint.tensors)).as_read
    assert dataclasses.replace(checkpoint, preprocessing=None).as_read


def test_error_damaged_bytes_are_met_when_tensors_are_read(tmp_path):
    file = tmp_path / "vit.npz"
    np.savez_compressed(file, **google_arrays(depth=2, heads=3, width=36, size=24))
    data = bytearray(file.read_bytes())
    kernel = data.index(b"MlpBlock_3/Dense_0/kernel.npy") + 2000
    data[kernel : kernel + 9] = bytes(9)
    file.write_bytes(data)
    checkpoint = vitconvert.load_checkpoint(file)
    with pytest.raises(CorruptFile):
        dict(checkpoint.tensors)


def test_error_accounts_that_do_not_close_are_met_at_once(google):
    with np.load(google) as arrays:
        np.savez(google, **{n: a for n, a in arrays.items() if "encoderblock_10/Mlp" not in n})
    with pytest.raises(TensorMismatch):
        vitconvert.load_checkpoint(google)


def test_what_is_shown_in_a_notebook_is_short(google):
    checkpoint = vitconvert.load_checkpoint(google)
    assert repr(checkpoint) == (
        f"<Checkpoint '{google}': dialect google_jax, 11 blocks of width 36, 140 tensors>"
    )
    assert repr(vitconvert.inspect(google)).startswith(f"<Inspection '{google}': npz, dialect ")
    plan = vitconvert.plan_conversion(checkpoint, to="timm")
    assert repr(plan).startswith(f"<ConversionPlan '{google}': google_jax to timm, 140 tensors, ")
    assert repr(vitconvert.diff(google, google, header=True)) == (
        f"<Difference '{google}', '{google}': equal>"
    )
    several = (checkpoint, vitconvert.inspect(google), plan)
    assert all(len(repr(value)) < 300 for value in several)


def test_the_same_checkpoint_serves_every_function(google, tmp_path):
    checkpoint = vitconvert.load_checkpoint(google)
    assert vitconvert.load_checkpoint(checkpoint) is checkpoint
    model = vitconvert.load_model(checkpoint)
    conversion = vitconvert.convert(checkpoint, output=tmp_path / "out", verify=False)
    assert repr(conversion) == (
        f"<Conversion '{google}': google_jax to timm in '{tmp_path / 'out'}', not verified>"
    )
    opened = dataclasses.replace(
        conversion.proof, opened=(Opened(consumer="timm", relative=0, bit_equal=True),)
    )
    assert repr(dataclasses.replace(conversion, proof=opened)).endswith(", timm: bit-equal>")
    again = vitconvert.load_model(conversion.output)
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(model(images), again(images))
    assert vitconvert.diff(locate(google), locate(tmp_path / "out")).equal


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_reads_other_channels(google, channels):
    from timm.models import adapt_input_conv

    usual = vitconvert.load_model(google)
    model = vitconvert.load_model(google, in_channels=channels)
    assert model.config.in_channels == channels
    wanted = adapt_input_conv(channels, usual.patch_embed.proj.weight.detach())
    assert torch.allclose(model.patch_embed.proj.weight, wanted, rtol=0, atol=1e-7)
    assert model(torch.randn(2, channels, 24, 24)).shape == (2, 5)


def test_error_a_device_that_is_not_here(google):
    with pytest.raises(UsageError) as caught:
        vitconvert.load_model(google, device="mps")
    assert caught.value.fact == "torch finds no device 'mps' on this machine."
    assert caught.value.evidence["devices here"].startswith("cpu")


def test_how_to_read_goes_along_as_one_value(google, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    options = ReadOptions(dialect="google_jax", overrides={"activation": "gelu"})
    checkpoint = read_checkpoint(locate(google), options)
    assert checkpoint.config.activation == "gelu"
    assert checkpoint.config.origins["activation"] == "user"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"num_heads": 3}, r"'num_heads' is not an option of reading; did you mean overrides="),
        ({"dialekt": "timm"}, "'dialekt' is not an option of reading; did you mean dialect?"),
        ({"cast_to": "float32"}, "'cast_to' is not an option of reading; "),
        ({"zzz": 1}, "'zzz' is not an option of reading; these are: dialect, table, "),
    ],
)
def test_error_a_name_that_is_no_option_of_reading(google, named, message):
    with pytest.raises(TypeError, match=message):
        vitconvert.load_model(google, **named)


def test_a_name_of_an_architecture_is_not_passed_over(tmp_path):
    """What the user says would play no part."""
    path = tmp_path / "dinov2.pth"
    torch.save(dinov2(), path)
    stated = {"num_heads": HEADS}
    with pytest.raises(ConflictingFact, match=r"depth = 12 .architecture dinov2_vits14."):
        vitconvert.load_checkpoint(path, architecture="dinov2_vits14", overrides=stated)
    with pytest.raises(NotRepresentable, match="not an architecture that vitconvert knows"):
        vitconvert.load_checkpoint(path, architecture="vits14", overrides=stated)
    vitconvert.load_checkpoint(path, overrides=stated)
