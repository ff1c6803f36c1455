"""The pytest plugin, in pytest runs of its own."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vitconvert.demo.demonstration import DIGITS

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
# However pytest would find the plugin of an installed vitconvert: it is loaded once.
LOADED = ("-p", "no:vitconvert", "-p", "vitconvert.testing.plugin", "-p", "no:cacheprovider")

HEAVY = ("torch", "numpy", "timm", "vitconvert.api", "vitconvert.parity", "vitconvert.formats")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    from vitconvert.api import record_golden

    path = tmp_path_factory.mktemp("golden") / "digits.golden"
    record_golden(DIGITS, path, batch=1)
    return path


@pytest.fixture
def project(pytester, golden):
    """A test directory with two golden files, and tests of the shipped model."""
    for name in ("one.golden", "two.golden"):
        (pytester.path / name).write_bytes(golden.read_bytes())
    pytester.makepyfile(
        models=f"""
        import vitconvert
        def build(bug=""):
            model = vitconvert.load_model({str(DIGITS)!r})
            if not bug:
                return model
            other = type(model)(model.config.replace(norm_eps=1e-3), device="meta")
            other.load_state_dict(model.state_dict(), strict=True, assign=True)
            return other.eval()
        """
    )
    return pytester


def run(project, *arguments):
    return project.runpytest_subprocess(*LOADED, *arguments)


def test_pytest_finds_the_plugin():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (name,) = settings["project"]["entry-points"]["pytest11"].values()
    module = importlib.import_module(name)
    assert module.assert_parity and module.pytest_addoption


def test_the_plugin_costs_nothing():
    code = "import sys, vitconvert.testing.plugin\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "vitconvert.testing.plugin" in imported
    assert not imported & set(HEAVY)


@pytest.mark.slow
def test_a_sweep_writes_pages_and_properties(project):
    project.makepyfile(
        test_it="""
        import pytest
        from models import build

        @pytest.mark.parity(against=["*.golden"], tolerance=1e-4)
        def test_equal(against, assert_parity):
            assert assert_parity(build(), against).tolerance == 1e-4

        @pytest.mark.parity(against="one.golden")
        def test_wrong(against, assert_parity):
            assert_parity(build("eps"), against)

        def test_twice(assert_parity):
            assert_parity(build(), "one.golden")
            assert_parity(build(), "two.golden")
        """
    )
    asked = ("--strict-markers", "--vitconvert-report=pages/of", "--junitxml=x.xml")
    result = run(project, *asked, "-W", "error")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["E *AssertionError: vitconvert's*", "E *likely cause*"])
    assert "vitconvert/testing/plugin.py" not in result.stdout.str(), "frames of ours are hidden"
    pages = sorted(path.name for path in (project.path / "pages" / "of").iterdir())
    assert [name.rpartition("-")[0] for name in pages] == [
        "test_it.py-test_equal-one.golden-",
        "test_it.py-test_equal-two.golden-",
        "test_it.py-test_twice",
        "test_it.py-test_twice",
        "test_it.py-test_wrong-one.golden-",
    ]
    verdicts = {}
    for case in ElementTree.parse(project.path / "x.xml").iter("testcase"):
        found = {p.get("name"): p.get("value") for p in case.iter("property")}
        verdicts[case.get("name")] = found
    equal, wrong = verdicts["test_equal[two.golden]"], verdicts["test_wrong[one.golden]"]
    assert equal["vitconvert.verdict"] == "equal"
    assert float(equal["vitconvert.worst_relative_difference.float64"]) < 1e-12
    assert wrong["vitconvert.verdict"] == "not equal"
    assert wrong["vitconvert.first_departs"] == "blocks.0.attn"
    assert "norm_eps is" in wrong["vitconvert.likely_cause"]


@pytest.mark.slow
def test_sweeps_that_test_nothing_fail(project):
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parity(against=["none/*.golden"])
        def test_absent(against, assert_parity):
            pass
        """,
        test_other="""
        import pytest

        @pytest.mark.parity(against=[])
        def test_empty(against):
            pass
        """,
        test_third="""
        import pytest

        @pytest.mark.parity(against=["one.golden"])
        def test_deaf():
            pass
        """,
    )
    result = project.runpytest_inprocess(*LOADED)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "There is no golden file none/*.golden in *",
            "*marked parity(against=*): it would test nothing.",
            "*marked parity(against=...), and takes no `against`.",
        ]
    )
