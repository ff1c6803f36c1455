"""What a draft believes, and what it does not: values before names, names before order."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.drafting.drafting import draft, reference, spelled, wrong_rows
from tests.drafting.spellings import SPELLINGS, weights
from tests.parity.team import TeamViT
from vitconvert.drafting.draft_text import parse_draft
from vitconvert.errors import TensorMismatch, UsageError

QKV = "blocks.{i}.attn.qkv.{p}"


def _row(found, name):
    return next(row for row in found.rows if row.name == name)


def _drafted(folder, name, change, *, same=True):
    """A draft for a file whose tensors were changed, and the file."""
    spelling = SPELLINGS[name]
    config = spelling.vit()
    tensors = weights(spelling, config)
    others = tensors if same else weights(spelling, config, seed=1)
    like = reference(folder, config, others)
    file = spelled(folder, spelling, config, tensors)
    save_file({k: v.contiguous() for k, v in change(load_file(file)).items()}, file)
    return vitconvert.draft_table(file, like=like, output=folder / "team.toml"), file, tensors


def _loaded(file, folder):
    return vitconvert.load_checkpoint(file, table=folder / "team.toml").tensors


def _swapped(tensors):
    swap = {"query_proj": "key_proj", "key_proj": "query_proj"}
    return {
        next((k.replace(a, b) for a, b in swap.items() if a in k), k): v for k, v in tensors.items()
    }


def test_values_are_believed_before_names(tmp_path):
    found, file, tensors = _drafted(tmp_path, "mlx_image", _swapped)
    row = _row(found, QKV)
    parts = [part.split(".")[-2] for part in row.spelling.split(", ")]
    assert (row.certain, parts) == (True, ["key_proj", "query_proj", "value_proj"])
    loaded = _loaded(file, tmp_path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_without_values_names_are_believed(tmp_path):
    found, _, _ = _drafted(tmp_path, "mlx_image", _swapped, same=False)
    parts = [part.split(".")[-2] for part in _row(found, QKV).spelling.split(", ")]
    assert parts == ["query_proj", "key_proj", "value_proj"]


def _by_heads(tensors):
    """q, k and v of a head beside each other."""
    return {
        key: tensor.reshape(3, 3, 12, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
        if ".qkv." in key
        else tensor
        for key, tensor in tensors.items()
    }


def test_values_show_a_rare_layout(tmp_path):
    found, file, tensors = _drafted(tmp_path, "mmpretrain", _by_heads)
    assert _row(found, "blocks.{i}.attn.qkv.weight").spelling.endswith(": (head qkv dim) width")
    assert found.problem is None
    loaded = _loaded(file, tmp_path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_constant_bias_lies_as_its_weight(tmp_path):
    def by_heads(tensors):
        return _by_heads(tensors) | {k: v for k, v in tensors.items() if not v.any()}

    spelling = SPELLINGS["mmpretrain"]
    config = spelling.vit()
    tensors = {k: v * 0 if k.endswith("bias") else v for k, v in weights(spelling, config).items()}
    like = reference(tmp_path, config, tensors)
    file = spelled(tmp_path, spelling, config, tensors)
    found = vitconvert.draft_table(file, like=like)
    assert _row(found, QKV).certain
    assert _row(found, QKV).spelling == "backbone.layers.{i}.attn.qkv.{p}"
    save_file({k: v.contiguous() for k, v in by_heads(load_file(file)).items()}, file)
    found = vitconvert.draft_table(file, like=like)
    assert found.problem is None
    assert _row(found, "blocks.{i}.attn.qkv.bias").spelling.endswith(" : (head qkv dim)")


def _mixed_rows(tensors):
    """An order of rows that no layout has."""
    return {k: v.flip(0) if ".qkv." in k else v for k, v in tensors.items()}


def test_what_has_other_values_is_a_guess(tmp_path):
    found, _, _ = _drafted(tmp_path, "mmpretrain", _mixed_rows)
    assert [row.name for row in found.guesses] == [QKV]
    assert _row(found, QKV).reason == "its values are not the reference's"
    assert found.problem is not None


def _another_head(tensors):
    return {k: torch.ones(9, *v.shape[1:]) if "heads." in k else v for k, v in tensors.items()}


def test_a_head_of_other_classes_is_found_by_its_name(tmp_path):
    found, file, _ = _drafted(tmp_path, "mlx_image", _another_head, same=False)
    assert _row(found, "head.{p}").certain
    assert _loaded(file, tmp_path)["head.weight"].shape == (9, 36)


def _turned(tensors):
    return {k: v.T if v.ndim == 2 and k.endswith("weight") else v for k, v in tensors.items()}


def test_a_square_matrix_that_lies_unusually_is_a_guess(tmp_path):
    found, _, _ = _drafted(tmp_path, "torch_encoder", _turned, same=False)
    assert _row(found, "blocks.{i}.mlp.fc1.weight").spelling.endswith(" : width hidden")
    row = _row(found, "blocks.{i}.attn.proj.weight")
    assert (row.certain, row.spelling.endswith(" : (head dim) width")) == (False, True)
    assert row.reason == "its shape fits width (head dim) as well"


def test_values_tell_how_a_square_matrix_lies(tmp_path):
    found, file, tensors = _drafted(tmp_path, "torch_encoder", _turned)
    assert found.problem is None
    loaded = _loaded(file, tmp_path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_values_that_tell_nothing_leave_it_to_names(tmp_path):
    """Biases of zeros are equal to each other."""
    spelling = SPELLINGS["mlx_image"]
    config = spelling.vit()
    tensors = {
        name: torch.zeros_like(tensor) if name.endswith("bias") else tensor
        for name, tensor in weights(spelling, config).items()
    }
    like = reference(tmp_path, config, tensors)
    found = vitconvert.draft_table(spelled(tmp_path, spelling, config, tensors), like=like)
    assert found.problem is None
    parts = [part.split(".")[-2] for part in _row(found, QKV).spelling.split(", ")]
    assert parts == ["query_proj", "key_proj", "value_proj"]


def test_names_that_say_nothing_are_guesses(tmp_path):
    """A made-up team calls q, k and v ask, match and carry; a file of safetensors sorts them."""
    spelling = SPELLINGS["mlx_image"]
    config = spelling.vit()
    model = TeamViT(image_size=(40, 40), channels=3, width=36, hidden=50)
    file = tmp_path / "team.safetensors"
    save_file(model.state_dict(), file)
    like = reference(tmp_path, config, weights(spelling, config))
    found = vitconvert.draft_table(file, like=like)
    assert {row.name for row in found.guesses} == {"cls_token", "patch_embed.proj.weight", QKV}
    assert "may be it as well" in _row(found, QKV).reason
    for row in found.guesses:
        assert f"# guess: {row.reason}\n# " in found.text
    ours = parse_draft(found.text).row_of
    assert "blocks.{i}.attn.qkv.weight" not in ours
    assert "blocks.{i}.norm1.weight" in ours


@pytest.mark.parametrize("change", [{"depth": 5}, {"embed_dim": 33, "head_dim": 11}])
def test_error_nothing_is_like_the_reference(change, tmp_path):
    spelling = SPELLINGS["flax"]
    other = spelling.vit(**change)
    like = reference(tmp_path, other, weights(spelling, other))
    config = spelling.vit()
    file = spelled(tmp_path, spelling, config, weights(spelling, config))
    with pytest.raises(UsageError, match="This file has no blocks like those") as error:
        vitconvert.draft_table(file, like=like, output=tmp_path / "team.toml")
    assert f"{other.depth} blocks of width {other.embed_dim}" in error.value.evidence["reference"]
    assert "timm.create_model(NAME, embed_dim=..." in error.value.hint
    assert not (tmp_path / "team.toml").exists()


STRANGE = ("a\nb", 'a"b', "a{b}", "a*", "[rows]", "a = b", "\x1b[2J", "zeros", "x\u2028y", "\ud7ff")


def test_strange_names_stay_text(tmp_path):
    def added(tensors):
        return tensors | {name: torch.ones(3) for name in STRANGE}

    found, _, _ = _drafted(tmp_path, "mlx_image", added)
    assert set(found.left) == set(STRANGE)
    parse_draft(found.text)
    assert "\x1b" not in found.text
    text = (tmp_path / "team.toml").read_text(encoding="utf-8")
    assert text == found.text
    assert len(found.certain) == 12


def test_other_numbers_than_the_reference_has(tmp_path):
    """Positions for larger images are of their place; two rows too many are not."""

    def more(count):
        def change(tensors):
            return tensors | {"encoder.pos_embedding": torch.ones(1, count, 36)}

        return change

    found, _, _ = _drafted(tmp_path, "mlx_image", more(37), same=False)
    assert _row(found, "pos_embed").certain
    (tmp_path / "team.toml").unlink()
    found, _, _ = _drafted(tmp_path, "mlx_image", more(28), same=False)
    assert found.unfilled == ("pos_embed",)
    (tmp_path / "team.toml").unlink()
    found, _, _ = _drafted(tmp_path, "mlx_image", more(500), same=False)
    row = _row(found, "pos_embed")
    assert (row.certain, row.spelling) == (False, "encoder.pos_embedding : 1 position+ width")
    assert row.reason == "it has more positions than the reference"


def test_the_reference_says_what_no_tensor_shows(tmp_path):
    found, _ = draft(tmp_path, SPELLINGS["perception_encoder"], same=False)
    assert found.config["norm_eps"] == 1e-5
    assert found.config["pool_heads"] == 4
    assert found.config["num_heads if embed_dim == 36"] == 3
    assert "\npool_heads = 4\n" in found.text


def test_scales_are_no_norms(tmp_path):
    """Both are one vector in a block, where norms have no bias."""
    plain = SPELLINGS["mlx_image"]
    rows = {k.replace("{p}", "weight") if "norm" in k else k: v for k, v in plain.rows.items()}
    rows = {k: v.replace("{p}", "weight") if "norm" in k else v for k, v in rows.items()}
    rows |= {f"blocks.{{i}}.ls{n}.gamma": f"encoder.layers.{{i}}.ls_{n}" for n in (1, 2)}
    rms = {"norm": "rms", "norm_bias": False, "layer_scale": True}
    spelling = replace(plain, rows=rows, config=plain.config | rms)
    found, file = draft(tmp_path, spelling, same=False)
    shapes = {name: info.shape for name, info in vitconvert.inspect(file).tensors.items()}
    assert not wrong_rows(found, spelling, shapes)
    assert found.problem is None


@pytest.mark.parametrize(
    ("norms", "ends", "scales"),
    [
        (("ln_1", "ln_2"), ("_w", "_b"), ("gamma_1", "gamma_2")),
        (("pre_1", "pre_2"), (".gain", ".shift"), ("res_1", "res_2")),
        (("before", "after"), ("_g", "_b"), ("attn_res", "mlp_res")),
    ],
)
def test_a_weight_and_its_bias_are_no_scale(norms, ends, scales, tmp_path):
    plain = SPELLINGS["mlx_image"]
    rows = {k: v for k, v in plain.rows.items() if not k.startswith("blocks.{i}.norm")}
    for n in (1, 2):
        rows[f"blocks.{{i}}.ls{n}.gamma"] = f"encoder.layers.{{i}}.{scales[n - 1]}"
    for n, (kind, end) in product((1, 2), zip(("weight", "bias"), ends, strict=True)):
        rows[f"blocks.{{i}}.norm{n}.{kind}"] = f"encoder.layers.{{i}}.{norms[n - 1]}{end}"
    spelling = replace(plain, rows=rows, config=plain.config | {"layer_scale": True})
    found, file = draft(tmp_path, spelling, same=False)
    shapes = {name: info.shape for name, info in vitconvert.inspect(file).tensors.items()}
    assert not wrong_rows(found, spelling, shapes)
    assert (found.left, found.unfilled) == ({}, ())


def test_a_name_can_speak_against_the_only_place(tmp_path):
    def renamed(tensors):
        return {k.replace("encoder.ln.", "encoder.ln_pre."): v for k, v in tensors.items()}

    found, _, _ = _drafted(tmp_path, "mlx_image", renamed, same=False)
    row = _row(found, "norm.{p}")
    assert not row.certain
    assert row.reason == "the only place of its shape, but its name sounds like norm_pre"


def test_every_block_has_to_have_the_values(tmp_path):
    def one_block(tensors):
        key = "encoder.layers.7.mlp.linear_1.weight"
        return tensors | {key: tensors[key] + 0.1}

    found, _, _ = _drafted(tmp_path, "mlx_image", one_block)
    assert [row.name for row in found.guesses] == ["blocks.{i}.mlp.fc1.{p}"]


def test_a_bias_that_is_left_out_has_to_be_zero(tmp_path):
    spelling = SPELLINGS["eva02"]
    config = spelling.vit()
    tensors = weights(spelling, config)
    file = spelled(tmp_path, spelling, config, tensors)
    tensors["blocks.3.attn.qkv.bias"][40] = 0.5
    found = vitconvert.draft_table(file, like=reference(tmp_path, config, tensors))
    assert [row.name for row in found.guesses] == ["blocks.{i}.attn.qkv.bias"]


def test_error_a_file_of_too_many_names(tmp_path):
    def more(tensors):
        words = map("".join, product("abcdefghijk", repeat=3))
        return tensors | {f"{word}.x": torch.ones(36) for word in words}

    with pytest.raises(UsageError, match="too many names to draft a table for"):
        _drafted(tmp_path, "mlx_image", more)
    assert not (tmp_path / "team.toml").exists()


@pytest.mark.slow
def test_names_of_thousands_of_numbers_take_no_time(tmp_path):
    long = "1." * 50_000

    def more(tensors):
        whole = {"counts": torch.ones(36, dtype=torch.int64)}
        return tensors | {f"{long}{n}": torch.ones(36) for n in range(20)} | whole

    found, _, _ = _drafted(tmp_path, "mlx_image", more)
    assert len(found.left) == 21
    assert len(found.certain) == 12
    assert len(found.text) < 100_000


def test_a_layer_before_the_last_one_is_no_certain_head(tmp_path):
    """`classifier.0` has the place's shape, and `classifier.3` reads what it gives."""

    def two_layers(tensors):
        left = {k: v for k, v in tensors.items() if "heads." not in k}
        first = {"classifier.0.weight": torch.ones(24, 36), "classifier.0.bias": torch.ones(24)}
        last = {"classifier.3.weight": torch.ones(7, 24), "classifier.3.bias": torch.ones(7)}
        return left | first | last

    found, _, _ = _drafted(tmp_path, "mlx_image", two_layers, same=False)
    row = _row(found, "head.{p}")
    assert not row.certain
    assert row.reason == "classifier.3.weight may read what it gives, and be the last layer"
    assert set(found.left) == {"classifier.3.weight", "classifier.3.bias"}


