"""Every class of transformers, to every target that holds it, by the default command."""

import json
import re

import pytest

from tests.huggingface.every_class import STATED, classes
from tests.make_classes import committed, row
from tests.sampling import sampled
from vitconvert.cli import main

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
    for to in (first, *others[number % len(others) :][:1]):
        convert(name, to, tmp_path, capsys)


@pytest.mark.coverage
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # Keras of NumPy 2
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", ROWS)
def test_a_class_becomes_all_that_hold_it(name, tmp_path, capsys):
    row(name, tmp_path / name)
    for to in held(name):
        convert(name, to, tmp_path, capsys)


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
