"""A process that converts imports what its proof runs, and can import the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import vitconvert
from vitconvert.programs import fast_imports
from vitconvert.programs.undrawn import Undrawn

DIGITS = Path(vitconvert.__file__).parent / "demo" / "digits"
CONVERTED = """
import contextlib, json, sys
from vitconvert import cli
from vitconvert.programs import fast_imports

fast_imports.end = sys.exit
with contextlib.suppress(SystemExit):
    cli.main()
left_out = ["torch._dynamo.eval_frame", "torch.distributed.tensor", "sympy"]
left_out += ["scipy", "accelerate", "torchao"]
found = [name for name in left_out if name in sys.modules]
import scipy
import torch

double = torch.compile(lambda x: 2 * x, backend="eager")
supported = torch._dynamo.utils.is_compile_supported("cpu")
print(json.dumps([found, double(torch.ones(1)).item(), supported]))
"""


def converted(output: Path, **environment: str) -> tuple[list[str], float, bool]:
    """What a process that converts has left out in vain, and what its torch computes after it."""
    typed = [sys.executable, "-c", CONVERTED, "convert", str(DIGITS), "--to", "timm", "-o", output]
    done = subprocess.run(
        typed, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    opened = json.loads((output / "vitconvert.json").read_text())["opened_by"]
    assert [(one["consumer"], one["bit_equal"]) for one in opened] == [
        ("timm", True),
        ("transformers", True),
    ]
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.skipif(
    not all(map(fast_imports.is_tested, fast_imports.TESTED)),
    reason="imports of other releases are left as they are",
)
def test_what_no_proof_runs_is_left_out_and_there_when_it_is_asked_for(tmp_path: Path) -> None:
    assert converted(tmp_path / "out") == ([], 2.0, True)


def test_imports_are_plain_where_that_is_asked_for(tmp_path: Path) -> None:
    imported, *computed = converted(tmp_path / "out", VITCONVERT_PLAIN_IMPORTS="1")
    assert "torch._dynamo.eval_frame" in imported
    assert computed == [2.0, True]


def test_imports_of_another_release_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_imports, "TESTED", {"torch": ("2.0.0",)})
    modules, finders = dict(sys.modules), list(sys.meta_path)
    fast_imports.import_leanly()
    assert sys.modules == modules and sys.meta_path == finders


def test_no_weights_are_drawn_and_what_is_computed_stays() -> None:
    before = torch.get_rng_state()
    with Undrawn():
        nn.Linear(3, 2)
        nn.init.trunc_normal_(torch.empty(3))
        torch.randn(3, 2)
        table = torch.arange(3.0).mul_(2).clamp_(max=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert table.tolist() == [0, 2, 3]


def test_shapes_on_the_meta_device_change_as_ever() -> None:
    with torch.device("meta"), Undrawn():
        filled = torch.empty(2, 3).normal_().mul_(2).t_()
        drawn = torch.randn(3, 2)
    assert filled.shape == drawn.shape == (3, 2)
    assert drawn.is_meta
