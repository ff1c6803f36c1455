"""Reads a state dict in memory, by the same steps as a file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitconvert.checkpoint.options import ReadOptions
from vitconvert.config import ViTConfig
from vitconvert.conversion.accounts import check_accounts, check_dtypes
from vitconvert.conversion.derivation import derive_config, state
from vitconvert.conversion.plan import plan_reading
from vitconvert.conversion.statements import parse_fields
from vitconvert.conversion.tensor_evidence import USER
from vitconvert.tables.detection import recognise

if TYPE_CHECKING:
    import torch

_PLACE = "a state dict"


def read_state_dict(
    state_dict: "Mapping[str, torch.Tensor]", options: ReadOptions
) -> "tuple[dict[str, torch.Tensor], ViTConfig]":
    """The tensors of a state dict under canonical names, and their configuration.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    from vitconvert.conversion.materialise import materialise

    shapes = {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
    recognised = recognise(shapes, options.tables())
    binding = recognised.binding
    config, _ = derive_config(binding, state(parse_fields(options.overrides or {}), USER))
    check_accounts(binding, config, _PLACE)
    theirs = {key: state_dict[recognised.prefix + key] for key in binding.shapes}
    dtypes = {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in theirs.items()}
    check_dtypes(binding, dtypes, _PLACE)
    return materialise(plan_reading(binding, config), theirs.__getitem__), config
