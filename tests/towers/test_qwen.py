"""The image towers of Qwen2-VL, Qwen2.5-VL and GLM-4V, which rotate q and k."""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.small_models import assert_same_tensors, relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert.errors import ConflictingFact, MissingFact, TensorMismatch
from vitconvert.programs.transformers.modules import places_of
from vitconvert.programs.transformers.running import run

SIZES = {"depth": 11, "num_heads": 3}
KINDS = {
    "qwen2_vl": (
        "Qwen2VisionTransformerPretrainedModel",
        {"embed_dim": 48, "hidden_size": 20, "mlp_ratio": 2, "patch_size": 6},
        [(24, 24), (36, 60)],
        "hf_qwen2_vl",
    ),
    # Windows of four patches a side, and parts of windows
    "qwen2_5_vl": (
        "Qwen2_5_VisionTransformerPretrainedModel",
        {"hidden_size": 48, "out_hidden_size": 20, "intermediate_size": 50, "patch_size": 6}
        | {"window_size": 30, "fullatt_block_indexes": [3, 7]},
        [(24, 48), (24, 24), (60, 36)],
        "hf_qwen2_5_vl",
    ),
    "glm4v": (
        "Glm4vVisionModel",
        {"hidden_size": 48, "out_hidden_size": 20, "intermediate_size": 50, "patch_size": 6}
        | {"image_size": 30, "rms_norm_eps": 1e-4},
        [(24, 24), (36, 60)],
        "hf_glm4v",
    ),
}
# As the files of the Hub have them, which name no type of the section.
SECTIONS = {
    "qwen2_vl": {"depth": 11, "embed_dim": 48, "mlp_ratio": 2, "num_heads": 3, "patch_size": 6}
    | {"in_chans": 3, "hidden_size": 20, "spatial_merge_size": 2, "temporal_patch_size": 2},
    "qwen2_5_vl": {"depth": 11, "hidden_size": 48, "num_heads": 3, "patch_size": 6, "in_chans": 3}
    | {"out_hidden_size": 20, "intermediate_size": 50, "hidden_act": "silu", "window_size": 30}
    | {"spatial_merge_size": 2, "temporal_patch_size": 2, "fullatt_block_indexes": [3, 7]},
    "glm4v": {"depth": 11, "hidden_size": 48, "num_heads": 3, "patch_size": 6, "in_channels": 3}
    | {"out_hidden_size": 20, "intermediate_size": 50, "hidden_act": "silu", "image_size": 30}
    | {"spatial_merge_size": 2, "temporal_patch_size": 2, "rms_norm_eps": 1e-4},
}


def made(kind, **changes):
    """A tower with every parameter random."""
    assert transformers
    name, own, *_ = KINDS[kind]
    of_kind = getattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), name)
    model = of_kind(of_kind.config_class(**SIZES | own | changes))
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():  # calm: float32 of deep models differs by 5e-7
            parameter.normal_(std=0.1).add_(0.1 if parameter.ndim == 1 else 0.0)
    return model.eval()


