"""Equinox's leaves as equimo saves a model: arrays in .npy's format, one after another, unnamed.

Which leaf is which follows from the class and its arguments, which `metadata.json` beside them
holds. Names are the paths of the leaves, with blocks counted through all chunks.

Source: equinox 0.13.8, tree_serialise_leaves; equimo 1.1.0, equimo/io.py and equimo/models/vit.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.atomic_write import atomic_file
from vitconvert.errors import CorruptFile, UsageError
from vitconvert.formats.container import Container, TensorInfo, mapped_container
from vitconvert.formats.content import Content, checked_contents
from vitconvert.formats.format_modules import ALONE, Array, Surroundings
from vitconvert.formats.headers import (
    check_size,
    checked_dtype,
    checked_shape,
    corrupt,
    parse_strict_object,
    truncated,
)
from vitconvert.formats.npz import DTYPES, LONGEST_NPY_HEADER, header_of, parse_header

if TYPE_CHECKING:
    import torch

READER = "numpy.load"
EXAMPLE = """\
import numpy

with open("weights.eqx", "rb") as file:  # the leaves in the order of equimo's class
    first = numpy.load(file)"""

METADATA = "metadata.json"
# What equimo's VisionTransformer has where its arguments are silent, of those that matter here.
DEFAULTS: Mapping[str, object] = {
    "use_mask_token": False,
    "class_token": True,
    "reg_tokens": 4,
    "num_classes": 1000,
    "global_pos_embed_cls": True,
    "global_pos_embed_reg": False,
    "local_pos_embed_reg": False,
    "use_global_pos_embed": True,
    "use_local_pos_embed": False,
    "block": "attentionblock",
    "qkv_bias": True,
    "proj_bias": True,
    "qk_norm": False,
    "act_layer": "gelu",
    "attn_layer": "attention",
    "ffn_layer": "mlp",
    "ffn_bias": True,
    "norm_layer": "layernorm",
    "init_values": None,
    "global_pool": "avg",
    "eps": 1e-5,
    "dynamic_img_pad": False,
    "untie_global_and_local_cls_norm": False,
}
# Arguments with which the class has other leaves, or computes what no table says.
_FIXED = (
    *("block", "attn_layer", "norm_layer", "global_pos_embed_reg", "local_pos_embed_reg"),
    *("qk_norm", "dynamic_img_pad"),
)
_LAYERS = {"mlp": ("fc1", "fc2"), "swiglu": ("w1", "w2", "w3"), "swiglufused": ("w12", "w3")}
_SCALARS = (".p", ".inference")  # of dropout, which are leaves too


def open_file(path: Path, *_: object) -> Container:
    """Read the headers of all leaves, and the arguments beside them.

    Raises:
        CorruptFile: They contradict each other, or no arguments are beside them.
    """
    config = _arguments(path)
    infos: dict[str, TensorInfo] = {}
    begins: dict[str, int] = {}
    position, size = 0, path.stat().st_size
    with path.open("rb") as file:
        for name in _leaves(config):
            file.seek(position)
            if position >= size:
                raise truncated(path, position + 1, size, least="at least ")
            descr, fortran, shape, offset = parse_header(path, name, file.read(LONGEST_NPY_HEADER))
            code = checked_dtype(path, name, descr[1:], DTYPES)
            info = TensorInfo(dtype=DTYPES[code], shape=checked_shape(path, name, shape))
            begin = position + offset
            position = begin + info.nbytes
            if position > size:
                raise truncated(path, position, size, least="at least ")
            if name.endswith(_SCALARS) != (info.shape == ()) or fortran or descr[0] == ">":
                raise corrupt(path, f"equimo has no leaf like {name!r}.", shape=info.shape)
            if info.shape:
                infos[name], begins[name] = info, begin
    if position != size:
        check_size(path, "the last leaf", TensorInfo(dtype="uint8", shape=(0,)), size - position)
    found = mapped_container(path, "equinox", infos, begins, size=size)
    return replace(found, config=config)


def _arguments(path: Path) -> dict[str, object]:
    """The arguments of the class, with what it has where they are silent.

    Also `depth`, and `num_heads` as one number, and the last of the blocks' layers by its name.
    """
    beside = path.with_name(METADATA)
    if not beside.is_file():
        raise _nameless(path)
    said = parse_strict_object(beside, beside.read_bytes(), what=METADATA).get("model_config")
    config = {**DEFAULTS, **said} if isinstance(said, dict) else {}
    heads = config.get("num_heads")
    if isinstance(heads, list) and heads and heads.count(heads[0]) == len(heads):
        config["num_heads"] = heads[0]
    match config:
        case {
            "depths": [*depths],
            "patch_size": int(),
            "num_heads": int(),
            "ffn_layer": str(layer),
        }:
            config["depth"] = sum(depth for depth in depths if type(depth) is int)
            fixed = all(config[name] == DEFAULTS[name] for name in _FIXED)
            if fixed and layer in _LAYERS:
                return config
    raise corrupt(
        path,
        f"{METADATA} is not about a ViT of equimo that is read here.",
        meaning="The leaves have no names. Only the arguments of the model say which is which.",
    )


def _nameless(path: Path) -> CorruptFile:
    """The error for arrays of which nothing says the names: one, or the leaves of any class."""
    with path.open("rb") as file:
        start = file.read(LONGEST_NPY_HEADER)
    several = path.suffix == ".eqx"
    with suppress(CorruptFile):
        descr, _, shape, begin = parse_header(path, "the first array", start)
        code = checked_dtype(path, "the first array", descr[1:], DTYPES)
        first = TensorInfo(dtype=DTYPES[code], shape=checked_shape(path, "the first array", shape))
        several = begin + first.nbytes < path.stat().st_size
    if not several:
        hint = "save named arrays with numpy.savez."
        return corrupt(path, "This is a single .npy array without a name.", hint=hint)
    return corrupt(
        path,
        "These are leaves of an Equinox model, which have no names.",
        meaning=f"For equimo's models, a {METADATA} says which is which, and there is none.",
        hint=f"put equimo's {METADATA} there; of another class, save its leaves by name with "
        "numpy.savez.",
    )


def _leaves(config: Mapping[str, object]) -> Iterator[str]:
    """The leaves of equimo's VisionTransformer, in their order."""
    yield from _both("patch_embed.proj", True)
    if config["use_global_pos_embed"]:
        yield "global_pos_embed.weight"
    if config["use_local_pos_embed"]:
        yield "local_pos_embed.patch_rope.freqs"
    tokens = {
        "cls_token": "class_token",
        "reg_tokens": "reg_tokens",
        "mask_token": "use_mask_token",
    }
    yield from (leaf for leaf, argument in tokens.items() if config[argument])
    for index in range(int(str(config["depth"]))):
        yield from (f"blocks.{index}.{leaf}" for leaf in _leaves_of_block(config))
    yield from _dropout("pos_drop")
    yield from _both("norm", True)
    if config["untie_global_and_local_cls_norm"]:
        yield from _both("local_cls_norm", True)
    if config["num_classes"]:
        yield from _both("head", True)


