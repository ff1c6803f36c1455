"""Arithmetic that does not depend on how the process was set up, and leaves it as it was."""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TypeVar

from vitconvert.settings import (
    plain_arithmetic,
    process_wide,
    take_threads,
    torch_threads,
    without_warnings,
)

Result = TypeVar("Result")

# Modules that take long, of packages that import little of themselves.
_SLOW = {"transformers": "transformers.modeling_utils"}


@contextmanager
def isolated() -> Iterator[None]:
    """Plain float32 on the CPU in one thread, without gradients, autocast or side effects.

    One thread, so that a report is the same on every machine: matrix products split over threads
    may add in another order. Random numbers drawn inside leave the generator as it was, and
    warnings raised inside are not shown.
    """
    with torch_threads(1), plain_arithmetic(), without_warnings(), _float32():
        yield


@process_wide
def _float32() -> Iterator[None]:
    """torch as other programs expect it: what they make has the default dtype, which is one for
    all threads, and so are the precision of products and the generator of random numbers."""
    import torch

    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[]):
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_default_dtype(dtype)


def side_by_side(*computations: Callable[[], Result]) -> list[Result]:
    """Computations at once, each in a thread of its own, with as many of torch's as here."""
    import torch

    def computed(compute: Callable[[], Result]) -> Result:
        with plain_arithmetic():
            return compute()

    as_here = partial(take_threads, torch.get_num_threads())
    with ThreadPoolExecutor(len(computations), initializer=as_here) as pool:
        return list(pool.map(computed, computations))


@process_wide
def silent(logger: str) -> Iterator[None]:
    """Nothing of a package is logged."""
    root = logging.getLogger(logger)
    level = root.level
    root.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.setLevel(level)


@process_wide
def silent_transformers() -> Iterator[None]:
    """transformers, where it is installed, logs nothing and shows no progress."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    from transformers.utils import logging as theirs

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        # It imports torchao where that is installed, of whose classes torch 2.15 complains.
        with silent("transformers"), silent("torch.utils._pytree"):
            yield
    finally:
        if shown:
            theirs.enable_progress_bar()


def import_all(packages: Iterable[str]) -> None:
    """Import packages silently, with what of them takes long.

    What is wrong with one of them shows where it is used.
    """
    with silent("transformers"), silent("torch.utils._pytree"), suppress(Exception):
        for package in packages:
            import_module(_SLOW.get(package, package))
