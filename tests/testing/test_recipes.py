"""The recipes for CI, run as their document has them, in a repository of a small team."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.parity import team
from tests.small_models import randomise

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "vitconvert" / "testing" / "README.md").read_text(encoding="utf-8")
EVIL = b"\x80\x02cos\nsystem\nX\x0c\x00\x00\x00touch hackedq\x00\x85q\x01Rq\x02."


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def parsed(number):
    import yaml

    return yaml.safe_load(blocks("yaml")[number])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The team's repository, with its golden file."""
    place = tmp_path_factory.mktemp("repository")
    shutil.copy(team.__file__, place / "team.py")
    (place / "team.toml").write_text(team.TABLE)
    (place / "requirements.txt").write_text("vitconvert\npytest\n")
    (place / "parity").mkdir()
    (place / "parity" / "test_parity.py").write_text(blocks("python")[0])
    (place / ".pre-commit-config.yaml").write_text(blocks("yaml")[1])
    torch.manual_seed(5)
    torch.save(randomise(team.TeamViT()).state_dict(), place / "team.pth")
    done = bash(blocks("sh")[0], place)
    assert done.returncode == 0, done.stderr
    bash("git init -q && git add --all && git commit -qm 'All of it'", place).check_returncode()
    return place


@pytest.fixture
def repository(made, tmp_path):
    shutil.copytree(made, tmp_path / "repository")
    return tmp_path / "repository"


def bash(command, place):
    """Run a command as a CI machine does, with this checkout of vitconvert installed."""
    names = {"GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a"}
    names |= {"GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_EMAIL": "a@b"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "-p no:hypothesispytest",  # which no team needs, and takes seconds
        "PRE_COMMIT_HOME": str(place / ".git" / "pre-commit"),
        **names,
    }
    found = importlib.metadata.entry_points(group="pytest11", name="vitconvert")
    if not found:  # it was installed before it had a plugin
        environment["PYTEST_PLUGINS"] = "vitconvert.testing.plugin"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],  # noqa: S607 (as GitHub does)
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def plant(repository, bug):
    """Make the bug what the team's model does by default."""
    source = repository / "team.py"
    source.write_text(source.read_text().replace('bug: str = ""', f"bug: str = {bug!r}"))


def steps():
    (job,) = parsed(0)["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.slow
def test_the_job_passes_what_is_equal_and_fails_what_is_not(repository):
    install, compare = steps()
    assert bash(install, repository).returncode == 0
    done = bash(compare, repository)
    assert done.returncode == 0, done.stdout
    (upload,) = (s for s in parsed(0)["jobs"]["parity"]["steps"] if "upload" in s.get("uses", ""))
    report = repository / upload["with"]["path"]
    assert len(list(report.glob("*.html"))) == 1

    plant(repository, "head order")
    done = bash(compare, repository)
    assert done.returncode == 1
    assert "> blocks.0.attn" in done.stdout
    assert "the heads are joined (dim head), not (head dim)" in done.stdout
    properties = ElementTree.parse(report / "junit.xml").iter("property")
    found = {one.get("name"): one.get("value") for one in properties}
    assert found["vitconvert.verdict"] == "not equal"
    (page,) = report.glob("*.html")
    assert "not equal" in page.read_text()


@pytest.mark.slow
def test_the_shell_line_passes_what_is_equal_and_fails_what_is_not(repository):
    line = blocks("sh")[1]
    done = bash(line, repository)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal to team.golden, recorded of team.pth (not verified)\n")
    plant(repository, "GELU")
    done = bash(line, repository)
    assert done.returncode == 3
    assert "activation is gelu_tanh, not gelu" in done.stdout
    assert "not equal" in (repository / "parity.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "repo"])
def test_the_hook_inspects_the_checkpoints_of_a_commit(repository, kind, tmp_path):
    if kind == "repo":
        _from_our_repository(repository, tmp_path / "ours")
    shutil.copy(repository / "team.pth", repository / "second.pth")
    done = bash("git add --all && pre-commit run", repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout
    bash("git commit -qm 'A second checkpoint'", repository).check_returncode()

    (repository / "evil.pth").write_bytes(EVIL)
    done = bash("git add --all && pre-commit run", repository)
    assert done.returncode == 1
    assert "exit code: 4" in done.stdout
    assert "unsafe-file" in done.stdout
    assert "second.pth" not in done.stdout, "only what changed"
    assert not (repository / "hacked").exists()


def _from_our_repository(repository, ours):
    """Use the hook that our repository offers, with the options of the local one."""
    import yaml

    ours.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", ours)
    done = bash("git init -q && git add --all && git commit -qm Hook && git rev-parse HEAD", ours)
    (local,) = parsed(1)["repos"][0]["hooks"]
    hook = {"id": "vitconvert-inspect", "args": local["entry"].split()[2:]}
    stated = {"repos": [{"repo": str(ours), "rev": done.stdout.strip(), "hooks": [hook]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(stated))


def test_both_hooks_look_at_the_same_files():
    import yaml

    (offered,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (local,) = parsed(1)["repos"][0]["hooks"]
    assert offered["files"] == local["files"]
    assert offered["language"] == local["language"]
    assert local["entry"].startswith(f"{offered['entry']} ")
