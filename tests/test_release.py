"""What a release shows: its version in every place, its forms, its addresses, its Pythons."""

import importlib.util
import re
import shlex
import sys
import tomllib
from datetime import date
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from vitconvert.cli import vitconvert
from vitconvert.version import VERSION

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_valid_and_of_this_version():
    said = read(ROOT / "CITATION.cff")
    # Required, and of these types (citation-file-format.github.io, schema 1.2.0).
    assert said["cff-version"] == "1.2.0"
    assert said["message"] and said["title"] and said["authors"][0]["name"]
    assert said["type"] == "software"
    assert said["license"] == PROJECT["license"]
    assert said["version"] == VERSION
    assert isinstance(said["date-released"], date)


def test_the_changelog_names_this_version_and_has_a_line_for_each_change():
    released = re.search(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", CHANGES, re.MULTILINE)
    assert released[1] == VERSION
    assert released[2] == str(read(ROOT / "CITATION.cff")["date-released"])
    for line in CHANGES.splitlines():
        assert re.match(r"(#{1,3} \S|- \S|$)", line), "one line, and one sentence of words"
        assert len(line) <= 200, line


@pytest.mark.parametrize("name", ["checkpoint", "format", "bug"])
def test_an_issue_form_is_one_and_asks_for_what_inspect_prints(name):
    form = read(GITHUB / f"ISSUE_TEMPLATE/{name}.yml")
    # GitHub Docs, "Syntax for issue forms" and "Syntax for GitHub's form schema".
    assert form.keys() <= {"name", "description", "labels", "body", "title", "assignees"}
    assert form["name"] and form["description"] and form["body"]
    ids = [field["id"] for field in form["body"]]
    assert len({*ids}) == len(ids)
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field.keys() <= {"type", "id", "attributes", "validations"}
        assert field["attributes"]["label"]
        assert set(field["attributes"]) <= {"label", "description", "render", "placeholder"}
    asked = next(field for field in form["body"] if field["id"] == "inspect")
    assert asked["attributes"]["label"] == "Output of `vitconvert inspect --json FILE`"
    assert name == "bug" or asked["validations"]["required"]


@pytest.mark.parametrize(
    "path", sorted(p.name for p in GITHUB.rglob("*") if p.suffix in (".md", ".yml"))
)
def test_commands_of_the_forms_are_ours(path):
    (place,) = GITHUB.rglob(path)
    text = place.read_text(encoding="utf-8")
    for command in re.findall(r"`vitconvert ([a-z][^`]*)`", text):
        verb, *words = shlex.split(command)
        known = vitconvert.get_command(None, verb)
        options = {name for parameter in known.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, command
    if place.suffix == ".md":
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (place.parent / link).exists(), link


def test_the_pythons_that_are_tested_are_those_that_are_named():
    jobs = read(GITHUB / "workflows/tests.yml")["jobs"]
    classifiers = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if ":: 3." in c]
    systems = jobs["systems"]["strategy"]["matrix"]
    assert systems["python"] == jobs["wheel"]["strategy"]["matrix"]["python"] == classifiers
    assert systems["system"] == ["macos-latest", "windows-latest"]
    assert PROJECT["requires-python"] == f">={classifiers[0]}"


@pytest.fixture
def addresses(monkeypatch):
    """The hook of hatchling, which need not be installed to be tried."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    spec = importlib.util.spec_from_file_location("addresses", ROOT / ".ci/addresses.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_has_the_addresses_of_the_repository_that_makes_it(addresses, monkeypatch):
    project = SimpleNamespace(root=str(ROOT))
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/their-fork")
    monkeypatch.setenv("GITHUB_REF_NAME", "v0.1.0")
    addresses.Addresses.update(project, said := {})
    assert said["urls"]["Repository"] == "https://github.com/somebody/their-fork"
    assert said["urls"]["Documentation"] == "https://somebody.github.io/their-fork/"
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href)=\"([^\"]+)\"", said["readme"]["text"])
    assert links
    assert all(link.startswith(("https://", "#")) for pair in links for link in pair if link)
    monkeypatch.delenv("GITHUB_REPOSITORY")
    addresses.Addresses.update(project, said := {})
    assert "urls" not in said
    assert said["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_are_made_absolute(addresses):
    text = '[a](b.md#c) ![d](e/f.svg) [![g](h.png)](i.md) <img src="j.svg"> [k](#l) [m](https://n)'
    assert addresses.with_absolute_links(text, "https://x/y/z", "v1") == (
        "[a](https://x/y/z/blob/v1/b.md#c) ![d](https://x/y/z/raw/v1/e/f.svg) "
        "[![g](https://x/y/z/raw/v1/h.png)](https://x/y/z/blob/v1/i.md) "
        '<img src="https://x/y/z/raw/v1/j.svg"> [k](#l) [m](https://n)'
    )
