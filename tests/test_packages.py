"""What an extra lacks is said by the import of vitconvert, and nothing else needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


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
