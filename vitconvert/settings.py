"""Settings of the program that calls us: no result depends on them, and all stay as they were.

Those of a thread (`plain_arithmetic`, `torch_threads`) are changed in it alone. Those of the
process (`process_wide`: filters of warnings, levels of loggers, torch's default dtype) are changed
where code of others needs it and nothing else helps. Our own code names the dtype of each tensor
that it makes, because the default dtype is one for all threads.
"""

import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from threading import Lock
from types import ModuleType
from typing import ParamSpec, cast

P = ParamSpec("P")

_TAKING = Lock()
_OF_A_FILE = ("__file__", "__spec__")  # what of a module says how it is imported again


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Compute as in a thread that nobody set up: whatever it was set to, it has back afterwards.

    Tensors are made on the CPU and without gradients, and are no inference tensors, which no
    optimiser would take; autocast is off; the smallest numbers are not flushed to zero; numpy
    raises nothing. What was not imported has no settings, and is not imported.
    """
    with ExitStack() as stack:
        if "numpy" in sys.modules:
            import numpy as np

            stack.enter_context(np.errstate(all="ignore"))
        if "torch" in sys.modules:
            import torch

            _threads_here()
            if sys.float_info.min / 2 == 0:  # torch sets it, and does not tell
                torch.set_flush_denormal(False)
                stack.callback(torch.set_flush_denormal, True)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast("cpu", enabled=False))
            if torch.get_default_device().type != "cpu":  # it makes each call slower
                stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Have torch compute with so many threads in this thread of Python; None: as it is."""
    before = _threads_here()
    if count in (None, before):
        yield
        return
    take_threads(count)
    try:
        yield
    finally:
        take_threads(before)


def _threads_here() -> int:
    """With how many threads torch computes in this thread of Python.

    It is what holds for new threads when torch is first used in one, so nobody else may be changing
    that just then.
    """
    import torch

    with _TAKING:
        return torch.get_num_threads()


def take_threads(count: int) -> None:
    """Have torch compute with so many threads in this thread of Python, from now on.

    `torch.set_num_threads` does so, and decides for threads of Python that begin later, too: a new
    one knows what that was before, and says it again (ATen/ParallelOpenMP.cpp, torch 2.15).
    """
    import torch

    with _TAKING, ThreadPoolExecutor(1) as new:
        usual = new.submit(torch.get_num_threads).result()
        torch.get_num_threads()  # else the first use of torch here would take that of new threads
        torch.set_num_threads(count)
        new.submit(torch.set_num_threads, usual).result()


def process_wide(
    function: Callable[P, Iterator[None]],
) -> Callable[P, AbstractContextManager[None]]:
    """A context manager of settings of the process, for several threads at once.

    The first thread that enters changes them, and the last that leaves puts them back. If each did
    so, one would put back what another had set.
    """
    make, lock = contextmanager(function), Lock()
    inside: dict[Hashable, tuple[AbstractContextManager[None], int]] = {}

    @contextmanager
    @wraps(function)
    def shared(*args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        key = (args, *sorted(kwargs.items()))
        with lock:
            entered, count = inside.get(key) or (make(*args, **kwargs), 0)
            if not count:
                entered.__enter__()
            inside[key] = entered, count + 1
        try:
            yield
        finally:
            with lock:
                entered, count = inside.pop(key)
                if count > 1:
                    inside[key] = entered, count - 1
                else:
                    entered.__exit__(None, None, None)

    return shared


@process_wide
def without_warnings(category: type[Warning] = Warning) -> Iterator[None]:
    """Nothing of a category warns, whatever warnings are to be: not shown, or errors.

    A filter is added, and removed. `catch_warnings` would put back a whole list: other threads do
    so too, while libraries are imported, and what they put back might be a list with our filter.
    """
    here = cast("list[object]", warnings.filters)
    everything = "(?s).*"  # spelled as nobody else spells it
    warnings.filterwarnings("ignore", message=everything, category=category)
    ours = here[0]
    try:
        yield
    finally:
        for filters in (here, cast("list[object]", warnings.filters)):
            if ours in filters:
                filters.remove(ours)


@process_wide
def without_main() -> Iterator[None]:
    """Processes of `multiprocessing` that are started inside do not import the program's script.

    Each would otherwise, and run it again where it does not ask whether its name is `__main__`:
    https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods.
    With a GPU, processes start without being asked for, and no error could come before a script has
    run twice. multiprocessing has no option for that (nor has joblib's loky needed the script by
    default), but leaves `__main__` alone where that has no file, as in an interactive session. So
    a module stands in for it that has all its names but these: threads that pickle what is of the
    script meanwhile find it there. What is sent to the processes must not be of that script.
    """
    script = sys.modules["__main__"]
    stand_in = ModuleType("__main__")
    names = {name: value for name, value in vars(script).items() if name not in _OF_A_FILE}
    vars(stand_in).update(names)
    sys.modules["__main__"] = stand_in
    try:
        yield
    finally:
        sys.modules["__main__"] = script
