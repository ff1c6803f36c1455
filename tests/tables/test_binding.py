"""A table laid over a header: links, what is left, what is doubled and what is lacking."""

import time

import pytest

from tests.facts.header import hf, timm
from tests.tables.specimens.google import big_vision, scanned
from vitconvert.tables.binding import NO_ELEMENTS, bind
from vitconvert.tables.dialects import builtin_tables, read_table


@pytest.fixture
def table(tmp_path):
    def make(rows, requires="[]"):
        file = tmp_path / "mine.toml"
        text = f'[dialect]\ntitle = "Mine"\nsource = "-"\nrequires = {requires}\n{rows}\n'
        file.write_text(text)
        return read_table(file)

    return make


def test_one_of_theirs_for_each_step_of_ours():
    binding = bind(builtin_tables()["hf_vit"], hf())
    query, key, value = binding.links["blocks.1.attn.qkv.bias"]
    assert [link.our_step for link in (query, key, value)] == [0, 1, 2]
    assert key.theirs == "vit.encoder.layer.1.attention.attention.key.bias"
    assert (str(key.our_axes), str(key.their_axes)) == ("(qkv head dim)", "(head dim)")
    assert binding.fits and binding.explained == len(hf())
    assert binding.sizes.known["hidden"] == 50
    assert binding.sizes.products == {frozenset({"head", "dim"}): 30}


def test_one_array_for_all_blocks():
    shapes = scanned(big_vision("params/"))
    binding = bind(builtin_tables()["big_vision_scan"], shapes)
    links = [binding.links[f"blocks.{i}.norm1.weight"] for i in range(11)]
    assert len({link.theirs for (link,) in links}) == 1
    assert [link.their_step for (link,) in links] == [("layer", i) for i in range(11)]
    assert "blocks.11.norm1.weight" not in binding.links
    assert binding.sizes.known["layer"] == 11


def test_keys_that_nothing_explains_and_rows_that_nothing_fills(table):
    mine = table('[rows]\n"cls_token" = "cls"\n"norm.weight" = "n"', '["norm.weight"]')
    binding = bind(mine, {"cls": (1, 1, 5), "other": (3,)})
    assert binding.unexplained == ("other",)
    assert binding.lacking == (("norm.weight",),)
    assert not binding.fits
    assert bind(mine, {"n": (5,)}).fits
    assert not bind(mine, {}).fits


def test_dimensions_choose_between_alternatives(table):
    mine = table('[rows]\n"cls_token" = "c : 1 width | c : 1 1 width | c : width"')
    for shape in ((1, 5), (1, 1, 5), (5,)):
        binding = bind(mine, {"c": shape})
        assert binding.fits and binding.sizes.known["width"] == 5
        assert binding.links["cls_token"][0].their_axes.shape({"width": 5}) == shape
    misfit = bind(mine, {"c": (2, 5)})
    assert list(misfit.misfits) == ["c"] and not misfit.fits


def test_a_key_that_a_row_uses_is_not_ignored(table):
    mine = table('[rows]\n"norm.weight" = "n.w"\n[ignore]\n"n.*" = "no part"')
    binding = bind(mine, {"n.w": (5,), "n.b": (5,)})
    assert binding.ignored == {"n.b": "no part"}
    assert list(binding.links) == ["norm.weight"]


def test_an_empty_array_is_ignored_only_while_it_is_empty(table):
    mine = table('[rows]\n"norm.weight" = "n"\n[constants]\n"cls" = "0 : 0 width"')
    assert bind(mine, {"n": (5,), "cls": (0, 5)}).ignored == {
        "cls": "the library keeps an empty 0 width here"
    }
    assert bind(mine, {"n": (5,), "cls": (1, 5)}).unexplained == ("cls",)


def test_a_row_fills_what_else_would_be_empty(table):
    mine = table('[rows]\n"reg_token" = "r"\n[constants]\n"r" = "0 : 1 0 width"')
    assert bind(mine, {"r": (1, 0, 5)}).ignored == {
        "r": "the library keeps an empty 1 0 width here"
    }
    assert list(bind(mine, {"r": (1, 2, 5)}).links) == ["reg_token"]


def test_a_tensor_without_elements_plays_no_part(table):
    mine = table('[rows]\n"norm.weight" = "n"\n[ignore]\n"i" = "no part"')
    binding = bind(mine, {"n": (5,), "other": (0,), "i": (0, 2)})
    assert binding.fits
    assert binding.ignored == {"other": NO_ELEMENTS, "i": "no part"}


def test_two_spellings_of_one_tensor_are_doubled():
    for extra in ("layernorm.weight", "deit.layernorm.weight"):
        binding = bind(builtin_tables()["hf_vit"], hf() | {extra: (30,)})
        assert binding.doubled == {"norm.weight": ("vit.layernorm.weight", extra)}


def test_two_alternatives_of_one_tensor_are_doubled(table):
    mine = table('[rows]\n"norm.weight" = "new | old"')
    assert bind(mine, {"old": (5,), "new": (5,)}).doubled == {"norm.weight": ("new", "old")}
    assert bind(mine, {"old": (5,)}).doubled == {}


def test_a_join_that_lacks_a_part_is_partial(table):
    mine = table('[rows]\n"blocks.{i}.attn.qkv.bias" = "cat(q.{i}, zeros, v.{i})"')
    binding = bind(mine, {"q.0": (6,), "v.0": (6,), "q.1": (6,)})
    assert binding.partial == {"blocks.1.attn.qkv.bias": ("v.1",)}
    left_out = binding.links["blocks.0.attn.qkv.bias"][1]
    assert (left_out.theirs, left_out.our_step) == (None, 1)


def test_a_hostile_header_costs_nothing():
    names = [f"blocks.{10**9 + i}.norm1.weight" for i in range(1000)]
    huge = {"params/Transformer/encoderblock/LayerNorm_0/scale": (10**12, 0)}
    start = time.process_time()  # of the processor, not of the clock
    for shapes in (dict.fromkeys(names, (3,)) | timm(), huge):
        for candidate in builtin_tables().values():
            bind(candidate, shapes)
    assert time.process_time() - start < 5
