"""The figures of the package, and what holds of them."""

import pytest

from tests.house import ROOT, circles, figures, imports, main, storeys

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
    assert figures(made) == {
        "storeys": 2,
        "files": 5,
        "lines": sum(text.count("\n") for text in FILES.values()),
        "functions over 40 lines": 1,
        "modules with one importer": 2,
        "files under 100 lines": 3,
        "files over 400 lines": 1,
        "import circles": 1,
    }
    assert circles(imports(made)) == [["made.cellar", "made.door"]]
    main(made)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["storeys", "2"]
    assert printed[-1] == "circle: made.cellar, made.door"


def test_there_are_at_most_ten_storeys():
    assert len(storeys(ROOT)) <= 10


def test_no_module_imports_itself_by_way_of_others():
    """Not even within a function, or for type checking."""
    assert circles(imports(ROOT)) == []
