"""The JSON files beside the weights, as they are: what they say is weighed elsewhere."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.documents import read_object
from vitconvert.errors import CorruptFile
from vitconvert.sources import Located

# What vitconvert reads back of its own record, and of which kind it is.
_OWN = (("target", str, "a text"), ("config", dict, "an object"))


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The JSON files beside the weights, each parsed once, when it is first asked for.

    Asking for one raises CorruptFile if it is no JSON object, or SourceError if it cannot be read.
    """

    located: Located

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The project's own `config.json` or `open_clip_config.json`, empty if there is none."""
        return _read(self.located.config) or {}

    @functools.cached_property
    def own(self) -> Mapping[str, Any]:
        """`vitconvert.json`, which vitconvert itself wrote, empty if there is none."""
        own = _read(self.located.own) or {}
        for key, kind, expected in _OWN:
            if not isinstance(own.get(key, kind()), kind):
                raise CorruptFile(
                    f"{key} in vitconvert.json is not {expected}.",
                    evidence={"file": self.name_of("own"), "found": repr(own[key])[:80]},
                    hint="convert the original again, or remove this file.",
                )
        return own

    @functools.cached_property
    def preprocessor(self) -> Mapping[str, Any] | None:
        """`preprocessor_config.json`, or None."""
        return _read(self.located.preprocessor)

    def name_of(self, kind: str) -> str:
        """Where "config", "own" or "preprocessor" lies, for messages."""
        return str(getattr(self.located, kind))


def _read(path: Path | None) -> Mapping[str, Any] | None:
    return None if path is None else read_object(path)
