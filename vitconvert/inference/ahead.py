"""Work that threads do ahead of whoever needs it, in order, and never far ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped_ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    ahead: int,
    threads: int | None = None,
    begin: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """`map(function, items)` with threads, in order.

    While the caller is busy with one result, the next `ahead` are worked on; no more are begun,
    so that memory does not grow with the number of items. Threads do because Pillow, numpy and
    torch let go of the interpreter's lock while they decode, resize and compute.

    Args:
        threads: How many; by default as many as processors.
        begin: What each thread does first.
    """
    waiting: deque[Future[Result]] = deque()
    count = threads or processors()
    pool = ThreadPoolExecutor(count, thread_name_prefix="vitconvert", initializer=begin)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def processors() -> int:
    """How many this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
