"""A target that nobody has: one table and one module of `vitconvert/programs`, nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitconvert
from vitconvert.errors import TableError
from vitconvert.programs.program import program_of
from vitconvert.tables.dialects import read_table
from vitconvert.toml_files import tables_dir

TABLE = """\
[dialect]
title     = "Acme's tower"
ecosystem = "acme"
program   = "acme"
source    = "this test"
tested    = "this test"
requires  = ["cls_token", "norm.weight"]

[words]
layer = "layers.{i}"

[rows]
"cls_token"                = "first"
"pos_embed"                = "places"
"patch_embed.proj.{p}"     = "cut.{p}"
"blocks.{i}.norm1.{p}"     = "{layer}.norm1.{p}"
"blocks.{i}.attn.qkv.weight" = "{layer}.self_attn.in_proj_weight"
"blocks.{i}.attn.qkv.bias" = "{layer}.self_attn.in_proj_bias"
"blocks.{i}.attn.proj.{p}" = "{layer}.self_attn.out_proj.{p}"
"blocks.{i}.norm2.{p}"     = "{layer}.norm2.{p}"
"blocks.{i}.mlp.fc1.{p}"   = "{layer}.linear1.{p}"
"blocks.{i}.mlp.fc2.{p}"   = "{layer}.linear2.{p}"
"norm.{p}"                 = "last.{p}"
"head.{p}"                 = "classes.{p}"

[only]
even_heads  = true
square      = true
in_channels = 3

[config]
activation          = "gelu"
pooling             = "token"
no_embed_class      = false
position_resampling = "bicubic"

[config_json.identify]
kind = "acme_tower"

[config_json.writes]
kind = "acme_tower"

[config_json.fields]
image_size  = "side"
patch_size  = "patch"
embed_dim   = "width"
depth       = "depth"
num_heads   = "heads"
mlp_dim     = "hidden"
num_classes = "labels"
norm_eps    = "eps"
"""

PROGRAM = '''\
"""Acme, whose package builds a tower of a config.json."""

from vitconvert.programs.target import fit_target
from vitconvert.facts.project_config import written_config
from vitconvert.programs.example import Example
from vitconvert.programs.program import Program


class Acme(Program):
    def fit(self, table, model):
        return fit_target(table, model.config, written_config(table, model.config))

    def openers(self, config):
        return {"acme": _open}

    def reference(self, checkpoint):
        from vitconvert.programs.reference import (
            Reference, load_strictly, own_tensors, package
        )
        from vitconvert.programs.taps import Tap, block_taps

        model = package("acme", install="acme").Tower(dict(checkpoint.their_config))
        load_strictly(model, own_tensors(checkpoint), "acme Tower")
        taps = block_taps(checkpoint.config.depth, block="layers.{i}", norm2="norm2", norm="last")
        taps = {"patch_embed": Tap("cut"), **taps}
        return Reference(name="acme Tower", model=model.eval(), taps=taps)

    def examples(self, target, source, has_processor):
        return [Example(title="With acme", code='import acme\\n\\nmodel = acme.load(".")')]


def _open(directory):
    import acme

    return acme.load(directory)


PROGRAM = Acme()
'''

# The package itself, which knows nothing of vitconvert.
PACKAGE = """\
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

SCALE = 1


class Tower(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config["width"], config["eps"]
        self.cut = nn.Conv2d(3, width, config["patch"], config["patch"])
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        count = (config["side"] // config["patch"]) ** 2 + 1
        self.places = nn.Parameter(torch.zeros(1, count, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, config["heads"], config["hidden"], 0.0, "gelu", eps,
                batch_first=True, norm_first=True,
            )
            for _ in range(config["depth"])
        )
        self.last = nn.LayerNorm(width, eps)
        self.classes = nn.Linear(width, config["labels"])

    def forward(self, images):
        x = self.cut(images).flatten(2).mT
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return SCALE * self.classes(self.last(x)[:, 0])


def load(directory):
    model = Tower(json.loads((Path(directory) / "config.json").read_text()))
    model.load_state_dict(load_file(Path(directory) / "model.safetensors"))
    return model.eval()
"""

SCRIPT = """\
import json
import sys
from pathlib import Path

import acme
import vitconvert
from vitconvert.errors import ParityFailed

source, output = sys.argv[1:]
conversion = vitconvert.convert(source, to="acme", output=output)
(Path(output) / "vitconvert.json").unlink()  # it would say which dialect it is
report = vitconvert.verify(output)
acme.SCALE = 2
try:
    vitconvert.convert(source, to="acme", output=output + "-2")
except ParityFailed as error:
    failed = error.fact
print(json.dumps({
    "package": vitconvert.__file__,
    "opened": [opened.to_dict() for opened in conversion.opened],
    "verified": [report.verdict, report.reference],
    "failed": failed,
}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of vitconvert with two files more, and the package of the made-up program."""
    folder = tmp_path / "checkout"
    package = Path(vitconvert.__file__).parent
    shutil.copytree(
        package, folder / "vitconvert", ignore=shutil.ignore_patterns("__pycache__", "weights_map")
    )
    shutil.copytree(tables_dir(), folder / "weights_map")
    (folder / "weights_map" / "acme.toml").write_text(TABLE)
    (folder / "vitconvert" / "programs" / "acme.py").write_text(PROGRAM)
    (folder / "acme.py").write_text(PACKAGE)
    return folder


@pytest.mark.slow
def test_a_table_and_a_module_make_a_target(checkout, timm_directory, tmp_path):
    source = timm_directory(
        img_size=24, patch_size=8, embed_dim=30, depth=3, num_heads=3, mlp_ratio=1.5, num_classes=7
    )
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, source, output],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["package"]).is_relative_to(checkout)

    assert json.loads((output / "config.json").read_text()) == {
        "kind": "acme_tower",
        "side": 24,
        "patch": 8,
        "width": 30,
        "depth": 3,
        "heads": 3,
        "hidden": 45,
        "labels": 7,
        "eps": 1e-06,
    }
    (opened,) = found["opened"]
    assert opened["consumer"] == "acme" and opened["relative"] <= 2e-5
    assert found["verified"] == ["equal", "acme Tower"]
    card = (output / "README.md").read_text()
    assert 'library_name: "acme"' in card
    assert 'With acme:\n\n```python\nimport acme\n\nmodel = acme.load(".")\n```' in card

    assert found["failed"] == "acme loads the output and computes something else."
    assert not (tmp_path / "out-2").exists()


def test_a_table_may_name_only_a_program_that_there_is(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(TABLE.replace('program   = "acme"', 'program   = "acne"'))
    with pytest.raises(TableError) as error:
        program_of(read_table(file))
    assert str(error.value) == (
        "error: table-error\n"
        "  The table names the program 'acne', which vitconvert does not know.\n"
        f"  file   {file}\n"
        "  place  dialect.program\n"
        "  hint: a program is a module vitconvert.programs.acne with a PROGRAM."
    )
