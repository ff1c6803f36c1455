"""A unit: the part of the input that one shard holds the answers of; and the images in it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitconvert.errors import VitConvertError
from vitconvert.inference.batches import Picture

_WHERE = ("image", "file", "archive")  # which the key says


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Images that are computed together, as the plan holds them.

    Attributes:
        number: Of the unit, from 0.
        part: Name of its shard, such as part-000003-of-000010.parquet.
        rows: How many images.
        kind: "files", "tar" or "parquet".
        file: The archive, as it was named; of files, their list, in the folder of the plan.
        state: What the archive was like: see `state_of`.
        base: The directory that relative names of files start from.
        begin: Where in the archive: a byte of a tar, a row of Parquet.
        ends_early: Whether the tar is cut short behind the last image.
    """

    number: int
    part: str
    rows: int
    kind: str
    file: str
    state: tuple[int, int] | None = None
    base: str = ""
    begin: int = 0
    ends_early: bool = False

    @property
    def place(self) -> str:
        """Where the archive is, from any directory."""
        return place_of(self.file, self.base)


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a unit.

    Attributes:
        key: What it is called: a path, or a place in an archive.
        picture: The image, or the reason why there is none.
        columns: What goes along with it into the shard, by the name of the column.
        changed: Whether the file is another than when the plan was made.
    """

    key: str
    picture: Picture
    columns: Mapping[str, Any] = field(default_factory=dict)
    changed: bool = False


def place_of(name: str, base: str) -> str:
    """Where a file is that was named in a directory; a URL is the same from anywhere."""
    return name if "://" in name else os.path.join(base, name)  # noqa: PTH118 (a Path drops ./)


def key_of(name: str) -> str:
    """What the rows of a file say that it is: a URL without what is said of its server."""
    return name.partition("?")[0] if "://" in name else name


def encoded(name: str) -> bytes:
    """A name as bytes, whatever it is made of: names of files need not be text."""
    return name.encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """What `encoded` was given."""
    return name.decode("utf-8", "surrogatepass")


def text(name: str) -> str:
    r"""A name as a column of text can hold it: what is no text becomes an escape, \udcff."""
    return name.encode("utf-8", "backslashreplace").decode()


def reason(error: VitConvertError) -> str:
    """Why there are no features of an image, in a line."""
    evidence = (f"{key} {value}" for key, value in error.evidence.items() if key not in _WHERE)
    return "; ".join((error.fact.rstrip("."), *evidence))
