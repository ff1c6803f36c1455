"""Rows of a tensor for each head, of one tensor for several of ours, and of surplus positions."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import vitconvert
from tests.small_models import small_config
from vitconvert.errors import NotRepresentable, ShapeMismatch
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_reading, plan_writing
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import expected_shapes
from vitconvert.tables.table import Table

OTHERS = {
    "cls_token": "cls",
    "pos_embed": "pos",
    "patch_embed.proj.{p}": "patch.{p}",
    "blocks.{i}.norm1.{p}": "b.{i}.n1.{p}",
    "blocks.{i}.attn.qkv.{p}": "b.{i}.qkv.{p}",
    "blocks.{i}.attn.proj.{p}": "b.{i}.out.{p}",
    "blocks.{i}.norm2.{p}": "b.{i}.n2.{p}",
    "blocks.{i}.mlp.fc1.{p}": "b.{i}.up.{p}",
    "blocks.{i}.mlp.fc2.{p}": "b.{i}.down.{p}",
    "norm.{p}": "norm.{p}",
    "head.{p}": "head.{p}",
}
HEADS = {
    "modules of one head": {
        "blocks.{i}.attn.qkv.{p}": "cat(b.{i}.heads.{head}.q.{p}, b.{i}.heads.{head}.k.{p}, "
        "b.{i}.heads.{head}.v.{p})",
    },
    "from one, three in one": {"blocks.{i}.attn.qkv.{p}": "b.{i}.h{head+1}.qkv.{p}"},
    "turned": {
        "blocks.{i}.attn.qkv.weight": "b.{i}.h{head}.w : width (dim qkv)",
        "blocks.{i}.attn.qkv.bias": "b.{i}.h{head}.b : (dim qkv)",
    },
    "both counted": {
        "blocks.{i}.attn.qkv.{p}": "b.{i}.to.{qkv}.of.{head}.{p}",
        "blocks.{i}.attn.proj.weight": "b.{i}.out.{2*head}.w : dim width",
    },
    "inverse order": {"blocks.{i}.attn.qkv.{p}": "heads{_head}.b{i}.to{_2*qkv+1}.{p}"},
}


def _table(rows, **config):
    taken = {key.replace("{p}", "weight") for key in rows if "{p}" not in key}
    kept = {}
    for key, text in OTHERS.items():
        if key.replace("{p}", "weight") in taken and "{p}" in key:
            key, text = (part.replace("{p}", "bias") for part in (key, text))
        kept[key] = text
    data = {"dialect": {"title": "own", "source": "by hand"}, "rows": kept | rows}
    table = Table(
        "own", "own", data | {"config": {"activation": "gelu", "norm_eps": 1e-6} | config}
    )
    table.check()
    return table


def _tensors(config, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(config).items()
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes}


def _written(table, config, tensors):
    return materialise(plan_writing(table, config), tensors.__getitem__)


def _read(table, config, theirs):
    binding = bind(table, {key: tuple(tensor.shape) for key, tensor in theirs.items()})
    assert binding.fits, (binding.unexplained, binding.misfits, binding.misshapen)
    return materialise(plan_reading(binding, config), theirs.__getitem__), binding


@pytest.mark.parametrize("rows", HEADS.values(), ids=HEADS)
@given(heads=st.integers(1, 5), dim=st.integers(1, 7), depth=st.sampled_from([1, 2, 11]))
def test_what_is_written_for_each_head_is_read_back(rows, heads, dim, depth):
    config = small_config(num_heads=heads, head_dim=dim, depth=depth, embed_dim=13)
    table, tensors = _table(rows), _tensors(config)
    back, binding = _read(table, config, _written(table, config, tensors))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert (binding.sizes.known["head"], binding.sizes.known["dim"]) == (heads, dim)


def test_each_head_is_a_slice_of_ours():
    config = small_config()
    tensors = _tensors(config)
    theirs = _written(_table(HEADS["modules of one head"]), config, tensors)
    qkv = tensors["blocks.1.attn.qkv.weight"].view(3, 3, 10, 30)
    assert torch.equal(theirs["b.1.heads.2.k.weight"], qkv[1, 2])
    theirs = _written(_table(HEADS["from one, three in one"]), config, tensors)
    assert torch.equal(theirs["b.1.h3.qkv.weight"].view(3, 10, 30), qkv[:, 2])


def test_a_head_that_is_missing_in_one_block_is_named(tmp_path):
    config = small_config()
    table = _table(HEADS["modules of one head"])
    theirs = _written(table, config, _tensors(config))
    del theirs["b.1.heads.2.v.weight"]
    binding = bind(table, {key: tuple(tensor.shape) for key, tensor in theirs.items()})
    assert binding.partial == {"blocks.1.attn.qkv.weight": ("b.1.heads.2.v.weight",)}


SHARED = {
    "blocks.{i}.norm1.{p}": "shared b.{i}.n.{p}",
    "blocks.{i}.norm2.{p}": "shared b.{i}.n.{p}",
}
ONE_BLOCK = {
    key: f"shared {text.replace('b.{i}', 'block')}"
    for key, text in OTHERS.items()
    if key.startswith("blocks.")
}


def _equal_norms(tensors):
    return {
        k: tensors[k.replace("norm2", "norm1")] if "norm2" in k else v for k, v in tensors.items()
    }


def _equal_blocks(tensors):
    return {
        k: tensors[".".join(["blocks.0", *k.split(".")[2:]])] if k.startswith("blocks.") else v
        for k, v in tensors.items()
    }


@pytest.mark.parametrize(
    ("rows", "alike", "depth", "other"),
    [
        (SHARED, _equal_norms, {}, "blocks.2.norm2.bias"),
        (ONE_BLOCK, _equal_blocks, {"depth": 3}, "blocks.2.mlp.fc1.weight"),
    ],
    ids=["a norm for two", "a block for all"],
)
def test_a_shared_tensor_is_read_for_each_and_written_once(rows, alike, depth, other):
    config = small_config()
    table, tensors = _table(rows, **depth), alike(_tensors(config))
    theirs = _written(table, config, tensors)
    assert len(theirs) < len(tensors)
    back, _ = _read(table, config, theirs)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    changed = {**tensors, other: tensors[other] + 1}
    with pytest.raises(NotRepresentable, match="one tensor in place of several") as error:
        _written(table, config, changed)
    assert other in error.value.evidence["another"]


def test_a_block_for_all_is_computed_as_often_as_the_table_says(tmp_path):
    config = small_config()
    tensors = _equal_blocks(_tensors(config))
    table = _file(tmp_path, ONE_BLOCK, depth=3)
    torch.save(_written(_table(ONE_BLOCK, depth=3), config, tensors), tmp_path / "own.pth")
    model = vitconvert.load_model(tmp_path / "own.pth", table=table)
    assert model.config.depth == 3
    assert torch.equal(model.state_dict()["blocks.2.norm1.bias"], tensors["blocks.0.norm1.bias"])
    own = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    out = vitconvert.convert(own, to="timm", output=tmp_path / "timm")
    back = vitconvert.convert(out.output, to="own", table=table, output=tmp_path / "back")
    files = vitconvert.inspect(back.output, table=table).tensors
    assert files.keys() == _written(_table(ONE_BLOCK, depth=3), config, tensors).keys()


def _file(folder, rows, **config):
    """A table on the disk."""
    said = {"activation": "gelu", "num_heads": 3, "norm_eps": 1e-6, "image_size": [32, 24]}
    said |= {"pooling": "token"} | config
    lines = ["[dialect]", 'title = "own"', 'source = "by hand"', "[config]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in said.items()]
    lines += ["[rows]", *(f'"{key}" = "{text}"' for key, text in (OTHERS | rows).items())]
    (folder / "own.toml").write_text("\n".join(lines))
    return folder / "own.toml"


def test_a_class_token_at_the_end(tmp_path):
    rows = {"pos_embed": "pos : ~position 1 width"}
    tensors = _tensors(config := small_config())
    theirs = _written(_table({"pos_embed": "pos : position 1 width"}), config, tensors)
    at_end = {**theirs, "pos": torch.cat((theirs["pos"][1:], theirs["pos"][:1]))}
    torch.save(at_end, tmp_path / "own.pth")
    table = _file(tmp_path, rows)
    found = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())
    out = vitconvert.convert(found, to="timm", output=tmp_path / "timm")
    assert torch.equal(
        vitconvert.load_checkpoint(out.output).tensors["pos_embed"], theirs["pos"][None, :, 0]
    )
    back = vitconvert.convert(out.output, to="own", table=table, output=tmp_path / "back")
    again = load_file(next(back.output.glob("*.safetensors")))
    assert torch.equal(again["pos"], at_end["pos"])


SURPLUS = {"pos_embed": "pos : 1 position+ width"}


def test_surplus_positions_are_cut_and_named(tmp_path):
    config = small_config()
    tensors = _tensors(config)
    theirs = _written(_table({}), config, tensors)
    theirs["pos"] = torch.cat([theirs["pos"], torch.full((1, 87, 30), 9.0)], dim=1)
    torch.save(theirs, tmp_path / "own.pth")
    table = _file(tmp_path, SURPLUS)
    found = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())
    cut = "pos has 100 rows, of which the first 13 are used: 87 were cut"
    assert cut in found.ledger.notes
    out = vitconvert.convert(found, to="timm", output=tmp_path / "timm")
    assert cut in out.ledger.notes
    with pytest.raises(NotRepresentable, match="keeps more rows than a model uses"):
        vitconvert.convert(out.output, to="own", table=table, output=tmp_path / "x")


def test_surplus_positions_may_be_those_of_patches_alone(tmp_path):
    config = small_config(no_embed_class=True)
    tensors = _tensors(config)
    theirs = _written(_table({}), config, tensors)
    theirs["pos"] = torch.cat([theirs["pos"], torch.full((1, 1, 30), 9.0)], dim=1)
    torch.save(theirs, tmp_path / "own.pth")
    table = _file(tmp_path, SURPLUS, no_embed_class=True)
    found = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    assert torch.equal(found.tensors["pos_embed"], tensors["pos_embed"])


def test_too_few_positions_are_no_surplus(tmp_path):
    config = small_config()
    theirs = _written(_table({}), config, _tensors(config))
    theirs["pos"] = theirs["pos"][:, :12]
    torch.save(theirs, tmp_path / "own.pth")
    with pytest.raises(ShapeMismatch) as error:
        vitconvert.load_checkpoint(tmp_path / "own.pth", table=_file(tmp_path, SURPLUS))
    assert list(error.value.details) == ["misshapen  pos  found [1 12 30], wanted [1 13 30]"]
