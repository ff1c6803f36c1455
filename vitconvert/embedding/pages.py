"""What the pages of a Parquet file become when they are unpacked, read before any of them is.

The footer says how large a column is, and may say anything; what is allocated is what the header
of each page says.
Source: github.com/apache/parquet-format, parquet.thrift (PageHeader) and Thrift's compact protocol.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitconvert.embedding.places import Reading

_HEADERS = (2**12, 2**24)  # bytes that are read for one: most have 30; Arrow takes 16 MiB
_DATA, _DICTIONARY = 0, 2  # types of pages; the other with values is a newer one of data
_DELTA_BYTES = 7  # an encoding: each value begins as the one before it


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, as its header describes it.

    Attributes:
        packed: Bytes in the file.
        unpacked: Bytes of which its values are read.
        repeats: Whether a row may take few of them and become all of them.
    """

    packed: int
    unpacked: int
    repeats: bool


def pages(file: Reading, begin: int, end: int) -> Iterator[Page]:
    """The pages between two places of a file.

    Raises:
        ValueError: There are none.
    """
    while begin < end:
        header, size = _read_header(file, begin)
        kind, unpacked, packed = (header.get(number) for number in (1, 2, 3))
        if not isinstance(packed, int) or not isinstance(unpacked, int):
            raise ValueError("a page without a size")
        if not 0 <= packed < 2**31 or not 0 <= unpacked < 2**31:
            raise ValueError("a page of a size that it cannot have")
        encoding = header.get(5, {}).get(2) if kind == _DATA else header.get(8, {}).get(4)
        repeats = kind == _DICTIONARY or encoding == _DELTA_BYTES
        yield Page(packed=packed, unpacked=unpacked, repeats=repeats)
        begin += size + packed


def _read_header(file: Reading, place: int) -> tuple[dict[int, Any], int]:
    for size in _HEADERS:
        file.seek(place)
        reader = _Compact(file.read(size))
        try:
            return reader.struct(), reader.position
        except IndexError:
            continue
    raise ValueError("a page without an end of its header")


class _Compact:
    """Reads structs of Thrift's compact protocol: what there is in headers of pages."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Its fields by their numbers."""
        if depth > 4:
            raise ValueError("a header within headers")
        found: dict[int, Any] = {}
        number = 0
        while start := self._byte():
            number = number + (start >> 4) if start >> 4 else self._whole()
            found[number] = self._value(start & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._whole()
            case 7 | 8:
                length = 8 if kind == 7 else self._natural()
                self.position += length
                return None
            case 12:
                return self.struct(depth + 1)
        raise ValueError("a header with more than numbers")

    def _whole(self) -> int:
        value = self._natural()
        return value >> 1 ^ -(value & 1)

    def _natural(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number without an end")

    def _byte(self) -> int:
        byte = self._content[self.position]
        self.position += 1
        return byte
