"""The page about Core ML, LiteRT and ExecuTorch: its commands run where timmx is installed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.pages import PAGES
from tests.small_models import randomise

PAGE = PAGES / "on-device.md"


@pytest.mark.slow
def test_the_commands_run_and_their_files_compute_the_same(tmp_path):
    for package in ("timmx", "coremltools", "litert_torch", "executorch"):
        pytest.importorskip(package)
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    sizes = {"image_size": 42, "patch_size": 14, "hidden_size": 36, "num_attention_heads": 3}
    config = transformers.Dinov2WithRegistersConfig(num_hidden_layers=2, **sizes)
    randomise(transformers.Dinov2WithRegistersModel(config)).save_pretrained(tmp_path / "dinov2")
    text = PAGE.read_text(encoding="utf-8")
    text = text.partition("\n## optimum")[0]
    for title, code in re.findall(r'^```python title="(.+)"\n(.*?)^```$', text, re.M | re.S):
        (tmp_path / title).write_text(code)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1"}
    printed = ""
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        for line in block.splitlines():
            if not line.startswith("pip "):
                ran = subprocess.run(
                    shlex.split(line), cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
                printed = ran.stdout
    found = dict(re.findall(r"^(\w+) +(\S+) of the largest output$", printed, re.M))
    assert found.keys() == {"LiteRT", "ExecuTorch"}
    assert all(0 < float(difference) < 2e-5 for difference in found.values()), found
    assert (tmp_path / "dinov2.mlpackage" / "Manifest.json").is_file()
