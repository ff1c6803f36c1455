"""Which dialect a checkpoint is, and what is said where none or several fit."""

import itertools

import pytest

from tests.facts.header import examine, hf, pair, timm
from tests.sampling import sampled
from tests.tables.specimens import SPECIMENS, shapes_of
from tests.tables.specimens.google import LINEN, big_vision, google, scanned
from vitconvert.errors import AmbiguousDialect, TensorMismatch, UnknownDialect
from vitconvert.tables.binding import bind
from vitconvert.tables.detection import common_prefix, identifies, recognise
from vitconvert.tables.dialects import (
    builtin_tables,
    ecosystem_of,
    likely_dialects,
    likely_tables,
    read_table,
)
from vitconvert.tables.names import Names


def test_wrappers_are_taken_off_in_any_order():
    shapes = {f"module._orig_mod.model.{name}": shape for name, shape in timm().items()}
    recognised = recognise(shapes)
    assert (recognised.table.name, recognised.prefix) == ("timm", "module._orig_mod.model.")
    assert common_prefix(["model.a", "b"]) == ""
    assert common_prefix([]) == ""
    assert common_prefix(["encoder.a"]) == "encoder."


def test_a_prefix_that_a_table_explains_stays():
    recognised = recognise({f"vit.{k}": s for k, s in hf(base="").items() if "class" not in k})
    assert (recognised.table.name, recognised.prefix) == ("hf_vit", "")


def test_what_a_wrapper_keeps_beside_the_model_is_told():
    wrapped = {f"module._orig_mod.{name}": shape for name, shape in timm().items()}
    recognised = recognise({"n_averaged": (), "criterion.weight": (5,), **wrapped})
    assert (recognised.table.name, recognised.prefix) == ("timm", "module._orig_mod.")
    assert recognised.wrappers_own == {
        "n_averaged": "how often torch's AveragedModel has averaged",
        "criterion.weight": "of the loss that a Lightning module trains with, not of its model",
    }
    assert recognise(wrapped).wrappers_own == {}


def test_without_a_wrapper_nothing_lies_beside():
    with pytest.raises(TensorMismatch, match=r"1 tensor of the file does not fit"):
        examine({"n_averaged": (), **timm()}, {"num_heads": 3})


def test_tensors_that_a_training_has_scattered():
    shapes = {name: (0,) if len(shape) < 4 else shape for name, shape in timm().items()}
    empty = [name for name, shape in shapes.items() if shape == (0,)]
    with pytest.raises(TensorMismatch) as error:
        recognise(shapes)
    assert str(error.value) == (
        "error: tensor-mismatch\n"
        f"  {len(empty)} of {len(shapes)} tensors have no elements.\n"
        f"  empty  {', '.join(empty[:4])} and {len(empty) - 4} more\n"
        "  DeepSpeed leaves them so at stage 3 of ZeRO: each process keeps its own part.\n"
        "  hint: the zero_to_fp32.py that DeepSpeed puts beside its checkpoints gathers them."
    )


def test_a_prefix_of_some_keys_only_is_no_wrapper():
    shapes = {("model." if "blocks" in name else "") + name: s for name, s in timm().items()}
    with pytest.raises(UnknownDialect):
        recognise(shapes)


def test_the_pooler_decides_between_two_tables_of_transformers():
    pooler = pair("pooler.dense", 30, 30)
    bare = {name: shape for name, shape in hf(base="").items() if "classifier" not in name}
    assert recognise(bare | pooler).table.name == "hf_vit_pooler"
    assert recognise(bare).table.name == "hf_vit"
    beside = recognise(hf() | pair("vit.pooler.dense", 30, 30))
    assert (beside.table.name, len(beside.binding.ignored)) == ("hf_vit", 2)


def test_nothing_known():
    with pytest.raises(UnknownDialect) as error:
        recognise({"stem.weight": (64, 3, 7, 7), **pair("bn1", 64), **pair("last", 10, 64)})
    assert str(error.value) == (
        "error: unknown-dialect\n"
        "  No table of weights_map/ explains these tensors.\n"
        "  keys         5\n"
        "  unexplained  bn1.bias, bn1.weight, last.bias, last.weight and 1 more\n"
        "  hint: `vitconvert table FILE --like NAME -o my.toml` drafts a table of these names "
        "(NAME: of timm, or a file; your code: --module CODE:build), for --table my.toml; "
        "`vitconvert list` shows the dialects."
    )


