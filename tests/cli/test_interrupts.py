"""A process ends with its code at once: after Ctrl-C, a failure, or what it did."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
HANGING = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
MODEL = str(ROOT / "vitconvert" / "demo" / "digits")
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["vitconvert"]
STARTS = {
    "script": ["-c", "from {} import {} as main; main()".format(*SCRIPT.split(":"))],
    "module": ["-m", "vitconvert"],
}


# Imported before the first line, and by the verb.
@pytest.mark.parametrize(("start", "imported"), [("module", "click"), ("script", "torch")])
def test_an_interrupt_is_told_in_a_word(imported, start, tmp_path):
    (tmp_path / f"{imported}.py").write_text(HANGING)
    with subprocess.Popen(
        [sys.executable, *STARTS[start], "predict", MODEL, "photo.jpg"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "\ninterrupted\n")
    assert process.returncode == 130


# Hashes until the process ends, as a large model is hashed; the disk is full meanwhile.
FAILING = """
import sys
import torch
from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.cli import main
from vitconvert.conversion import convert

def hashed(_):
    while True:
        torch.ones(99) + torch.ones(99)

def full(*_, **__):
    raise OSError(28, "No space left on device")

Checkpoint.function_hash = property(hashed)
convert.write_weights = full
sys.argv = ["vitconvert", "convert", sys.argv[1], "-o", sys.argv[2]]
main()
"""


@pytest.mark.slow
def test_a_failure_while_a_thread_computes_ends_with_its_own_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAILING, MODEL, tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "No space left on device" in done.stderr and "terminate" not in done.stderr
    assert done.returncode == 1 and not any(tmp_path.iterdir())


# A thread that nobody ends, an answer that is not written yet, and a handler of an own.
ENDING = """
import atexit, sys, threading
from vitconvert.cli import main

threading.Thread(target=threading.Event().wait).start()
atexit.register(print, "the handler")
sys.stdout.write("not written yet, ")
sys.argv = ["vitconvert", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("typed", "code"), [("--version", 0), ("--unknown", 2)])
def test_an_end_waits_for_handlers_and_not_for_threads(typed, code):
    done = subprocess.run(
        [sys.executable, "-c", ENDING, typed],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("not written yet, ")
    assert done.stdout.endswith("the handler\n")
    assert done.returncode == code


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_computed(tmp_path):
    """In the first minute, before any shard is full."""
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (900, 1100, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photos" / "0.png", compress_level=1)
    for number in range(1, 400):
        os.link(tmp_path / "photos" / "0.png", tmp_path / "photos" / f"{number}.png")
    command = [sys.executable, "-m", "vitconvert", "embed", MODEL, "photos", "-o", "out", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while json.loads(process.stdout.readline())["what"] != "images":
            pass
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    assert b"finished shards are kept" in told and b"Traceback" not in told
    again = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert events[0]["known"] > 0
    assert events[0]["known"] + events[-1]["images"] == 400
