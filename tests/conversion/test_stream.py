"""Moving bytes from file to file gives what assembling tensors in memory gives."""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.facts.test_pairs import SCALED, as_read, configs, holders, random_tensors, told
from tests.sampling import sampled
from tests.small_models import tiny_config
from vitconvert.api import load_checkpoint
from vitconvert.conversion.stream import stream
from vitconvert.conversion.weights import contents_for
from vitconvert.errors import CorruptFile, NotRepresentable
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import compose, plan_reading
from vitconvert.formats import (
    content,
    content_of,
    open_container,
    write_safetensors,
)
from vitconvert.formats.npz import write_file as write_npz
from vitconvert.formats.torch.writing import write_file as write_torch
from vitconvert.programs.target import Target

DINOV3 = {"rope": "dinov3", "position_embedding": "none", "num_registers": 4}
DINOV3 |= {"rope_half": True, "rope_temperature": 100.0}
WRITERS = {"safetensors": write_safetensors, "npz": write_npz}


def raw(content):
    return b"".join(bytes(chunk) for chunk in content.chunks())


def reading_of(table, container, config):
    shapes = {name: info.shape for name, info in container.manifest.items()}
    return plan_reading(*as_read(table, shapes, config))


@pytest.mark.parametrize(
    "chunk", sampled([64, 2**20], 2, "slow"), ids=["small chunks", "large chunks"]
)
@pytest.mark.parametrize("form", ["safetensors", "npz"])
@settings(max_examples=8, phases=[Phase.generate])
@given(configs(), st.sampled_from([torch.float32, torch.bfloat16]), st.randoms())
def test_every_dialect_to_another_as_in_memory(form, chunk, config, dtype, random):
    canonical = random_tensors(config, 3, dtype, keyless=True)
    several = list(holders(config))
    random.shuffle(several)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_CHUNK", chunk)
        patch.setattr(content, "_LONG_ROW", 4 * chunk)
        for (table, plan), (_, further) in itertools.pairwise([*several, several[0]]):
            path = Path(directory) / "weights"
            WRITERS[form](path, materialise(plan, canonical.__getitem__))
            with open_container(path) as container:
                reading = reading_of(table, container, config)
                moved = stream(compose(reading, further), container)
                between = materialise(reading, container.read)
                wanted = materialise(further, between.__getitem__)
                assert moved is not None
                assert moved.keys() == wanted.keys()
                for name, tensor in wanted.items():
                    assert moved[name].info == content_of(name, tensor).info
                    assert raw(moved[name]) == raw(content_of(name, tensor)), (table.name, name)


def simple(**fields):
    """A plain ViT's configuration, tensors and the dialects that hold it."""
    config = tiny_config(**{"depth": 11} | fields)
    return (
        config,
        random_tensors(config, 0, torch.float32, keyless=False),
        {table.name: (table, plan) for table, plan in holders(config)},
    )


def moved_to(path, source, target, config, tables):
    with open_container(path) as container:
        plan = compose(reading_of(tables[source][0], container, config), tables[target][1])
        found = stream(plan, container)
        return found and {name: raw(content) for name, content in found.items()}


def in_memory(plan, tensors):
    made = materialise(plan, tensors.__getitem__)
    return {name: raw(content_of(name, tensor)) for name, tensor in made.items()}


def test_fortran_order(tmp_path):
    config, canonical, tables = simple()
    theirs = materialise(tables["google_jax"][1], canonical.__getitem__)
    arrays = {name: np.asfortranarray(tensor.numpy()) for name, tensor in theirs.items()}
    np.savez(tmp_path / "f.npz", **arrays)
    wanted = in_memory(tables["hf_vit"][1], canonical)
    assert moved_to(tmp_path / "f.npz", "google_jax", "hf_vit", config, tables) == wanted


def test_views_that_torch_saved_as_they_were(tmp_path):
    config, canonical, tables = simple()
    theirs = materialise(tables["timm"][1], canonical.__getitem__)
    whole = torch.randn(7, 100)
    for name, tensor in theirs.items():
        if name.endswith("norm1.weight"):
            tensor = torch.randn(1).expand(tensor.shape)
        elif name.endswith("norm1.bias"):
            tensor = whole[3, 5 : 5 + 2 * len(tensor) : 2]
        elif tensor.ndim == 2:
            tensor = tensor.t().contiguous().t()
        theirs[name] = tensor
    torch.save(theirs, tmp_path / "x.pth")
    with open_container(tmp_path / "x.pth") as container:
        reading = reading_of(tables["timm"][0], container, config)
        wanted = in_memory(tables["hf_vit"][1], materialise(reading, container.read))
    assert moved_to(tmp_path / "x.pth", "timm", "hf_vit", config, tables) == wanted


def test_what_bytes_cannot_do_is_left_to_memory(tmp_path):
    config, canonical, tables = simple()
    theirs = materialise(tables["google_jax"][1], canonical.__getitem__)
    arrays = {name: tensor.numpy() for name, tensor in theirs.items()}
    np.savez_compressed(tmp_path / "deflated.npz", **arrays)
    assert moved_to(tmp_path / "deflated.npz", "google_jax", "timm", config, tables) is None
    np.savez(tmp_path / "big.npz", **{n: a.astype(">f4") for n, a in arrays.items()})
    assert moved_to(tmp_path / "big.npz", "google_jax", "timm", config, tables) is None
    split = materialise(tables["hf_vit"][1], canonical.__getitem__)
    query = "vit.encoder.layer.3.attention.attention.query.bias"
    write_safetensors(tmp_path / "mixed", {**split, query: split[query].half()})
    assert moved_to(tmp_path / "mixed", "hf_vit", "timm", config, tables) is None


