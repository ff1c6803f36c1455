"""Double entry: whole messages for every way in which a file and a model can differ."""

import pytest
import torch

import vitconvert
from tests.facts.header import examine, hf, pair, timm
from vitconvert.errors import ShapeMismatch, TensorMismatch
from vitconvert.facts.accounts import check_float_dtypes
from vitconvert.tables.detection import NO_TABLE, recognise

STATED = {"num_heads": 3, "norm_eps": 1e-6}
OTHER = (
    "  The file is complete. It holds another model than those of this dialect, or other names.\n"
    f"  hint: {NO_TABLE.rstrip('.')}, of which --dialect NAME takes another one."
)
LACKING = (
    "  The file is complete, but was saved without these tensors.\n"
    "  hint: save the model again with them. If it never had them, a table (--table) that extends "
    "{} says so."
)
TABLE = "  hint: --ignore PATTERN leaves them out if the ViT does not use them; so does --table."
SIZES = (
    "  hint: the tensors belong to models of different sizes: save the model again, all from one."
)
TWICE = "  hint: --ignore PATTERN leaves out one of each two."


def message(shapes, kind=TensorMismatch, **stated):
    with pytest.raises(TensorMismatch) as error:
        examine(shapes, STATED | stated)
    assert type(error.value) is kind
    return str(error.value)


def expected(count, lines, hint, *, kind="tensor-mismatch", dialect="timm", depth=2):
    number = f"{count} tensors of the file do" if count > 1 else "1 tensor of the file does"
    return (
        f"error: {kind}\n"
        f"  {number} not fit a model of {depth} blocks of width 30.\n"
        f"  file     model.safetensors\n"
        f"  dialect  {dialect} (weights_map/{dialect}.toml)\n"
        + "".join(f"  {line}\n" for line in lines)
        + hint.format(dialect)
    )


def without(shapes, *names):
    return {name: shape for name, shape in shapes.items() if name not in names}


def test_a_whole_file_passes():
    _, ledger = examine(timm(depth=12), STATED)
    assert repr(ledger) == "Ledger(dialect='timm', read=152, used=152, ignored=0)"


def test_an_ignored_tensor_is_accounted_for():
    shapes = hf() | {"vit.embeddings.mask_token": (1, 1, 30)}
    _, ledger = examine(shapes, STATED)
    assert ledger.read == len(ledger.used) + 1
    assert ledger.ignored == {
        "vit.embeddings.mask_token": "stands for masked patches in pre-training; inference masks "
        "none"
    }


def test_the_ledger_prints_what_became_of_each_tensor():
    """Blocks on one line; what is not ours to print is escaped."""
    mask = "vit.embeddings.mask_token"
    _, ledger = examine(hf() | {mask: (1, 1, 30)}, STATED)
    ledger = ledger.with_changes(["classes 3 and 5 were kept"]).with_notes(["odd\x1b[31m"])
    told = str(ledger).splitlines()
    assert told[:2] == ["dialect   hf_vit", "tensors   41 read, 40 used, 1 ignored"]
    layer = "vit.encoder.layer.{i}.attention.attention"
    assert f"used      {layer}.query.weight  x 2" in told
    assert "used      vit.embeddings.cls_token" in told
    assert sum(int(line.rpartition("  x ")[2]) if "  x " in line else 1 for line in told) == 41 + (
        len(told) - sum(line.startswith(("used", "ignored")) for line in told)
    )
    reason = "stands for masked patches in pre-training; inference masks none"
    assert f"ignored   {mask}: {reason}" in told
    assert "assumed   pooling = token (weights_map/hf_vit.toml)" in told
    assert told[-2:] == ["changed   classes 3 and 5 were kept", r"note      odd\x1b[31m"]


@pytest.mark.parametrize(
    ("name", "shape"), [("reg_token", (1, 0, 30)), ("head.0.empty", (0,)), ("pre.weight", (3, 0))]
)
def test_a_tensor_without_elements_is_accounted_for(name, shape):
    _, ledger = examine(timm() | {name: shape}, STATED)
    assert ledger.ignored == {name: "has no elements"}
    assert ledger.read == len(ledger.used) + 1


LAYER = "vit.encoder.layer.1.attention.attention"
NEW = "vit.encoder.layer.2.attention.attention"
STAGE = "patch_embed.backbone.stages.0.blocks.0.norm1.weight"
TIMM = "weights_map/timm.toml"
PROJ = f'{TIMM}: "blocks.{{i}}.attn.proj.weight" = "{{block}}.attn.proj.weight"'


