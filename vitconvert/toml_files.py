"""Where the tables lie, and TOML whose sections are parsed when they are first asked for.

tomllib takes longer for all tables than everything else takes that comes before the weights. Most
sections are plain: on each line one name, and one value that JSON writes alike, but for the names
of an inline table. The others are tomllib's.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent

_HEADER = re.compile(r"^\[([A-Za-z0-9_.]+)\].*\n", re.MULTILINE)
_TEXT = r'"[^"\\\x00-\x1f]*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_PAIR = rf'[a-z_]+ = (?:"[a-z_]*"|{_NUMBER}|true|false|\[\])'
_ITEM = rf"(?:{_TEXT}|{_NUMBER})"
_ARRAY = rf"\[\s*(?:{_ITEM}(?:,\s+{_ITEM})*)?,?\s*\]"
_TABLE = rf"\{{ {_PAIR}(?:, {_PAIR})* \}}"
_VALUE = rf"{_TEXT}|{_NUMBER}|true|false|{_ARRAY}|{_TABLE}"
_PLAIN = re.compile(
    rf"^({_TEXT}|[A-Za-z0-9_]+)[ \t]*=[ \t]*({_VALUE})[ \t]*(?:#.*)?$", re.MULTILINE
)
_KEY = re.compile(r"(\w+) = ")
_LAST_COMMA = re.compile(r",\s*\]\Z")
_LINE = re.compile(r"^[ \t]*[^\s#]", re.MULTILINE)  # neither blank nor a comment


def tables_dir() -> Path:
    """The mapping tables: inside the package once installed, beside it in a checkout."""
    installed = _PACKAGE / "weights_map"
    return installed if installed.is_dir() else _PACKAGE.parent / "weights_map"


class LazyToml(Mapping[str, Any]):
    """The sections of a text of which each line that begins like a header is one.

    Asking for a section raises `tomllib.TOMLDecodeError` if it is not TOML.
    """

    def __init__(self, text: str) -> None:
        headers = list(_HEADER.finditer(text))
        ends = [header.start() for header in headers[1:]]
        self._texts: dict[str, list[tuple[str, str]]] = {}  # name -> path inside, lines
        for header, end in zip(headers, [*ends, len(text)], strict=True):
            name, _, path = header[1].partition(".")
            self._texts.setdefault(name, []).append((path, text[header.end() : end]))
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._parsed:
            section: dict[str, Any] = {}
            for path, lines in self._texts[name]:
                inner = section
                for step in filter(None, path.split(".")):
                    inner = inner.setdefault(step, {})
                inner |= _parse(lines)
            self._parsed[name] = section
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _parse(lines: str) -> dict[str, Any]:
    found = _PLAIN.findall(lines)
    said = {name.strip('"'): _value(text) for name, text in found}
    if len(said) == len(found) and not _LINE.search(_PLAIN.sub("", lines)):
        return said
    # Something is not plain, or a name stands there twice.
    import tomllib  # late: it takes longer to import than to read what is left to it

    return tomllib.loads(lines)


def _value(text: str) -> Any:
    if text[0] == "{":
        return parse_inline_table(text)
    return json.loads(_LAST_COMMA.sub("]", text) if text[0] == "[" else text)


def parse_inline_table(text: str) -> dict[str, Any]:
    """Parse `{ name = value, ... }` of which no text holds an equals sign."""
    table: dict[str, Any] = json.loads(_KEY.sub(r'"\1": ', text))
    return table
