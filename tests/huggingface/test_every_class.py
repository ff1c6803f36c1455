"""Every class of transformers, to every target that holds it, by the default command."""

import json
import re

import pytest
import torch

from tests.huggingface.every_class import STATED, classes, made, saved
from tests.make_classes import committed, row
from tests.sampling import sampled
from tests.small_models import relative
from tests.uses import embedded, in_onnx_runtime
from vitconvert.cli import main
from vitconvert.programs.transformers.running import run

ROWS = committed()


def held(name: str) -> list[str]:
    """The targets of a class, in the table."""
    _, _, _, again, others, _ = ROWS[name].split("|")
    return [*(["hf"] if again.strip() != "-" else []), *re.findall(r"`(\w+)`", others)]


def test_no_class_is_missing():
    assert ROWS.keys() == classes().keys(), "run: python -m tests.make_classes"


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ROWS, 8))
def test_a_class_becomes_its_own_again_and_another(name, tmp_path, capsys):
    assert row(name, tmp_path / name) == ROWS[name], "run: python -m tests.make_classes"
    first, *others = held(name)
    number = list(ROWS).index(name)  # so that each target has some
    for to in (first, *others[number % max(len(others), 1) :][:1]):
        convert(name, to, tmp_path, capsys)


@pytest.mark.coverage
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # Keras of NumPy 2
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", ROWS)
def test_a_class_becomes_all_that_hold_it(name, tmp_path, capsys):
    row(name, tmp_path / name)
    for to in held(name):
        convert(name, to, tmp_path, capsys)


# Models whose towers are Qwen2-VL's, Qwen2.5-VL's, Qwen3-VL's and GLM-4V's, and where these are.
TOWERS = {
    "ColQwen2ForRetrieval": "vlm.visual",
    "Cosmos3OmniModel": "visual",
    "Glm46VModel": "visual",
    "HyperCLOVAXVisionV2Model": "vision_model",
}


@pytest.mark.coverage
@pytest.mark.parametrize("name", TOWERS)
@torch.inference_mode()
def test_its_tower_is_exported_and_embedded(name, tmp_path):
    images = torch.rand(2, 3, 32, 48)
    stated = {"dialect": "hf", "overrides": {"image_size": (32, 48)}}
    found = in_onnx_runtime(saved(name, tmp_path / "own"), images, tmp_path, **stated)
    wanted = run(made(name).eval().get_submodule(TOWERS[name]), images)
    assert relative(found, wanted) < 1e-5
    said = ("--dialect=hf", "--set=image_size=32x48", "--mean", "0.4,0.5,0.6", "--std", "0.3")
    assert embedded(tmp_path / "own", tmp_path, *said).shape == (1, *found.shape[1:])


def convert(name, to, folder, capsys):
    """As a user types it: verified against transformers' class, and opened by the target's."""
    stated = [f"--set={k}={v[0]}x{v[1]}" for k, v in STATED.get(name[:6], {}).items()]
    with pytest.raises(SystemExit) as exit_:
        output = folder / f"as-{to}"
        main(["hf", str(folder / name), "--to", to, "-o", str(output), "--json", *stated])
    out, err = capsys.readouterr()
    # What only a look at the weights tells: a bias of keys that no bias stands for.
    if exit_.value.code == 5:
        assert "not zero" in out + err
        return
    assert exit_.value.code in (0, None), err
    done = json.loads(out)
    assert done["parity"]["verdict"] == "equal", done["parity"]
    problems = [f"{o['consumer']}: {o['why_not']}" for o in done["opened_by"] if o["why_not"]]
    assert not [problem for problem in problems if to in ("hf", "timm")], problems
