"""A refusal begins with the nearest dialect, and names the command that works."""

import json
import shlex

import numpy as np
import pytest
from safetensors import safe_open

import vitconvert
from tests.conversion.conftest import huggingface_directory, timm_directory
from tests.small_models import randomise, tiny_config
from tests.spelling import google_arrays
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import UsageError

__all__ = [
    "huggingface_directory",
    "timm_directory",
]  # fixtures


def _lines(err):
    """What stands beside the titles of a message."""
    return dict(line.strip().partition("  ")[::2] for line in err.splitlines()[2:])


def _command(err, called="command"):
    found = next(line for line in err.splitlines() if line.strip().startswith(called))
    program, *arguments = shlex.split(found.strip().removeprefix(called))
    assert program == "vitconvert"
    return arguments


def test_the_command_of_a_refusal_works(run, huggingface_directory, tmp_path):
    source = huggingface_directory()
    code, _, err = run("hf", source, "--to", "timm", "-o", tmp_path / "a name", "--no-verify")
    assert code == 5
    assert err.splitlines()[:2] == [
        "error: not-representable",
        "  No dialect of 'timm' computes the function of these weights; the nearest is timm: timm "
        "has no architecture with these fixed parts; norm_eps 1e-12.",
    ]
    assert err.splitlines()[2].startswith("  command  vitconvert hf ")
    assert len(err.splitlines()) == 6
    arguments = _command(err)
    assert " ".join(arguments).count("--allow norm-eps") == 1
    code, _, err = run(*arguments)
    assert code == 0, err
    assert (tmp_path / "a name" / "config.json").is_file()


def test_a_target_that_no_step_reaches_gets_the_command_of_another(run, timm_directory, tmp_path):
    source = timm_directory(depth=1, img_size=32)
    out = tmp_path / "out"
    code, _, err = run("timm", source, "--to", "jax", "-o", out, "--token", "hf_secret")
    assert code == 5
    assert "hf_secret" not in err
    arguments = _command(err)
    assert arguments[arguments.index("--to") + 1] == "hf"
    assert run(*arguments, "--no-verify").code == 0


def test_what_fits_without_its_head_is_told_so(run, timm_directory, tmp_path):
    source = timm_directory(depth=1, img_size=32)
    refused = run("timm", source, "--to", "dino", "-o", tmp_path / "out")
    assert refused.code == 5
    assert refused.err.endswith("  hint: without its head it fits: --num-classes 0.\n")
    command = _command(refused.err, "without its head")
    assert command[command.index("--to") + 1] == "dino"
    assert run(*command).code == 0


@pytest.mark.slow
def test_every_dialect_that_refuses_is_listed_when_asked_for(run, huggingface_directory, tmp_path):
    arguments = ("hf", huggingface_directory(), "--to", "timm", "-o", tmp_path / "out")
    brief, verbose = run(*arguments), run(*arguments, "-v")
    assert "timm_eva: " not in brief.err
    assert "  timm_eva: " in verbose.err
    details = json.loads(run(*arguments, "--json").out)["error"]["details"]
    assert len(details) == 1 + int(_lines(verbose.err)["others"].strip().split(";")[0])
    assert all(f"  {detail}\n" in verbose.err for detail in details)


@pytest.mark.parametrize(
    ("verb", "option", "meant"),
    [
        ("file", "--num-heads", "Did you mean '--set num_heads=...'?"),
        ("inspect", "--norm-eps", "Did you mean '--set norm_eps=...'?"),
        ("file", "--outptu", "Did you mean '--output'?"),
        ("list", "--num-heads", "No such option '--num-heads'."),
    ],
)
def test_a_fact_given_as_an_option_of_its_own_is_told_how_to_be_stated(run, verb, option, meant):
    refused = run(verb, option, 3)
    assert refused.code == 2
    assert meant in refused.err


