"""The figures of the package, and what holds of them."""

import pytest

from tests.house import CEILINGS, ROOT, circles, figures, imports, lines_of_code, main

FOR_TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import made.door\n"
FILES = {
    "__init__.py": "",
    "door.py": "def enter():\n    from made.cellar import wine\n\n    return wine\n",
    "cellar.py": FOR_TYPES + "wine = 1\n",
    "attic.py": "import made.cellar\n" + "def long():\n" + "    1\n" * 40 + "1\n" * 359,
    "only.py": "import made.attic\n" + "def short():\n" + "    1\n" * 39 + "1\n" * 359,
}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A house of two storeys, with one circle: within a function, and for type checking."""
    monkeypatch.setattr("tests.house.PACKAGE", "made")
    (tmp_path / "made").mkdir()
    for name, text in FILES.items():
        (tmp_path / "made" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["attic | only", "door"]\n'
        '[[tool.importlinter.contracts]]\ntype = "forbidden"\n'
    )
    return tmp_path


def test_the_figures_of_a_made_up_package(made, capsys):
    found = figures(made)
    assert (
        found.items()
        >= {
            "lines of code": sum(text.count("\n") for text in FILES.values()) - 2,  # blank ones
            "files": 5,
            "core": found["lines of code"],
            "modules with one importer": 2,
            "functions over 40 lines": 1,
            "files over 400 lines": 1,
            "lines of ViT": 0,
            "storeys": 2,
            "import circles": 1,
        }.items()
    )
    assert circles(imports(made)) == [["made.cellar", "made.door"]]
    main(made)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:3] == ["lines", "of", "code"]
    assert printed[-1] == "circle: made.cellar, made.door"


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring():
    says = '"""Says."""\n\n# A reason.\n'
    text = says + 'def f(\n    a,\n):\n    """Says\n    more."""\n    return """b\nc"""\n'
    assert lines_of_code(text) == 5


def test_no_figure_is_above_its_ceiling():
    found = figures(ROOT)
    assert {name for name, most in CEILINGS.items() if found[name] > most} == set()


def test_no_module_imports_itself_by_way_of_others():
    """Not even within a function, or for type checking."""
    assert circles(imports(ROOT)) == []
