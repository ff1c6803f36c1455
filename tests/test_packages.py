"""Reading the tests is cheap: what they compare with is imported by those that run.

So is importing vitconvert, which says by itself what an extra lacks.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import packages

HERE = Path(__file__).parent
HEAVY = {name for name, value in vars(packages).items() if isinstance(value, packages._Package)}
# Scripts, which a test imports when it runs.
SCRIPTS = {HERE / "tables" / f"make_{name}.py" for name in ("architectures", "preprocessing")}
SCRIPTS |= {HERE / "tables" / f"facts_of_{name}.py" for name in ("grids", "windows")}
SCRIPTS |= {HERE / "flax" / "make_files.py"}
SCRIPTS |= {HERE / "orbax" / f"make_{name}.py" for name in ("files", "flax_files")}


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


SCALE = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed: `import` fails, and so does find_spec
import vitconvert, vitconvert.cli.embed, vitconvert.cli.predict, vitconvert.embedding
vitconvert.embed_dataset, vitconvert.Embedder
print(sorted({{"pyarrow", "ray"}} & {{name for name, module in sys.modules.items() if module}}))
from vitconvert.cli import main
for command in {commands!r}:
    try:
        main(command)
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
"""
TOLD = "error: missing-package\n  {0} is not installed.\n  hint: pip install {0}\nended with 1\n"
MODEL, IMAGE = "vitconvert/demo/digits", "vitconvert/demo/digits/samples/1.png"


def without(missing, *commands):
    """What the command line says where a package is missing; it has imported no other by then."""
    code = SCALE.format(missing=[missing], commands=[list(map(str, words)) for words in commands])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    return done.stderr


@pytest.mark.slow
def test_error_shards_need_pyarrow_and_nothing_else_does(tmp_path):
    output = tmp_path / "features"
    write, check = (MODEL, IMAGE, "-o", output), ("--check", output)
    commands = [(verb, *asked) for verb in ("embed", "predict") for asked in (write, check)]
    assert without("pyarrow", *commands) == 4 * TOLD.format("pyarrow")
    assert not output.exists()


@pytest.mark.slow
def test_error_the_engine_ray_needs_ray(tmp_path):
    output = tmp_path / "features"
    asked = ("embed", MODEL, IMAGE, "-o", output, "--engine", "ray")
    assert without("ray", asked).endswith(TOLD.format("ray"))
    assert not output.exists()
