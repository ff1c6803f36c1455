"""A dialect's file: what it parses to, and what it inherits."""

import pytest

from tests.tables.header import HEADER
from vitconvert.errors import UsageError
from vitconvert.preprocessing import Preprocessing
from vitconvert.tables.dialects import builtin_tables, find_tables, read_table
from vitconvert.tables.predicates import Conditional, config_words, parse_predicate

CLASS_TOKEN = parse_predicate("class_token", config_words())


def test_a_small_table(write):
    body = """\
requires = ["norm.weight | cls_token"]
[words]
layer = "layer{i+1}"
[rows]
"cls_token" = "cls : width"
"blocks.{i}.norm1.{p}" = "{layer}.ln.{p}"
"norm.weight" = "scale"
"head.weight" = false
[ignore]
"opt/*" = "optimizer state"
[config]
norm_eps = 1e-5
"pooling if class_token" = "token"
"pooling unless class_token" = "avg"
"""
    table = read_table(write(HEADER + body))
    assert (table.name, table.ecosystem, table.container) == ("mine", "mine", "safetensors")
    assert table.requires == (("norm.weight", "cls_token"),)
    assert list(table.row_of) == [
        *("cls_token", "blocks.{i}.norm1.weight", "blocks.{i}.norm1.bias", "norm.weight")
    ]
    (part,) = table.row_of["blocks.{i}.norm1.bias"].alternatives[0].parts
    assert part.key.write({"i": 10}) == "layer11.ln.bias"
    assert table.defaults == (
        Conditional("norm_eps", 1e-5),
        Conditional("pooling", "token", CLASS_TOKEN),
        Conditional("pooling", "avg", CLASS_TOKEN, negated=True),
    )
    assert [reason for _, reason in table.ignore] == ["optimizer state"]


def test_p_stands_for_the_statistics_of_a_batch_norm_too(write):
    stage = "patch_embed.backbone.stages.{s}.blocks.{u}"
    rows = f'[rows]\n"{stage}.norm1.{{p}}" = "{{unit}}.bn.{{p}}"\n"norm.{{p}}" = "last.{{p}}"'
    table = read_table(write(HEADER + '[words]\nunit = "stage{s+1}.{u}"\n' + rows))
    parts = {name: row.alternatives[0].parts[0] for name, row in table.row_of.items()}
    spelled = {name: part.key.write({"s": 0, "u": 2}) for name, part in parts.items()}
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert spelled == {f"{stage}.norm1.{kind}": f"stage1.2.bn.{kind}" for kind in kinds} | {
        "norm.weight": "last.weight",
        "norm.bias": "last.bias",
    }


def test_a_row_of_one_tensor_and_a_row_of_its_kinds_replace_each_other(write):
    text = HEADER.replace("[dialect]", '[dialect]\nextends = "hf_flax_vit"')  # it extends hf_vit
    rows = '[rows]\n"norm.{p}" = "last.{p}"\n"head.{p}" = "top.{p}"\n"head.bias" = "shift"'
    table = read_table(write(text + rows))
    spelled = {name: row.spelling for name, row in table.row_of.items()}
    assert builtin_tables()["hf_vit"].row_of["norm.weight"].spelling == "{base}layernorm.weight"
    parent = builtin_tables()["hf_flax_vit"].row_of
    assert parent["norm.weight"].spelling == "{base}layernorm/scale"
    assert (spelled["norm.weight"], spelled["norm.bias"]) == ("last.weight", "last.bias")
    assert (spelled["head.weight"], spelled["head.bias"]) == ("top.weight", "shift")


