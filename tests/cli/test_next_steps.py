"""Messages that say what to type, where what was typed cannot be."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from vitconvert.demo.demonstration import DIGITS
from vitconvert.runtimes import check_onnx

SAMPLES = DIGITS / "samples"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    import vitconvert

    folder = tmp_path_factory.mktemp("exported")
    return {
        to: vitconvert.export_model(DIGITS, folder / f"digits{suffix}", to=to).output
        for to, suffix in (("onnx", ".onnx"), ("openvino", ".xml"))
    }


def test_features_in_parquet_are_a_directory(run, tmp_path):
    code, _, err = run("embed", DIGITS, SAMPLES, "-o", tmp_path / "x.parquet")
    assert code == 2 and f"-o {tmp_path / 'x'}/ is a directory of Parquet files" in err


def test_a_missing_folder_is_named_with_what_makes_it(run, tmp_path):
    code, _, err = run("golden", DIGITS, "-o", tmp_path / "parity" / "x.golden")
    assert code == 2 and f"`mkdir -p {tmp_path / 'parity'}` makes it" in err


@pytest.mark.parametrize(("pattern", "near"), [("nosuch", "vitconvert list"), ("tim", "timm")])
def test_a_name_of_nothing_is_said(run, pattern, near):
    code, out, err = run("list", pattern)
    assert (
        (code, out) == (2, "")
        and "There is no dialect or architecture called" in err
        and near in err
    )


def test_an_opset_is_refused_before_any_work(run, tmp_path):
    code, _, err = run("export", tmp_path / "gone", "--to", "onnx", "--opset", "17")
    assert code == 2 and "There is no opset 17" in err and "gone" not in err


def test_an_option_that_takes_one_says_so(run):
    code, _, err = run("verify", DIGITS, "--images", SAMPLES / "1.png", SAMPLES / "2.png")
    assert code == 2 and "--images takes one: type it before each" in err


@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("verb", ["inspect", "convert", "embed", "verify"])
def test_an_exported_file_is_known_for_what_it_is(run, exported, verb, to):
    images = [SAMPLES / "1.png"] if verb == "embed" else []
    code, _, err = run(verb, exported[to], *images)
    what = {"onnx": "an ONNX graph", "openvino": "a model of OpenVINO"}[to]
    assert code == 1 and f"This is {what}." in err
    assert "`vitconvert predict FILE IMAGES` computes classes" in err


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "config", "picture"])
def test_a_file_that_is_no_onnx_cannot_be_checked(exported, kind, tmp_path, capsys):
    content = {
        "text": b"hello\n",
        "empty": b"",
        "cut": exported["onnx"].read_bytes()[:2000],
        "config": (DIGITS / "config.json").read_bytes(),
        "picture": (SAMPLES / "1.png").read_bytes(),
    }[kind]
    (file := tmp_path / "file.onnx").write_bytes(content)
    assert check_onnx.main([str(file)]) == 2
    assert "is not an ONNX file that can be read" in capsys.readouterr().out


@pytest.mark.parametrize("number", [1e5, 6e4])
def test_an_overflow_of_float16_says_what_to_do(run, tmp_path, number):
    tensors = load_file(DIGITS / "model.safetensors")
    for block in (1, 2):  # the second sum is beyond float16
        tensors[f"blocks.{block}.mlp.fc2.bias"][0] = number
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(DIGITS / "config.json", tmp_path)
    image = SAMPLES / "1.png"
    for verb in ("predict", "embed"):
        answer = run(verb, tmp_path, image, "--dtype", "float16")
        said = answer.err + answer.out
        assert answer.code == 1 and "float16, which holds no number beyond 65504" in said
        assert "compute in float32 or bfloat16" in said
        assert run(verb, tmp_path, image, "--dtype", "float32").code == 0
    if number > 65504:
        written = ("convert", tmp_path, "-o", tmp_path / "out", "--dtype")
        code, _, err = run(*written, "float16")
        assert code == 5 and "float16 cannot hold the numbers of 2 tensors." in err
        assert "blocks.1.mlp.fc2.bias" in err and "Please report" not in err
        assert run(*written, "bfloat16").code == 0