def test_the_nearest_table_is_named():
    shapes = {name: shape for name, shape in timm(depth=1).items() if "mlp" not in name}
    swiglu = {f"blocks.0.mlp.{n}.{k}": (50,) for n in "abcdefghi" for k in ("weight", "bias")}
    with pytest.raises(UnknownDialect) as error:
        recognise(shapes | swiglu)
    assert str(error.value) == (
        "error: unknown-dialect\n"
        "  No table of weights_map/ explains these tensors.\n"
        "  keys         34\n"
        "  nearest      timm (timm VisionTransformer (plain, distilled, hybrid)), which explains "
        "16\n"
        "  unexplained  blocks.0.mlp.a.bias, blocks.0.mlp.a.weight, blocks.0.mlp.b.bias, "
        "blocks.0.mlp.b.weight and 14 more\n"
        "  hint: `vitconvert table FILE --like NAME -o my.toml` drafts a table of these names "
        "(NAME: of timm, or a file; your code: --module CODE:build), for --table my.toml; "
        "`vitconvert list` shows the dialects."
    )


def test_an_empty_file():
    with pytest.raises(UnknownDialect) as error:
        recognise({})
    assert error.value.evidence == {"keys": "0", "unexplained": ""}


def test_two_tables_that_explain_everything(tmp_path):
    tables = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.toml"
        text = '[dialect]\nextends = "timm"\ntitle = "Table {}"\n[config]\nnorm_eps = 1e-5\n'
        file.write_text(text.format(name))
        tables.append(read_table(file))
    with pytest.raises(AmbiguousDialect) as error:
        recognise(timm(), tables)
    assert str(error.value) == (
        "error: ambiguous-dialect\n"
        "  Several dialects explain every tensor of this file.\n"
        "  one  Table one\n"
        "  two  Table two\n"
        "  hint: name the one it was written by: --dialect one or --dialect two."
    )


def test_a_flax_file_without_positions_does_not_tell_whether_they_are_computed():
    """big_vision's posemb="sincos2d" and Google's add_position_embedding=False store the same."""
    shapes = google(LINEN, positions=False)
    with pytest.raises(AmbiguousDialect) as error:
        recognise(shapes)
    assert str(error.value) == (
        "error: ambiguous-dialect\n"
        "  Several dialects explain every tensor of this file.\n"
        "  big_vision        big_vision ViT\n"
        "  google_jax_linen  Google vision_transformer, .npz files of the current code (Linen)\n"
        "  hint: name the one it was written by: --dialect big_vision or "
        "--dialect google_jax_linen."
    )
    assert recognise(big_vision("params/", positions="")).table.name == "big_vision"
    assert recognise(scanned(big_vision(positions=""))).table.name == "big_vision_scan"


@pytest.mark.parametrize("tower", ["", "img/"])
def test_what_flaxs_optimizer_keeps_beside_its_target_is_ignored(tower):
    shapes = big_vision(f"opt/target/{tower}")
    beside = {"opt/state/step": (), "opt/state/param_states/head/bias/grad_ema": (7,)}
    if tower:
        beside |= {"opt/target/txt/head/bias": (7,), "opt/target/t": (1,), "opt/target/b": (1,)}
    config, ledger = examine(shapes | beside)
    assert config.embed_dim == 32
    assert set(ledger.ignored) == set(beside)


def test_the_config_decides_between_two_tables_that_explain_everything(tmp_path):
    file = tmp_path / "other.toml"
    file.write_text(
        '[dialect]\nextends = "hf_vit"\ntitle = "Other"\n[config_json.identify]\n'
        'model_type = "other"\n'
    )
    tables = [builtin_tables()["hf_vit"], read_table(file)]
    for said, name in (("vit", "hf_vit"), ("other", "other")):
        assert recognise(hf(), tables, {"model_type": said}).table.name == name
    assert identifies(tables[1], {"model_type": "other"})
    assert not identifies(tables[1], {})


