"""JSON: what others wrote, read within bounds of its size, its depth and its numbers; and ours."""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from vitconvert.errors import CorruptFile, SourceError, is_address

# An object of JSON, whose reader checks its values; and one that may be added to.
JsonObject = Mapping[str, Any]
JsonDict = dict[str, Any]

# The longest that are known, of models with thousands of tensors or classes, have a few million
# bytes. As Python objects, text can take thirty times its size.
MOST_BYTES = 4 * 2**20
MOST_DEPTH = 64  # of lists and objects in one another: Python's own recursion has an end

_MOST_DIGITS = 18  # a whole number of so many is less than 2^63
_MANY_DIGITS = re.compile(rb"[0-9]{%d}" % _MOST_DIGITS)


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        SourceError: There is no file, or it cannot be read.
        CorruptFile: It is too large, too deep, no JSON, or JSON without an object at the top.
    """
    try:
        return parse_object(read_bytes(path))
    except ValueError as error:
        raise CorruptFile(
            f"{path.name} is not JSON that can be read.", evidence={"file": path, "problem": error}
        ) from None


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file, if it is one, and of so many bytes at most.

    Raises:
        SourceError: There is no file, or it cannot be read.
        ValueError: It is too large.
    """
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise ValueError(f"{size:,} bytes; {most:,} at most are read")
            return file.read(most)
    except OSError as error:
        if is_address(str(path)):
            raise SourceError(
                "A file is read here, and not an address.",
                evidence={"address": path},
                hint="download it first, and name the file.",
            ) from None
        raise SourceError(
            f"{path.name} cannot be read.", evidence={"file": path, "reason": error.strerror}
        ) from None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read, and nothing else: a pipe or a device might never answer.

    Raises:
        OSError: There is none.
    """
    at_once: int = getattr(os, "O_NONBLOCK", 0)  # Windows has no pipes among files
    file: BinaryIO = open(  # noqa: SIM115 (a Path has no opener)
        path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return file


def parse_object(text: bytes | bytearray) -> dict[str, Any]:
    """The object that stands in UTF-8 as JSON; of two equal keys the last counts, as in Python.

    Raises:
        ValueError: It is too large, too deep, no JSON, or JSON without an object at the top.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} bytes; {MOST_BYTES:,} at most are read")
    try:
        parse_int = _whole_number if _MANY_DIGITS.search(text) else None  # a slow one, and a fast
        value = json.loads(text.decode("utf-8"), parse_int=parse_int)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_values(value)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object at the top, found {_KINDS[type(value)]}")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, indented for people."""
    path.write_text(
        json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )


def check_values(value: object) -> None:
    """Make sure that all in a document can be walked through, counted with and written again.

    Raises:
        ValueError: It is too deep, or holds halves of characters or numbers without end.
    """
    level = [value]
    for _ in range(MOST_DEPTH):
        inside: list[object] = []
        for found in level:
            if isinstance(found, str):
                found.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
            elif isinstance(found, list):
                inside += found
            elif isinstance(found, dict):
                inside += found
                inside += found.values()
            elif isinstance(found, int) and abs(found) >= 2**63:
                raise ValueError("a whole number of more than 64 bits")
        if not inside:
            return
        level = inside
    raise ValueError(_TOO_DEEP)


def _whole_number(digits: str) -> int | float:
    """A number that is larger than any count is a float, as in other languages."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


_TOO_DEEP = f"lists and objects in one another, more than {MOST_DEPTH} deep"
_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
