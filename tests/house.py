"""The figures of the package and their ceilings: `python -m tests.house [CHECKOUT]`.

An import counts wherever it stands: at the head of a file, within a function, for type checking.
A line of code is one that has a token which is no comment and no docstring.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

PACKAGE = "vitconvert"
ROOT = Path(__file__).parents[1]
GUESTS = (
    "attesting",
    *("auditing", "demo", "drafting", "embedding", "inference", "pictures", "pixel_goldens"),
    "runtimes",
    "testing",
)
# Sections of tables whose keys are words of the language; those of others are the user's.
WORDED = ("dialect", "config_json", "preprocessing", "usage")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def lines_of_code(text: str) -> int:
    """Lines that are not blank, comment or docstring."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)) and ast.get_docstring(node):
            prose.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*silent, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - prose)


def figures(root: Path) -> dict[str, int]:
    """What the table shows, by name; shares are in thousandths."""
    graph = imports(root)
    texts = _texts(root / PACKAGE)
    trees = [ast.parse(text) for text in texts.values()]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    lengths = sorted(node.end_lineno - node.lineno + 1 for node in functions)
    lines = [line for text in texts.values() for line in text.splitlines()]
    comments = sum(line.lstrip().startswith("#") for line in lines)
    importers = [len(graph.find_modules_that_directly_import(m)) for m in graph.modules]
    rooms = _code_of_rooms(root, texts)
    return {
        "lines of code": sum(rooms.values()),
        "files": len(texts),
        "core": sum(count for room, count in rooms.items() if room not in GUESTS),
        **{guest: rooms.get(guest, 0) for guest in GUESTS},
        "modules with one importer": importers.count(1),
        "private functions, per mille": _per_mille(map(_is_private, functions), len(functions)),
        "comments, per mille": _per_mille([True] * comments, len(lines)),
        "lines with Any": sum(bool(re.search(r"\bAny\b", line)) for line in lines),
        "median function": round(statistics.median(lengths)),
        "90th percentile": lengths[len(lengths) * 9 // 10],
        "functions over 40 lines": sum(length > 40 for length in lengths),
        "files over 400 lines": sum(text.count("\n") > 400 for text in texts.values()),
        "lines of ViT": _lines_of_class(trees, "ViT"),
        **_figures_of_tables(root / "weights_map"),
        "tests": sum(map(lines_of_code, _texts(root / "tests").values())),
        "storeys": len(storeys(root)),
        "import circles": len(circles(graph)),
    }


# What the figures may be at most. They rise by what a change of the project's plan grants only.
CEILINGS = {
    "lines of code": 39_689,
    "files": 304,
    "core": 30_687,
    "attesting": 236,
    "auditing": 800,
    "demo": 424,
    "drafting": 1_100,
    "embedding": 2_108,
    "inference": 611,
    "pictures": 1_115,
    "pixel_goldens": 800,
    "runtimes": 1_725,
    "testing": 190,
    "modules with one importer": 58,
    "private functions, per mille": 348,
    "lines with Any": 205,
    "90th percentile": 30,
    "files over 400 lines": 5,
    "lines of ViT": 211,
    "words of tables": 50,
    "rows that say false": 60,
    "tests": 48_674,
    "storeys": 11,
}


def _texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def _code_of_rooms(root: Path, texts: dict[Path, str]) -> dict[str, int]:
    rooms: dict[str, int] = {}
    for path, text in texts.items():
        room = path.relative_to(root / PACKAGE).parts[0]
        rooms[room] = rooms.get(room, 0) + lines_of_code(text)
    return rooms


def _is_private(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name.startswith("_") and not function.name.endswith("__")


def _per_mille(found: Iterable[bool], of: int) -> int:
    return round(1000 * sum(found) / max(of, 1))


def _lines_of_class(trees: list[ast.Module], name: str) -> int:
    nodes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return sum(node.end_lineno - node.lineno + 1 for node in nodes if node.name == name)


def _figures_of_tables(folder: Path) -> dict[str, int]:
    words: set[str] = set()
    false = 0
    for path in sorted(folder.rglob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        if "rows" in table or "dialect" in table:
            words |= set(_words(table))
            false += sum(row is False for row in table.get("rows", {}).values())
    return {"words of tables": len(words), "rows that say false": false}


def _words(table: dict) -> Iterator[str]:
    """Sections, their keys where the language has a list of them, and functions in rows."""
    for section, content in table.items():
        yield section
        if section in WORDED:
            yield from (f"{section}.{key.split(' ')[0]}" for key in content)
    for row in table.get("rows", {}).values():
        yield from (f"{word}()" for word in re.findall(r"([a-z_]+)\(", str(row)))


def main(root: Path = ROOT) -> None:
    """Print the figures of a checkout with their ceilings, then its circles."""
    for name, number in figures(root).items():
        most = CEILINGS.get(name)
        print(f"{name:32}{number:8,}" + ("" if most is None else f"   at most {most:,}"))
    for circle in circles(imports(root)):
        print("circle:", ", ".join(circle))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