@pytest.mark.parametrize(
    ("shapes", "lines", "hint", "dialect"),
    [
        (
            without(timm(), "blocks.1.mlp.fc2.bias"),
            [
                f'missing    blocks.1.mlp.fc2.bias  {TIMM}: "blocks.{{i}}.mlp.fc2.bias" = '
                '"{block}.mlp.fc2.bias"'
            ],
            LACKING,
            "timm",
        ),
        (
            timm() | {"blocks.0.attn.rope": (5, 2)},
            ["left over  blocks.0.attn.rope  [5 2], which no row of the table explains"],
            TABLE,
            "timm",
        ),
        (timm() | {STAGE: (5,)}, [f"left over  {STAGE}  the model has no {STAGE}"], TABLE, "timm"),
        (
            timm() | {"blocks.1.attn.proj.weight": (30, 3, 10)},
            [
                f"missing    blocks.1.attn.proj.weight  {PROJ}",
                "misshapen  blocks.1.attn.proj.weight  found [30 3 10], which is not laid out as "
                f"in {PROJ}",
            ],
            OTHER,
            "timm",
        ),
        (
            hf() | {"layernorm.weight": (30,)},
            ["doubled    norm.weight  vit.layernorm.weight and layernorm.weight"],
            TWICE,
            "hf_vit",
        ),
        (
            without(hf(), f"{LAYER}.key.bias", f"{LAYER}.value.bias", f"{LAYER}.key.weight"),
            [
                f"missing    {LAYER}.key.weight  part of blocks.1.attn.qkv.weight",
                f"missing    {LAYER}.key.bias, {LAYER}.value.bias  part of blocks.1.attn.qkv.bias",
            ],
            LACKING,
            "hf_vit",
        ),
        (
            hf() | {f"{NEW}.query.weight": (30, 30)},
            [f"missing    {NEW}.key.weight, {NEW}.value.weight  part of blocks.2.attn.qkv.weight"],
            LACKING,
            "hf_vit",
        ),
        (
            without(timm(), "norm.bias") | {"norm.scale": (30,), "pos_embed": (1, 10, 31)},
            [
                f'missing    norm.bias  {TIMM}: "norm.bias" = "norm.bias"',
                "left over  norm.scale  [30], which no row of the table explains",
                "misshapen  pos_embed  found [1 10 31], wanted [1 10 30]",
            ],
            OTHER,
            "timm",
        ),
    ],
)
def test_every_problem_is_told_at_once(shapes, lines, hint, dialect):
    assert message(shapes) == expected(len(lines), lines, hint, dialect=dialect)


def test_a_tensor_that_another_size_leaves_over():
    shapes = timm() | {"head_dist.bias": (7,)}
    assert "left over  head_dist.bias  the model has no head_dist.bias" in message(shapes)


def test_a_misshapen_tensor_is_named_alone():
    for name, shape, wanted in (
        ("blocks.0.norm1.weight", (31,), (30,)),
        ("blocks.0.attn.qkv.weight", (93, 30), (90, 30)),
        ("blocks.0.attn.qkv.bias", (93,), (90,)),
        ("blocks.0.mlp.fc1.weight", (50, 31), (50, 30)),
        ("cls_token", (1, 1, 29), (1, 1, 30)),
        ("blocks.1.norm1.bias", (0,), (30,)),
    ):
        found, right = (" ".join(map(str, s)) for s in (shape, wanted))
        assert message(timm() | {name: shape}, kind=ShapeMismatch) == expected(
            1,
            [f"misshapen  {name}  found [{found}], wanted [{right}]"],
            SIZES,
            kind="shape-mismatch",
        )


def test_a_tensor_for_which_the_dialect_has_no_row():
    shapes = timm()
    for block in ("blocks.0", "blocks.1"):  # heads of 8: a rotary embedding turns pairs of pairs
        shapes |= pair(f"{block}.attn.qkv", 72, 30) | {f"{block}.attn.proj.weight": (30, 24)}
    assert message(shapes, rope="mixed") == expected(
        1, ["missing    rope.freqs  the table has no row for it"], LACKING
    )


def test_a_block_that_is_not_there_is_listed_up_to_a_limit():
    shapes = timm(depth=12)
    shapes = without(shapes, *(name for name in shapes if name.startswith("blocks.10.")))
    lines = message(shapes).splitlines()
    assert [line.split()[1] for line in lines[4:16]] == [
        f"blocks.10.{name}.{kind}"
        for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ]
    assert "\n".join(lines[16:]) == LACKING.format("timm")


def test_no_more_than_a_dozen_of_one_kind():
    shapes = timm(depth=4)
    shapes = without(shapes, *(name for name in shapes if name.startswith("blocks.1.")))
    shapes = without(shapes, "blocks.2.norm1.weight", "blocks.2.norm1.bias")
    assert "  missing    ... and 2 more\n" in message(shapes)


def test_blocks_count_as_numbers():
    """layers.10 comes after layers.9, and no block between them is missed."""
    config, ledger = examine(dict(sorted(timm(depth=11).items())), STATED)
    assert config.depth == 11
    assert ledger.read == 8 + 11 * 12


