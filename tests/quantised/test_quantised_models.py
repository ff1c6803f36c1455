"""Quantised models of transformers give the logits that the libraries compute with them."""

import json
import re
import shlex
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import vitconvert
from tests.quantised.writers import ROWS, TORCHAO, quantiser, save_base, save_quantised
from tests.tables.specimens.packages import hf_disk_name
from tests.towers.families import FAMILIES, save
from vitconvert.cli import run
from vitconvert.cli import vitconvert as command_line
from vitconvert.errors import Quantised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]
ROUNDS_INPUTS = (ROWS, "int8, rounded inputs")
UNIT, HALF_UNIT = 2.0**-24, 2.0**-11  # largest relative errors of rounding: float32's, float16's


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("how", ["nf4", "fp4", "nf4, nested", ROWS, *TORCHAO])
@torch.no_grad()
def test_each_layer_computes_with_our_weights_and_the_logits_follow(how, base, tmp_path):
    """The library's layers depart by their rounding; without that, the logits are ours exactly."""
    theirs = save_quantised(base, tmp_path, how)
    weights = vitconvert.load_checkpoint(tmp_path, dequantise="float32").weights
    seen = 0
    for name, module in theirs.named_modules():
        if isinstance(module, nn.Linear):
            weight = weights.read(f"{hf_disk_name(name)}.weight")
            module.register_forward_hook(partial(_rounding_is_all, how, weight))
            seen += 1
    assert seen == 67
    images = torch.randn(3, 3, 24, 24)
    logits = theirs(images).logits
    ours = vitconvert.load_model(tmp_path, dtype=torch.float32)
    assert torch.equal(ours(images), logits)
    assert (vitconvert.load_model(base)(images) - logits).abs().max() > 1e-3 * logits.abs().max()


def _rounding_is_all(how, weight, layer, inputs, output):
    """A quantised layer computes what `weight` does, within bounds for any order of its sums.

    A sum of n products is off by at most n / (1 - n * unit) units of its absolute terms (Higham,
    Accuracy and Stability, 3.1); scale, weight and bias are rounded, too. Inputs that become whole
    numbers, with 127 the largest of their row, move by half a step each, and pass through float16.
    """
    (x,), bias = inputs, layer.bias
    exact = F.linear(x.double(), weight.double(), bias.double())
    terms = F.linear(x.double().abs(), weight.double().abs(), bias.double().abs())
    count = x.shape[-1] + 3
    bound = count * UNIT / (1 - count * UNIT) * terms
    if how in ROUNDS_INPUTS:
        half_step = x.double().abs().amax(-1, keepdim=True) / 127 / 2
        bound = bound + half_step * weight.double().abs().sum(-1) + 2 * HALF_UNIT * terms
    assert ((output - exact).abs() <= bound).all()
    return F.linear(x, weight, bias)


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
    capsys.readouterr()
    card = (tmp_path / "o" / "README.md").read_text()
    assert "dequantised 67 weights (bitsandbytes, 4 bit (nf4, scales of 8 bit)) to" in card
    record = json.loads((tmp_path / "o" / "vitconvert.json").read_text())
    assert record["ledger"]["changed"][0].endswith(
        "to float32: the numbers are the quantised model's, not those that it was made from"
    )
    assert "the quantised model's" in card


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
    # An export says what it computes in, and so does not ask.
    assert vitconvert.export_model(tmp_path, tmp_path / "vit.pt2", to="pt2").output.exists()


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
        note = f"outside of it are quantised weights ({program}), which are not read"
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
