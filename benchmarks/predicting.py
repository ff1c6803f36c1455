"""Photographs classified by vitconvert and by a plain script of timm's, in processes and in one."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitconvert
from benchmarks.measuring import ratios, spread, table, timed
from vitconvert.api import predict

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


OURS, QUICKER, TIMM = "vitconvert", "--fast-preprocessing", "timm"
HEADER = ("`vitconvert predict`", f"`{QUICKER}`", TIMM, "timm / vitconvert", f"timm / `{QUICKER}`")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Photographs to classify."""

    title: str
    architecture: str
    photographs: tuple[Path, ...]


Seconds = dict[str, dict[str, list[float]]]  # by job and program, one for each round


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """Jobs as whole processes, and those of many photographs after the start too."""

    processes: list[Job]
    process_seconds: Seconds
    folders: list[Job]
    seconds: Seconds

    def tables(self) -> Iterator[str]:
        """In Markdown."""
        whole = rows(self.processes, self.process_seconds)
        yield table(["images, whole process, s", *HEADER], whole)
        yield ""
        yield table(["after the start, s", *HEADER], rows(self.folders, self.seconds))

    def figures(self) -> dict[str, Any]:
        """Every single one."""
        return {
            "counts": {job.title: len(job.photographs) for job in self.processes},
            "processes_s": self.process_seconds,
            "after_the_start_s": self.seconds,
        }


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


def measure_processes(
    weights: Mapping[str, Path], jobs: list[Job], rounds: int, threads: int
) -> Seconds:
    """Every job by every program, in turn, as often as there are rounds.

    Args:
        weights: By architecture, a directory that timm wrote.
    """
    seconds = _none(jobs)
    for _ in range(rounds):
        for job in jobs:
            directory = weights[job.architecture]
            paths = [str(path) for path in job.photographs]
            ours = ["-m", "vitconvert", "predict", str(directory), *paths]
            file = directory / "model.safetensors"
            theirs = ["-c", TIMM_SCRIPT, job.architecture, str(file), *paths]
            for program, arguments in ((OURS, ours), (QUICKER, [*ours, QUICKER]), (TIMM, theirs)):
                taken, _ = timed(
                    arguments, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads)
                )
                seconds[job.title][program].append(taken)
    return seconds


def measure_after_start(weights: Mapping[str, Path], jobs: list[Job], rounds: int) -> Seconds:
    """The same in this process, with models that are loaded and have answered before."""
    seconds = _none(jobs)
    for job in jobs:
        programs = _programs(weights[job.architecture], job.architecture)
        for classify in programs.values():
            classify(job.photographs)
        for _ in range(rounds):
            for program, classify in programs.items():
                start = time.perf_counter()
                classify(job.photographs)
                seconds[job.title][program].append(time.perf_counter() - start)
    return seconds


def _none(jobs: list[Job]) -> Seconds:
    return {job.title: {program: [] for program in (OURS, QUICKER, TIMM)} for job in jobs}


def _programs(
    directory: Path, architecture: str
) -> dict[str, Callable[[tuple[Path, ...]], object]]:
    import timm
    from timm.data import create_transform, resolve_data_config

    ours = vitconvert.load_model(directory, fast=True)
    preprocessing = vitconvert.load_checkpoint(directory).preprocessing
    assert preprocessing
    theirs = timm.create_model(architecture, checkpoint_path=str(directory / "model.safetensors"))
    theirs.eval()
    prepare = create_transform(**resolve_data_config({}, model=theirs))

    def by_timm(paths: tuple[Path, ...]) -> object:
        with torch.inference_mode():
            images = (prepare(Image.open(path).convert("RGB"))[None] for path in paths)
            return [theirs(image)[0].softmax(0).topk(5) for image in images]

    return {
        OURS: lambda paths: list(predict(ours, paths, preprocessing)),
        QUICKER: lambda paths: list(predict(ours, paths, preprocessing, fast_preprocessing=True)),
        TIMM: by_timm,
    }


def rows(jobs: list[Job], seconds: Seconds) -> Iterator[list[str]]:
    """For each job everybody's seconds, and how many times faster vitconvert is, as in HEADER."""
    for job in jobs:
        found = seconds[job.title]
        faster = [ratios(found[TIMM], found[program]) for program in (OURS, QUICKER)]
        yield [job.title, *(spread(values) for values in (*found.values(), *faster))]
