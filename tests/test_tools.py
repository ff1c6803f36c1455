"""docs/pages/tools.md: each script with our model and with timm's of the same file."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packages import timm
from tests.pages import PAGES, typed
from tests.small_models import randomise, relative

TEXT, *SECTIONS = (PAGES / "tools.md").read_text(encoding="utf-8").split("\n## ")
_CODE = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```', flags=re.MULTILINE | re.DOTALL)
START = _CODE.findall(TEXT)[0][1]
# The name of a tool, the file in which torchrun finds its script, if that runs it, and the script.
SCRIPTS = {section.partition("\n")[0]: _CODE.findall(section) for section in SECTIONS}
# The name, and how far its numbers are from timm's.
ROWS = dict(re.findall(r"^\| \[([^]]+)\]\(#[^)]+\) \|.*\| ([^|]+) \|$", TEXT, flags=re.M))
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
    assert list(SCRIPTS) == list(ROWS)
    assert all(len(scripts) == 1 for scripts in SCRIPTS.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the tools
@pytest.mark.parametrize("tool", SCRIPTS)
def test_a_tool_gives_timms_numbers(tool, models):
    bound = {"bit-identical": 0, "equal": 0, "within 1e-5": 1e-5, "within 5e-2": 5e-2}[ROWS[tool]]
    file, script = SCRIPTS[tool][0]
    # Two processes that import torch need ten seconds, and compiling half a minute.
    few = bool(file) or tool == "torch.compile"
    for family in ["DINOv3"] if few else FAMILIES:
        with contextlib.chdir(models / family):
            found, wanted = (_result(file, script, of_timm=answer) for answer in (False, True))
        for ours, theirs in zip(_numbers(found), _numbers(wanted), strict=True):
            if isinstance(ours, torch.Tensor):
                assert relative(ours, theirs) <= bound, family
            else:
                assert ours == theirs, family


def _result(file: str, script: str, *, of_timm: bool) -> Any:
    """What a script leaves as its result."""
    ours, theirs = re.findall(r"^(?:# )?(model = .+)$", START, flags=re.M)
    start = START.replace(f"{ours}\n# {theirs}", theirs if of_timm else ours)
    assert start != START
    if file:
        Path("start.py").write_text(start, encoding="utf-8")
        Path(file).write_text(script, encoding="utf-8")
        exit_code, printed = typed(f"torchrun --standalone --nproc-per-node 2 {file}")
        assert exit_code == 0, printed
        return torch.load("result.pt")
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(start + script, "tools.md", "exec"), scope)
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