@pytest.mark.parametrize("value", [1.0, -0.0])
def test_a_part_that_is_left_out_must_be_zero(tmp_path, value):
    config, canonical, tables = simple(layer_scale=True, relative_positions="block", pooling="avg")
    source = next(name for name, (_, plan) in tables.items() if not plan.zeros)
    target = next(name for name, (_, plan) in tables.items() if plan.zeros)
    for name, tensor in canonical.items():
        if name.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0.0
    write_safetensors(tmp_path / "zero", materialise(tables[source][1], canonical.__getitem__))
    wanted = in_memory(tables[target][1], canonical)
    assert moved_to(tmp_path / "zero", source, target, config, tables) == wanted
    canonical["blocks.7.attn.qkv.bias"][13] = value
    write_safetensors(tmp_path / "not", materialise(tables[source][1], canonical.__getitem__))
    # A negative zero is no reason to refuse; only arithmetic can tell it from a number.
    assert moved_to(tmp_path / "not", source, target, config, tables) is None


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (
            {},
            "--allow drop-key-bias makes it fit: the bias of the keys, which softmax cancels, "
            "becomes zero.",
        ),
        ({"rope": "axial"}, None),
    ],
    ids=["keys cancel", "keys are turned"],
)
def test_a_step_is_offered_where_it_makes_the_part_zero(tmp_path, fields, hint):
    config, canonical, tables = simple(layer_scale=True, pooling="avg", **fields)
    target = next(name for name, (_, plan) in tables.items() if plan.zeros)
    write_safetensors(tmp_path / "x", canonical)
    source = load_checkpoint(tmp_path / "x", dialect="vit", overrides=told(config))
    plan = Target(table=tables[target][0], plan=tables[target][1], their_config={})
    with pytest.raises(NotRepresentable, match="leaves out a part that is not zero") as error:
        contents_for(plan, source, ())
    assert error.value.hint == hint
    assert error.value.steps == (("drop-key-bias",) if hint else ())


def test_numbers_that_must_be_looked_at_are_left_to_memory(tmp_path):
    config, _, tables = simple(**DINOV3, **SCALED, rope_periods=True, num_classes=0)
    canonical = random_tensors(config, 0, torch.bfloat16, keyless=True)
    theirs = materialise(tables["dinov3"][1], canonical.__getitem__)  # with a mask of the bias
    for dtype, moves in ((torch.bfloat16, True), (torch.float8_e5m2, False)):
        ours = {name: tensor.to(dtype) for name, tensor in canonical.items()}
        write_safetensors(tmp_path / "x", ours)
        found = moved_to(tmp_path / "x", "vit", "dinov3", config, tables)
        assert (found == in_memory(tables["dinov3"][1], ours)) == moves
        assert (found is None) != moves
    write_safetensors(tmp_path / "y", theirs)
    assert moved_to(tmp_path / "y", "dinov3", "vit", config, tables) is None


def test_a_file_that_shrinks_is_no_silent_end(tmp_path):
    config, canonical, tables = simple()
    path = tmp_path / "weights"
    write_safetensors(path, materialise(tables["timm"][1], canonical.__getitem__))
    with open_container(path) as container:
        plan = compose(reading_of(tables["timm"][0], container, config), tables["hf_vit"][1])
        contents = stream(plan, container)
        with path.open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(CorruptFile, match="became shorter while it was read"):
            for content in contents.values():
                raw(content)


def _written(path, source, target, config, tables, out):
    with open_container(path) as container:
        plan = compose(reading_of(tables[source][0], container, config), tables[target][1])
        write_safetensors(out, stream(plan, container))
    return out


@pytest.mark.parametrize("write", [write_safetensors, write_torch])
def test_what_is_streamed_is_written_as_by_the_library(tmp_path, write):
    config, canonical, tables = simple()
    theirs = materialise(tables["timm"][1], canonical.__getitem__)
    write(tmp_path / "theirs", theirs)
    out = _written(tmp_path / "theirs", "timm", "hf_vit", config, tables, tmp_path / "x")
    safetensors.torch.save_file(
        materialise(tables["hf_vit"][1], canonical.__getitem__), tmp_path / "wanted"
    )
    assert out.read_bytes() == (tmp_path / "wanted").read_bytes()


@pytest.mark.slow
def test_renames_import_neither_torch_nor_numpy(tmp_path):
    _, canonical, tables = simple()
    path, out = tmp_path / "weights", tmp_path / "out"
    write_safetensors(path, materialise(tables["timm"][1], canonical.__getitem__))
    code = (
        "import sys, vitconvert\n"
        f"vitconvert.convert({str(path)!r}, to='hf', output={str(out)!r}, verify=False, "
        "dialect='timm', overrides=dict(num_heads=3, norm_eps=1e-6, activation='gelu', "
        "pooling='token', image_size='12x8', position_embedding='learned', rope='none'))\n"
        "print(sorted({'torch', 'numpy', 'huggingface_hub', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert (out / "model.safetensors").is_file()