def test_a_config_that_names_another_model_is_believed():
    """An audio spectrogram transformer has a DeiT's tensors, and patches that overlap."""
    with pytest.raises(UnknownDialect) as error:
        recognise(hf(), None, {"model_type": "audio-spectrogram-transformer"})
    assert str(error.value) == (
        "error: unknown-dialect\n"
        "  config.json says that these tensors are another model's.\n"
        "  config.json  model_type = 'audio-spectrogram-transformer'\n"
        "  tensors      those of hf_vit (Hugging Face ViT, DeiT, ViTMAE, ViTMSN, I-JEPA)\n"
        "  Tensors of the same names can mean another function.\n"
        "  hint: a table of your own (--table) that extends this one can identify the model."
    )


def test_the_nearest_of_equals_is_the_one_that_lacks_nothing():
    """hf_deit_teacher explains as much of a headless ViT, and lacks the distillation head."""
    shapes = {name: s for name, s in hf(base="").items() if not name.startswith("classifier")}
    recognised = recognise(shapes | {"encoder.layer.0.lambda_1": (30,)})
    assert recognised.table.name == "hf_vit"
    assert recognised.binding.unexplained == ("encoder.layer.0.lambda_1",)


def test_a_packed_mlp_is_twice_as_wide_as_what_the_next_layer_reads():
    plain = bind(builtin_tables()["timm"], shapes_of("timm DINOv2 giant"))
    assert plain.misshapen and {key.split(".")[2:][1] for key in plain.misshapen} <= {"fc1", "fc2"}
    assert not plain.unexplained and not plain.misfits and not plain.lacking


@pytest.mark.parametrize("name", sampled(SPECIMENS, every=4))
def test_a_prefix_does_not_change_the_dialect(name):
    recognised = recognise({f"module.{key}": shape for key, shape in shapes_of(name).items()})
    assert recognised.table.name == SPECIMENS[name].dialect
    assert recognised.prefix.startswith("module.")


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(builtin_tables(), every=4))
def test_the_words_of_every_key_of_a_table_are_found_in_its_text(name):
    table = builtin_tables()[name]
    templates = [
        *(part.key for row in table.rows for a in row.alternatives for part in a.parts),
        *(template for template, *_ in (*table.ignore, *table.empty)),
    ]
    skeletons = set(itertools.chain.from_iterable(t.skeletons for t in templates))
    assert skeletons
    for skeleton in skeletons:
        assert name in likely_dialects([skeleton]), skeleton


@pytest.mark.parametrize("name", sampled(SPECIMENS, every=4))
def test_what_fits_is_likely(name):
    shapes = shapes_of(name)
    tables = [table for table in builtin_tables().values() if not table.named_only]
    fitting = [table.name for table in tables if bind(table, shapes).fits]
    likely = [table.name for table in likely_tables(Names(shapes))]
    assert SPECIMENS[name].dialect in fitting
    assert set(fitting) <= set(likely)


def test_words_that_a_table_lacks_rule_it_out():
    keys = ["vit.encoder.layer.0.layernorm_before.weight", "vit.layernorm.bias"]
    assert "hf_vit" in likely_dialects(keys) and "timm" not in likely_dialects(keys)
    assert likely_dialects([*keys, "vit.encoder.unheard.weight"]) == []


def test_an_ignored_prefix_lets_any_word_follow():
    assert "mae" in likely_dialects(["cls_token", "decoder_blocks.0.anything.weight"])
    assert "mae" not in likely_dialects(["cls_token", "encoder_blocks.0.anything.weight"])


def test_what_a_dialect_requires_rules_it_out():
    shapes = {"cls_token": (1, 1, 8), "blocks.0.attn.qkv.weight": (24, 8)}
    assert "mae" in likely_dialects(shapes)
    names = [table.name for table in likely_tables(Names(shapes))]
    assert "timm" in names and "mae" not in names and "vit" not in names


def test_the_ecosystem_is_that_of_the_parsed_table():
    for name, table in builtin_tables().items():
        assert ecosystem_of(name) == table.ecosystem