def test_what_a_dialect_always_has():
    shapes = without(hf(), "vit.layernorm.weight", "vit.layernorm.bias")
    assert message(shapes, final_norm=False) == expected(
        1,
        [
            "missing    norm.weight  every Hugging Face ViT, DeiT, ViTMAE, ViTMSN, I-JEPA has it",
        ],
        LACKING,
        dialect="hf_vit",
    )


def test_quantised_weights():
    shapes = timm()
    binding = recognise(shapes).binding
    dtypes = dict.fromkeys(shapes, "bfloat16") | {"norm.bias": "float8_e4m3fn"}
    check_float_dtypes(binding, dtypes, "model.safetensors")
    with pytest.raises(TensorMismatch) as error:
        check_float_dtypes(
            binding, dtypes | {"head.weight": "int8", "pos_embed": "bool"}, "model.safetensors"
        )
    assert str(error.value) == (
        "error: tensor-mismatch\n"
        "  2 of the weights are not stored as floating-point numbers.\n"
        "  file     model.safetensors\n"
        "  dialect  timm (weights_map/timm.toml)\n"
        "  found      pos_embed  bool\n"
        "  found      head.weight  int8\n"
        "  The numbers of a quantised checkpoint must be scaled, and the scales are unknown.\n"
        "  hint: convert the checkpoint that it was quantised from."
    )
    with pytest.raises(TensorMismatch) as error:
        check_float_dtypes(binding, dtypes | {"norm.weight": "complex64"}, "model.safetensors")
    assert error.value.fact == "1 of the weights is not stored as floating-point numbers."


def test_a_file_of_which_other_processes_kept_a_part():
    """14 of 32 tensors are empty, as one process of DeepSpeed's stage 3 of ZeRO saves them."""
    shapes = timm()
    shapes |= dict.fromkeys([*shapes][4:18], (0,))
    with pytest.raises(TensorMismatch, match="14 of 32 tensors have no elements") as error:
        examine(shapes, STATED)
    assert "zero_to_fp32.py" in str(error.value.hint)


def test_left_over_tensors_are_called_as_in_the_file(tmp_path):
    """--ignore takes whole names, of which a wrapper's prefix is a part."""
    tensors = {
        f"module.{name}": torch.zeros(shape) for name, shape in (timm() | {"x": (3,)}).items()
    }
    torch.save(tensors, tmp_path / "model.pt")
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(tmp_path / "model.pt", overrides=STATED)
    assert error.value.details == ("left over  module.x  [3], which no row of the table explains",)
    vitconvert.load_checkpoint(tmp_path / "model.pt", overrides=STATED, ignore=["module.x"])


RENAMED = "`vitconvert audit FILE --by transformers` tells what it makes of the file as it is."


def renamed(shapes, names):
    return {names.get(name, name): shape for name, shape in shapes.items()}


@pytest.mark.parametrize("base", ["vit.", ""])
@pytest.mark.parametrize(
    "names",
    [
        {f"{LAYER[4:]}.query.{end}": f"{LAYER[4:]}.queery.{end}"
         for end in ("weight", "bias")},
        {"encoder.layer.0.layernorm_before.bias": "encoder.layer.0.layernorm_befor.bias"},
        {f"encoder.layer.{i}.intermediate.dense.{end}": f"encoder.layer.{i}.mid.dense.{end}"
         for i in range(11) for end in ("weight", "bias")},
    ],
)  # fmt: skip
def test_what_was_renamed_is_paired(names, base):
    names = {base + name: base + other for name, other in names.items()}
    told = message(renamed(hf(depth=11, base=base), names))
    for name, other in list(names.items())[:1]:
        assert f"  renamed?   {other} in the file, {name} expected\n" in told
    assert "missing" not in told and "left over" not in told
    assert told.endswith(f"hint: rename them back; {RENAMED}")


def test_a_renamed_head_is_paired_by_its_shape_alone():
    told = message(renamed(hf(), {"classifier.weight": "top.weight"}))
    assert "  renamed?   top.weight in the file, classifier.weight expected\n" in told


@pytest.mark.parametrize(
    "names",
    [
        {"query.weight": "a.weight", "key.weight": "b.weight"},  # which is which?
        {"query.weight": "keyquery.weight", "value.weight": "valuequery.weight"},
        {"query.weight": ""},
    ],
)
def test_what_may_be_several_is_not_paired(names):
    layer = "vit.encoder.layer.1.attention.attention."
    names = {
        layer + name: layer + other if other else "extra.1.scale" for name, other in names.items()
    }
    told = message(renamed(hf(), names))
    assert "renamed?" not in told
    assert "It holds another model than those of this dialect, or other names." in told


def test_a_tensor_of_another_shape_was_not_renamed():
    shapes = renamed(timm(), {"norm.bias": "norm.biass"}) | {"norm.biass": (31,)}
    assert "renamed?" not in message(shapes)
