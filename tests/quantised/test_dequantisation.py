"""Dequantised weights are the library's own, bit for bit."""

import math
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.packages import bitsandbytes
from tests.quantised.writers import FOUR_BIT, TORCHAO, by_torchao, four_bit, rows, save_flat
from vitconvert.checkpoint.quantised import dequantised
from vitconvert.checkpoint.quantised.weight import quantised_names
from vitconvert.errors import CorruptFile, TensorMismatch, UsageError, VitConvertError
from vitconvert.formats import Container, open_container

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def computed(container: Container, dtype: str = "float32") -> Container:
    return dequantised(container, dtype)[0]


@pytest.mark.parametrize(
    ("how", "dtype", "shape"),
    [
        *((how, torch.float32, shape) for how in FOUR_BIT for shape in ((30, 64), (33, 46))),
        *(("nf4, nested", dtype, (33, 46)) for dtype in DTYPES[1:]),
    ],
    ids=str,
)
def test_four_bit(how, dtype, shape, tmp_path):
    weight = torch.randn(shape).to(dtype)
    tensors, state = four_bit(weight, "fc.weight", how)
    save_file({**tensors, "fc.bias": torch.randn(30)}, tmp_path / "a.safetensors")
    theirs = bitsandbytes.functional.dequantize_4bit(tensors["fc.weight"], state)
    if shape[1] % state.blocksize:
        # bitsandbytes 0.50.2 begins a block with each row on a CPU with AVX512, where it computes
        # otherwise than on any other, and farther from the weight: its general code is meant.
        theirs = _in_general(tensors["fc.weight"], state)
    for wanted in ("float32", "bfloat16"):
        container = computed(open_container(tmp_path / "a.safetensors"), wanted)
        assert list(container.manifest) == ["fc.bias", "fc.weight"]
        ours = container.read("fc.weight")
        assert torch.equal(ours, theirs.to(getattr(torch, wanted)))
        assert container.manifest["fc.weight"].shape == shape
        assert container.manifest["fc.weight"].dtype == wanted
    assert (ours - weight).abs().mean() < 0.2 * weight.abs().mean()


def _in_general(packed, state):
    functional, general = bitsandbytes.functional, bitsandbytes.backends.default.ops
    scales = state.absmax
    if state.nested:
        scales = functional.dequantize_blockwise(scales, state.state2) + state.offset
    compute = general._dequantize_4bit_compute
    flat = packed.reshape(-1)
    with torch.compiler.set_stance("force_eager"):  # compiling it takes twenty seconds
        return compute(flat, scales, state.code, state.blocksize, state.shape, state.dtype)


def test_eight_bit(tmp_path):
    tensors = rows(torch.randn(30, 46), "fc.weight")
    save_file(tensors, tmp_path / "a.safetensors")
    theirs = bitsandbytes.functional.int8_vectorwise_dequant(
        tensors["fc.weight"], tensors["fc.SCB"]
    )
    assert torch.equal(
        computed(open_container(tmp_path / "a.safetensors")).read("fc.weight"), theirs
    )
    torch.save(tensors, tmp_path / "a.pt")
    assert torch.equal(computed(open_container(tmp_path / "a.pt")).read("fc.weight"), theirs)


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@pytest.mark.parametrize("how", TORCHAO)
def test_torchao(how, dtype, tmp_path):
    model = by_torchao(nn.Sequential(nn.Linear(48, 31), nn.Linear(32, 48)).to(dtype), how)
    save_flat(model, tmp_path / "a.safetensors")
    torch.save(model.state_dict(), tmp_path / "a.pt")
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("a.safetensors", "a.pt", "old.pt"):
        container = computed(open_container(tmp_path / name))
        assert set(container.manifest) == {
            f"{n}.{part}" for n in (0, 1) for part in ("weight", "bias")
        }
        for number, layer in enumerate(model):
            ours = container.read(f"{number}.weight")
            assert torch.equal(ours, layer.weight.dequantize().float()), (name, number)
        assert torch.equal(container.read("0.bias"), model[0].bias)


def test_only_what_is_read_is_computed(tmp_path):
    """Opening reads the words on how weights are packed; damage elsewhere is not even seen."""
    tensors, _ = four_bit(torch.randn(30, 64), "fc.weight", "nf4")
    save_file(tensors, tmp_path / "a.safetensors")
    container, asked = open_container(tmp_path / "a.safetensors"), []
    read = container.reader
    object.__setattr__(container, "reader", lambda name: asked.append(name) or read(name))
    laid = computed(container)
    state = "fc.weight.quant_state.bitsandbytes__nf4"
    assert asked == [state]
    laid.read("fc.weight")
    assert sorted(asked) == sorted([state, "fc.weight", "fc.weight.absmax", "fc.weight.quant_map"])


def words(**changes) -> torch.Tensor:
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [30, 64]} | changes
    return torch.tensor(list(str(said).replace("'", '"').encode()), dtype=torch.uint8)