def test_a_table_of_ones_own_is_told_of_its_rows(tmp_path):
    """And not that the file's head has no place in a ViT, with a pattern that cuts it off."""

    def two_layers(tensors):
        more = {f"encoder.ln2.{k}": torch.ones(36) for k in ("weight", "bias")}
        return tensors | {"heads.3.weight": torch.ones(7, 24), "heads.3.bias": torch.ones(7)} | more

    _, file, _ = _drafted(tmp_path, "mlx_image", two_layers, same=False)
    with pytest.raises(TensorMismatch) as error:
        vitconvert.load_checkpoint(file, table=tmp_path / "team.toml")
    assert "--ignore" not in str(error.value)
    assert "give what is left over rows in" in error.value.hint
    assert any("heads.3.weight" in line for line in error.value.details)


def test_a_dialect_is_no_reference(tmp_path):
    spelling = SPELLINGS["mlx_image"]
    config = spelling.vit()
    file = spelled(tmp_path, spelling, config, weights(spelling, config))
    with pytest.raises(UsageError, match="'openclip' is a dialect") as error:
        vitconvert.draft_table(file, like="openclip")
    assert "vit_base_patch16_224" in error.value.hint


def test_a_tower_of_a_larger_model_is_drafted_alone(tmp_path):
    def inside(tensors):
        other = {"text.encoder.weight": torch.ones(36, 36), "queue": torch.ones(36)}
        return {f"my_net.{name}": tensor for name, tensor in tensors.items()} | other

    spelling = SPELLINGS["mlx_image"]
    config = spelling.vit()
    tensors = weights(spelling, config)
    like = reference(tmp_path, config, tensors)
    file = spelled(tmp_path, spelling, config, tensors)
    save_file({k: v.contiguous() for k, v in inside(load_file(file)).items()}, file)
    found = vitconvert.draft_table(file, like=like, tower="my_net.", output=tmp_path / "t.toml")
    assert (found.problem, found.left) == (None, {})
    loaded = vitconvert.load_checkpoint(file, table=tmp_path / "t.toml", tower="my_net.").tensors
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(UsageError, match=r"No tensor's name begins with 'net\.'"):
        vitconvert.draft_table(file, like=like, tower="net.")


