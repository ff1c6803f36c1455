"""Files in float16 keep in float32 what float16 cannot hold, by measuring."""

import base64
import json
from functools import partial

import numpy as np
import pytest
import torch

import vitconvert
from tests.model.test_families_equal_to_timm import FAMILIES
from tests.packages import timm
from tests.runtimes.test_families import PARTS, config_of
from tests.sampling import sampled
from tests.small_models import randomise, relative
from vitconvert.checkpoint import build_model
from vitconvert.errors import ParityFailed
from vitconvert.model import ViT
from vitconvert.runtimes import RUNTIMES, check_onnx
from vitconvert.runtimes.check import Expected
from vitconvert.runtimes.export import quiet
from vitconvert.runtimes.float16 import CHOICES, KINDS, HalfGraph, InFloat32, kept_in_float32
from vitconvert.runtimes.graph import Shape, traced

SIZES = {"depth": 11, "embed_dim": 84, "num_heads": 3, "img_size": (48, 80)}
LARGE = 17  # the channel of large numbers
WITH_REGISTERS = "vit_small_patch16_dinov3"


def large_in_a_register(model, value):
    model.reg_token[:, 1, LARGE] = value


def large_in_all_tokens(model, blocks, value):
    """Blocks whose MLP adds a large number, and norms after them that read the other channels."""
    for block in model.blocks[blocks]:
        block.mlp.fc2.bias[LARGE] = value
        block.gamma_2[LARGE] = 1
    for norm in (*(norm for b in model.blocks[2:] for norm in (b.norm1, b.norm2)), model.norm):
        norm.weight.mul_(1e3)
        norm.weight[LARGE] = 1e-3


def large_scores(model, bias, *, constant):
    """Scores of attention that are nearly equal and large; a constant part is exact in float16."""
    for block in model.blocks:
        q, k, _ = block.attn.qkv.bias.view(3, 3, 28).unbind()
        q[:, 0] = k[:, 0] = bias
        if constant:
            q, k, _ = block.attn.qkv.weight.view(3, 3, 28, 84).unbind()
            q[:, 0] = k[:, 0] = 0


# A model of timm, what is done to it, and what has to stay in float32.
CASES = {
    "usual": ("vit_tiny_patch16_224", lambda model: None, (), ()),
    "usual, registers": (WITH_REGISTERS, lambda model: None, (), ()),
    "a norm squares it": (
        *(WITH_REGISTERS, partial(large_in_a_register, value=2e3)),
        *(("norms",), ()),
    ),
    "a register": (
        *(WITH_REGISTERS, partial(large_in_a_register, value=1e5)),
        *(("norms", "residual"), ()),
    ),
    "near the end of the range": (
        *(WITH_REGISTERS, partial(large_in_a_register, value=3e4)),
        *(("norms", "residual"), ()),
    ),
    "a sum of seven": (
        *(WITH_REGISTERS, partial(large_in_all_tokens, blocks=slice(1, 8), value=1.5e4)),
        *(("norms", "residual"), ()),
    ),
    "a product": (
        *(WITH_REGISTERS, partial(large_in_all_tokens, blocks=slice(1, 2), value=1e5)),
        *(KINDS, ("blocks.1.mlp.fc2",)),
    ),
    "scores": (
        *("vit_tiny_patch16_224", partial(large_scores, bias=64, constant=True)),
        *(("softmax",), ()),
    ),
}
TOO_COARSE = ("vit_tiny_patch16_224", partial(large_scores, bias=300, constant=False))


@torch.no_grad()
def saved(folder, name, change):
    """A directory of timm; returns the model too."""
    torch.manual_seed(3)
    model = randomise(timm.create_model(name, num_classes=5, **SIZES))
    for weight in model.parameters():  # else norms subtract most of the residual sum
        weight.sub_(weight.mean() if weight.ndim > 1 else 0)
    for block in model.blocks:  # what blocks add is as large as what they read
        block.attn.qkv.weight.mul_(0.5)
        block.attn.proj.weight.mul_(0.2)
        block.mlp.fc2.weight.mul_(0.2)
    change(model)
    timm.models.save_for_hf(model, str(folder), model_args=SIZES, safe_serialization=True)
    return model


def measured(folder):
    build = partial(build_model, vitconvert.load_checkpoint(folder), dtype=torch.float32)
    return kept_in_float32(build, Shape(), tolerance=0.01)


