"""What the module of a format has. `vitconvert/file_formats.py` names the module of each format.

A format that is only read has `open_file`; one that is also written has all of `WrittenFormat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from vitconvert.errors import MissingPackage
from vitconvert.file_formats import Format, written_formats
from vitconvert.formats.container import Container
from vitconvert.formats.content import Content

if TYPE_CHECKING:
    from vitconvert.formats.zip_archive import Member

Untyped = Any
"""An object of a package that has no types: h5py, gguf, msgpack or tensorstore."""

Array = tuple[str, tuple[int, ...], bytes]
"""Name, shape, and the elements in row-major order."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a file holds besides its tensors. A format that has no place for a part leaves it out.

    Attributes:
        metadata: Text for the header.
        wrapper: The key of an outer dict under which the tensors stand; "" is none.
        extras: What else stands in the outer dict, after the tensors.
        config: What the file itself states about the model, in sections.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    wrapper: str = ""
    extras: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)


ALONE = Surroundings()
"""Tensors with nothing beside them."""


class ReadFormat(Protocol):
    """The module of a format that is read."""

    def open_file(
        self, path: Path, members: Mapping[str, Member], prefer: tuple[str, ...], rescue: bool, /
    ) -> Container:
        """Read the header of a file.

        Args:
            path: The file.
            members: Of the zip archive that the file is; empty if it is none.
            prefer: Wrapper keys to try before the usual ones.
            rescue: Of whole objects that a program saved, read the tensors as data.
        """


class WrittenFormat(ReadFormat, Protocol):
    """The module of a format that is written, too.

    Attributes:
        READER: The function of another library that reads such files.
        EXAMPLE: Python that reads the file of an output with it.
    """

    READER: str
    EXAMPLE: str

    def write_file(
        self,
        path: Path,
        contents: Mapping[str, Content],
        surroundings: Surroundings,
        /,
    ) -> str:
        """Write a file, whole or not at all, and return its sha256."""

    def read_plainly(self, path: Path, wrapper: str, /) -> Iterator[Array]:
        """Read a file with `READER`, without any code of ours, to prove what was written."""


def module_of(form: Format) -> ReadFormat:
    """The module of a format."""
    return cast(ReadFormat, import_module(form.module))


def written_module(name: str) -> WrittenFormat:
    """The module of a format that is written, by the format's name."""
    return cast(WrittenFormat, import_module(written_formats()[name].module))


def imported(package: str, format_name: str, path: Path) -> ModuleType:
    """The package that reads and writes a format.

    Raises:
        MissingPackage: It is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingPackage(
            f"{package}, which reads and writes {format_name}, is not installed.",
            evidence={"file": path},
            hint=f"pip install {package}",
        ) from error
