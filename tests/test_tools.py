"""docs/pages/tools.md: each script with our model and with timm's of the same file."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packages import timm
from tests.pages import PAGES, typed
from tests.small_models import randomise, relative

TEXT = (PAGES / "tools.md").read_text(encoding="utf-8")
START = re.findall(r'```python title="start.py"\n(.*?)```', TEXT, flags=re.DOTALL)[0]
# The heading of a tool, its script, and the file in which `torchrun` finds it.
SCRIPTS = {
    title: (code, file)
    for title, file, code in re.findall(
        r'^## ([^\n]+)\n(?:(?!## )[^\n]*\n)*?```python(?: title="([^"]+)")?\n(.*?)^```', TEXT, re.M | re.S
    )
}
# Names of the table, lower case as headings are in links: the cell that tells how far numbers are.
ROWS = dict(re.findall(r"^\| \[([^]]+)\]\(#[^)]+\) \|.*\| ([^|]+) \|$", TEXT, flags=re.M))
BOUNDS = {"bit-identical": 0.0, "equal": 0.0, "within 1e-5": 1e-5}
_SIZES = {"num_classes": 7, "embed_dim": 36, "depth": 3, "num_heads": 3}
# A name of timm, and arguments beside: images that are no squares.
FAMILIES = {
    "DINOv3": ("vit_small_patch16_dinov3", {"img_size": (32, 48), "patch_size": 8}),
    "plain": ("vit_tiny_patch16_224", {"img_size": (32, 24), "patch_size": 8}),
    "DINOv2": ("vit_small_patch14_reg4_dinov2", {"img_size": (28, 42), "patch_size": 7}),
    "SigLIP": ("vit_base_patch16_siglip_224", {"img_size": (32, 24), "patch_size": 8}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each family, as timm saves a model."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(38)
    for family, (name, sizes) in FAMILIES.items():
        arguments = _SIZES | sizes
        model = randomise(timm.create_model(name, **arguments))
        timm.models.save_for_hf(model, folder / family / "vit", model_args=arguments)
    return folder


def test_every_tool_has_a_row_and_a_script():
    assert [title.lower() for title in SCRIPTS] == [title.lower() for title in ROWS]
    assert TEXT.count("```python") == len(SCRIPTS) + 1
    assert set(ROWS.values()) <= BOUNDS.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the tools
@pytest.mark.parametrize("title", SCRIPTS)
def test_a_tool_gives_timms_numbers(title, models):
    (bound,) = (BOUNDS[cell] for name, cell in ROWS.items() if name.lower() == title.lower())
    # Two processes that import torch need ten seconds.
    families = ["DINOv3"] if SCRIPTS[title][1] else FAMILIES
    for family in families:
        with contextlib.chdir(models / family):
            found, wanted = (_result(title, of_timm=of_timm) for of_timm in (False, True))
        for ours, theirs in zip(_numbers(found), _numbers(wanted), strict=True):
            if isinstance(ours, torch.Tensor):
                assert relative(ours, theirs) <= bound, family
            else:
                assert ours == theirs, family


def _result(title: str, *, of_timm: bool) -> Any:
    """What a script leaves as its result."""
    ours, theirs = re.findall(r"^(?:# )?(model = .+)$", START, flags=re.M)
    start = START.replace(f"{ours}\n# {theirs}", theirs if of_timm else ours)
    assert start != START
    code, file = SCRIPTS[title]
    if file:
        Path("start.py").write_text(start, encoding="utf-8")
        Path(file).write_text(code, encoding="utf-8")
        exit_code, printed = typed(f"torchrun --nproc-per-node 2 {file}")
        assert exit_code == 0, printed
        return torch.load("result.pt")
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(start + code, title, "exec"), scope)
    return scope["result"]


def _numbers(result: Any) -> Iterator[Any]:
    """Tensors and other values, in order."""
    if isinstance(result, Mapping):
        result = [*result, *result.values()]
    if isinstance(result, list | tuple):
        for one in result:
            yield from _numbers(one)
    else:
        yield torch.from_numpy(result) if isinstance(result, np.ndarray) else result
