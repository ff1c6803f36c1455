"""Quantised models of transformers give the logits that the libraries compute with them."""

import json
import re
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.quantised.writers import ROWS, TORCHAO, quantiser, save_base, save_quantised
from tests.towers.families import FAMILIES, save
from vitconvert.cli import vitconvert as command_line
from vitconvert.cli.errors import run
from vitconvert.errors import Quantised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]
# Largest difference of logits over the largest logit. What rounds inputs too is not imitated.
BOUNDS = {"nf4": 0, "fp4": 0, "nf4, nested": 0, ROWS: 0.05, "int8, rounded inputs": 0.05}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("how", [*BOUNDS, *(how for how in TORCHAO if how not in BOUNDS)])
@torch.no_grad()
def test_logits_are_those_of_the_librarys_model(how, base, tmp_path):
    theirs = save_quantised(base, tmp_path, how)
    ours = vitconvert.load_model(tmp_path, dtype=torch.float32)
    images = torch.randn(3, 3, 24, 24)
    wanted = theirs(images).logits
    bound = BOUNDS.get(how, 2e-6) * wanted.abs().max().item()
    torch.testing.assert_close(ours(images), wanted, rtol=0, atol=bound)
    original = vitconvert.load_model(base)(images)
    assert (original - wanted).abs().max() > 1e-3 * wanted.abs().max()


def test_the_command_of_the_refusal_works(base, tmp_path, capsys):
    save_quantised(base, tmp_path / "q", "nf4, nested")
    capsys.readouterr()
    code = run(command_line, ["hf", str(tmp_path / "q"), "--to", "timm", "-o", str(tmp_path / "o")])
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith(
        "error: tensor-mismatch\n  These weights are quantised: bitsandbytes, 4"
    )
    (command,) = re.findall("^  command  vitconvert (.*)$", error, re.MULTILINE)
    arguments = [*shlex.split(command), "--allow", "norm-eps"]
    assert run(command_line, arguments) == 0, capsys.readouterr().err
    report = capsys.readouterr().out
    assert (
        "changed        dequantised 67 weights (bitsandbytes, 4 bit (nf4, scales of 8 bit)) to"
        in (report)
    )
    record = json.loads((tmp_path / "o" / "vitconvert.json").read_text())
    assert record["ledger"]["changed"][0].endswith(
        "to float32: the numbers are the quantised model's, not those that it was made from"
    )
    assert "the quantised model's" in (tmp_path / "o" / "README.md").read_text()


def test_without_a_dtype_it_is_refused_and_inspected(base, tmp_path):
    save_quantised(base, tmp_path, "int8")
    with pytest.raises(Quantised, match="torchao, whole numbers of 8 bit") as error:
        vitconvert.load_model(tmp_path)
    assert error.value.hint.startswith("--dtype float32 (in Python, dequantise='float32') computes")
    problem = vitconvert.inspect(tmp_path).problem
    assert problem is not None
    assert problem.fact == error.value.fact
    inspection = vitconvert.inspect(tmp_path, dequantise="bfloat16")
    assert inspection.problem is None
    assert any(note.startswith("dequantised 67 weights") for note in inspection.notes)
    assert vitconvert.verify(tmp_path, dequantise="float32").ok


def test_a_plain_tower_beside_a_quantised_language_model(tmp_path):
    """As bitsandbytes leaves it with `llm_int8_skip_modules`, and as GPTQ's program does."""
    from tests.packages import transformers

    folder = save(FAMILIES["llava"].model().bfloat16(), tmp_path / "plain", shard="1GB")
    plain = vitconvert.load_model(folder)
    config = quantiser("nf4")
    config.llm_int8_skip_modules = ["model.vision_tower", "lm_head"]
    model = transformers.LlavaForConditionalGeneration.from_pretrained(
        folder, quantization_config=config, dtype=torch.bfloat16
    )
    model.save_pretrained(tmp_path / "nf4")
    _as_gptq(folder, tmp_path / "gptq")
    images = torch.randn(2, 3, 24, 24)
    for name, program in (("nf4", "bitsandbytes, 4 bit (nf4)"), ("gptq", "GPTQ")):
        for dtype in (None, torch.float32):
            checkpoint = vitconvert.load_checkpoint(tmp_path / name)
            ours = vitconvert.load_model(tmp_path / name, dtype=dtype)
            assert torch.equal(ours(images), plain(images))
        note = f"outside of it lie quantised weights ({program}), which are not read"
        assert note in checkpoint.ledger.notes
        assert not checkpoint.ledger.changed


def test_a_quantised_tower_in_a_quantised_model(tmp_path):
    from tests.packages import transformers

    folder = save(FAMILIES["llava"].model(), tmp_path / "plain", shard="1GB")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(
        folder, quantization_config=quantiser("nf4")
    )
    model.save_pretrained(tmp_path / "nf4")
    checkpoint = vitconvert.load_checkpoint(tmp_path / "nf4", dequantise="float32")
    (change,) = checkpoint.ledger.changed
    assert change.startswith("dequantised 12 weights (bitsandbytes, 4 bit (nf4)) to float32: ")
    assert checkpoint.tower.prefix == "vision_tower."


def _as_gptq(folder, target):
    """The file with a language model under the names of GPTQ."""
    target.mkdir()
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if "language_model" in n and n.endswith("proj.weight")]:
        module, (rows, columns) = name.removesuffix(".weight"), tensors.pop(name).shape
        tensors[f"{module}.qweight"] = torch.zeros(columns // 8, rows, dtype=torch.int32)
        tensors[f"{module}.qzeros"] = torch.zeros(1, rows // 8, dtype=torch.int32)
        tensors[f"{module}.scales"] = torch.ones(1, rows, dtype=torch.float16)
        tensors[f"{module}.g_idx"] = torch.zeros(columns, dtype=torch.int32)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
