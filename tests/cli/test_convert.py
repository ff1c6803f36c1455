"""`vitconvert convert SOURCE`: one verb for every source, and what it says."""

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import vitconvert
from tests.matrix_sources import SOURCES
from tests.packages import timm, transformers
from tests.small_models import SMALL_TIMM, randomise
from vitconvert.cli import VERBS
from vitconvert.cli import vitconvert as command_line
from vitconvert.sources.references import parse_reference
from vitconvert.tables.dialects import builtin_tables


@pytest.fixture
def fine_tuned(tmp_path):
    """What transformers saves after training: eps 1e-12, and names of classes."""
    config = transformers.ViTConfig(
        hidden_size=30, num_hidden_layers=11, num_attention_heads=3, intermediate_size=50,
        image_size=24, patch_size=8, id2label={0: "cat", 1: "dog", 2: "owl"},
    )  # fmt: skip
    randomise(transformers.ViTForImageClassification(config)).save_pretrained(tmp_path / "ft")
    return tmp_path / "ft"


def test_a_success_is_three_lines(run, tmp_path):
    source = tmp_path / "source"
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SMALL_TIMM))
    timm.models.save_for_hf(model, str(source), model_args=SMALL_TIMM, safe_serialization=True)
    code, out, err = run("convert", source, "--to", "timm", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    first, parity, place, *rest = out.splitlines()
    assert re.fullmatch(
        rf"converted      {source} \(timm\) to timm: tensors (\d+) read, \1 used, 0 ignored", first
    )
    assert parity == (
        f"parity         equal to timm {timm.__version__} VisionTransformer; "
        "timm: bit-equal; transformers: bit-equal"
    )
    assert place == f"output         {tmp_path / 'out'}"
    assert [line.split()[0] for line in rest] in ([], ["note"], ["assumed"], ["assumed", "note"])


def test_reasons_in_a_proof_are_not_sentences(run, tmp_path):
    source = Path(__file__).parents[1] / "flax/files/vit"
    _, out, _ = run("convert", source, "--to", "hf", "-o", tmp_path / "out")
    assert ": transformers 5 has no Flax classes; transformers: bit-equal\n" in out


def test_a_name_is_enough(run, tmp_path):
    code, out, err = run("convert", "vit_tiny_patch16_224", "--no-pretrained", "--dry-run")
    assert code == 0, err
    assert out.startswith("source         timm:vit_tiny_patch16_224, random weights\n")


def test_verbs_stand_in_four_groups():
    text = CliRunner().invoke(command_line, ["--help"]).output
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Convert", "Examine", "Verify", "Use"]
    assert text.index("  convert ") < text.index("  timm ") < text.index("  inspect ")
    assert len(text.splitlines()) <= 26 and max(map(len, text.splitlines())) <= 80
    assert "jeonsworld" not in text and all(f"  {verb} " in text for verb in list(VERBS)[:4])


@pytest.mark.parametrize("short", ["jeonsworld", "jax", "timm"])
def test_a_prefix_is_what_its_short_form_is(short, run, tmp_path):
    written = SOURCES[short].write(tmp_path / "source")
    stated = ("--set", "num_heads=3", "--to", "vit", "--dry-run")
    told = run(short, written, *stated)
    assert told.code == 0, told.err
    assert run("convert", f"{short}:{written}", *stated).out == told.out


def test_jax_is_a_prefix_of_every_source():
    assert parse_reference("jax:ViT-B_16") == parse_reference("google:ViT-B_16")


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag, run):
    assert run(flag).out == f"vitconvert, version {vitconvert.__version__}\n"


