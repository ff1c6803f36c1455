"""A spelling that nobody uses, read with one TOML file and no Python."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.small_models import small_config
from vitconvert.api import load_checkpoint, load_model
from vitconvert.conversion.stream import stream
from vitconvert.errors import TensorMismatch
from vitconvert.facts.plan import compose, plan_reading, plan_writing
from vitconvert.formats import open_container, write_safetensors
from vitconvert.model import ViT
from vitconvert.tables.binding import bind
from vitconvert.tables.dialects import builtin_tables, read_table

TABLE = """\
[dialect]
title    = "An invented spelling"
source   = "this test"
requires = ["blocks.{i}.mlp.fc1.weight", "norm.weight"]

[words]
part  = "stage{i+1}"
heads = "{part}/heads"
query = "{heads}/query"
key   = "{heads}/key"
value = "{heads}/value"
stack = "tower/mlp"
end   = ["final", "last"]

[rows]
"cls_token"                   = "class : width"
"pos_embed"                   = "where : position 1 width"
"patch_embed.proj.weight"     = "cut/kernel : (y x) channel width"
"patch_embed.proj.bias"       = "cut/shift"
"blocks.{i}.norm1.{p}"        = "{part}/first/{p}"
"blocks.{i}.attn.qkv.weight"  = "cat({query} : head width dim, {key} : head width dim, {value} : head width dim)"
"blocks.{i}.attn.qkv.bias"    = "{heads}/bias : head dim qkv"
"blocks.{i}.attn.proj.weight" = "{heads}/back : dim head width"
"blocks.{i}.attn.proj.bias"   = "{part}/back"
"blocks.{i}.norm2.{p}"        = "{part}/second/{p}"
"blocks.{i}.mlp.fc1.weight"   = "{stack}/up[layer={i}] : layer width hidden"
"blocks.{i}.mlp.fc1.bias"     = "{stack}/up_shift[layer={i}] : hidden layer"
"blocks.{i}.mlp.fc2.weight"   = "{stack}/down[layer={i}] : layer hidden width"
"blocks.{i}.mlp.fc2.bias"     = "{stack}/down_shift[layer={i}] : layer width"
"norm.{p}"                    = "{end}/{p}"
"head.weight"                 = "classes : feature label"
"head.bias"                   = "classes/shift"

[ignore]
"momentum/*" = "state of an optimizer"

