"""Arithmetic that does not depend on how the process was set up, and leaves it as it was."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

Result = TypeVar("Result")


@contextmanager
def isolated() -> Iterator[None]:
    """Plain float32 on the CPU in one thread, without gradients, autocast or side effects.

    One thread, so that a report is the same on every machine: matrix products split over threads
    may add in another order. Random numbers drawn inside leave the generator as it was, and
    warnings raised inside are not shown.
    """
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(torch.set_num_threads, threads)
        stack.callback(torch.set_float32_matmul_precision, precision)
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
        yield


def side_by_side(*computations: Callable[[], Result]) -> list[Result]:
    """Computations at once, each in a thread of its own.

    Autocast, default devices and gradients are settings of a thread. A new thread has no autocast
    and no default device; gradients are switched off in it.
    """

    import torch

    @torch.no_grad()
    def computed(compute: Callable[[], Result]) -> Result:
        return compute()

    with ThreadPoolExecutor(len(computations)) as pool:
        return list(pool.map(computed, computations))


@contextmanager
def silent(logger: str) -> Iterator[None]:
    """Nothing of a package is logged."""
    root = logging.getLogger(logger)
    level = root.level
    root.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.setLevel(level)


@contextmanager
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
