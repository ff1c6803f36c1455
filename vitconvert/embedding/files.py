"""Files of images, here or behind a URL, and what is found in them."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from vitconvert.documents import open_regular
from vitconvert.errors import SourceError, UnsafeFile, UsageError, VitConvertError
from vitconvert.inference.preparing import Picture

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Of an image that is read whole: more than the largest photos have. Some twenty are in memory.
MOST_BYTES = 2**27
# Of what is packed together, for each byte that it has: images hardly shrink.
MOST_TIMES = 100

_PATIENCE = 10  # seconds for a store to answer for the first time
_MOMENT = 0.1  # seconds for which names are gathered

Thing = TypeVar("Thing")
# Whether the images of keys are to be computed; asked once for each.
Wanted = Callable[[Sequence[str]], Sequence[bool]]


def grouped(things: Iterable[Thing], most: int = 2**12) -> Iterator[list[Thing]]:
    """Things in groups, in order, of those that come within a moment: slow ones do not wait."""
    group, begun = list[Thing](), time.monotonic()
    try:
        for thing in things:
            group.append(thing)
            if len(group) == most or time.monotonic() - begun > _MOMENT:
                yield group
                group, begun = [], time.monotonic()
    except VitConvertError:
        yield group  # what came before is not lost
        raise
    yield group


@dataclass(frozen=True, slots=True)
class Item:
    """One image: what it is called, the image or why there is none, and its other columns."""

    key: str
    picture: Picture
    columns: Mapping[str, object] = field(default_factory=dict)


def is_url(name: str) -> bool:
    """Whether this names a place of an object store."""
    return "://" in name


def lowered(name: str) -> str:
    """A name whose end tells the kind of file: a URL's without what follows a question mark."""
    return (name.partition("?")[0] if is_url(name) else name).lower()


def digest(name: str) -> bytes:
    """128 bits that stand for a key."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def text(name: str) -> str:
    r"""A name as a column of text can hold it: what is no text becomes an escape, \udcff."""
    return name.encode("utf-8", "backslashreplace").decode()


def reason(error: VitConvertError) -> str:
    """Why there are no features of an image, in a line; the key says of which."""
    evidence = (
        f"{name}: {value}"
        for name, value in error.evidence.items()
        if name not in ("image", "file", "archive")
    )
    return "; ".join((error.fact.rstrip("."), *evidence))


def too_large(name: str) -> UnsafeFile:
    """That nothing of this size is read for an image."""
    return UnsafeFile(
        "The file is too large for an image.",
        evidence={"image": name, "limit": f"{MOST_BYTES:,} bytes"},
    )


@lru_cache(maxsize=8)  # each is a connection
def filesystem(url: str) -> "tuple[FileSystem, str]":
    """pyarrow's filesystem for a URL, and the path in it.

    Raises:
        UsageError: pyarrow has none for it.
        SourceError: The store cannot be reached.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        system, path = FileSystem.from_uri(url)
        if url.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in url:
            # Google's client asks for a quarter of an hour, without a word: ask once for a shorter
            # time. Whether an answer is a refusal, later calls tell.
            patience = f"{'&' if '?' in url else '?'}retry_limit_seconds={_PATIENCE}"
            impatient, _ = FileSystem.from_uri(url + patience)
            try:
                impatient.get_file_info(path)
            except OSError as error:
                if "Retry policy exhausted" in str(error):
                    raise
    except pa.ArrowException as error:
        raise UsageError(
            "This is not a place that can be read or written.", evidence={"URL": url, "why": error}
        ) from None
    except OSError as error:
        raise SourceError(
            "The store cannot be reached.", evidence={"URL": url, "why": error}
        ) from None
    return system, path.rstrip("/")


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Ask a store; what pyarrow raises of it that is no error of a file says why it cannot.

    Raises:
        SourceError: The store cannot be asked, as without credentials.
    """
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise SourceError(
            "The store does not answer.",
            evidence={"URL": url, "why": error},
            hint="are there credentials, as the store's own tools take them from the environment?",
        ) from None


def opened(name: str) -> "InputFile":
    """A file to read, in any order.

    Raises:
        SourceError: It cannot be opened.
    """
    try:
        if not is_url(name):
            return InputFile(open_regular(Path(name)), name)
        place, question, query = name.partition("?")
        scheme, _, path = place.partition("://")
        server, _, inside = path.partition("/")
        # By the bucket, so that all its objects share a connection.
        system, bucket = filesystem(f"{scheme}://{server}{question}{query}")
        with asking(name):
            return InputFile(system.open_input_file(f"{bucket}/{inside}"), name)
    except (OSError, ValueError) as error:
        raise SourceError(
            "The file cannot be opened.",
            evidence={"file": name, "why": getattr(error, "strerror", None) or error},
        ) from None


class InputFile:
    """An open file, whose troubles with the disk or the network are told from damage.

    What reads archives takes an OSError for a damaged archive, and damage is recorded for good.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.name = name
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self.readable, self.seekable = file.readable, file.seekable  # pyarrow and gzip ask

    def read(self, size: int = -1) -> bytes:
        """The next bytes.

        Raises:
            SourceError: The disk, or the store, does not give them.
        """
        try:
            return self._file.read(size)
        except OSError as error:
            raise SourceError(
                "The file cannot be read.",
                evidence={"file": self.name, "why": error.strerror or error},
            ) from None

    def size(self) -> int:
        """How many bytes it has."""
        here, end = self.tell(), self.seek(0, os.SEEK_END)
        self.seek(here)
        return end

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def __enter__(self) -> "InputFile":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