@pytest.mark.parametrize("case", CASES)
def test_what_stays_is_measured(case, tmp_path):
    name, change, kinds, layers = CASES[case]
    saved(tmp_path, name, change)
    kept = measured(tmp_path)
    assert (kept.kinds, kept.layers) == (kinds, layers), kept.tried
    assert kept.products == 46
    assert 1e-5 < kept.difference == kept.tried[kinds] < 0.005
    assert list(kept.tried)[-1] == kinds
    assert all(difference > 0.005 for tried, difference in kept.tried.items() if tried != kinds)


def differs(run, model, images):
    with torch.no_grad():
        return relative(run(images), model(images))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "to"),
    sampled([("a register", "pt2"), ("a sum of seven", "onnx"), ("a product", "openvino")], 3),
)
def test_large_numbers_are_kept_that_float16_alone_loses(case, to, tmp_path):
    for package in RUNTIMES[to].packages:
        pytest.importorskip(package)
    name, change, kinds, layers = CASES[case]
    model, runtime = saved(tmp_path / "vit", name, change), RUNTIMES[to]
    images = torch.randn(2, 3, 48, 80)
    checkpoint = vitconvert.load_checkpoint(tmp_path / "vit")
    build = partial(build_model, checkpoint, dtype=torch.float32, fast=True)
    plain = tmp_path / f"plain{runtime.suffix}"
    with quiet():
        runtime.write(traced(HalfGraph(build(), Shape(), InFloat32())), plain, {})
    assert not differs(runtime.open(plain, threads=1), model, images) < 0.1
    output = tmp_path / f"vit{runtime.suffix}"
    exported = vitconvert.export_model(checkpoint, output, to=to, dtype="float16")
    assert differs(runtime.open(output, threads=1), model, images) < 0.005
    told = json.loads(runtime.metadata(output)["vitconvert"])["float16"]
    assert told == exported.record["float16"]
    assert [kind for kind in KINDS if told[kind] == "float32"] == list(kinds)
    assert told["layers"] == list(layers) and told["difference"] < 0.005
    kept, *more = exported.notes
    names = ", ".join(kinds).replace("residual", "the residual sum")
    assert kept.startswith(f"in float32: {names}; in float16: ")
    assert any("1 of 46 products (blocks.1.mlp.fc2)" in note for note in more) == bool(layers)
    half = sum(p.numel() for p in model.parameters()) * 2
    assert sum(file.stat().st_size for file in tmp_path.glob("vit.*")) < 1.6 * half + 200_000
    if to == "onnx":
        assert check_onnx.main([str(output)]) == 0
        stated = json.loads(check_onnx.read_model(output).metadata["golden"])
        numbers = np.frombuffer(base64.b64decode(stated["outputs"]["output"]["float32"]), "<f4")
        size = (2, 3, 48, 80)
        golden = torch.from_numpy(check_onnx.images(*size[1:], pixels=False))
        with torch.no_grad():
            assert relative(torch.tensor(numbers).view(2, 5), model(golden)) < 1e-4
    exact = vitconvert.load_model(checkpoint)  # whose weights the export has not rounded
    assert differs(exact, model, images) < 1e-5


@pytest.mark.slow
def test_error_float16_is_too_coarse(tmp_path):
    saved(tmp_path / "vit", *TOO_COARSE)
    with pytest.raises(ParityFailed, match="float16 is too coarse for this model") as caught:
        vitconvert.export_model(tmp_path / "vit", tmp_path / "x.pt2", to="pt2", dtype="float16")
    assert caught.value.hint == "--dtype float32."
    assert not (tmp_path / "x.pt2").exists()
    unchecked = vitconvert.export_model(
        tmp_path / "vit", tmp_path / "x.pt2", to="pt2", dtype="float16", verify=False
    )
    assert unchecked.record["float16"]["difference"] > 0.01
    assert len(unchecked.record["float16"]["tried"]) == 6


MODELS = [*PARTS, *FAMILIES]


@pytest.mark.parametrize("kind", sampled(MODELS, 6))
def test_every_kind_of_vit_computes_with_each_choice(kind):
    """No operation meets two dtypes that it does not take, and the rules change no function."""
    torch.manual_seed(6)
    config = config_of(kind)
    weights = randomise(ViT(config)).state_dict()

    def build():
        model = ViT(config, device="meta")
        model.load_state_dict(weights, assign=True)
        return model.eval()

    shape = Shape(output="logits" if config.num_classes else "features")
    images = torch.randn(2, config.in_channels, *config.image_size)
    with torch.no_grad():
        wanted = Expected(build(), shape)(images)
        for kinds in CHOICES:
            for rounded in (True, False):
                graph = HalfGraph(build(), shape, InFloat32(kinds=kinds), rounded=rounded)
                assert 1e-6 < relative(graph(images), wanted) < 0.006
