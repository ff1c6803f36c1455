"""What the site shows of the repository without a copy: documents, tables, errors, verbs.

`on_files` adds documents that lie elsewhere, the package as the page `inspect` runs it, and Pyodide
where `npm ci --prefix docs` has installed it. `on_page_markdown` makes their links lead to pages of
the site, puts what is known of an error's class on its page, and fills the marks that pages have:
`<!-- every verb -->` and others. The generated tables of CONVERSIONS.md get pages of their own.
"""

import io
import logging
import posixpath
import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = "docs/pages"
# Path in the repository -> path in the site.
DOCUMENTS = {
    "README.md": "index.md",
    "weights_map/CONVERSIONS.md": "conversions.md",
    "weights_map/ANY_VIT.md": "any-vit.md",
    "weights_map/README.md": "language.md",
    "tests/coverage/README.md": "coverage.md",
    "vitconvert/embedding/README.md": "many-images.md",
    "vitconvert/runtimes/README.md": "runtimes.md",
    "vitconvert/testing/README.md": "testing.md",
    "vitconvert/README.md": "code-layout.md",
    "benchmarks/README.md": "figures.md",
    "benchmarks/conversion.svg": "conversion.svg",
    ".github/CONTRIBUTING.md": "contributing.md",
    "docs/security.md": "security.md",
    "docs/policy.md": "policy.md",
    "docs/changelog.md": "changelog.md",
}
# Generated tables of CONVERSIONS.md that are longer than a screen -> the titles of their pages.
TABLES = {
    "dialects": "All dialects",
    "matrix": "Every conversion",
    "classes": "Conversions by class of transformers",
}
_CONVERSIONS = "weights_map/CONVERSIONS.md"
PYODIDE = ROOT / "docs/node_modules/pyodide"
_LOADED = (
    *("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"),
    *("python_stdlib.zip", "pyodide-lock.json"),
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can hold
_LOG = logging.getLogger("mkdocs.hooks")  # whose warnings end a strict build
_LINK = re.compile(r"\[([^][]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_MARK = re.compile(r"^<!-- (every [a-z ]+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of `docs/pages`."""
    found = {page: ROOT / path for path, page in DOCUMENTS.items()}
    if PYODIDE.is_dir():
        found |= {f"inspect/pyodide/{name}": PYODIDE / name for name in _LOADED}
    else:
        _LOG.info("npm ci --prefix docs brings Pyodide, which the page inspect.md needs")
    for page, path in found.items():
        files.append(File.generated(config, page, abs_src_path=str(path)))
    for name, title in TABLES.items():
        back = "[Dialects and conversions](../conversions.md) says what this table means."
        content = f"# {title}\n\n{back}\n\n{_table_of(name)}\n"
        files.append(File.generated(config, f"tables/{name}.md", content=content))
    files.append(File.generated(config, "inspect/vitconvert.zip", content=_package()))
    return files


def _block_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name}: [^\n]*-->\n(.*?)\n<!-- end of {name} -->", re.DOTALL)


def _table_of(name: str) -> str:
    """A generated table of CONVERSIONS.md."""
    (table,) = _block_of(name).findall((ROOT / _CONVERSIONS).read_text(encoding="utf-8"))
    return str(table)


def _package() -> bytes:
    """The package and what the page asks of it, as a zip archive that is always the same."""
    from vitconvert.toml_files import COMPILED, compile_tables

    packed = io.BytesIO()
    sources = {path: path.relative_to(ROOT) for path in ROOT.glob("vitconvert/**/*.py")}
    tables = {
        path: "vitconvert" / path.relative_to(ROOT) for path in ROOT.glob("weights_map/**/*.toml")
    }
    page = {ROOT / "docs/browser.py": Path("browser.py")}
    files = {
        name.as_posix(): path.read_bytes() for path, name in {**sources, **tables, **page}.items()
    }
    files[f"vitconvert/weights_map/{COMPILED}"] = compile_tables(ROOT / "weights_map").encode()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """What is shown of a page's text."""
    here = page.file.src_uri
    places = {shown: path for path, shown in DOCUMENTS.items()}
    path = places.get(here, f"{PAGES}/{here}")
    if path == _CONVERSIONS:
        for name, title in TABLES.items():
            rows = _table_of(name).count("\n") - 1
            link = f"[{title}: {rows} rows](../{PAGES}/tables/{name}.md)"
            markdown = _block_of(name).sub(link, markdown)
    if here == "index.md":
        page.meta["hide"] = ["toc"]  # the front page has the width for its commands
    markdown = _LINK.sub(lambda link: _in_the_site(link, path, here), markdown)
    if re.fullmatch(r"errors/(?!index)[a-z-]+\.md", here):
        title, _, text = markdown.partition("\n")
        markdown = f"{title}\n\n{_of_classes(Path(here).stem)}\n{text}"
    return _MARK.sub(lambda mark: _FILLED[mark[1]](), markdown)


def _in_the_site(link: re.Match[str], path: str, here: str) -> str:
    """A link of a document, as a link of its page; to what the site does not show, its text."""
    text, target, section = link[1], link[2], link[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    shown = DOCUMENTS.get(target)
    if shown is None and target.startswith(f"{PAGES}/"):
        shown = target.removeprefix(f"{PAGES}/")
    if shown is None and target.endswith(".md"):
        _LOG.warning("%s links to %s, which DOCUMENTS of docs/hooks.py lacks", path, target)
    if shown is None:
        return f"{text} (`{target}`)"
    return f"[{text}]({posixpath.relpath(shown, posixpath.dirname(here) or '.')}{section})"


def classes_of(word: str) -> list[type]:
    """The classes of errors whose messages begin with a word."""
    from vitconvert import errors

    classes = (one for one in vars(errors).values() if isinstance(one, type))
    raised = (one for one in classes if issubclass(one, errors.VitConvertError))
    return [one for one in raised if one.code == word]


def _of_classes(word: str) -> str:
    """What errors.py says of a word."""
    classes = classes_of(word)
    names = ", ".join(f"`vitconvert.errors.{one.__name__}`" for one in classes)
    about = cleandoc(classes[0].__doc__ or "").partition("\n")[0]
    return f"{about} The exit code is {classes[0].exit_code}; in Python it is {names}.\n"


def _errors() -> str:
    """Every word, its exit code, and the title of its page."""
    rows = []
    for file in sorted((ROOT / PAGES / "errors").glob("*.md")):
        if file.stem == "index":
            continue
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        title = first.partition(": ")[2]
        code = classes_of(file.stem)[0].exit_code
        rows.append((f"[`{file.stem}`]({file.name})", title, code))
    return _table(("code", "what it says", "exit code"), rows)


def _verbs() -> str:
    """The help of every verb."""
    from vitconvert.cli import VERBS, vitconvert

    parent = click.Context(vitconvert, info_name="vitconvert")
    parts = []
    for verb in VERBS:
        command = vitconvert.get_command(parent, verb)
        settings = {"info_name": verb, "parent": parent, "max_content_width": 100}
        context = click.Context(command, terminal_width=100, **settings)
        parts.append(f"## {verb}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def _names() -> str:
    """Every public name with the promise of its docstring, functions first; each has a page."""
    import vitconvert

    names = sorted(vitconvert.__all__, key=lambda name: (name[0].isupper(), name))
    rows = (
        (f"[`{name}`]({name}.md)", (getdoc(getattr(vitconvert, name)) or "").partition("\n")[0])
        for name in names
    )
    return _table(("name", "what it is"), rows)


def _towers() -> str:
    towers = _toml("towers.toml")["towers"]
    rows = ((one["model"], f"`{prefix}`", one.get("reads", "")) for prefix, one in towers.items())
    return _table(("larger model", "its ViT's tensors begin with", "what it reads"), rows)


def _others() -> str:
    rows = ((f"`{kind}`", why) for kind, why in _toml("others.toml")["look_alikes"].items())
    return _table(("model_type", "why it is not supported"), rows)


def _architectures() -> str:
    return _table(("name", "of", "states"), _architecture_rows())


def _architecture_rows() -> Iterator[tuple[str, str, str]]:
    from vitconvert.tables.architectures import architectures

    for section, rows in architectures().items():
        for name, fields in rows.items():
            facts = ", ".join(f"{key} {value}" for key, value in fields.items())
            yield f"`{name}`", section, facts


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "weights_map" / name).read_text(encoding="utf-8"))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


_FILLED: dict[str, Callable[[], str]] = {
    "every error": _errors,
    "every verb": _verbs,
    "every public name": _names,
    "every tower": _towers,
    "every other model": _others,
    "every architecture": _architectures,
}
sys.path.insert(0, str(ROOT))  # the checkout is described, not what is installed
