"""What a table says of its project's config.json is read and written by the same lines."""

import pytest

from tests.small_models import small_config
from vitconvert.errors import NotRepresentable
from vitconvert.facts.plan import plan_reading, plan_writing
from vitconvert.facts.project_config import (
    facts_from_config,
    their_word,
    written_besides,
    written_config,
)
from vitconvert.tables.binding import bind
from vitconvert.tables.config_file import Ratio
from vitconvert.tables.dialects import builtin_tables, read_table

TABLE = """\
[dialect]
extends  = "hf_vit"
title    = "Mine"
requires = ["norm.weight"]

[words]
base = ["tower.", ""]
"base unless num_classes" = ""

[ignore]
"{base}mask.{p}" = "masks nothing"

[constants]
"{base}mask.weight" = "1 : 1 width"

[config_json]
within = ["vision.", ""]

[config_json.writes]
kind              = "mine"
"kind if qk_norm" = "other"
"vision.gated"    = { word = "gated_mlp" }
"vision.ratio"    = { makes = "mlp_dim", whole = true }
"""
CONFIG = small_config(
    image_size=(24, 40),
    patch_size=(8, 4),
    in_channels=4,
    embed_dim=36,
    depth=11,
    head_dim=12,
    mlp_dim=108,
    activation="gelu_tanh",
    norm_eps=1e-7,
)


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(TABLE, encoding="utf-8")
    return read_table(file)


def test_what_stands_outside_the_section_of_the_model_is_not_read(table):
    said = {"vision": {"hidden_size": 36}, "hidden_size": 20, "num_hidden_layers": 11}
    facts = facts_from_config(table, said)
    assert facts["embed_dim"].value == 36 and "depth" not in facts
    del said["vision"]
    assert facts_from_config(table, said)["embed_dim"].value == 20


def test_fields_are_written_in_the_last_place_where_they_may_be(table):
    written = written_config(table, CONFIG)
    assert written["hidden_size"] == 36 and "hidden_size" not in written["vision"]


def test_what_is_written_besides_the_fields(table):
    written = written_besides(table, CONFIG)
    assert written["kind"] == "mine" and "architectures" in written
    assert written["vision"] == {"gated": False, "ratio": 3}
    assert written_besides(table, CONFIG.replace(qk_norm=True))["kind"] == "other"
    with pytest.raises(NotRepresentable, match="says mlp_dim by a ratio, and none makes this one"):
        written_besides(table, CONFIG.replace(mlp_dim=109))


@pytest.mark.parametrize(
    ("field", "value", "theirs"),
    [
        ("activation", "gelu_tanh", "gelu_pytorch_tanh"),
        ("representation_activation", "relu", "relu"),
        ("image_size", (24, 40), [24, 40]),
        ("image_size", (24, 24), 24),
        ("qkv_bias", False, False),
    ],
)
def test_a_value_of_ours_in_their_word(field, value, theirs, table):
    assert their_word(table, field, value) == theirs


def test_a_value_for_which_they_have_no_word(table):
    with pytest.raises(NotRepresentable) as error:
        their_word(table, "activation", "mish")
    assert error.value.fact == "Mine has no word for activation = 'mish'."


def test_a_value_that_several_places_cannot_say():
    with pytest.raises(NotRepresentable) as error:
        written_config(builtin_tables()["hf_ast"], CONFIG)
    assert error.value.fact.endswith("AudioClassification has no word for patch_stride = ().")
    assert error.value.evidence["words"] == "frequency_stride and time_stride"


def test_the_first_text_of_a_word_may_depend_on_the_model(table):
    names = {assembly.target for assembly in plan_writing(table, CONFIG).assemblies}
    assert {"tower.layernorm.weight", "classifier.bias", "tower.mask.weight"} <= names
    bare = plan_writing(table, CONFIG.replace(num_classes=0)).assemblies
    assert {assembly.target for assembly in bare} == {
        name.removeprefix("tower.") for name in names if not name.startswith("classifier")
    }


def test_a_constant_is_written_whole_and_plays_no_part_when_read(table):
    plan = plan_writing(table, CONFIG)
    constant = next(a for a in plan.assemblies if a.target == "tower.mask.weight")
    assert (plan.shape(constant), constant.fill) == ((1, 36), (1.0,))
    assert str(constant) == "tower.mask.weight : 1 width = 1"
    binding = bind(table, {a.target: plan.shape(a) for a in plan.assemblies})
    assert binding.ignored == {"tower.mask.weight": "masks nothing"}
    targets = {assembly.target for assembly in plan_reading(binding, CONFIG).assemblies}
    assert "norm.weight" in targets and not any("mask" in name for name in targets)


@pytest.mark.parametrize(
    ("ratio", "width", "size", "number"),
    [
        (Ratio(makes="mlp_dim"), 36, 108, 3),
        (Ratio(makes="mlp_dim"), 36, 50, 50 / 36),
        (Ratio(makes="mlp_dim", whole=True), 36, 50, None),
        (Ratio(makes="mlp_dim", over=2), 36, 72, 4),
        (Ratio(makes="mlp_dim", multiple=8), 36, 50, None),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, whole=True), 1536, 4096, 4),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, whole=True), 384, 1024, 4),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, whole=True), 100, 272, 4),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, whole=True), 100, 264, None),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, alone=True), 100, 264, 396),
        (Ratio(makes="mlp_dim", times=2, over=3, multiple=8, alone=True), 100, 50, None),
    ],
)
def test_the_number_by_which_a_width_makes_a_size(ratio, width, size, number):
    config = CONFIG.replace(embed_dim=width, mlp_dim=size, num_heads=1, head_dim=width)
    assert ratio.of(config) == number


def test_every_width_and_size_has_a_ratio_that_survives_truncation():
    for width in (36, 49, 192, 384, 768, 1001):
        for size in (*range(1, 5 * width, 7), 4 * width):
            ratio = Ratio(makes="mlp_dim").of(CONFIG.replace(embed_dim=width, mlp_dim=size))
            assert int(width * ratio) == size
