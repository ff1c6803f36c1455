"""Headers to spoil: a small timm and a small transformers checkpoint, and what becomes of them."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from vitconvert.config import ViTConfig
from vitconvert.errors import VitConvertError
from vitconvert.facts.accounts import Ledger, check_accounts, open_ledger
from vitconvert.facts.fact import state, strongest
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.project_config import facts_from_config
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import find_tables

Shapes = dict[str, tuple[int, ...]]
CONTRADICTED = """\
error: conflicting-fact
  What is stated contradicts the tensors.
  {}
  hint: leave these values out, or name the file that they belong to. --image-size resamples \
positions; --set states what the file is, if a name is wrong."""
MISSING = """\
error: missing-fact
  The file does not say everything that decides the function.
  dialect  {dialect} (weights_map/{dialect}.toml)
  {lines}
  hint: {sets} (in Python, overrides={{...}}) states it."""


def timm(depth: int = 2, **changes: tuple[int, ...]) -> Shapes:
    """Width 30, MLP 50, patches of 8, 3 by 3 of them, 7 classes; with `_` for the dots."""
    shapes: Shapes = {
        "cls_token": (1, 1, 30),
        "pos_embed": (1, 10, 30),
        "patch_embed.proj.weight": (30, 3, 8, 8),
        "patch_embed.proj.bias": (30,),
    }
    for i in range(depth):
        block = f"blocks.{i}"
        shapes |= pair(f"{block}.norm1", 30) | pair(f"{block}.attn.qkv", 90, 30)
        shapes |= pair(f"{block}.attn.proj", 30, 30) | pair(f"{block}.norm2", 30)
        shapes |= pair(f"{block}.mlp.fc1", 50, 30) | pair(f"{block}.mlp.fc2", 30, 50)
    shapes |= pair("norm", 30) | pair("head", 7, 30)
    return shapes | changes


def hf(depth: int = 2, base: str = "vit.") -> Shapes:
    embeddings = f"{base}embeddings"
    shapes: Shapes = {
        f"{embeddings}.cls_token": (1, 1, 30),
        f"{embeddings}.position_embeddings": (1, 10, 30),
        f"{embeddings}.patch_embeddings.projection.weight": (30, 3, 8, 8),
        f"{embeddings}.patch_embeddings.projection.bias": (30,),
    }
    for i in range(depth):
        layer = f"{base}encoder.layer.{i}"
        for part in ("query", "key", "value"):
            shapes |= pair(f"{layer}.attention.attention.{part}", 30, 30)
        shapes |= pair(f"{layer}.attention.output.dense", 30, 30)
        shapes |= pair(f"{layer}.layernorm_before", 30) | pair(f"{layer}.layernorm_after", 30)
        shapes |= pair(f"{layer}.intermediate.dense", 50, 30)
        shapes |= pair(f"{layer}.output.dense", 30, 50)
    return shapes | pair(f"{base}layernorm", 30) | pair("classifier", 7, 30)


def lucidrains(patch: int = 192, width: int = 20) -> Shapes:
    shapes: Shapes = {"cls_token": (1, width), "pos_embedding": (10, width)}
    shapes |= pair("to_patch_embedding.1", patch) | pair("to_patch_embedding.2", width, patch)
    shapes |= pair("to_patch_embedding.3", width) | pair("transformer.norm", width)
    return shapes | lucidrains_layer(width) | pair("mlp_head", 7, width)


def simple(width: int = 20) -> Shapes:
    shapes = pair("to_patch_embedding.1", 192) | pair("to_patch_embedding.2", width, 192)
    shapes |= pair("to_patch_embedding.3", width) | pair("transformer.norm", width)
    layer = lucidrains_layer(width)
    out = layer.pop("transformer.layers.0.0.to_out.0.weight")
    del layer["transformer.layers.0.0.to_out.0.bias"]
    moved = {name.replace("net.4", "net.3"): shape for name, shape in layer.items()}
    moved["transformer.layers.0.0.to_out.weight"] = out
    return shapes | moved | pair("linear_head", 7, width)


def lucidrains_layer(width: int) -> Shapes:
    a, f = "transformer.layers.0.0", "transformer.layers.0.1"
    shapes = pair(f"{a}.norm", width) | {f"{a}.to_qkv.weight": (99, width)}
    shapes |= pair(f"{a}.to_out.0", width, 33) | pair(f"{f}.net.0", width)
    return shapes | pair(f"{f}.net.1", 50, width) | pair(f"{f}.net.4", width, 50)


def pair(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def examine(
    shapes: Shapes,
    user: Mapping[str, Any] | None = None,
    their_config: Mapping[str, Any] | None = None,
    named: Mapping[str, Any] | None = None,
    dialect: str | None = None,
) -> tuple[ViTConfig, Ledger]:
    """Everything that is decided from a header, as loading does it."""
    binding = recognise(shapes, find_tables(dialect) if dialect else None, their_config).binding
    stated = strongest(
        state(user or {}, "user"),
        facts_from_config(binding.table, their_config or {}),
        state(named or {}, "architecture some_vit"),
    )
    gathered = gather_facts(binding, stated)
    config, notes = gathered.config(), gathered.notes
    check_accounts(binding, config, "model.safetensors")
    return config, open_ledger(binding, config, notes)


def message(kind: type[VitConvertError], *arguments, **options) -> str:
    with pytest.raises(kind) as error:
        examine(*arguments, **options)
    assert type(error.value) is kind
    return str(error.value)


def missing(dialect: str, lines: str, sets: str) -> str:
    return MISSING.format(dialect=dialect, lines=lines, sets=sets)


def shapes_of(make, *arguments, **options) -> Shapes:
    """The header of a model, which is made without weights."""
    with torch.device("meta"):
        model = make(*arguments, **options)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
