"""Files of quantised weights, as bitsandbytes, torchao and transformers write them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.packages import bitsandbytes, torchao, transformers
from tests.small_models import randomise

# Arguments of a BitsAndBytesConfig, and of bitsandbytes' own functions.
FOUR_BIT = {
    "nf4": {"quant_type": "nf4"},
    "fp4": {"quant_type": "fp4"},
    "nf4, nested": {"quant_type": "nf4", "compress_statistics": True},
    "fp4, nested": {"quant_type": "fp4", "compress_statistics": True},
    "nf4, large blocks": {"quant_type": "nf4", "blocksize": 256},
}
ROWS = "8 bit"
TORCHAO = ("int8", "int8, groups", "int8, rounded inputs", "float8", "int4 in int8", "asymmetric")


def four_bit(weight: Tensor, name: str, how: str) -> tuple[dict[str, Tensor], Any]:
    """A weight as bitsandbytes keeps it in a state dict, and what it dequantises it with."""
    packed, state = bitsandbytes.functional.quantize_4bit(weight, **FOUR_BIT[how])
    parts = {f"{name}.{key}": part for key, part in state.as_dict(packed=True).items()}
    return {name: packed, **parts}, state


def rows(weight: Tensor, name: str) -> dict[str, Tensor]:
    """A weight as a Linear8bitLt keeps it."""
    numbers, largest, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    module = name.removesuffix("weight")
    form = torch.tensor(0, dtype=torch.uint8)
    return {name: numbers, f"{module}SCB": largest, f"{module}weight_format": form}


def torchao_config(how: str) -> Any:
    """A configuration of torchao."""
    q = torchao.quantization
    match how:
        case "int8":
            return q.Int8WeightOnlyConfig()
        case "int8, groups":
            return q.Int8WeightOnlyConfig(granularity=q.PerGroup(16))
        case "int8, rounded inputs":
            return q.Int8DynamicActivationInt8WeightConfig()
        case "float8":
            return q.Float8WeightOnlyConfig()
        case "int4 in int8":
            return q.IntxWeightOnlyConfig(weight_dtype=torch.int4)
    kind, group = q.MappingType.ASYMMETRIC, q.PerGroup(16)
    return q.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=group, mapping_type=kind)


def by_torchao(model: nn.Module, how: str) -> nn.Module:
    """The model with the weights of its linear layers quantised."""
    torchao.quantization.quantize_(model, torchao_config(how))
    return model


def save_flat(model: nn.Module, path: Path) -> None:
    """Write safetensors as torchao does."""
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, words = flatten_tensor_state_dict(model.state_dict())
    save_file(tensors, path, metadata=words)


def save_base(folder: Path) -> Path:
    """A ViT of transformers; bitsandbytes computes only with rows of whole blocks on a CPU."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    images = {"image_size": 24, "patch_size": 8, "num_labels": 5}
    config = transformers.ViTConfig(num_hidden_layers=11, **sizes, **images)
    randomise(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    return folder


def quantiser(how: str, dtype: torch.dtype = torch.float32) -> Any:
    """What `from_pretrained` of transformers takes as quantization_config."""
    if how in TORCHAO:
        return transformers.TorchAoConfig(torchao_config(how))
    if how == ROWS:
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=how[:3],
        bnb_4bit_use_double_quant="nested" in how,
        bnb_4bit_compute_dtype=dtype,
    )


def save_quantised(base: Path, folder: Path, how: str, **options: Any) -> nn.Module:
    """Write a quantised model as transformers does, and return it."""
    model = transformers.ViTForImageClassification.from_pretrained(
        base, quantization_config=quantiser(how), **options
    )
    model.save_pretrained(folder)
    # On a CPU with AVX512 and bfloat16, bitsandbytes rounds inputs unless the model is trained.
    return model.train("bit" in how or how in FOUR_BIT)