STATE = "fc.weight.quant_state.bitsandbytes__nf4"
DAMAGE = {
    "no scales": ({"fc.weight.absmax": None}, "lacks a part"),
    "no list": ({"fc.weight.quant_map": None}, "lacks a part"),
    "no state": ({STATE: None}, "lacks a part"),
    "no weight": ({"fc.weight": None}, "lacks a part"),
    "no words": ({STATE: torch.zeros(80, dtype=torch.uint8)}, "cannot be read"),
    "half the words": ({STATE: words()[:40]}, "cannot be read"),
    "endless words": ({STATE: torch.zeros(10**4, dtype=torch.uint8)}, "not a short text"),
    "other blocks": ({STATE: words(blocksize=128)}, "is not 15 numbers"),
    "no block": ({STATE: words(blocksize=0)}, "blocksize = 0"),
    "many blocks": ({STATE: words(blocksize=10**30)}, "which is not valid"),
    "other shape": ({STATE: words(shape=[30, 32])}, "half bytes of 30x32"),
    "huge shape": ({STATE: words(shape=[2**40, 2**40])}, "half bytes"),
    "negative shape": ({STATE: words(shape=[-30, -64])}, "says no shape"),
    "other dtype": ({STATE: words(dtype="int8")}, "has weights of the unknown dtype"),
    "short list": ({"fc.weight.quant_map": torch.randn(15)}, "is not 16 numbers"),
    "cut": ({"fc.weight": torch.zeros(959, 1, dtype=torch.uint8)}, "half bytes"),
    "nested, half": ({"fc.weight.nested_absmax": torch.randn(1)}, "lacks a part"),
    "mixed": (
        {"fc.SCB": torch.randn(30), "fc.weight_format": torch.tensor(0, dtype=torch.uint8)},
        "in two ways",
    ),
}
NESTED = {
    "absmax": (torch.zeros(29, dtype=torch.uint8), "is not 30 numbers of uint8"),
    "nested_absmax": (torch.zeros(2), "is not 1 numbers of float32"),
    "nested_quant_map": (torch.zeros(16), "is not 256 numbers of float32"),
    "quant_state.bitsandbytes__nf4": (math.inf, "does not say how its scales are quantised"),
}


def test_what_does_not_add_up_is_refused(tmp_path):
    plain, _ = four_bit(torch.randn(30, 64), "fc.weight", "nf4")
    nested, _ = four_bit(torch.randn(30, 64), "fc.weight", "nf4, nested")
    said = re.sub(
        rb'"nested_offset": [^,}]+', b'"nested_offset": 1e999', bytes(nested[STATE].tolist())
    )
    endless = torch.tensor(list(said), dtype=torch.uint8)
    cases = [(plain | changes, message) for changes, message in DAMAGE.values()]
    for part, (changed, message) in NESTED.items():
        cases.append(
            (nested | {f"fc.weight.{part}": endless if changed is math.inf else changed}, message)
        )
    for number, (tensors, message) in enumerate(cases):
        file = tmp_path / f"{number}.safetensors"
        save_file({name: part for name, part in tensors.items() if part is not None}, file)
        with pytest.raises((TensorMismatch, CorruptFile), match=message):
            computed(open_container(file))


def test_names_that_others_have_too_say_nothing_alone():
    names = ["fc.weight", "fc.weight.scale", "fc.weight.quant_map", "fc.weight.zero_point"]
    assert quantised_names([*names, "fc._weight_scale", "fc._weight_act_x"]) == {}
    assert quantised_names([*names, "fc.weight.qdata"]).keys() == {"fc.weight"}


def test_other_layouts_and_dtypes_are_refused(tmp_path):
    tensors = rows(torch.randn(30, 46), "fc.weight")
    tensors["fc.weight_format"] += 1
    save_file(tensors, tmp_path / "a.safetensors")
    container = open_container(tmp_path / "a.safetensors")
    with pytest.raises(TensorMismatch, match="layout 1 of bitsandbytes"):
        computed(container).read("fc.weight")
    with pytest.raises(UsageError, match="not computed in float16"):
        computed(container, "float16")


def test_what_torchao_does_not_say_is_refused(tmp_path):
    model = by_torchao(nn.Sequential(nn.Linear(48, 31)), "int8")
    save_flat(model, tmp_path / "a.safetensors")
    container = open_container(tmp_path / "a.safetensors")
    for words, message in (
        ({}, "in an unknown way"),
        ({"0.weight": '{"_type": "Int4Tensor", "_data": {}}'}, "is a Int4Tensor"),
        ({"0.weight": '{"_type": "Int8Tensor", "_data": {}}'}, "has weights of the unknown dtype"),
        ({"0.weight": "{"}, "cannot be read"),
        (
            {"0.weight": container.metadata["0.weight"].replace("[1, 48]", "[1, 16]")},
            "lacks one number for each block of 1x16",
        ),
    ):
        object.__setattr__(container, "metadata", words)
        with pytest.raises(VitConvertError, match=message):
            computed(container)
