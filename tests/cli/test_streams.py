"""What is printed reaches any stdout, and the exit code is that of the work."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.sampling import sampled
from vitconvert.demo.demonstration import DIGITS

NAME = "na\u4e2dm\u0444"  # outside of cp1252, which Windows has


def shell(command, folder, **environment):
    python = f"{sys.executable} -m vitconvert"
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("vitconvert", python, 1)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(DIGITS, tmp_path / NAME)
    shutil.copy(DIGITS / "samples" / "1.png", tmp_path / f"{NAME}.png")
    return tmp_path


@pytest.mark.parametrize(
    "how", sampled([{"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C"}], 2, "slow")
)
@pytest.mark.parametrize(
    "command",
    [
        f"inspect {NAME}",
        pytest.param(f"predict {NAME} {NAME}.png", marks=pytest.mark.slow),
        pytest.param(f"convert {NAME} --dry-run", marks=pytest.mark.slow),
        pytest.param(f"convert {NAME} -o out-{NAME} --no-verify", marks=pytest.mark.slow),
        pytest.param(f"diff {NAME} {NAME}", marks=pytest.mark.slow),
    ],
)
def test_names_that_an_encoding_lacks_are_escaped(command, how, folder):
    if "LC_ALL" in how:
        how = how | {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = shell(f"vitconvert {command}", folder, **how)
    assert done.returncode == 0, done.stderr
    assert "m" in done.stdout and "Traceback" not in done.stderr
    if "PYTHONIOENCODING" in how:
        assert r"na\u4e2dm\u0444" in done.stdout


@pytest.mark.parametrize("closed", [">&-", pytest.param("2>&-", marks=pytest.mark.slow)])
def test_a_closed_stream_leaves_the_exit_code_of_the_work(closed, folder):
    assert shell(f"vitconvert inspect {NAME} {closed}", folder).returncode == 0
    assert shell(f"vitconvert inspect nothing-here.pth {closed}", folder).returncode == 1


def test_a_full_stdout_is_a_message(folder):
    for form in ("--json", "-q"):
        done = shell(f"vitconvert inspect {NAME} {form} > /dev/full", folder)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_folders_that_cannot_be_listed_are_named(tmp_path, run, monkeypatch):
    shutil.copytree(DIGITS, tmp_path / "model")
    locked = str(tmp_path / "locked")
    os.mkdir(locked)  # noqa: PTH102

    def for_all_but_root(real):
        def listed(path="."):
            if str(path) == locked:
                raise PermissionError(13, "Permission denied", locked)
            return real(path)

        return listed

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, for_all_but_root(getattr(os, name)))
    code, out, err = run("inspect", tmp_path, "--lines")
    first, second = map(json.loads, out.splitlines())
    assert code == 1 and first["ok"]
    assert (second["model"], second["ok"]) == (locked, False)
    assert "Permission denied" in second["error"]["message"]
    assert f"note: 1 cannot be read: {locked}" in err