def test_a_wrong_name_is_told_with_what_may_be_meant(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crew.toml").touch()
    (tmp_path / "model.pth").touch()
    for typed, hint in (
        ("convrt model.pth", "did you mean `vitconvert convert`?"),
        ("inspect modle.pth", "did you mean model.pth?"),
        (f"file {DIGITS} --table crow.toml --to timm", "did you mean crew.toml?"),
        ("file model.pth --to crew", "--table crew.toml names that table."),
        ("file model.pth --to crw --table crew.toml", "did you mean crew, the name of your table?"),
        ("file model.pth --to timm_evq", "did you mean timm_eva"),
        (f"convert {DIGITS} --dtype fp16 -o x", "did you mean float16 or"),
        (f"embed {DIGITS} modle.pth --pool men", "did you mean mean?"),
        (f"verify {DIGITS} --dtypes bf16", "did you mean bfloat16"),
        (f"verify {DIGITS} --module absent:build", "absent.py, or a package, is looked for here"),
        ("table model.pth --like vit_tinny_patch16_224", "did you mean timm:vit_tiny_patch16_224"),
        (f"export {DIGITS} --to onnx -o x.onx", "-o x.onnx is such a name."),
        (f"golden {DIGITS} -o x", "-o x.golden is such a name."),
        (f"predict {DIGITS} modle.pth", "did you mean model.pth?"),
    ):
        code, _, err = run(*typed.split())
        assert code in (1, 2) and f"hint: {hint}" in err, (typed, err)


def test_an_option_that_plays_no_part_is_named_as_it_is_typed():
    with pytest.raises(UsageError) as error:
        vitconvert.load_model(vitconvert.load_checkpoint(DIGITS), lora_scale=2.0)
    assert error.value.hint == "leave out --lora-scale (in Python, lora_scale)."
    with pytest.raises(UsageError) as error:
        vitconvert.load_model(vitconvert.load_checkpoint(DIGITS), overrides={"num_heads": 3})
    assert error.value.hint == "leave out --set (in Python, overrides)."


@pytest.mark.parametrize("typed", [(), ("--num-classes", 3)])
def test_what_fits_without_the_layer_before_its_head_gets_the_files_own_names(run, tmp_path, typed):
    arrays = google_arrays(depth=2, heads=3, width=30, size=32)
    for key, shape in {"kernel": (30, 20), "bias": (20,)}.items():
        arrays[f"pre_logits/{key}"] = np.random.default_rng(1).normal(size=shape).astype("f4")
    arrays |= {"head/kernel": arrays["head/kernel"][:20], "opt/step": np.ones(1, "f4")}
    np.savez(tmp_path / "vit.npz", **arrays)
    command = ("convert", tmp_path / "vit.npz", "--to", "timm", "-o", tmp_path / "out")
    command = (*command, "--ignore", "opt/*", *typed)
    refused = run(*command)
    assert refused.code == 5
    assert len(refused.err.splitlines()) <= 6
    hint = "  hint: without these layers it fits: --ignore 'pre_logits/*' --ignore 'head/*'."
    assert refused.err.splitlines()[-1] == hint
    halfway = run(*command, "--ignore", "pre_logits/*")
    assert "--ignore 'head/*' leaves it out, too." in halfway.err
    done = run(*_command(refused.err, "without them"))
    assert done.code == 0, done.err
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert "norm.weight" in file.keys()  # noqa: SIM118
        assert not [name for name in file.keys() if name.startswith("head")]  # noqa: SIM118


def test_a_layer_that_a_named_dialect_must_have_is_left_out_by_the_library(run, tmp_path):
    """vitconvert.json names the dialect with the layer, where `--to hf` wrote it."""
    config = tiny_config(num_classes=0, representation_size=12, norm_eps=1e-6, image_size=(12, 12))
    randomise(vitconvert.ViT(config)).save_pretrained(tmp_path / "own")
    made = run("convert", tmp_path / "own", "--to", "hf", "-o", tmp_path / "hf")
    assert made.code == 0, made.err
    refused = run("hf", tmp_path / "hf", "--to", "timm", "-o", tmp_path / "out")
    done = run(*_command(refused.err, "without them"))
    assert done.code == 0, done.err
