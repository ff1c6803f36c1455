"""What is compiled is what tomllib makes of the tables, and is made again when they are others."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vitconvert import toml_files
from vitconvert.errors import TableError
from vitconvert.toml_files import COMPILED, CORES, CompiledTables, compile_tables, tables_dir

ROOT = Path(toml_files.__file__).parents[1]
# What a process says of timm's ecosystem, by tables that lie in the folder it is given.
ASKED = """
import sys
from pathlib import Path
from vitconvert import toml_files
toml_files._PACKAGE = Path(sys.argv[1])
compiled = []
of = toml_files._compiled
toml_files._compiled = lambda sources: compiled.append(1) or of(sources)
print(toml_files.read_tables("timm")["dialect"]["title"], len(compiled))
"""


def ordered(value):
    """Dictionaries as lists of pairs, since their order counts."""
    if not isinstance(value, dict):
        return value
    return [(name, ordered(inner)) for name, inner in value.items()]


def test_every_table_that_extends_none_is_what_tomllib_makes_of_it():
    compiled, alone = CompiledTables(compile_tables(tables_dir())), 0
    for file in sorted(tables_dir().rglob("*.toml")):
        name = file.relative_to(tables_dir()).with_suffix("").as_posix()
        whole = tomllib.loads(file.read_text(encoding="utf-8"))
        if "extends" not in whole.get("dialect", {}):
            alone += 1
            assert ordered(compiled.sections(name)) == ordered(whole), file
    assert alone > 30


def test_every_table_on_top_of_another_says_what_is_its_own():
    compiled, own = CompiledTables(compile_tables(tables_dir())), {}
    for name in compiled.summaries:
        whole = tomllib.loads((tables_dir() / f"{name}.toml").read_text(encoding="utf-8"))
        if (extended := whole.get("dialect", {}).get("extends")) is None:
            continue
        folder = "" if extended.startswith(CORES) else name[: name.rfind("/") + 1]
        parent = compiled.sections(folder + extended)
        sections = compiled.sections(name)
        own[name] = sum(len(section) for section in whole.values())
        for section, said in whole.items():
            assert said.items() <= sections[section].items() or any(
                isinstance(value, dict) for value in said.values()
            ), (name, section)
        for key, value in parent.get("words", {}).items():
            assert sections["words"][key] == whole.get("words", {}).get(key, value)
    assert len(own) > 100


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns(COMPILED)
    shutil.copytree(tables_dir(), tmp_path / "weights_map", ignore=ignored)
    return tmp_path


def asked(place: Path) -> str:
    command = [sys.executable, "-c", ASKED, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_it_is_compiled_once_and_again_when_a_table_changes(copied: Path):
    title = tomllib.loads((copied / "weights_map/timm.toml").read_text())["dialect"]["title"]
    assert asked(copied) == f"{title} 1"
    assert asked(copied) == f"{title} 0"
    core = copied / "weights_map/timm.toml"
    core.write_text(core.read_text().replace(title, "Another"))
    assert asked(copied) == "Another 1"
    assert asked(copied) == "Another 0"


@pytest.mark.parametrize("remains", [b"", b"{}", b"\xff", b'{"checksum": 3}', b"[1, 2]"])
def test_what_was_no_compiled_file_is_replaced(remains: bytes, copied: Path):
    (copied / "weights_map" / COMPILED).write_bytes(remains)
    assert asked(copied).endswith(" 1")
    assert asked(copied).endswith(" 0")


def test_where_it_cannot_be_written_it_stays_in_memory(copied: Path):
    (copied / "weights_map" / COMPILED).mkdir()  # root may write into any folder
    assert asked(copied).endswith(" 1")
    assert [path.name for path in (copied / "weights_map").glob(".*")] == []


def test_it_is_the_same_wherever_it_is_made(copied: Path):
    assert compile_tables(tables_dir()) == compile_tables(copied / "weights_map")
    first = compile_tables(tables_dir()).partition("\n")[0]
    assert set(json.loads(first)) == {"checksum", "tables", "summaries"}


@pytest.mark.parametrize(
    ("text", "message", "problem"),
    [
        ("[dialect\n", "The table is not TOML.", "Expected"),
        ('[dialect]\nextends = "canonical"\n', "which is no table.", ""),
    ],
)
def test_error_a_table_that_cannot_be_compiled(text, message, problem, copied: Path):
    (copied / "weights_map/wrong.toml").write_text(text)
    with pytest.raises(TableError, match=message) as error:
        compile_tables(copied / "weights_map")
    assert error.value.evidence["file"] == "weights_map/wrong.toml"
    assert problem in str(error.value.evidence.get("problem", ""))
