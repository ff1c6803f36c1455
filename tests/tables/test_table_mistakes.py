# ruff: noqa: E501 (a mistake is a line)
"""Every mistake in a dialect's file: its place, the problem and what was meant."""

import tomllib

import pytest

from tests.tables.header import HEADER
from vitconvert.errors import TableError
from vitconvert.tables.dialects import read_table

# What stands before the entry in its section, or before the section.
BEFORE = {
    "holds": '[ignore]\n"mask" = "why"\n"{i}.{u}.mask" = "why"\n[holds]',
    "words": '[words]\nbase = ["a.", ""]',
    "usage": '[usage]\ntitle = "With mine"',
    "dialect": "",
}
# In each section an entry, the problem and the hint.
MISTAKES = r"""
[holds]
n = "cos" -> only an ignored tensor must hold something
mask = "1 0 : (qkv head)" -> 2 numbers for the steps of 'qkv': it has 3
mask = "1 2 : head" -> 2 numbers for the steps of 'head': their number is unknown
mask = "1 0 1 : (qkv heads)" -> no tensor of ours has an axis 'heads'
mask = "qkv" -> expected numbers, a colon and axes, found 'qkv'
mask = "1 0 1 : qkv : int8" -> 'int8' is neither int32 nor int64, the dtypes that can be said
"{i}.{u}.mask" = "1 0 1 : qkv" -> the only index is that of the block, {i}
[dialect]
layouts = ["timm", "hf"] -> unknown key; {dialect_keys} (hint: only `--to vit` has layouts: vitconvert/conversion/search.py.)
author = "me" -> unknown key; {dialect_keys}
rows = 3 -> unknown key; {dialect_keys}
requires = 3 -> expected a text or a list of texts
requires = ["norm.weight"] -> 'norm.weight' is not a row of this table
tested = 3 -> expected a text, found int
container = "torcch" -> 'torcch' is not a format that is written; there are {formats} (hint: did you mean 'torch'?)
container = "torchscript" -> 'torchscript' is not a format that is written; there are {formats} (hint: did you mean 'torch'?)
container = 3 -> expected a text, found int
wrapper = "model" -> only container = "torch" has one
[rows]
"blocks.{i}.norm.weight" = "n.{i}" -> 'blocks.{i}.norm.weight' is not a canonical name (hint: did you mean 'blocks.{i}.norm2.weight'?)
"cls_token.{p}" = "n.{p}" -> 'cls_token.weight' is not a canonical name (hint: did you mean 'cls_token'?)
"norm.weight" = 3 -> expected a text, or false to take a row away
"norm.weight" = "cat(a," -> ends too early
"head.weight" = "w : width rgb" -> the axes of w are rgb width; ours are feature label
"blocks.{i}.attn.qkv.weight" = "cat(q.{i} : width head dim, k.{i}, v.{i} : head)" -> the axes of v.{i} are head; ours are dim head width
"norm.weight" = "w : 3 width" -> the axes of w hold a number that is not a power of two, which rounds parts
"blocks.{i}.attn.qkv.weight" = "cat(q.{i}, k.{i})" -> cat joins 2 items, and ours has 3 steps along 'qkv'
"blocks.{i}.attn.qkv.weight" = "cat(zeros, zeros, zeros)" -> cat needs a tensor of theirs
pos_embed = "cat(first, rest)" -> cat has no place here: ours begins with 'position', whose length varies
"blocks.{i}.norm1.weight" = "layers.{j}.n" -> the indices of layers.{j}.n are j; ours are i
"norm.weight" = "layers.{i}.{j}.n" -> the indices of layers.{i}.{j}.n are i j; ours are none
"norm.weight" = "n.{p}" -> the indices of n.{p} are p; ours are none
cls_token = "n[layer=0] : layer 1 1 width" -> 'layer' is a dimension of its own, and an index such as {i} selects on it
"blocks.{i}.norm1.weight" = "n[layer={i}] : (layer width)" -> 'layer' is a dimension of its own, and an index such as {i} selects on it
"blocks.{i}.norm1.weight" = "n[block={i}] : block width" -> the size is unknown of the axis 'block'; blocks are stacked along 'layer'
reg_token = "n[kv=1:] : kv width" -> only of 'prefix' can the rest be taken
"norm.weight" = "n[kv=2] : kv width" -> the axis 'kv' has the steps 0 to 1
[words]
one = 1 -> expected a text or a list of texts
one = [] -> expected a text or a list of texts
a = "b" -> a word has two letters or more; one is an index
"base unless num_classes" = "b." -> 'b.' is not a text of 'base'
"base unless headless" = "" -> 'headless' is not a field or property of ViTConfig; did you mean 'kv_heads'?
[ignore]
t = "" -> a reason is needed, as text
t = true -> a reason is needed, as text
"{base}.*" = "none of ours" -> {base} is neither an index nor a word of this table (none)
[usage]
code = "load($heads)" -> $heads is not a property of ViTConfig, and not $mlp_ratio
code = "load($)" -> a $ that is not part of a word is written twice: $$
[files]
"../x" = "head" -> expected how the keys in this file begin
[constants]
"cls{i}" = "0 : 0 width" -> expected one key, which an entry of [ignore] explains
mask = "none : width" -> could not convert string to float: 'none'; {such}
mask = "0 : (width" -> a '(' without its ')'; {such}
[config_json.writes]
"kind when norm" = 1 -> expected "name", "name if predicate" or "name unless predicate"
width = {"word" = "function"} -> 'function' is not a field or property of ViTConfig
ratio = {"makes" = "mlp_dim", "half" = 2} -> expected { word = ... } or { makes = ... } with alone, multiple, over, times, whole
ratio = {"makes" = "depth"} -> a ratio makes one of {sizes}, not 'depth'
[config_json]
within = 3 -> expected a text or a list of texts
file = 3 -> expected a text, found int
inert = [3] -> expected a [section]
paths = 1 -> unknown section
reads = {} -> unknown section (hint: [config_json.fields] says it; what [config_json.writes] has too is only read.)
arguments = "args" -> unknown section (hint: [config_json.inert] says it: PATH = [...].)
fields = 1 -> expected a [section]
[config]
norm_epsilon = 1e-06 -> 'norm_epsilon' is not a field of ViTConfig (hint: did you mean 'norm_eps'?)
norm_eps = "tiny" -> norm_eps must be a number, not 'tiny'.
"pooling if class_tokens" = "token" -> 'class_tokens' is not a field or property of ViTConfig; did you mean 'class_token'?
"pooling when class_token" = "token" -> expected "name", "name if predicate" or "name unless predicate"
"pooling if even_heads" = "token" -> 'even_heads' is not known before the whole configuration is
[config_json.fields]
width = "hidden_size" -> 'width' is not a field of ViTConfig (hint: did you mean 'stem_width'?)
depth = 3 -> expected a text or a list of texts
[config_json.inert]
model_args = [3] -> expected a text or a list of texts
[config_json.values]
activation = "mine" -> translations.toml has no list 'mine'
activation = 3 -> expected a [section] or the name of a list
[config_json.values.activation]
relu = {} -> expected a value of ours
[preprocessing]
mean = [true] -> [True] is of another kind
resize = 3 -> 3 is of another kind
mean_in = "norm_mean" -> unknown key (hint: [constants] says it: "KEY" = "mean : AXES".)
std_in = "norm_std" -> unknown key (hint: [constants] says it: "KEY" = "std : AXES".)
[config_json.defaults]
depth = 1.5 -> depth must be a whole number, not 1.5.
[only]
roundness = true -> 'roundness' is not a field or property of ViTConfig
"mlp_dim == 4" = true -> a reason is needed, as text
[must]
roundness = "rolls" -> 'roundness' is not a field or property of ViTConfig
square = true -> a reason is needed, as text
"mlp_dim = 4" = "wide" -> '=' does not belong here
"""
# The whole table, the place, the problem and the hint.
ELSEWHERE = [
    ('[row]\n"norm.weight" = "n"', "row", "unknown section; there are {sections}"),
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
        '[rows]\n"norm.{p}" = "n"',
        'rows."norm.bias"',
        "n is used by 'norm.weight' already",
        '"shared n", in both rows, says that it is meant',
    ),
    (
        '[rows]\n"blocks.{i}.norm1.weight" = "b.{i}.{head}"',
        'rows."blocks.{i}.norm1.weight"',
        "b.{i}.{head} counts 'head', and ours has the axes width",
    ),
    (
        '[rows]\n"blocks.{i}.norm1.weight" = "n"',
        'rows."blocks.{i}.norm1.weight"',
        "the indices of n are none; ours are i",
    ),
    (
        '[words]\none = "{two}"\ntwo = "{one}.x"\n[rows]\n"norm.weight" = "a.{one}"',
        'rows."norm.weight"',
        "the words one -> two -> one refer in a circle",
    ),
    ('[usage]\ntitle = "With mine"', "usage.code", "expected a text, found nothing"),
    (
        '[constants]\n"mask" = "0 : 1 width"\n[ignore]\n"masks" = "others"',
        "constants.mask",
        "expected one key, which an entry of [ignore] explains",
    ),
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
    "{formats}": "safetensors, torch, npz, equinox, hdf5, keras_2, msgpack, gguf",
    "{sizes}": "mlp_dim, pool_mlp_dim, representation_size, num_classes",
    "{such}": 'expected such as "0 : 1 width", or a word such as "image_size"',
}


