"""Reading the tests is cheap: what they compare with is imported by those that run."""

import ast
from pathlib import Path

import pytest

from tests import packages

HERE = Path(__file__).parent
HEAVY = {name for name, value in vars(packages).items() if isinstance(value, packages._Package)}
# Scripts, which a test imports when it runs.
SCRIPTS = {HERE / "tables" / f"make_{name}.py" for name in ("architectures", "preprocessing")}


def imported(path):
    """The packages that a file imports as it is read."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("folder", [HERE, HERE.parent / "benchmarks"], ids=lambda path: path.name)
def test_no_file_imports_a_heavy_package_as_it_is_read(folder):
    files = set(folder.rglob("*.py")) - SCRIPTS
    assert files
    found = {path.relative_to(HERE.parent): HEAVY & set(imported(path)) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_package_is_imported_by_its_first_use():
    assert packages.timm.models.VisionTransformer.__name__ == "VisionTransformer"
    assert packages.vit_pytorch.simple_vit.SimpleViT.__name__ == "SimpleViT"
    with pytest.raises(ImportError):
        packages.timm.no_such_module  # noqa: B018
    with pytest.raises(AttributeError):
        packages.timm.__wrapped__  # noqa: B018
