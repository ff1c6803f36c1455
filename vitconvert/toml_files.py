"""Where the tables lie, and TOML whose sections are parsed when they are first asked for.

A run needs a fifth of the sections: of `vitconvert list`, which looks into most of the files, they
take 6 ms, and all would take 24 (Python 3.11). All as one file that Python loads took 2, and would
have to be made anew whenever a table changes.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
_HEADER = re.compile(r"^\[([A-Za-z0-9_.]+)\].*\n", re.MULTILINE)
_KEY = re.compile(r"(\w+) = ")


def tables_dir() -> Path:
    """The mapping tables: inside the package once installed, next to it in a checkout."""
    installed = _PACKAGE / "weights_map"
    return installed if installed.is_dir() else _PACKAGE.parent / "weights_map"


@functools.cache
def read_tables(name: str) -> Mapping[str, Any]:
    """The sections of `weights_map/NAME.toml`."""
    return LazyToml((tables_dir() / f"{name}.toml").read_text(encoding="utf-8"))


class LazyToml(Mapping[str, Any]):
    """The sections of a text of which each line that begins like a header is one.

    Asking for a section raises `tomllib.TOMLDecodeError` if it is not TOML.
    """

    def __init__(self, text: str) -> None:
        headers = list(_HEADER.finditer(text))
        ends = [header.start() for header in headers[1:]]
        self._texts: dict[str, list[str]] = {}
        for header, end in zip(headers, [*ends, len(text)], strict=True):
            name = header[1].partition(".")[0]
            self._texts.setdefault(name, []).append(text[header.start() : end])
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._parsed:
            import tomllib  # late: `--help` needs no table

            self._parsed[name] = tomllib.loads("".join(self._texts[name]))[name]
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def parse_inline_table(text: str) -> dict[str, Any]:
    """Parse `{ name = value, ... }` of which no text holds an equals sign, as tomllib does.

    It takes a third of tomllib's time, which counts where hundreds are compared.
    """
    table: dict[str, Any] = json.loads(_KEY.sub(r'"\1": ', text))
    return table
