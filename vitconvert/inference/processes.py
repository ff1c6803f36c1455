"""Images prepared by processes: the workers of torch's `DataLoader`, in memory that all share.

Threads of one process take turns with its interpreter, and allocate memory for each image:
benchmarks/README.md has the measurements. Processes do not. A prepared image is written once, into
memory that is used again for each batch.

These processes are no copies of the program ("fork"), which would wait for ever for whatever one
of its threads holds just then. They begin anew, without the program's own script, and are told what
it changed in Pillow.
"""

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from shutil import disk_usage
from threading import Thread
from typing import Any, NamedTuple, cast

import torch
from PIL import Image, ImageFile
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitconvert.errors import VitConvertError
from vitconvert.inference.preparing import Batch, LeftOut, Output, Picture, Prepare
from vitconvert.preprocessing.image_files import share_turns
from vitconvert.settings import plain_arithmetic, take_threads, without_main, without_warnings

_AHEAD = 2  # chunks that each worker has: the one that it prepares, and the next
_FLOAT32 = 4  # bytes
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_SHARED = Path("/dev/shm")  # noqa: S108 (where Linux has what processes share)


class Sizes(NamedTuple):
    """How batches are divided among workers.

    Attributes:
        chunk: How many images a worker is given at once.
        chunks: How many of these a whole batch has.
        slots: How many batches have memory.
    """

    chunk: int
    chunks: int
    slots: int

    @classmethod
    def of(cls, batch: int, workers: int, held: int) -> "Sizes":
        """The largest chunks of which all workers have two in one batch.

        Memory is for the batches that are `held`, for the one that is prepared and for the next;
        where a batch has less than two images for each worker, for as many as these have.
        """
        chunk = -(-batch // (_AHEAD * workers))
        chunks = -(-batch // chunk)
        return cls(chunk, chunks, held + -(-_AHEAD * workers // chunks) + 1)


def obstacle(
    prepare: Prepare, shape: tuple[int, ...], *, batch: int, workers: int, held: int
) -> str | None:
    """Why no processes can prepare images of this shape here; None if they can."""
    if multiprocessing.current_process().daemon:
        return "this is a process of another pool, which may start none of its own"
    try:
        sent = pickle.dumps((prepare, _Pillow()))
    except Exception as error:  # of whatever kind others raise
        return f"a format that was added to Pillow cannot be sent to them: {error}"
    if b"\x8c\x08__main__" in sent:
        return "a format was added to Pillow, or a preprocessing made, by code of the script itself"
    needed = Sizes.of(batch, workers, held).slots * batch * prod(shape) * _FLOAT32
    if _SHARED.is_dir() and needed > (free := disk_usage(_SHARED).free):
        return f"they need {needed / 1e6:,.0f} MB of {_SHARED}, where {free / 1e6:,.0f} are free"
    return None


class _Pillow:
    """What a program may have changed in Pillow, and a process that begins anew does not know."""

    def __init__(self) -> None:
        self.most_pixels = Image.MAX_IMAGE_PIXELS
        self.truncated = ImageFile.LOAD_TRUNCATED_IMAGES
        # As by pillow_heif's `register_heif_opener`
        self.formats = {name: e for name, e in Image.OPEN.items() if _is_foreign(e[0])}
        self.decoders = {name: e for name, e in Image.DECODERS.items() if _is_foreign(e)}

    def apply(self) -> None:
        """The same, in this process."""
        Image.MAX_IMAGE_PIXELS = self.most_pixels
        ImageFile.LOAD_TRUNCATED_IMAGES = self.truncated
        for name, (factory, accept) in self.formats.items():
            Image.register_open(name, factory, accept)
        for name, decoder in self.decoders.items():
            Image.register_decoder(name, decoder)


def _is_foreign(registered: object) -> bool:
    return not str(getattr(registered, "__module__", "")).startswith("PIL.")


class Chunk(NamedTuple):
    """What a worker is given.

    Attributes:
        slot: The number of the memory of its batch.
        rows: Where each image belongs there.
        files: Paths as text, or contents.
        folder: That relative paths start from.
    """

    slot: int
    rows: list[int]
    files: list[str | bytes]
    folder: str


# Of each image of a chunk: its error, and the remarks on it.
WhatBecame = tuple[VitConvertError | None, tuple[str, ...]]
Found = list[WhatBecame]


class _Images(Dataset[Found]):
    """What each worker has, and what it does."""

    def __init__(self, prepare: Prepare, slots: list[Tensor], turns: Any) -> None:
        self.prepare = prepare
        self.slots = slots
        self.turns = turns
        self.pillow = _Pillow()

    def begin(self, _worker: int) -> None:
        """In each worker, once."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which ends us
        Thread(target=_end_with_the_program, daemon=True).start()
        share_turns(self.turns)
        self.pillow.apply()

    def __getitem__(self, chunk: Chunk) -> Found:
        if chunk.folder:
            os.chdir(chunk.folder)
        slot = self.slots[chunk.slot]
        return [self._found(f, slot[r]) for f, r in zip(chunk.files, chunk.rows, strict=True)]

    def _found(self, file: str | bytes, row: Tensor) -> WhatBecame:
        _, prepared, remarks = self.prepare(Path(file) if isinstance(file, str) else file)
        if isinstance(prepared, VitConvertError):
            return prepared, remarks
        assert prepared.shape == row.shape, (prepared.shape, row.shape)
        row.copy_(prepared)
        return None, remarks


def _end_with_the_program() -> None:
    """torch's workers look at the process that started them, and that is not always the program."""
    if program := multiprocessing.parent_process():
        program.join()
        os._exit(1)


@dataclass(kw_only=True)
class _Started:
    """A batch of which workers have chunks.

    Attributes:
        slot: The number of its memory.
        paths: Of its images; None of those without.
        found: What became of each image, once it is known.
        left: How many chunks are not done.
    """

    slot: int
    paths: list[Path | None]
    found: dict[int, Output]
    left: int


def prepared_by_processes(
    pictures: Iterable[Picture],
    prepare: Prepare,
    *,
    shape: tuple[int, ...],
    left_out: LeftOut,
    batch: int,
    workers: int,
    threads: int,
    held: int,
) -> Generator[Batch, None, None]:
    """Images in batches, in order, as threads would prepare them, to the last bit.

    Files and contents of files are prepared by workers. Open images are by threads of this process,
    which also call functions: nobody else has them.

    Args:
        pictures: The images.
        prepare: `prepare_image` with its options, which is sent to the workers.
        shape: Of a prepared image, (C, H, W), or clip, (C, T, H, W).
        left_out: Gets the remarks on images.
        batch: How many images a batch has.
        workers: How many processes there are, with a thread each.
        threads: Of this process.
        held: How many batches may be not released yet when the next is asked for.

    Raises:
        VitConvertError: A worker ended, as where memory ran out.
    """
    sizes = Sizes.of(batch, workers, held)
    slots = [_shared(batch, *shape, dtype=torch.float32) for _ in range(sizes.slots)]
    free = deque(range(sizes.slots))
    sent: deque[tuple[_Started, list[int]]] = deque()  # the rows of each chunk, in order

    def here(picture: Picture) -> bytes | Output:
        """What a function gives, or what becomes of an image that no worker can have."""
        if callable(picture) and not isinstance(picture, Image.Image):
            try:
                picture = picture()
            except VitConvertError as error:
                picture = error
        if isinstance(picture, bytes):
            return picture
        prepared = prepare(picture)
        left_out.add(picture, prepared.remarks)
        return prepared

    def chunks() -> Iterator[Chunk]:
        rest = iter(pictures)
        while together := list(islice(rest, batch)):
            files = {row: _file(picture) for row, picture in enumerate(together)}
            ours = [row for row, file in files.items() if file is None]
            starts = range(0, len(together), sizes.chunk)
            paths = [picture if isinstance(picture, Path) else None for picture in together]
            one = _Started(slot=free.popleft(), paths=paths, found={}, left=len(starts))
            known_here = pool.map(here, [together[row] for row in ours])
            for row, known in zip(ours, known_here, strict=True):
                if isinstance(known, bytes):
                    files[row] = known
                elif isinstance(known.result, Tensor):
                    there = slots[one.slot][row].copy_(known.result)
                    one.found[row] = known._replace(result=there)
                else:
                    one.found[row] = known
            del together  # contents of files, perhaps
            for start in starts:
                every = range(start, min(start + sizes.chunk, len(paths)))
                given = {row: file for row in every if (file := files.pop(row)) is not None}
                sent.append((one, [*given]))
                yield Chunk(one.slot, [*given], [*given.values()], _folder())

    processes: list[Any] = []
    context = _context(processes)
    images = _Images(prepare, slots, context.Lock())
    with ThreadPoolExecutor(threads, initializer=partial(take_threads, 1)) as pool:
        try:
            # By another thread: where the main one begins workers, and one of them ends, torch
            # raises an error in whatever the main thread does then (torch 2.14,
            # `_set_SIGCHLD_handler`).
            loaded = pool.submit(_begin, images, chunks(), workers, context).result()
            while (found := _next(loaded)) is not None:
                one, rows = sent.popleft()
                for row, (error, remarks) in zip(rows, found, strict=True):
                    path, result = one.paths[row], error or slots[one.slot][row]
                    one.found[row] = Output(path, result, remarks)
                    left_out.add(path or b"", remarks)
                one.left -= 1
                if not one.left:
                    yield _batch(one, slots[one.slot], partial(free.append, one.slot))
        finally:
            loaded = iter(())  # torch ends the workers now, unless an error holds what it has
            for process in processes:
                if process.is_alive():
                    process.terminate()
                    process.join()


def _context(processes: list[Any]) -> Any:
    """What starts workers; each is noted."""
    context: Any = copy(multiprocessing.get_context(_METHOD))
    make = context.Process

    def noted(*arguments: Any, **named: Any) -> Any:
        processes.append(make(*arguments, **named))
        return processes[-1]

    context.Process = noted
    if _METHOD == "forkserver":  # it imports once what each worker would
        context.set_forkserver_preload([__name__])
    return context


def _shared(*shape: int, dtype: torch.dtype) -> Tensor:
    """Memory that processes share."""
    with plain_arithmetic():
        made = torch.zeros(*shape, dtype=dtype, device="cpu")
        return cast("Tensor", made.share_memory_())  # type: ignore[no-untyped-call]


def _file(picture: Picture) -> str | bytes | None:
    """What a worker is sent; None if it cannot have it."""
    if isinstance(picture, Path):
        return os.fspath(picture)
    return picture if isinstance(picture, bytes) else None


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return ""


def _batch(one: _Started, slot: Tensor, release: Callable[[], None]) -> Batch:
    count = len(one.paths)
    outputs = [one.found[row] for row in range(count)]
    kept = [row for row in range(count) if isinstance(outputs[row].result, Tensor)]
    images = slot[:count] if len(kept) == count else slot[kept]
    return Batch(outputs=outputs, images=images if kept else None, release=release)


def _begin(images: _Images, chunks: Iterator[Chunk], workers: int, context: Any) -> Iterator[Found]:
    """Start the workers."""
    with without_main(), without_warnings(UserWarning):  # of more workers than processors
        loader = DataLoader(
            images,
            batch_size=None,  # what a worker prepares at once is for the sampler to say
            sampler=chunks,
            collate_fn=_same,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            worker_init_fn=images.begin,
            multiprocessing_context=context,
            generator=torch.Generator(),  # else it draws from the program's random numbers
        )
        return iter(loader)


def _same(found: Found) -> Found:
    return found


def _next(loaded: Iterator[Found]) -> Found | None:
    """What became of the next chunk; None after the last.

    Raises:
        VitConvertError: A worker ended.
    """
    try:
        return next(loaded, None)
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise VitConvertError(
            "A process that prepares images ended before its work was done.",
            evidence={"torch": str(error).partition("\n")[0]},
            meaning="The system ends processes where memory runs out; or a decoder crashed.",
            hint="--workers N starts fewer, and 0 none (in Python, workers=).",
        ) from None
