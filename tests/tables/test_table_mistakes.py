"""Every mistake in a dialect's file: its place, the problem and what was meant."""

import pytest

from tests.tables.header import HEADER
from vitconvert.errors import TableError
from vitconvert.tables.dialects import read_table

# Section or key, the table after the header, the place, the problem and the hint.
MISTAKES = [
    (
        '[row]\n"norm.weight" = "n"',
        *("row", "unknown section; there are {sections}", None),
    ),
    (
        '[holds]\n"n" = "cos"',
        *("holds.n", "only an ignored tensor must hold something", None),
    ),
    (
        '[rotations]\n"n" = "cos"',
        "rotations",
        "unknown section; there are {sections}",
        '[holds] says it: "KEY" = "cos" or "sin".',
    ),
    (
        '[empty]\n"cls" = "0 width"',
        "empty",
        "unknown section; there are {sections}",
        '[constants] says it: "KEY" = "0 : 0 width", with the same axes.',
    ),
    (
        'layouts = ["timm", "hf"]',
        "dialect.layouts",
        "unknown key; {dialect_keys}",
        "only `--to vit` has layouts: vitconvert/conversion/target.py.",
    ),
    (
        'author = "me"',
        *("dialect.author", "unknown key; {dialect_keys}", None),
    ),
    (
        '[rows]\n"blocks.{i}.norm.weight" = "n.{i}"',
        'rows."blocks.{i}.norm.weight"',
        "'blocks.{i}.norm.weight' is no canonical name",
        "did you mean 'blocks.{i}.norm2.weight'?",
    ),
    (
        '[rows]\n"cls_token.{p}" = "n.{p}"',
        *('rows."cls_token.{p}"', "'cls_token.weight' is no canonical name"),
        "did you mean 'cls_token'?",
    ),
    (
        '[rows]\n"norm.weight" = 3',
        *('rows."norm.weight"', "expected a text, or false to take a row away", None),
    ),
    (
        '[rows]\n"norm.weight" = "cat(a,"',
        *('rows."norm.weight"', "ends too early\n    cat(a,\n          ^", None),
    ),
    (
        '[rows]\n"head.weight" = "w : width rgb"',
        *('rows."head.weight"', "the axes of w are rgb width; ours are feature label", None),
    ),
    (
        '[rows]\n"blocks.{i}.attn.qkv.weight" = "cat(q.{i} : width head dim, k.{i}, v.{i} : head)"',
        'rows."blocks.{i}.attn.qkv.weight"',
        "the axes of v.{i} are head; ours are dim head width",
        None,
    ),
    (
        '[rows]\n"norm.weight" = "w : 3 width"',
        'rows."norm.weight"',
        "the axes of w hold a number that is no power of two, which rounds parts",
        None,
    ),
    (
        '[rows]\n"blocks.{i}.attn.qkv.weight" = "cat(q.{i}, k.{i})"',
        'rows."blocks.{i}.attn.qkv.weight"',
        "cat joins 2 items, and ours has 3 steps along 'qkv'",
        None,
    ),
    (
        '[rows]\n"blocks.{i}.attn.qkv.weight" = "cat(zeros, zeros, zeros)"',
        *('rows."blocks.{i}.attn.qkv.weight"', "cat needs a tensor of theirs", None),
    ),
    (
        '[rows]\n"pos_embed" = "cat(first, rest)"',
        "rows.pos_embed",
        "cat has no place here: ours begins with 'position', whose length varies",
        None,
    ),
    (
        '[rows]\n"blocks.{i}.norm1.weight" = "layers.{j}.n"',
        *('rows."blocks.{i}.norm1.weight"', "the indices of layers.{j}.n are j; ours are i", None),
    ),
    (
        '[rows]\n"norm.weight" = "layers.{i}.{j}.n"',
        *('rows."norm.weight"', "the indices of layers.{i}.{j}.n are i j; ours are none", None),
    ),
    (
        '[rows]\n"norm.weight" = "n.{p}"',
        *('rows."norm.weight"', "the indices of n.{p} are p; ours are none", None),
    ),
    (
        '[rows]\n"norm.{p}" = "n"',
        *('rows."norm.bias"', "n is used by 'norm.weight' already", None),
    ),
    (
        '[rows]\n"cls_token" = "n[layer=0] : layer 1 1 width"',
        "rows.cls_token",
        "'layer' is a dimension of its own, and an index such as {i} selects on it",
        None,
    ),
    (
        '[rows]\n"blocks.{i}.norm1.weight" = "n[layer={i}] : (layer width)"',
        'rows."blocks.{i}.norm1.weight"',
        "'layer' is a dimension of its own, and an index such as {i} selects on it",
        None,
    ),
    (
        '[rows]\n"blocks.{i}.norm1.weight" = "n[block={i}] : block width"',
        'rows."blocks.{i}.norm1.weight"',
        "nothing tells the size of the axis 'block'; blocks are stacked along 'layer'",
        None,
    ),
    (
        '[rows]\n"reg_token" = "n[kv=1:] : kv width"',
        *("rows.reg_token", "only of 'prefix' can the rest be taken", None),
    ),
    (
        '[rows]\n"norm.weight" = "n[kv=2] : kv width"',
        *('rows."norm.weight"', "the axis 'kv' has the steps 0 to 1", None),
    ),
    (
        '[words]\none = "{two}"\ntwo = "{one}.x"\n[rows]\n"norm.weight" = "a.{one}"',
        'rows."norm.weight"',
        "the words one -> two -> one refer in a circle\n    a.{one}\n    ^",
        None,
    ),
    ("[words]\none = 1", *("words.one", "expected a text or a list of texts", None)),
    ("[words]\none = []", *("words.one", "expected a text or a list of texts", None)),
    (
        '[words]\na = "b"',
        *("words.a", "a word has two letters or more; one is an index", None),
    ),
    ('[ignore]\n"t" = ""', *("ignore.t", "a reason is needed, as text", None)),
    ('[ignore]\n"t" = true', *("ignore.t", "a reason is needed, as text", None)),
    (
        '[ignore]\n"{base}.*" = "none of ours"',
        *('ignore."{base}.*"', "{base} is neither an index nor a word of this table (none)", None),
    ),
    (
        '[holds]\n"mask" = "1 0 1 : (qkv head)"',
        *("holds.mask", "only an ignored tensor must hold something", None),
    ),
    (
        '[ignore]\n"mask" = "why"\n[holds]\n"mask" = "1 0 : (qkv head)"',
        *("holds.mask", "2 numbers for the steps of 'qkv': it has 3", None),
    ),
    (
        '[ignore]\n"mask" = "why"\n[holds]\n"mask" = "1 2 : head"',
        *("holds.mask", "2 numbers for the steps of 'head': nothing tells how many", None),
    ),
    (
        '[ignore]\n"mask" = "why"\n[holds]\n"mask" = "1 0 1 : (qkv heads)"',
        *("holds.mask", "no tensor of ours has an axis 'heads'", None),
    ),
    (
        '[ignore]\n"mask" = "why"\n[holds]\n"mask" = "qkv"',
        *("holds.mask", "expected numbers, a colon and axes, found 'qkv'", None),
    ),
    (
        '[ignore]\n"mask" = "why"\n[holds]\n"mask" = "1 0 1 : qkv : int8"',
        "holds.mask",
        "'int8' is neither int32 nor int64, the dtypes that can be said",
        None,
    ),
    (
        '[ignore]\n"{i}.{u}.mask" = "why"\n[holds]\n"{i}.{u}.mask" = "1 0 1 : qkv"',
        *('holds."{i}.{u}.mask"', "the only index is that of the block, {i}", None),
    ),
    (
        '[usage]\ntitle = "With mine"\ncode = "load($heads)"',
        *("usage.code", "$heads is no property of ViTConfig, and not $mlp_ratio", None),
    ),
    (
        '[usage]\ntitle = "With mine"\ncode = "load($)"',
        *("usage.code", "a $ that is no word is written twice: $$", None),
    ),
    ('[usage]\ntitle = "With mine"', *("usage.code", "expected a text, found nothing", None)),
    (
        '[files]\n"../x" = "head"',
        *('files."../x"', "expected how the keys in this file begin", None),
    ),
    (
        '[constants]\n"cls{i}" = "0 : 0 width"',
        *('constants."cls{i}"', "expected one key, which an entry of [ignore] explains", None),
    ),
    (
        '[constants]\n"mask" = "none : width"',
        "constants.mask",
        "could not convert string to float: 'none'; expected such as \"0 : 1 width\", or a word "
        'such as "image_size"',
        None,
    ),
    (
        '[constants]\n"mask" = "0 : (width"',
        "constants.mask",
        "a '(' without its ')'; expected such as \"0 : 1 width\", or a word such as \"image_size\"",
        None,
    ),
    (
        '[constants]\n"mask" = "0 : 1 width"\n[ignore]\n"masks" = "others"',
        *("constants.mask", "expected one key, which an entry of [ignore] explains", None),
    ),
    (
        '[words]\nbase = ["a.", ""]\n"base unless num_classes" = "b."',
        *('words."base unless num_classes"', "'b.' is no text of 'base'", None),
    ),
    (
        '[words]\nbase = ["a.", ""]\n"base unless headless" = ""',
        'words."base unless headless"',
        "'headless' is no field or property of ViTConfig; did you mean 'kv_heads'?\n"
        "    headless\n    ^",
        None,
    ),
    (
        '[config_json.writes]\n"kind when norm" = 1',
        'config_json.writes."kind when norm"',
        'expected "name", "name if predicate" or "name unless predicate"',
        None,
    ),
    (
        '[config_json.writes]\nwidth = { word = "function" }',
        *('config_json.writes."width"', "'function' is no field or property of ViTConfig", None),
    ),
    (
        '[config_json.writes]\nratio = { makes = "mlp_dim", half = 2 }',
        'config_json.writes."ratio"',
        "expected { word = ... } or { makes = ... } with alone, multiple, over, times, whole",
        None,
    ),
    (
        '[config_json.writes]\nratio = { makes = "depth" }',
        'config_json.writes."ratio"',
        "a ratio makes one of mlp_dim, pool_mlp_dim, representation_size, num_classes, not 'depth'",
        None,
    ),
    (
        "[config_json]\nwithin = 3",
        *("config_json.within", "expected a text or a list of texts", None),
    ),
    (
        "[config]\nnorm_epsilon = 1e-6",
        "config.norm_epsilon",
        "'norm_epsilon' is no field of ViTConfig",
        "did you mean 'norm_eps'?",
    ),
    (
        '[config]\nnorm_eps = "tiny"',
        *("config.norm_eps", "norm_eps must be a number, not 'tiny'.", None),
    ),
    (
        '[config]\n"pooling if class_tokens" = "token"',
        'config."pooling if class_tokens"',
        "'class_tokens' is no field or property of ViTConfig; did you mean 'class_token'?\n"
        "    class_tokens\n    ^",
        None,
    ),
    (
        '[config]\n"pooling when class_token" = "token"',
        'config."pooling when class_token"',
        'expected "name", "name if predicate" or "name unless predicate"',
        None,
    ),
    ("[config_json]\npaths = 1", *("config_json.paths", "unknown section", None)),
    ("[config_json]\nfields = 1", *("config_json.fields", "expected a [section]", None)),
    (
        '[config_json.fields]\nwidth = "hidden_size"',
        *("config_json.fields.width", "'width' is no field of ViTConfig"),
        "did you mean 'stem_width'?",
    ),
    (
        "[config_json.fields]\ndepth = 3",
        *("config_json.fields.depth", "expected a text or a list of texts", None),
    ),
    (
        "[config_json.defaults]\ndepth = 1.5",
        *("config_json.defaults.depth", "depth must be a whole number, not 1.5.", None),
    ),
    (
        "[only]\nroundness = true",
        "only.roundness",
        "'roundness' is no field or property of ViTConfig\n    roundness\n    ^",
        None,
    ),
    (
        '[must]\nroundness = "rolls"',
        "must.roundness",
        "'roundness' is no field or property of ViTConfig\n    roundness\n    ^",
        None,
    ),
    (
        "[must]\nsquare = true",
        *("must.square", "a reason is needed, as text", None),
    ),
    (
        '[must]\n"mlp_dim = 4" = "wide"',
        'must."mlp_dim = 4"',
        "'=' does not belong here\n    mlp_dim = 4\n            ^",
        None,
    ),
    (
        '[only]\n"mlp_dim == 4" = true',
        *('only."mlp_dim == 4"', "a reason is needed, as text", None),
    ),
    (
        '[config]\n"pooling if even_heads" = "token"',
        'config."pooling if even_heads"',
        "'even_heads' is not known before the whole configuration is\n    even_heads\n    ^",
        None,
    ),
    ("rows = 3", *("dialect.rows", "unknown key; {dialect_keys}", None)),
    ("requires = 3", *("dialect.requires", "expected a text or a list of texts", None)),
    (
        'requires = ["norm.weight"]',
        *("dialect.requires", "'norm.weight' is no row of this table", None),
    ),
    ("tested = 3", *("dialect.tested", "expected a text, found int", None)),
    (
        'container = "torcch"',
        "dialect.container",
        "'torcch' is no format that is written; there are safetensors, torch, npz, hdf5, keras_2, "
        "msgpack, gguf",
        "did you mean 'torch'?",
    ),
    (
        'container = "torchscript"',
        "dialect.container",
        "'torchscript' is no format that is written; there are safetensors, torch, npz, hdf5, "
        "keras_2, msgpack, gguf",
        "did you mean 'torch'?",
    ),
    ("container = 3", *("dialect.container", "expected a text, found int", None)),
    ('wrapper = "model"', *("dialect.wrapper", 'only container = "torch" has one', None)),
    (
        'container = "torch"\nbeside = { epoch = 0 }',
        "dialect.beside",
        "unknown key; {dialect_keys}",
        "the module of vitconvert/programs says it: Program.beside.",
    ),
]
VOCABULARY = {
    "{sections}": (
        "dialect, words, rows, ignore, holds, constants, files, config, "
        "ask, config_json, only, must, preprocessing, usage, text"
    ),
    "{dialect_keys}": (
        "title, ecosystem, program, source, tested, extends, requires, container, wrapper, "
        "named_only, historic, install, resampling"
    ),
}


