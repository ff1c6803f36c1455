"""Every dialect of weights_map/ on checkpoints of its project: recognised, complete, invertible."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.packages import timm
from tests.tables.specimens import MODELS, SPECIMENS
from tests.tables.specimens.google import big_vision, google, google_hybrid, scanned
from tests.tables.specimens.packages import hf, hf_disk_name
from tests.tables.specimens.specimen import fill
from tests.tables.specimens.timm import timm_hybrid, timm_vit
from vitconvert.errors import NotRepresentable
from vitconvert.facts.accounts import check_accounts, open_ledger
from vitconvert.facts.fact import state
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_reading, plan_writing
from vitconvert.model import ViT
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import builtin_tables

NAMES = list(SPECIMENS)


def read(tensors, stated):
    """Their tensors in canonical names, with the configuration and the binding."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    recognised = recognise(shapes)
    assert recognised.prefix == ""
    binding = recognised.binding
    gathered = gather_facts(binding, state(stated, "user"))
    config, notes = gathered.config(), gathered.notes
    check_accounts(binding, config, "specimen")
    canonical = materialise(plan_reading(binding, config), tensors.__getitem__)
    return canonical, config, binding, notes


def write(canonical, config, dialect):
    plan = plan_writing(builtin_tables()[dialect], config)
    return materialise(plan, canonical.__getitem__)


def test_every_dialect_has_a_specimen():
    here = {name for s in SPECIMENS.values() for name in (s.dialect, s.written)} - {""}
    elsewhere = dialects_in("huggingface") | dialects_in("originals") | dialects_in("towers")
    elsewhere |= dialects_in("keras_hub") | dialects_in("flax") | dialects_in("llama_cpp")
    elsewhere |= dialects_in("mlx") | dialects_in("equimo")
    elsewhere |= {"vit", "lucidrains_adapted"}  # export: no project has files of these
    assert here | elsewhere == set(builtin_tables())


def dialects_in(folder):
    """The dialects that the tests of a folder beside this one call by their names."""
    files = (Path(__file__).parents[1] / folder).glob("*.py")
    words = {word for file in files for word in re.findall(r'"(\w+)"', file.read_text())}
    return words & set(builtin_tables())


@pytest.mark.parametrize("name", NAMES)
def test_recognised_with_every_tensor_used_and_every_field_found(name):
    specimen = SPECIMENS[name]
    tensors = specimen.tensors()
    _, config, binding, notes = read(tensors, specimen.stated)
    assert binding.table.name == specimen.dialect
    ledger = open_ledger(binding, config, notes)
    assert set(ledger.used) | set(ledger.ignored) == set(tensors)
    assert ledger.read == len(ledger.used) + len(ledger.ignored) == len(tensors)
    assert set(ledger.ignored) <= {"cls_token"} and notes == ()
    assert {field: getattr(config, field) for field in specimen.expected} == dict(specimen.expected)
    assert {config.origins[field] for field in ("embed_dim", "depth", "mlp_dim")} == {"tensors"}
    assert config.origins["norm_eps"] == (
        "user" if "norm_eps" in specimen.stated else binding.table.file
    )
    untold = {field for field in specimen.stated if config.origins[field] != "user"}
    assert untold <= {"final_norm"}  # stated and shown: few models end without a norm


@pytest.mark.parametrize("name", NAMES)
def test_writing_undoes_reading_to_the_last_byte(name):
    specimen = SPECIMENS[name]
    dtype = (torch.float32, torch.float16, torch.bfloat16)[NAMES.index(name) % 3]
    tensors = {key: tensor.to(dtype) for key, tensor in specimen.tensors().items()}
    canonical, config, _, _ = read(tensors, specimen.stated)
    assert {tensor.dtype for tensor in canonical.values()} == {dtype}
    back = write(canonical, config, specimen.written or specimen.dialect)
    assert {specimen.rewritten(key) for key in tensors} == set(back)
    for key, tensor in tensors.items():
        found = back[specimen.rewritten(key)]
        wanted = tensor.flatten() if specimen.squeezed and tensor.shape[:1] == (1,) else tensor
        if specimen.squeezed and found.ndim == tensor.ndim:
            wanted = tensor
        assert found.shape == wanted.shape and found.dtype == dtype, key
        same = [t.contiguous().flatten().view(torch.uint8) for t in (found, wanted)]
        assert torch.equal(*same), key


