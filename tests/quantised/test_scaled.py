"""Floats of 8 bits: with scales under any program's names, and cast without any."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import transformers
from tests.small_models import randomise
from vitconvert.checkpoint.quantised import dequantised
from vitconvert.errors import Quantised, TensorMismatch, UsageError
from vitconvert.formats import open_container

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
IMAGES = {"image_size": 24, "patch_size": 8, "num_labels": 5}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 160}
    config = transformers.ViTConfig(num_hidden_layers=2, **sizes, **IMAGES)
    randomise(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    return folder


def written(base, folder, scale, block=None, dtype=E4M3, more=(), stated=None):
    """The model with matrices of 8 bits, each with its scales under a name: of a block, or one."""
    tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        tensors[name] = weight
        if weight.ndim == 2 and "encoder" in name:
            rows, columns = block or weight.shape
            parts = weight.reshape(weight.shape[0] // rows, rows, -1, columns)
            scales = parts.abs().amax((1, 3), keepdim=True) / torch.finfo(dtype).max
            tensors[name] = (parts / scales).reshape(weight.shape).to(dtype)
            module = name.removesuffix("weight")
            tensors[module + scale] = scales[:, 0, :, 0] if block else scales.reshape(())
            tensors |= {module + word: torch.ones(()) for word in more}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config |= {"quantization_config": stated} if stated else {}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def test_blocks_as_transformers_computes_them(base, tmp_path):
    blocks = {"weight_block_size": [32, 32], "modules_to_not_convert": ["classifier"]}
    stated = {"quant_method": "fp8", "activation_scheme": "dynamic", **blocks}
    folder = written(base, tmp_path / "fp8", "weight_scale_inv", (32, 32), stated=stated)
    theirs = transformers.ViTForImageClassification.from_pretrained(
        folder,
        quantization_config=transformers.FineGrainedFP8Config(dequantize=True, **blocks),
        dtype=torch.float32,
    ).eval()
    images = torch.randn(2, 3, 24, 24)
    ours = vitconvert.load_model(folder, dequantise="float32")
    assert torch.equal(ours(images), theirs(images).logits)
    (change,) = vitconvert.load_checkpoint(folder, dequantise="float32").ledger.changed
    assert change.startswith("dequantised 12 weights (float8_e4m3fn with scales) to float32")
    assert "also rounds their inputs" in change


LAYOUTS = {
    "compressed-tensors": ("weight_scale", None, ("weight_zero_point",)),
    "compressed-tensors, rows": ("weight_scale", (1, 96), ()),
    "diffusers": ("weight_scale", None, ("input_scale",)),
    "ComfyUI": ("scale_weight", None, ("scale_input",)),
    "transformers": ("weight_scale_inv", None, ("activation_scale",)),
}


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_programs_names(layout, dtype, tmp_path):
    scale, block, more = LAYOUTS[layout]
    numbers = torch.randn(160, 96).to(dtype)
    scales = torch.rand((160, 1) if block else ()) + 0.1
    tensors = {"fc.weight": numbers, f"fc.{scale}": scales, "fc.bias": torch.randn(160)}
    tensors |= {f"fc.{word}": torch.zeros(scales.shape) for word in more}
    tensors["scaled_fp8"] = torch.zeros(2).to(dtype)
    save_file(tensors, tmp_path / "a.safetensors")
    container = dequantised(open_container(tmp_path / "a.safetensors"), "float32")[0]
    assert container.manifest.keys() == {"fc.weight", "fc.bias"}
    assert torch.equal(container.read("fc.weight"), numbers.float() * scales)


@pytest.mark.parametrize("numbers", [0, 2])
def test_the_mark_of_comfy_ui_says_nothing(numbers, base, tmp_path):
    """It has no elements, or two where products are exact (comfy/model_base.py, comfy/ops.py)."""
    folder = written(base, tmp_path / "fp8", "scale_weight")
    reading = {"dequantise": "float32"}
    images = torch.randn(2, 3, 24, 24)
    wanted = vitconvert.load_model(folder, **reading)(images)
    tensors = load_file(folder / "model.safetensors")
    tensors["scaled_fp8"] = torch.zeros(numbers).to(E4M3)
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(vitconvert.load_model(folder, **reading)(images), wanted)


def test_a_matrix_that_lost_its_scale(base, tmp_path):
    folder = written(base, tmp_path / "fp8", "weight_scale")
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("weight_scale"))
    save_file({n: t for n, t in tensors.items() if n != lost}, folder / "model.safetensors")
    with pytest.raises(TensorMismatch, match="has no scale, as"):
        vitconvert.load_checkpoint(folder, dequantise="float32")


@pytest.mark.parametrize(
    ("shape", "each", "stated", "sides"),
    [
        ((160, 96), (4, 3), {}, (40, 32)),
        ((160, 96), (2, 1), {"weight_block_size": [128, 128]}, (128, 96)),
        ((290, 141), (3, 2), {}, (128, 128)),
        (
            (160, 96),
            (4, 3),
            {"config_groups": {"g": {"weights": {"block_structure": [48, 32]}}}},
            (48, 32),
        ),
    ],
)
def test_blocks_of_which_the_last_is_cut(shape, each, stated, sides, tmp_path):
    """By their numbers alone, where only one size gives these; else by config.json."""
    numbers, scales = torch.randn(shape).to(E4M3), torch.rand(each) + 0.1
    save_file({"fc.weight": numbers, "fc.weight_scale": scales}, tmp_path / "a.safetensors")
    opened = open_container(tmp_path / "a.safetensors")
    ours = dequantised(opened, "float32", stated)[0].read("fc.weight")
    for row in range(0, shape[0], 7):
        for column in range(0, shape[1], 5):
            scale = scales[row // sides[0], column // sides[1]]
            assert ours[row, column] == numbers[row, column].float() * scale


REFUSED = {
    "two sizes of blocks": ((160, 96), E4M3, torch.ones(2, 1), {}, "size of its blocks is unknown"),
    "other axes": ((160, 96), E4M3, torch.ones(160, 3, 1), {}, "has other axes"),
    "scales of 16 bits": ((6, 4), E4M3, torch.ones(1).to(torch.int16), {}, "not a supported scale"),
    "turned": ((6, 4), E4M3, torch.ones(1), {"transform_config": {"a": 1}}, "was rotated"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_add_up_is_refused(case, tmp_path):
    shape, dtype, scales, stated, message = REFUSED[case]
    tensors = {"fc.weight": torch.randn(shape).to(dtype), "fc.weight_scale": scales}
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(TensorMismatch, match=message):
        dequantised(open_container(tmp_path / "a.safetensors"), "float32", stated)


@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv", "scale_weight"])
def test_scales_are_not_to_be_ignored(scale, base, tmp_path):
    folder = written(base, tmp_path / "a", scale)
    for options in ({}, {"ignore": ["*scale*"]}, {"dialect": "hf", "ignore": ["*scale*"]}):
        with pytest.raises(Quantised, match="quantised") as error:
            vitconvert.load_model(folder, **options)
        assert "--dtype float32" in error.value.hint and "--ignore" not in str(error.value)
        assert vitconvert.inspect(folder, **options).problem.fact == error.value.fact
    with pytest.raises(UsageError):  # of which nothing is left
        vitconvert.load_model(folder, dequantise="float32", ignore=["*scale*"])


@pytest.mark.parametrize("scale", ["wscale", "weight.my_scales", "quant_scale"])
def test_scales_under_a_name_that_nobody_knows(scale, base, tmp_path):
    folder = written(base, tmp_path / "a", scale)
    for options in ({}, {"ignore": ["*scale*"]}, {"dequantise": "float32"}):
        with pytest.raises(Quantised, match="their scales are unknown") as error:
            vitconvert.load_model(folder, **options)
        assert scale in error.value.evidence["scales"]


def test_config_json_says_quantised_and_no_scale_is_here(base, tmp_path):
    stated = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    folder = written(base, tmp_path / "a", "weight_scale_inv", (32, 32), stated=stated)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "scale" not in name}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(Quantised) as error:
        vitconvert.load_model(folder)
    assert error.value.evidence["config.json"] == "quantization_config, fp8"


def test_four_bits_with_two_scales_are_called_by_their_name(base, tmp_path):
    folder = written(base, tmp_path / "a", "weight_scale", more=("weight_scale_2",))
    with pytest.raises(Quantised, match="NVFP4"):
        vitconvert.load_model(folder, dequantise="float32")


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@torch.no_grad()
def test_a_file_that_was_cast_is_read_exactly(dtype, base, tmp_path):
    cast = {n: t.to(dtype) for n, t in load_file(base / "model.safetensors").items()}
    for folder, tensors in {"cast": cast, "wide": {n: t.float() for n, t in cast.items()}}.items():
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / folder / "config.json").write_bytes((base / "config.json").read_bytes())
    model = transformers.ViTForImageClassification.from_pretrained(tmp_path / "wide").eval()
    images = torch.randn(2, 3, 24, 24)
    theirs = model(images).logits
    for options in (
        {},
        {"dequantise": "float32"},
        {"dequantise": "bfloat16", "dtype": torch.float32},
    ):
        ours = vitconvert.load_model(tmp_path / "cast", **options)
        assert (ours(images) - theirs).abs().max() < 1e-5 * theirs.abs().max()
    (note,) = vitconvert.load_checkpoint(tmp_path / "cast").ledger.notes
    assert note.endswith("are read as float32, which is exact")
    for to in ("hf", "equimo"):
        vitconvert.convert(tmp_path / "cast", to=to, output=tmp_path / to)
        ours = vitconvert.load_model(tmp_path / to)
        assert (ours(images) - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert vitconvert.verify(tmp_path / "cast").ok
    state = vitconvert.convert_state_dict(cast, to="vit", architecture=None, overrides=FACTS)
    assert all(tensor.dtype != dtype for tensor in state.values())


FACTS = {"num_heads": 4, "activation": "gelu", "norm_eps": 1e-12}