@pytest.mark.parametrize(
    ("body", "place", "problem", "hint"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES]
)
def test_mistakes_have_a_place_and_a_reason(write, body, place, problem, hint):
    for name, words in VOCABULARY.items():
        problem = problem.replace(name, words)
    file = write(HEADER + body + "\n")
    with pytest.raises(TableError) as error:
        read_table(file)
    assert str(error.value) == (
        "error: table-error\n"
        "  The table does not parse.\n"
        f"  file     {file}\n"
        f"  place    {place}\n"
        f"  problem  {problem}" + (f"\n  hint: {hint}" if hint else "")
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[dialect]\nsource = 'x'", "dialect.title\n  problem  expected a text, found nothing"),
        ("dialect = 3", "dialect\n  problem  expected a [section]"),
        ("rows = 3\n" + HEADER, "rows\n  problem  expected a [section]"),
    ],
)
def test_the_header_is_needed(write, text, problem):
    file = write(text)
    with pytest.raises(TableError) as error:
        read_table(file)
    assert str(error.value) == (
        f"error: table-error\n  The table does not parse.\n  file     {file}\n  place    {problem}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[rows]\n"a" = "b"\n"a" = "c"', "Cannot overwrite a value (at "),
        (
            "[rows]\nblocks.{i} = 3",
            "Invalid initial character for a key part (at line 2, column 8)",
        ),
        ("[rows", "Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_what_is_not_toml(write, text, problem):
    file = write(text)
    with pytest.raises(TableError) as error:
        read_table(file)
    message = str(error.value)
    assert message.startswith(
        f"error: table-error\n  The table is not TOML.\n  file     {file}\n  problem  {problem}"
    )
    assert message.endswith("\n  hint: keys that hold dots or braces must be quoted.")


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xff\xfe[rows]")
    with pytest.raises(TableError) as error:
        read_table(file)
    assert error.value.fact == "The table is not TOML."


def test_a_table_that_is_not_there(tmp_path):
    file = tmp_path / "mine.toml"
    with pytest.raises(TableError) as error:
        read_table(file)
    assert str(error.value) == (
        "error: table-error\n  The table cannot be read.\n"
        f"  file     {file}\n  problem  No such file or directory"
    )


@pytest.mark.parametrize(
    ("parent", "fact"),
    [
        ("hf_vitt", "The table extends 'hf_vitt', which is no table."),
        ("hf_vit", "The table extends 'hf_vit', which is itself."),
        ("cores/hf_vit", "The table extends 'cores/hf_vit', which is no table."),
    ],
)
def test_what_cannot_be_extended(write, parent, fact):
    file = write(HEADER + f'extends = "{parent}"\n', name="hf_vit")
    with pytest.raises(TableError) as error:
        read_table(file)
    assert str(error.value) == f"error: table-error\n  {fact}\n  file  {file}"