def _completed(*words):
    environment = {
        "_VITCONVERT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["vitconvert", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(command_line, env=environment, prog_name="vitconvert").output.split()


def test_a_shell_completes_verbs_options_and_targets():
    assert "plain,inspect" in _completed("ins")
    assert "plain,--image-size" in _completed("convert", "x.pth", "--image")
    ecosystems = {table.ecosystem for table in builtin_tables().values()}
    assert {word.removeprefix("plain,") for word in _completed("convert", "x", "--to", "")} == (
        ecosystems
    )
    assert _completed("convert", "x", "--to", "hf_vit_m") == ["plain,hf_vit_memory"]
    assert _completed("convert", "mod") == ["file,mod"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_option_prints_the_script_of_a_shell(shell, run):
    code, out, err = run("--completion", shell)
    assert (code, err) == (0, "")
    assert f"_VITCONVERT_COMPLETE={shell}_complete" in out


def test_error_usage_looks_like_every_other_error(run):
    code, out, err = run("convert", "x.pth", "--bogus")
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"error: usage\n  No such option:? '?--bogus'?.*\n"
        r"  hint: `vitconvert convert --help` says what may be typed\.\n",
        err,
    )


@pytest.mark.slow
def test_error_a_refusal_says_what_the_step_would_change(fine_tuned, run, tmp_path):
    code, out, err = run("convert", fine_tuned, "--to", "timm", "-o", tmp_path / "out")
    assert (code, out) == (5, "")
    assert f"  command  vitconvert convert {fine_tuned} --to timm -o {tmp_path / 'out'}" in err
    assert (
        "  effect   norm-eps (lossy): the eps of all norms became 1e-06, and 3 more (-v)\n" in err
    )
    err = run("convert", fine_tuned, "--to", "timm", "-o", tmp_path / "out", "-v").err
    assert re.search(r"norm-eps: on noise, outputs change by \S+ at most \(relative \S+\)", err)


def _at_a_terminal(answer, *arguments):
    """What a person sees who types `answer` where something is asked, and the exit code."""
    import pty

    main, terminal = pty.openpty()
    typed = [sys.executable, "-m", "vitconvert", *map(str, arguments)]
    process = subprocess.Popen(typed, stdin=terminal, stdout=terminal, stderr=terminal)
    seen = b""
    os.close(terminal)
    asked = False
    while select.select([main], [], [], 120)[0]:
        try:
            read = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        seen += read
        if not asked and b"[y/N]" in seen:
            asked = True
            os.write(main, answer)
    os.close(main)
    return seen.decode(), process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 5)], ids=["yes", "no"])
@pytest.mark.posix
def test_on_a_terminal_it_asks_and_goes_on_with_yes(answer, code, fine_tuned, tmp_path):
    place = tmp_path / "out"
    seen, found = _at_a_terminal(answer, "convert", fine_tuned, "--to", "timm", "-o", place)
    assert found == code, seen
    assert "Go on with --allow norm-eps? [y/N]" in seen
    assert place.exists() == (code == 0)
    if code == 0:
        assert "\x1b[32mparity" in seen  # green
        record = json.loads((place / "vitconvert.json").read_text())
        assert record["command"].endswith("--allow norm-eps")
        theirs = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
        x = torch.randn(1, 3, 24, 24)
        with torch.inference_mode():
            assert torch.allclose(vitconvert.load_model(fine_tuned)(x), theirs(x), atol=1e-4)


def test_a_wrong_target_is_named_before_the_source_is_looked_at(run, tmp_path):
    result = run("convert", "nowhere.pth", "--to", "timmm", "-o", tmp_path / "out")
    assert result.code == 2
    assert "There is no dialect 'timmm'" in result.err
    assert "\n  hint: did you mean timm or " in result.err


@pytest.mark.parametrize(
    ("to", "hint"),
    [
        ("transformers", "did you mean hf?"),
        ("PyTorch", "did you mean vit?"),
        ("huggingface", "did you mean hf?"),
        ("transfomers", "did you mean hf?"),
        ("PyTorch-Image-Models", "did you mean timm?"),
        ("openai", "did you mean openai_clip?"),
        ("onnx", "`vitconvert export a/no --to onnx -o no.onnx` writes it."),
        ("openvino", "`vitconvert export a/no --to openvino -o no.xml` writes it."),
    ],
)
def test_a_target_by_another_name_is_understood(to, hint, run):
    code, _, err = run("convert", "a/no", "--to", to)
    assert code == 2 and err.endswith(f"hint: {hint}\n")


def test_a_package_that_writes_the_target_is_missed_before_the_source_is_looked_at(
    run, monkeypatch
):
    for package in ("h5py", "msgpack"):
        monkeypatch.setitem(sys.modules, package, None)
    for to, package in (("keras_hub", "h5py"), ("hf_flax_vit", "msgpack")):
        code, _, err = run("convert", "nowhere.pth", "--to", to)
        assert code == 1 and err.endswith(
            f"{package}, which writes the files of {to}, is not installed.\n"
            f"  hint: pip install {package}\n"
        )


def test_a_step_and_a_format_that_are_none_are_told_what_is_near(run, fine_tuned, tmp_path):
    wanted = ["convert", fine_tuned, "--to", "timm", "--no-verify", "--allow", "norm_eps"]
    assert run(*wanted, "-o", tmp_path / "out").err.endswith("hint: did you mean norm-eps?\n")
    told = run("export", fine_tuned, "--to", "timm", "-o", tmp_path / "out.onnx").err
    assert told.endswith("hint: `vitconvert convert MODEL --to ...` writes for other libraries.\n")