[config]
activation = "relu"
norm_eps   = 1e-3
"pooling if class_token" = "token"
"""  # noqa: E501
CONFIG = small_config(
    image_size=(20, 12),
    patch_size=(4, 3),
    in_channels=2,
    num_classes=5,
    embed_dim=12,
    depth=11,
    num_heads=4,
    head_dim=5,
    mlp_dim=9,
    activation="relu",
    norm_eps=1e-3,
)
STATED = {"image_size": (20, 12), "patch_size": (4, 3)}


@pytest.fixture
def canonical():
    torch.manual_seed(3)
    shapes = {
        name: tensor.shape for name, tensor in ViT(CONFIG, device="meta").state_dict().items()
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def spelled(ours):
    """The same weights in the invented spelling, with indexing and einsum alone."""
    theirs = {
        "class": ours["cls_token"][0, 0],
        "where": ours["pos_embed"].permute(1, 0, 2),
        "cut/kernel": torch.einsum("wcyx->yxcw", ours["patch_embed.proj.weight"]).flatten(0, 1),
        "cut/shift": ours["patch_embed.proj.bias"],
        "last/weight": ours["norm.weight"],
        "last/bias": ours["norm.bias"],
        "classes": ours["head.weight"].T,
        "classes/shift": ours["head.bias"],
        "momentum/0/mu": torch.randn(3),
    }
    blocks = [f"blocks.{i}" for i in range(11)]
    for i, block in enumerate(blocks):
        part = f"stage{i + 1}"
        for number, name in enumerate(("query", "key", "value")):
            rows = ours[f"{block}.attn.qkv.weight"][20 * number : 20 * number + 20]
            heads = [rows[5 * head : 5 * head + 5].T for head in range(4)]
            theirs[f"{part}/heads/{name}"] = torch.stack(heads)
        bias = ours[f"{block}.attn.qkv.bias"].reshape(3, 4, 5)
        theirs[f"{part}/heads/bias"] = torch.einsum("qhd->hdq", bias)
        back = ours[f"{block}.attn.proj.weight"].reshape(12, 4, 5)
        theirs[f"{part}/heads/back"] = torch.einsum("whd->dhw", back)
        theirs[f"{part}/back"] = ours[f"{block}.attn.proj.bias"]
        for kind in ("weight", "bias"):
            theirs[f"{part}/first/{kind}"] = ours[f"{block}.norm1.{kind}"]
            theirs[f"{part}/second/{kind}"] = ours[f"{block}.norm2.{kind}"]
    mlp = [{n: ours[f"{b}.mlp.{n}"] for n in ("fc1.weight", "fc2.weight")} for b in blocks]
    theirs["tower/mlp/up"] = torch.stack([m["fc1.weight"].T for m in mlp])
    theirs["tower/mlp/down"] = torch.stack([m["fc2.weight"].T for m in mlp])
    theirs["tower/mlp/up_shift"] = torch.stack([ours[f"{b}.mlp.fc1.bias"] for b in blocks], dim=1)
    theirs["tower/mlp/down_shift"] = torch.stack([ours[f"{b}.mlp.fc2.bias"] for b in blocks])
    return {name: tensor.clone().contiguous() for name, tensor in theirs.items()}


@pytest.fixture
def files(tmp_path, canonical):
    table, weights = tmp_path / "invented.toml", tmp_path / "weights.safetensors"
    table.write_text(TABLE)
    save_file(spelled(canonical), weights)
    return table, weights


@torch.no_grad()
def test_the_model_computes_what_the_canonical_weights_do(files, canonical):
    table, weights = files
    model = load_model(weights, table=table, overrides=STATED)
    wanted = ViT(CONFIG, device="meta").eval()
    wanted.load_state_dict(canonical, strict=True, assign=True)
    images = torch.randn(3, 2, 20, 12)
    assert torch.equal(model(images), wanted(images))


def test_every_fact_has_its_origin_and_every_tensor_its_place(files, canonical):
    table, weights = files
    checkpoint = load_checkpoint(weights, table=table, overrides=STATED)
    for name, tensor in canonical.items():
        assert torch.equal(checkpoint.tensors[name], tensor), name
    assert checkpoint.tensors.keys() == canonical.keys()
    config, ledger = checkpoint.config, checkpoint.ledger
    assert config == CONFIG
    assert {config.origins[field] for field in ("num_heads", "head_dim", "depth")} == {"tensors"}
    assert config.origins["activation"] == "invented.toml"
    assert ledger.assumed["norm_eps"] == "0.001 (invented.toml)"
    assert ledger.ignored == {"momentum/0/mu": "state of an optimizer"}
    assert ledger.read == len(ledger.used) + 1


def test_moving_bytes_there_gives_the_same_file(tmp_path, files, canonical):
    """Some elements of one tensor lie scattered over another, as no built-in dialect has it."""
    table, _ = files
    save_file(canonical, tmp_path / "ours.safetensors")
    with open_container(tmp_path / "ours.safetensors") as container:
        shapes = {name: info.shape for name, info in container.manifest.items()}
        reading = plan_reading(bind(builtin_tables()["vit"], shapes), CONFIG)
        moved = stream(compose(reading, plan_writing(read_table(table), CONFIG)), container)
        write_safetensors(tmp_path / "theirs.safetensors", moved)
    found = load_file(tmp_path / "theirs.safetensors")
    # The first of several spellings is the one that is written.
    wanted = {name.replace("last/", "final/"): t for name, t in spelled(canonical).items()}
    del wanted["momentum/0/mu"]
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_a_stack_that_is_too_short_is_found(tmp_path, files, canonical):
    table, weights = files
    theirs = spelled(canonical)
    theirs["tower/mlp/up_shift"] = theirs["tower/mlp/up_shift"][:, :10].contiguous()
    save_file(theirs, weights)
    with pytest.raises(TensorMismatch) as error:
        load_checkpoint(weights, table=table, overrides=STATED)
    assert error.value.details == (
        f'missing    blocks.10.mlp.fc1.bias  {table}: "blocks.{{i}}.mlp.fc1.bias" = '
        '"{stack}/up_shift[layer={i}] : hidden layer"',
        "misshapen  tower/mlp/up_shift  found [9 10], wanted [9 11]",
    )
