"""The figures of the package: `python -m tests.house`, or `python -m tests.house CHECKOUT`.

An import counts wherever it stands: at the head of a file, within a function, for type checking.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp

PACKAGE = "vitconvert"
ROOT = Path(__file__).parents[1]


def storeys(root: Path) -> list[str]:
    """The layers that import-linter holds, from the highest."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    (layered,) = (c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return layered["layers"]


def imports(root: Path) -> grimp.ImportGraph:
    """Every import between modules of the package, whose code is read and not run."""
    sys.path.insert(0, str(root))
    try:
        return grimp.build_graph(PACKAGE, exclude_type_checking_imports=False, cache_dir=None)
    finally:
        sys.path.remove(str(root))


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Groups of modules each of which imports every other, by some way."""
    needs = {module: graph.find_upstream_modules(module) for module in graph.modules}
    groups = {
        tuple(sorted({module} | {other for other in needed if module in needs[other]}))
        for module, needed in needs.items()
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def figures(root: Path) -> dict[str, int]:
    """What the table shows, by name."""
    graph = imports(root)
    texts = [path.read_text(encoding="utf-8") for path in (root / PACKAGE).rglob("*.py")]
    lines = [len(text.splitlines()) for text in texts]
    importers = [len(graph.find_modules_that_directly_import(m)) for m in graph.modules]
    return {
        "storeys": len(storeys(root)),
        "files": len(texts),
        "lines": sum(lines),
        "functions over 40 lines": sum(n > 40 for text in texts for n in _lengths(text)),
        "modules with one importer": importers.count(1),
        "files under 100 lines": sum(n < 100 for n in lines),
        "files over 400 lines": sum(n > 400 for n in lines),
        "import circles": len(circles(graph)),
    }


def _lengths(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1


def main(root: Path = ROOT) -> None:
    """Print the figures of a checkout, then its circles."""
    for name, number in figures(root).items():
        print(f"{name:26}{number:8,}")
    for circle in circles(imports(root)):
        print("circle:", ", ".join(circle))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
