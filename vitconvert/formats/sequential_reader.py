"""Reads the header of a file from its beginning on, and never past its end."""

from pathlib import Path
from typing import BinaryIO

from vitconvert.errors import CorruptFile


class SequentialReader:
    """A file from its beginning on; its mistakes are errors with their place."""

    too_short = "The file is truncated."

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.values = 0  # that were read; whoever reads them has a limit

    def bytes(self, length: int) -> bytes:
        """The next bytes."""
        data = self.file.read(length)
        if len(data) < length:
            raise self.truncated()
        return data

    def skip(self, length: int) -> None:
        """Go on after so many bytes."""
        if self.file.tell() + length > self.size:
            raise self.truncated()
        self.file.seek(length, 1)

    def truncated(self) -> CorruptFile:
        """What is said of a file that ends too early."""
        return CorruptFile(
            self.too_short,
            evidence={"file": self.path, "found": f"{self.size:,} bytes"},
            hint="download it again.",
        )

    def corrupt(self, fact: str) -> CorruptFile:
        """A mistake before the place that was reached."""
        return CorruptFile(fact, evidence={"file": self.path, "before byte": self.file.tell()})
