"""The hints of all messages, as the code spells them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import vitconvert

# A command, an option, or something to install.
COMMAND = re.compile(
    r"`vitconvert|`hf |vitconvert [a-z]+ [A-Z{]|(?<![\w-])-(o|-[a-z]+)\b|pip install"
)


def hints_with_commands() -> Iterator[tuple[str, str]]:
    """File and text of each hint that names a command or an option; {} is what is filled in."""
    root = Path(vitconvert.__file__).parent
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for text in dict.fromkeys(text for node in _hints(tree) for text in _texts(node)):
            if COMMAND.search(text):
                yield str(path.relative_to(root)), text


def _hints(tree: ast.Module) -> Iterator[ast.AST]:
    """What is handed over as `hint`, set as one, or returned by a function of that name."""
    names = {"hint"}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield node.value
            names |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if {_name(target) for target in targets} & names:
                yield node.value
        elif isinstance(node, ast.FunctionDef) and _name_is_hint(node.name, names):
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Return))


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _name_is_hint(name: str, names: set[str]) -> bool:
    return "hint" in name or name in names


def _texts(node: ast.AST) -> Iterator[str]:
    """The strings in an expression, each whole, and those that are filled into others."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        for part in node.values:
            yield from _texts(part) if isinstance(part, ast.FormattedValue) else ()
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)