def _leaves_of_block(config: Mapping[str, object]) -> Iterator[str]:
    yield from _both("prenorm", True)
    yield from _both("norm", True)
    if config["init_values"]:
        yield from ("ls1.gamma", "ls2.gamma")
    yield from _both("attn.qkv", config["qkv_bias"])
    yield from _both("attn.proj", config["proj_bias"])
    yield from (*_dropout("attn.attn_drop"), *_dropout("attn.proj_drop"))
    for layer in _LAYERS[str(config["ffn_layer"])]:
        yield from _both(f"mlp.{layer}", config["ffn_bias"])
    for name in ("mlp.drop1", "mlp.drop2", "drop_path1", "drop_path2"):
        yield from _dropout(name)


def _both(layer: str, bias: object) -> Iterator[str]:
    yield f"{layer}.weight"
    if bias:
        yield f"{layer}.bias"


def _dropout(name: str) -> tuple[str, ...]:
    return tuple(name + leaf for leaf in _SCALARS)


def write_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Content],
    surroundings: Surroundings = ALONE,
) -> str:
    """Write the leaves of the model that the configuration of the surroundings describes.

    Returns:
        The sha256 of the file.

    Raises:
        UsageError: They are others than these tensors, or of a dtype that .npy cannot hold.
    """
    from numpy import array
    from numpy.lib.format import write_array, write_array_header_1_0

    contents = checked_contents(tensors, list(DTYPES.values()), "Equinox's")
    config = surroundings.config
    leaves = list(_leaves(config)) if config else []
    missing = contents.keys() ^ {leaf for leaf in leaves if not leaf.endswith(_SCALARS)}
    if missing:
        raise UsageError(
            "equimo's class has other leaves than these tensors.",
            evidence={"file": path, "differ in": ", ".join(sorted(missing)[:4])},
        )
    with atomic_file(path) as file:
        for leaf in leaves:
            if leaf.endswith(_SCALARS):
                write_array(file, array(0.0 if leaf.endswith(".p") else False))
                continue
            write_array_header_1_0(file, header_of(contents[leaf].info))
            for chunk in contents[leaf].chunks():
                file.write(chunk)
    return file.sha256


def read_plainly(path: Path, _wrapper: str) -> Iterator[Array]:
    """Read the leaves with numpy."""
    import numpy as np

    with path.open("rb") as file:
        for name in _leaves(_arguments(path)):
            leaf = np.load(file, allow_pickle=False)
            if not name.endswith(_SCALARS):
                yield name, leaf.shape, leaf.tobytes()