@pytest.mark.parametrize("name", list(MODELS))
@torch.no_grad()
def test_the_canonical_model_computes_what_theirs_does(name):
    specimen = MODELS[name]
    theirs = specimen.model()
    canonical, config, _, _ = read(specimen.tensors(), specimen.stated)
    ours = ViT(config, device="meta").eval()
    ours.load_state_dict(canonical, strict=True, assign=True)
    torch.manual_seed(1)
    images = torch.randn(2, config.in_channels, *config.image_size)
    wanted = specimen.outputs(theirs(images))
    if wanted is not None:
        torch.testing.assert_close(ours(images), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("timm EVA giant", "timm_eva"),
        ("timm EVA-02 small", "timm_eva_packed"),
        ("timm EVA-02 base", "timm_eva_split"),
    ],
)
def test_a_bias_of_keys_is_never_left_out_in_silence(name, dialect):
    canonical, config, _, _ = read(SPECIMENS[name].tensors(), SPECIMENS[name].stated)
    keys = canonical["blocks.1.attn.qkv.bias"].unflatten(0, (3, -1))[1]
    assert not keys.any()  # a zero part where the file has none
    keys[5] = -0.25
    with pytest.raises(NotRepresentable) as error:
        write(canonical, config, dialect)
    assert str(error.value) == (
        "error: not-representable\n"
        "  The target leaves out a part that is not zero in these weights.\n"
        "  tensor    blocks.1.attn.qkv.bias[qkv=1]\n"
        "  not zero  1 of 36 values\n"
        "  largest   0.25"
    )


def test_a_packed_swiglu_holds_the_gate_and_then_the_value():
    for name in ("timm DINOv2 giant", "timm EVA-02 small"):
        tensors = SPECIMENS[name].tensors()
        canonical, _, _, _ = read(tensors, SPECIMENS[name].stated)
        gate, value = tensors["blocks.10.mlp.fc1.weight"].chunk(2)
        assert torch.equal(canonical["blocks.10.mlp.fc1_g.weight"], gate)
        assert torch.equal(canonical["blocks.10.mlp.fc1.weight"], value)


POOLED = {"embed_dim": 32, "num_heads": 4, "mlp_ratio": 50 / 32, "class_token": False}


@pytest.mark.parametrize(
    ("shapes", "make"),
    [
        (google(patch=(8, 8, 3)), partial(timm_vit, img_size=24, depth=11)),
        (
            big_vision("params/", pool=True, pool_hidden=50),
            partial(timm_vit, img_size=24, depth=11, global_pool="map", **POOLED),
        ),
        (
            scanned(big_vision("params/", pool=True, pool_hidden=50)),
            partial(timm_vit, img_size=24, depth=11, global_pool="map", **POOLED),
        ),
        (google_hybrid((1, 1, 1)), partial(timm_hybrid, (1, 2), size=24)),
    ],
    ids=["google", "big_vision", "big_vision scanned", "google hybrid"],
)
def test_arrays_lie_as_timms_own_loader_lays_them(shapes, make, tmp_path):
    torch.manual_seed(5)
    tensors = fill(shapes)
    np.savez(tmp_path / "file.npz", **{name: t.numpy() for name, t in tensors.items()})
    model = make()
    timm.models.vision_transformer._load_weights(model, str(tmp_path / "file.npz"))
    canonical, _, _, _ = read(tensors, {})
    theirs = model.state_dict()
    assert set(canonical) == set(theirs)
    for name, tensor in canonical.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("family", ["ViT", "DeiT"])
def test_transformers_still_writes_the_older_names(family, tmp_path):
    model = hf(family, "ForImageClassification", num_labels=7)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == {hf_disk_name(name) for name in model.state_dict()}
