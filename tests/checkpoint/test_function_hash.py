"""The hash of a function: the same for every file that holds it, and for no other function."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import timm
from tests.small_models import SMALL_TIMM, randomise, tiny_config
from tests.spelling import google_arrays
from vitconvert.checkpoint.function_hash import function_hash
from vitconvert.cli import main
from vitconvert.formats import hash_file
from vitconvert.tables.canonical import expected_shapes

SIZE = {"depth": 2, "embed_dim": 36, "num_heads": 3, "num_classes": 5, "img_size": 32}
SIZE |= {"patch_size": 8, "mlp_ratio": 73 / 36}
RULE = "vit1:b11c6899ec99feaea1715ac05c7756425eb7eaf2b6eeeb2035f6524106f39a35"


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    path = tmp_path_factory.mktemp("google") / "vit.npz"
    np.savez(path, **google_arrays(depth=2, heads=3, width=36, size=32))
    return path


@pytest.fixture
def output(tmp_path):
    """A conversion that was verified, of a timm model."""
    torch.manual_seed(0)
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SMALL_TIMM | {"img_size": 48}))
    timm.models.save_for_hf(model, tmp_path / "source", model_args=SMALL_TIMM | {"img_size": 48})
    return vitconvert.convert(tmp_path / "source", to="hf", output=tmp_path / "out").output


def name_of(source, **reading):
    return vitconvert.load_checkpoint(source, **reading).function_hash


@pytest.fixture
def run(capsys):
    def run(*typed):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([str(word) for word in typed])
        return capsys.readouterr().out

    return run


def change(file, alter):
    tensors = load_file(file)
    alter(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_projects_files_of_one_model_have_one_name(google, tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", **SIZE)
    theirs.load_pretrained(str(google))  # timm's own code
    timm.models.save_for_hf(theirs, tmp_path / "timm", model_args=SIZE)
    vitconvert.convert(google, to="hf", output=tmp_path / "hf", verify=False)
    name = name_of(google)
    assert name == name_of(tmp_path / "hf")
    assert name == name_of(tmp_path / "timm", overrides={"activation": "gelu_tanh"})
    assert name != name_of(tmp_path / "timm")  # whose GELU is another
    assert name != name_of(google, overrides={"norm_eps": 1e-5})


def test_order_and_precision_that_keeps_the_numbers_do_not_count(google, tmp_path):
    tensors = {n: t.half() for n, t in vitconvert.load_checkpoint(google).tensors.items()}
    reading = {"overrides": {"num_heads": 3}}
    names = set()
    for dtype in (torch.float16, torch.float32, torch.float64):
        order = sorted(tensors) if dtype == torch.float32 else reversed(tensors)
        file = tmp_path / f"{dtype}.pth"
        torch.save({name: tensors[name].to(dtype) for name in order}, file)
        names.add(name_of(file, **reading))
    brain = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    torch.save(brain, tmp_path / "brain.pth")
    torch.save({name: tensor.float() for name, tensor in brain.items()}, tmp_path / "wide.pth")
    assert len(names) == 1
    other = {name_of(tmp_path / name, **reading) for name in ("brain.pth", "wide.pth")}
    assert len(other) == 1 and not other & names


def test_the_rule_of_vit1():
    config = tiny_config(norm_eps=1e-6)
    shapes = expected_shapes(config)
    tensors = {name: torch.full(s, 1.0 * len(name)) for name, s in shapes.items()}
    name = function_hash(config, tensors)
    assert name == RULE  # whoever changes the rule changes its number
    eps = float(np.float32(1e-6))  # as a program in float32 states it
    same = ({"drop_rate": 0.1}, {"norm_eps": eps}, {"final_norm_eps": 1e-6}, {"pool_mlp": False})
    other = ({"norm_eps": 1.1e-6}, {"activation": "relu"}, {"attention_scale": 0.3})
    for changes in (*same, *other):
        assert (function_hash(config.replace(**changes), tensors) == name) == (changes in same)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (0.0, -0.0, True),
        (float("nan"), -float("nan"), True),
        (float("nan"), float("inf"), False),
        (0.0, 1e-45, False),
        (1.0, 1.0 + 2**-23, False),
    ],
)
def test_a_number_counts_and_its_spelling_does_not(one, two, same):
    config, names = tiny_config(), []
    for number in (one, two):
        tensors = {name: torch.ones(shape) for name, shape in expected_shapes(config).items()}
        tensors["norm.bias"][3] = number
        names.append(function_hash(config, tensors))
    assert (names[0] == names[1]) == same


def test_a_conversion_records_what_its_output_holds(output):
    name = name_of(output)
    assert json.loads((output / "vitconvert.json").read_text())["function_hash"] == name
    assert f"\nfunction   {name}\n" in (output / "README.md").read_text()
    told = vitconvert.inspect(output)
    assert (told.recorded_hash, told.function_hash) == (name, "")
    assert vitconvert.inspect(output, with_hash=True).function_hash == name
    assert vitconvert.inspect(output, overrides={"norm_eps": 1e-3}).recorded_hash == ""


def test_what_is_recorded_is_not_what_is_computed(output, run):
    name = name_of(output)
    assert f"function       {name} (recorded in vitconvert.json, not recomputed)\n" in run(
        "inspect", output, "-v"
    )
    assert f"function       {name} (computed, as vitconvert.json states)\n" in run(
        "inspect", output, "--hash"
    )
    with (output / "model.safetensors").open("r+b") as written:  # the header stays what it was
        written.seek(-4, 2)
        written.write(np.float32(7).tobytes())
    told = run("inspect", output, "--hash")
    assert f"function       {name_of(output)} (computed)\n" in told
    assert f"{name} (another one, recorded in vitconvert.json, not recomputed)\n" in told


def test_diff_believes_recorded_names_of_files_that_are_as_written(output, tmp_path, run):
    vitconvert.convert(output, to="timm", output=tmp_path / "back")
    found = vitconvert.diff(output, tmp_path / "back")
    assert found.equal and found.same_function == name_of(output)
    assert found.values is None and found.bit_equal is None
    told = run("diff", output, tmp_path / "back")
    assert f"both vitconvert.json state the function {found.same_function}" in told
    assert told.endswith("result         equal\n")
    assert not vitconvert.diff(output, tmp_path / "back", header=True).same_function
    before = hash_file(tmp_path / "back" / "model.safetensors")
    change(tmp_path / "back" / "model.safetensors", lambda tensors: tensors["norm.bias"].add_(1))
    assert hash_file(tmp_path / "back" / "model.safetensors") != before
    found = vitconvert.diff(output, tmp_path / "back")
    assert not found.same_function and list(found.values) == ["norm.bias"]


def test_small_numbers_of_float64_are_those_of_float32():
    """What float32 has no number for is zero, and a zero has no sign."""
    config = tiny_config()
    shapes = expected_shapes(config)
    zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    tiny = {name: tensor - 1e-60 for name, tensor in zeros.items()}
    assert function_hash(config, tiny) == function_hash(config, zeros)


def test_numbers_are_not_flushed_to_zero():
    config = tiny_config()
    small = {
        n: torch.full(s, 1e-40, dtype=torch.float64) for n, s in expected_shapes(config).items()
    }
    wanted = function_hash(config, small)
    torch.set_flush_denormal(True)
    try:
        assert function_hash(config, small) == wanted
        assert float(np.float32(1e-40) * np.float32(1)) == 0  # as it was
    finally:
        torch.set_flush_denormal(False)