def test_a_core_is_no_dialect_and_can_be_extended(write):
    assert all("cores/" not in name for name in builtin_tables())
    with pytest.raises(UsageError, match="There is no dialect 'cores/vit'"):
        find_tables("cores/vit")
    text = HEADER.replace("[dialect]", '[dialect]\nextends = "cores/vit"')
    table = read_table(write(text + '[rows]\n"cls_token" = "cls : width"'))
    assert "pos_embed" not in table.row_of and "blocks.{i}.mlp.fc2.weight" in table.row_of
    assert {"cls_token", *table.row_of} < set(builtin_tables()["vit"].row_of)


def test_extending_changes_words_rows_and_requirements_only_where_it_says(write):
    text = HEADER.replace("[dialect]", '[dialect]\nextends = "hf_vit"')
    table = read_table(
        write(text + '[words]\nquery = "{attn}.q"\n[rows]\n"head.{p}" = false\n"norm.bias" = "b"')
    )
    parent = builtin_tables()["hf_vit"]
    assert (table.ecosystem, table.title) == (parent.ecosystem, "Mine")
    assert table.requires == ()
    assert set(parent.row_of) - set(table.row_of) == {"head.weight", "head.bias"}
    assert table.row_of["norm.bias"].text.endswith('"norm.bias" = "b"')
    spelled = str(table.row_of["blocks.{i}.attn.qkv.weight"].alternatives[0].parts[0].key.segments)
    assert ".attention.attention.q.weight" in spelled
    assert table.ignore == parent.ignore
    assert table.config_file == parent.config_file


def test_a_child_may_say_again_what_its_parent_ignores(write):
    text = HEADER.replace("[dialect]", '[dialect]\nextends = "hf_vit"')
    table = read_table(write(text + '[ignore]\n"decoder.*" = false\n'))
    parent = builtin_tables()["hf_vit"]
    assert [t.text for t, _ in parent.ignore if t not in [t for t, _ in table.ignore]] == [
        "decoder.*"
    ]


def test_every_built_in_table_parses():
    for table in builtin_tables().values():
        table.check()


def test_every_built_in_table_states_its_source_and_what_it_was_tested_with():
    for table in builtin_tables().values():
        assert table.source.startswith(("https://", "weights_map/")), table.name
        assert table.tested, table.name
        assert table.requires, table.name


def test_a_dialect_or_an_ecosystem_is_found_by_name():
    assert [table.name for table in find_tables("jeonsworld")] == ["jeonsworld"]
    assert [table.name for table in find_tables("jax")] == ["google_jax", "google_jax_linen"]
    assert {table.ecosystem for table in find_tables("hf")} == {"hf"}


def test_an_unknown_dialect_is_named_with_its_nearest_or_every_ecosystem():
    with pytest.raises(UsageError) as error:
        find_tables("google_jaks")
    assert str(error.value) == (
        "error: usage\n"
        "  There is no dialect 'google_jaks'.\n"
        "  hint: did you mean google_jax or google_jax_linen?"
    )
    with pytest.raises(UsageError) as error:
        find_tables("nothing-like-it")
    assert error.value.evidence["ecosystems"].startswith("aimv2, ast, asyml, beit3, big_vision, ")
    assert error.value.hint == "`vitconvert list` describes all of them."


def test_how_images_are_prepared_is_inherited_within_an_ecosystem(write):
    parent = builtin_tables()["dinov2"].preprocessing
    text = '[dialect]\ntitle = "A"\nextends = "dinov2"\n'
    other = text + 'ecosystem = "another"\n'
    nearest = '[preprocessing]\ninterpolation = "nearest"\n'
    assert read_table(write(text)).preprocessing == parent
    assert read_table(write(other)).preprocessing == {}
    assert read_table(write(other + "[preprocessing]\n")).preprocessing == parent
    found = read_table(write(other + nearest)).preprocessing
    assert found == {**parent, "interpolation": "nearest"}


@pytest.mark.parametrize("name", builtin_tables())
def test_how_images_are_prepared_is_stated_in_whole_or_not_at_all(name):
    if section := builtin_tables()[name].preprocessing:
        Preprocessing.from_dialect(section, image_size=(224, 224))