@pytest.fixture(scope="module", params=list(KINDS))
def tower(request, tmp_path_factory):
    """The model type, transformers' model, its directory, and sizes of images."""
    model = made(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return request.param, model, folder, KINDS[request.param][2]


def stated(size):
    return {"overrides": {"image_size": size}}


@torch.inference_mode()
def test_outputs_are_those_of_transformers_at_every_size(tower):
    kind, model, folder, sizes = tower
    assert vitconvert.load_checkpoint(folder, **stated(sizes[0])).table.name == KINDS[kind][3]
    for size in sizes:
        images = torch.rand(2, 3, *size)
        for fast in (False, True):
            ours = vitconvert.load_model(folder, fast=fast, **stated(size))
            assert relative(ours(images), run(model, images)) < 1e-6


@torch.inference_mode()
def test_the_merger_is_a_module_of_its_own(tower):
    _, model, folder, (*_, size) = tower
    ours = vitconvert.load_model(folder, **stated(size))
    images = torch.rand(1, 3, *size)
    tokens = ours.forward_features(images)
    assert torch.equal(ours.merge(tokens), ours(images))
    norm, seen = getattr(model, "post_layernorm", None) or model.merger.ln_q, []
    handle = norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    model(**places_of(model).inputs(model, images))
    handle.remove()
    (theirs,) = seen
    assert tokens[0].shape == theirs.shape
    # They have an order of their own: each of ours is one of them, and the other way round.
    apart = torch.cdist(tokens[0].double(), theirs.double())
    assert max(apart.min(0).values.max(), apart.min(1).values.max()) < 1e-5


def test_it_is_written_again_and_opened(tower, tmp_path):
    _, _, folder, (*_, size) = tower
    for to in ("hf", "vit"):
        done = vitconvert.convert(folder, output=tmp_path / to, to=to, verify=True, **stated(size))
        assert [opened.consumer for opened in done.opened] == ["transformers"]
        before, after = (load_file(d / "model.safetensors") for d in (folder, tmp_path / to))
        # An image fills both frames: each is written half of the sum.
        name = "patch_embed.proj.weight"
        assert torch.equal(after[name].double().sum(2), before[name].double().sum(2).float())
        assert_same_tensors(*({k: t for k, t in d.items() if k != name} for d in (after, before)))
        images = torch.rand(2, 3, *size)
        with torch.inference_mode():
            ours = vitconvert.load_model(tmp_path / to)
            assert (
                relative(ours(images), vitconvert.load_model(folder, **stated(size))(images)) == 0
            )


@pytest.mark.parametrize(
    ("start", "typed"), [("visual.", False), ("visual.", True), ("model.visual.", False)]
)
def test_it_is_found_in_the_larger_model(tower, start, typed, tmp_path):
    kind, model, folder, (*_, size) = tower
    tensors = {start + k: t for k, t in load_file(folder / "model.safetensors").items()}
    tensors["model.embed_tokens.weight"] = torch.zeros(5, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    section = SECTIONS[kind] | ({"model_type": kind} if typed else {})
    config = {"model_type": kind, "hidden_size": 99, "vision_config": section}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if kind != "glm4v":  # whose positions show a grid
        with pytest.raises(MissingFact, match="the grid is unknown"):
            vitconvert.load_checkpoint(tmp_path)
    images = torch.rand(2, 3, *size)
    with torch.inference_mode():
        ours = vitconvert.load_model(tmp_path, **stated(size))
        assert relative(ours(images), run(model, images)) < 1e-6
    assert vitconvert.verify(tmp_path, **stated(size)).verdict == "equal"


@pytest.mark.coverage
def test_it_is_exported_and_embedded(tower, tmp_path):
    _, model, folder, (*_, size) = tower
    images = torch.rand(2, 3, *size)
    found = in_onnx_runtime(folder, images, tmp_path, **stated(size))
    with torch.inference_mode():
        assert relative(found, run(model, images)) < 1e-5
    said = f"--set=image_size={size[0]}x{size[1]}"
    features = embedded(folder, tmp_path, said, "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert features.shape == (1, found.shape[1], 20)


def test_what_is_refused(tower, tmp_path):
    kind, model, folder, _ = tower
    side = model.config.patch_size
    with pytest.raises(ConflictingFact, match="5x4 patches do not divide into squares of 2 by 2"):
        vitconvert.load_checkpoint(folder, **stated((5 * side, 4 * side)))
    made(kind, temporal_patch_size=4).save_pretrained(tmp_path)
    with pytest.raises(TensorMismatch, match=r"patch_embed\.proj\.weight"):
        vitconvert.load_checkpoint(tmp_path, **stated((4 * side, 4 * side)))


@pytest.mark.slow
def test_glms_projections_may_have_biases(tmp_path):
    made("glm4v", attention_bias=True).save_pretrained(tmp_path / "own")
    said = stated((24, 36))
    done = vitconvert.convert(tmp_path / "own", output=tmp_path / "hf", to="hf", **said)
    assert [opened.consumer for opened in done.opened] == ["transformers"]
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("own", "hf"))
    assert after.keys() == before.keys() and "blocks.3.attn.qkv.bias" in after
