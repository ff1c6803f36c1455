"""What the README of scale says is run: commands, and pipelines of programs that are here."""

import importlib.util
import io
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import run
from vitconvert.demo.demonstration import DIGITS

__all__ = ["run"]  # a fixture

TEXT = (Path(__file__).parents[2] / "vitconvert/embedding/README.md").read_text(encoding="utf-8")
LINES = re.search(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)[1].splitlines()
COMMANDS = [shlex.split(line, comments=True)[1:] for line in LINES]
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
PROGRAMS = ("datasets", "ray", "daft", "pyspark")


def block_of(program):
    """The example for a program, after those that all need."""
    assert len(BLOCKS) == 2 + len(PROGRAMS)
    (found,) = (
        b for b in BLOCKS if re.search(rf"^(import|from) {program}\b", b, flags=re.MULTILINE)
    )
    return "\n".join([*BLOCKS[:2], found])


def make_workplace(folder):
    """A model and images, by the names of the examples."""
    samples = DIGITS / "samples"
    shutil.copytree(DIGITS, folder / "vit-timm")
    (folder / "photos" / "three").mkdir(parents=True)
    for name, place in (("1", "one.jpg"), ("2", "two.png"), ("3", "three/three.png")):
        shutil.copy(samples / f"{name}.png", folder / "photos" / place)
    with tarfile.open(folder / "train.tar", "w") as archive:
        for name, content in (("4.png", (samples / "4.png").read_bytes()), ("4.cls", b"four")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    make_workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_commands(run, workplace):
    assert len(COMMANDS) == 13
    for command in COMMANDS:
        if "ray" not in command:  # test_ray.py has a cluster for it
            assert run(*command).code == 0, command
    assert sorted(path.name for path in workplace.iterdir() if path.is_dir()) == [
        *("classes", "features", "from-tar", "half", "parts", "patches", "photos", "vit-timm")
    ]


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--[a-z][a-z-]+", TEXT))))
def test_options_exist(run, option):
    text = run("embed", "--help").out + run("predict", "--help").out
    assert option in re.findall(r"--[a-z-]+", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of programs that are not ours
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "ray"])
def test_pipelines(program, workplace, capsys):
    if importlib.util.find_spec(program) is None:
        pytest.skip(f"{program} is not installed")
    scope = {}
    exec(compile(block_of(program), program, "exec"), scope)
    assert scope["embedder"].width == len(scope["rows"][0]) == len(scope["rows"][1])
    assert f"{scope['rows'][1][0]:.4f}"[:6] in capsys.readouterr().out