def entries():
    """The table up to a mistake, the place, the problem and the hint."""
    for line in MISTAKES.strip().splitlines():
        if line.startswith("["):
            section = line[1:-1]
            continue
        entry, told = line.split(" -> ")
        (key,) = tomllib.loads(entry)
        place = f"{section}.{key}" if key.isidentifier() else f'{section}."{key}"'
        problem, _, hint = told.removesuffix(")" * (" (hint: " in told)).partition(" (hint: ")
        yield f"{BEFORE.get(section, f'[{section}]')}\n{entry}", place, problem, hint


ALL = [*entries(), *ELSEWHERE]


def assert_told(file, place, problem, hint=""):
    """The whole message; a caret under the place of a text that does not parse may follow."""
    for name, words in VOCABULARY.items():
        problem = problem.replace(name, words)
    with pytest.raises(TableError) as error:
        read_table(file)
    message, hints = str(error.value).partition("\n  hint: ")[::2]
    expected = (
        f"error: table-error\n  The table does not parse.\n  file     {file}\n"
        f"  place    {place}\n  problem  {problem}"
    )
    assert message == expected or (message.startswith(f"{expected}\n") and message.endswith("^"))
    assert hints == hint


@pytest.mark.parametrize("mistake", ALL, ids=[one[0] for one in ALL])
def test_mistakes_have_a_place_and_a_reason(write, mistake):
    body, *told = mistake
    assert_told(write(f"{HEADER}{body}\n"), *told)


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
        ("cores/nothing", "The table extends 'cores/nothing', which is no table."),
    ],
)
def test_what_cannot_be_extended(write, parent, fact):
    file = write(HEADER + f'extends = "{parent}"\n', name="hf_vit")
    with pytest.raises(TableError) as error:
        read_table(file)
    assert str(error.value) == f"error: table-error\n  {fact}\n  file  {file}"
