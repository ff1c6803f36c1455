"""Whole processes that classify photographs: `vitconvert predict` and a plain script of timm's."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measuring import ratios, spread

ROOT = Path(__file__).parent.parent
SMALL, LARGE = (500, 375), (4000, 3000)
TIMM_SCRIPT = """
import sys
import timm, torch
from PIL import Image
from timm.data import create_transform, resolve_data_config

architecture, weights, *paths = sys.argv[1:]
model = timm.create_model(architecture, checkpoint_path=weights).eval()
prepare = create_transform(**resolve_data_config({}, model=model))
with torch.inference_mode():
    for path in paths:
        logits = model(prepare(Image.open(path).convert("RGB"))[None])
        print(path, logits[0].softmax(0).topk(5))
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Photographs for one process to classify."""

    title: str
    architecture: str
    photographs: tuple[Path, ...]


Seconds = dict[str, dict[str, list[float]]]  # by job and program, one for each round


def make_photographs(folder: Path, size: tuple[int, int], count: int) -> tuple[Path, ...]:
    """JPEGs of random landscapes with grain, about as large as a camera's."""
    draw = np.random.default_rng(0)
    paths = tuple(folder / f"{size[0]}x{size[1]}-{number}.jpg" for number in range(count))
    for path in paths:
        coarse = Image.fromarray(draw.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
        grain = draw.integers(-6, 7, smooth.shape, dtype=np.int16)
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return paths


def measure(weights: Mapping[str, Path], jobs: list[Job], rounds: int, threads: int) -> Seconds:
    """Every job by both programs, in turn, as often as there are rounds.

    Args:
        weights: By architecture, a directory that timm wrote.
    """
    seconds: Seconds = {job.title: {"vitconvert": [], "timm": []} for job in jobs}
    for _ in range(rounds):
        for job in jobs:
            directory = weights[job.architecture]
            paths = [str(path) for path in job.photographs]
            ours = ["-m", "vitconvert", "predict", str(directory), *paths]
            file = directory / "model.safetensors"
            theirs = ["-c", TIMM_SCRIPT, job.architecture, str(file), *paths]
            seconds[job.title]["vitconvert"].append(_time(ours, threads))
            seconds[job.title]["timm"].append(_time(theirs, threads))
    return seconds


def _time(arguments: list[str], threads: int) -> float:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"python {' '.join(arguments[:3])} ... failed:\n{done.stderr}")
    return seconds


def rows(jobs: list[Job], seconds: Seconds) -> Iterator[list[str]]:
    """For each job both programs' seconds, and how many times faster vitconvert is."""
    for job in jobs:
        ours, theirs = seconds[job.title]["vitconvert"], seconds[job.title]["timm"]
        yield [job.title, spread(ours), spread(theirs), spread(ratios(theirs, ours))]