def test_keras_counts_all_layers_of_a_kind(tmp_path):
    """dense is the patches', dense_1 to dense_22 the blocks', dense_23 the head; norms likewise."""
    plain = SPELLINGS["mlx_image"]
    rows = {
        "cls_token": "tokens/cls",
        "pos_embed": "tokens/embedding",
        "patch_embed.proj.weight": "conv2d/kernel : y x channel width",
        "patch_embed.proj.bias": "conv2d/bias",
        "blocks.{i}.norm1.weight": "layer_normalization{_2*i}/gamma",
        "blocks.{i}.norm1.bias": "layer_normalization{_2*i}/beta",
        "blocks.{i}.attn.qkv.weight": "cat(multi_head_attention{_i}/query/kernel : width head dim, "
        "multi_head_attention{_i}/key/kernel : width head dim, "
        "multi_head_attention{_i}/value/kernel : width head dim)",
        "blocks.{i}.attn.qkv.bias": "cat(multi_head_attention{_i}/query/bias : head dim, "
        "multi_head_attention{_i}/key/bias : head dim, "
        "multi_head_attention{_i}/value/bias : head dim)",
        "blocks.{i}.attn.proj.weight": "multi_head_attention{_i}/attention_output/kernel : "
        "head dim width",
        "blocks.{i}.attn.proj.bias": "multi_head_attention{_i}/attention_output/bias",
        "blocks.{i}.norm2.weight": "layer_normalization_{2*i+1}/gamma",
        "blocks.{i}.norm2.bias": "layer_normalization_{2*i+1}/beta",
        "blocks.{i}.mlp.fc1.weight": "dense{_2*i}/kernel : width hidden",
        "blocks.{i}.mlp.fc1.bias": "dense{_2*i}/bias",
        "blocks.{i}.mlp.fc2.weight": "dense_{2*i+1}/kernel : hidden width",
        "blocks.{i}.mlp.fc2.bias": "dense_{2*i+1}/bias",
        "norm.weight": "layer_normalization_22/gamma",
        "norm.bias": "layer_normalization_22/beta",
        "head.weight": "dense_22/kernel : feature label",
        "head.bias": "dense_22/bias",
    }
    spelling = replace(plain, rows=rows)
    found, file = draft(tmp_path, spelling, same=False)
    shapes = {name: info.shape for name, info in vitconvert.inspect(file).tensors.items()}
    assert not wrong_rows(found, spelling, shapes)
    assert (found.left, found.unfilled) == ({}, ())
    # Both norms of a block, and the last one, have one shape and no words.
    assert {row.name.partition("norm")[1] for row in found.guesses} == {"norm"}
